"""fastconv.conv_bn_act: a convolution with the batch normalisation behind it, as one node of autograd."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fastconv
import reference
from fastconv.activation import ACTIVATIONS

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
EPS, MOMENTUM = 1e-3, 0.2
NAMES = ["input", "weight", "bias", "residual", "norm_weight", "norm_bias"]


class Operands:
    """Of a call, in float64 as well; values that the narrow type has."""

    def __init__(
        self, device: str, dtype: torch.dtype, layout: str = "nchw", bias: bool = True, residual: bool = True
    ) -> None:
        generator = torch.Generator().manual_seed(3)
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def random(*size: int, of: torch.dtype = dtype) -> Tensor:
            tensor = torch.randn(*size, generator=generator, dtype=torch.float64).to(device, of)
            return tensor.contiguous(memory_format=LAYOUTS[layout]) if len(size) == 4 else tensor

        self.leaves: list[Any] = [
            random(3, 8, 9, 12),
            random(16, 4, 3, 3),
            random(16) if bias else None,
            random(3, 16, 5, 6) if residual else None,
            random(16, of=wide),
            random(16, of=wide),
        ]
        self.running = random(16, of=wide), random(16, of=wide).abs() + 0.1
        self.grad = random(3, 16, 5, 6)

    def doubled(self) -> Operands:
        other = object.__new__(Operands)
        other.leaves = [None if leaf is None else leaf.double() for leaf in self.leaves]
        other.running, other.grad = tuple(t.double() for t in self.running), self.grad.double()  # type: ignore[assignment]
        return other


def ours(leaves: list[Any], running: Any, training: bool, activation: Any, **options: Any) -> Tensor:
    input, weight, bias, residual, *norm = leaves
    call: Any = fastconv.conv_bn_act
    options |= {"training": training, "momentum": MOMENTUM, "eps": EPS, "activation": activation, "residual": residual}
    output: Tensor = call(input, weight, bias, *running, *norm, 2, (1, 1), groups=2, precision="ieee", **options)
    return output


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """With the gradient of what it was."""
    return tensor + (tensor.detach().to(dtype).double() - tensor.detach())


def torchs(
    leaves: list[Any], running: Any, training: bool, activation: Any, dtype: torch.dtype, cast: bool = False
) -> Tensor:
    """In float64, of the convolution's output in `dtype`: whether a value is below zero hangs on that. cast: its
    operands, too."""
    input, weight, bias, residual, *norm = leaves
    if cast:
        input, weight = rounded(input, dtype), rounded(weight, dtype)
        bias = None if bias is None else rounded(bias, dtype)
    z = rounded(F.conv2d(input, weight, bias, 2, 1, 1, 2), dtype)
    z = F.batch_norm(z, *running, *norm, training, MOMENTUM, EPS)  # type: ignore[call-arg]  # what *running is
    return reference.ACTIVATIONS[activation](z if residual is None else z + residual)


def train(function: Any, o: Operands, training: bool, activation: Any, **options: Any) -> dict[str, Tensor]:
    leaves = [None if leaf is None else leaf.detach().clone().requires_grad_() for leaf in o.leaves]
    running = [tensor.clone() for tensor in o.running]
    y = function(leaves, running, training, activation, **options)
    named = [(name, leaf) for name, leaf in zip(NAMES, leaves, strict=True) if leaf is not None]
    grads = torch.autograd.grad(y, [leaf for _, leaf in named], o.grad)
    found = {"output": y.detach(), "mean": running[0], "var": running[1]}
    return found | {name: grad for (name, _), grad in zip(named, grads, strict=True)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_values_and_gradients(device: str, activation: Any, dtype: torch.dtype, layout: str) -> None:
    for training, bias, residual in itertools.product((False, True), repeat=3):
        o = Operands(device, dtype, layout, bias, residual)
        found = train(ours, o, training, activation)
        expected = train(torchs, o.doubled(), training, activation, dtype=dtype)
        for name, tensor in found.items():
            # A bias has no gradient in training but the rounding of a sum of as many numbers.
            scale = expected[name].norm().clamp_min(o.grad.double().norm() if name == "bias" else 0.0)
            error = (tensor.double() - expected[name]).norm() / scale
            assert error <= 16 * torch.finfo(dtype).eps, (name, training, bias, residual)
            assert tensor.dtype == (dtype if name in ("output", *NAMES[:4]) else o.running[0].dtype)
        for name in ("output", "input", "weight"):
            assert found[name].is_contiguous(memory_format=LAYOUTS[layout])


def test_it_is_one_node(device: str) -> None:
    o = Operands(device, torch.float32)
    leaves = [leaf.requires_grad_() for leaf in o.leaves if leaf is not None]
    assert type(ours([*leaves], o.running, True, "relu").grad_fn).__name__ == "_ConvBnActBackward"


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_gradients_of_any_order(device: str, activation: Any, training: bool) -> None:
    o = Operands(device, torch.float64)
    small = [o.leaves[0][:2, :2, :3, :4], o.leaves[1][:2, :1], o.leaves[2][:2], o.leaves[3][:2, :2, :2, :2]]
    small += [leaf[:2] for leaf in o.leaves[4:]]
    leaves = [leaf.detach().clone().requires_grad_() for leaf in small]

    def function(*leaves: Tensor) -> Tensor:
        return ours([*leaves], [tensor[:2].clone() for tensor in o.running], training, activation)

    assert torch.autograd.gradcheck(function, leaves, atol=1e-4)
    assert torch.autograd.gradgradcheck(function, leaves, atol=1e-4)


def test_what_needs_no_gradient_gets_none(device: str) -> None:
    o = Operands(device, torch.float64)
    expected = train(ours, o, True, "silu")
    for wanted in range(1, 6):
        for chosen in itertools.combinations(range(6), wanted):
            leaves = [leaf.detach().clone().requires_grad_(i in chosen) for i, leaf in enumerate(o.leaves)]
            ours(leaves, [t.clone() for t in o.running], True, "silu").backward(o.grad)
            for i, (name, leaf) in enumerate(zip(NAMES, leaves, strict=True)):
                assert (leaf.grad is not None) == (i in chosen)
                if leaf.grad is not None and name != "bias":
                    torch.testing.assert_close(leaf.grad, expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("residual", [False, True])
def test_autocast_casts_the_filters_within(device: str, residual: bool) -> None:
    o = Operands(device, torch.float32, "nhwc", residual=residual)
    o.leaves[2] = o.leaves[2].bfloat16().float()  # a GPU does not round the bias
    leaves: list[Any] = [None if leaf is None else leaf.detach().clone().requires_grad_() for leaf in o.leaves]
    if residual:
        leaves[3] = leaves[3].detach().bfloat16().requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        y = ours(leaves, [t.clone() for t in o.running], True, "relu")
    assert y.dtype == torch.bfloat16 and type(y.grad_fn).__name__ == "_ConvBnActBackward"
    with torch.no_grad():
        leaves[1].add_(1.0)  # as under torch's autocast, whose cast is what is kept
    y.backward(o.grad.bfloat16())
    leaves[1].data.sub_(1.0)
    expected = train(torchs, o.doubled(), True, "relu", dtype=torch.bfloat16, cast=True)
    for name, leaf in zip(NAMES, leaves, strict=True):
        if leaf is not None:
            assert leaf.grad is not None and leaf.grad.dtype == leaf.dtype
            scale = expected[name].norm().clamp_min(o.grad.double().norm() if name == "bias" else 0.0)
            assert (leaf.grad.double() - expected[name]).norm() <= 0.05 * scale, name
    with torch.autocast(device, torch.bfloat16), torch.no_grad():
        inferred = ours(leaves, [t.clone() for t in o.running], True, "relu")
    torch.testing.assert_close(inferred, y.detach(), rtol=0.05, atol=0.05)


def test_opcheck(device: str) -> None:
    o = Operands(device, torch.float32)
    call = fastconv.ops.pack((2, 2, 1, 1, 1, 1), 2, "ieee")
    arguments = (*o.leaves, *o.running, torch.tensor(1, device=device), call, True, 0.1, 1e-5, 1, True)
    op, backward = torch.ops.fastconv._conv_bn_act.default, torch.ops.fastconv._conv_bn_act_backward.default
    torch.library.opcheck(op, arguments, test_utils="test_schema")
    _, filters, convolved, statistics, mask = op(*arguments)
    input, weight, _, _, *norm = o.leaves
    assert filters is None
    tensors = o.grad, input, weight, filters, convolved, None, *norm, statistics, mask
    torch.library.opcheck(backward, (*tensors, call, True, 1, 63), test_utils="test_schema")


def test_what_it_cannot_do_is_done_in_two(device: str) -> None:
    """Strings, functional transforms, forward derivatives, tensors of other classes."""
    o = Operands(device, torch.float64, bias=False, residual=False)
    input, weight, _, _, *norm = o.leaves
    call: Any = fastconv.conv_bn_act

    def function(input: Tensor, **options: Any) -> Any:
        return call(input, weight, None, None, None, *norm, groups=2, training=True, activation="relu", **options)

    same = F.conv2d(input, weight, None, 1, 1, 1, 2)
    same = F.relu(F.batch_norm(same, None, None, norm[0], norm[1], training=True))
    torch.testing.assert_close(function(input, padding="same"), same)
    plain = function(input)
    tangent = torch.func.jvp(function, (input,), (input.square(),))[1]
    step = 1e-6
    torch.testing.assert_close(tangent, (function(input + step * input.square()) - plain) / step, rtol=1e-3, atol=1e-3)
    images = torch.stack([input, 2 * input])
    torch.testing.assert_close(torch.vmap(function)(images)[0], plain)
    with pytest.raises(ValueError, match="more than 1 value"):
        fastconv.conv_bn_act(input[:1, :, :3, :3], weight, None, None, None, groups=2, training=True)
    with pytest.raises(RuntimeError, match="residual"):
        function(input, residual=input)
    with pytest.raises(RuntimeError, match="channels"):
        function(input[:, :4])


def test_checkpointing(device: str) -> None:
    torch.manual_seed(0)
    layer = fastconv.ConvBnAct2d(3, 8, 3, padding=1, activation="silu", dtype=torch.float64, device=device)
    x = torch.randn(2, 3, 6, 7, dtype=torch.float64, device=device, requires_grad=True)
    parameters = [x, *layer.parameters()]
    expected = torch.autograd.grad(layer(x).square().sum(), parameters)
    actual = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).square().sum(), parameters)
    torch.testing.assert_close(actual, expected)


def test_hooks_of_the_modules_layers_are_called(device: str) -> None:
    layer = fastconv.ConvBnAct2d(3, 8, 3, activation="relu", device=device)
    x = torch.randn(2, 3, 6, 7, device=device)
    expected = layer(x)
    seen: list[nn.Module] = []
    layer.conv.register_forward_hook(lambda module, *_: seen.append(module))
    torch.testing.assert_close(layer(x), expected)
    assert seen == [layer.conv]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "autocast"), [*((dtype, False) for dtype in DTYPES), (torch.bfloat16, True)], ids=str
)
def test_inference(device: str, dtype: torch.dtype, layout: str, autocast: bool) -> None:
    """By filters that have the batch norm in them, on a GPU, unless a residual or a curve follows. Parameters are read
    anew by each call."""
    for activation, bias, residual in itertools.product((None, "relu", "relu6", "silu"), (False, True), (False, True)):
        o = Operands(device, torch.float32 if autocast else dtype, layout, bias, residual)
        if autocast and residual:
            o.leaves[3] = o.leaves[3].to(dtype)
        for _ in range(2):
            o.leaves[1].data.mul_(0.5)
            o.running[1].data.mul_(2.0)
            with torch.no_grad(), torch.autocast(device, dtype, enabled=autocast):
                found = ours(o.leaves, o.running, False, activation)
            expected = torchs(o.doubled().leaves, o.doubled().running, False, activation, torch.float64)
            assert found.dtype == dtype and found.is_contiguous(memory_format=LAYOUTS[layout])
            assert (found.double() - expected).norm() <= 4 * torch.finfo(dtype).eps * expected.norm()


def test_what_a_hook_saved_in_another_layout_is_read_right(device: str) -> None:
    """As save_on_cpu(pin_memory=True) does: a mask is in the order of the forward pass."""

    def pack(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.size(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)

    norm: Any = fastconv.batch_norm_act
    o = Operands(device, torch.float64, "nhwc")
    # With one channel, or one pixel, a tensor may be taken for either layout.
    for channels, height, width in ((1, 5, 6), (40, 1, 1)):
        images = [torch.randn(32, channels, height, width, device=device) for _ in range(3)]
        x, residual, grad = (t.contiguous(memory_format=torch.channels_last) for t in images)
        found = []
        for hooked in (False, True):
            leaves = [t.detach().clone().requires_grad_() for t in (x, residual)]
            with torch.autograd.graph.saved_tensors_hooks(pack if hooked else lambda t: t, lambda t: t):
                y = norm(leaves[0], None, None, training=True, activation="relu", residual=leaves[1])
            found.append(torch.autograd.grad(y, leaves, grad))
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    for graph in (False, True):
        found = []
        for hooked in (False, True):
            leaves = [leaf.detach().clone().requires_grad_() for leaf in o.leaves]
            with torch.autograd.graph.saved_tensors_hooks(pack if hooked else lambda t: t, lambda t: t):
                y = ours(leaves, [t.clone() for t in o.running], True, "relu")
                y = norm(y, None, None, training=True, activation="relu", residual=leaves[3])
            found.append(torch.autograd.grad(y, leaves, o.grad, create_graph=graph))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("autocast", [False, True])
def test_parameters_that_change_before_a_graph_of_gradients_is_made(device: str, autocast: bool) -> None:
    """What was cast stays as it was, as under torch's autocast; else it is an error, as it is in torch."""
    o = Operands(device, torch.float32, "nhwc")
    found = []
    for graph in (False, True):
        leaves = [leaf.detach().clone().requires_grad_() for leaf in o.leaves]
        if autocast:
            leaves[3] = leaves[3].detach().bfloat16().requires_grad_()
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            y = ours(leaves, [t.clone() for t in o.running], True, "silu")
        with torch.no_grad():
            leaves[1].mul_(-3)
        if not autocast:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(y, leaves, o.grad, create_graph=graph)
            continue
        found.append(torch.autograd.grad(y, leaves, o.grad.bfloat16(), create_graph=graph))
    for a, b in zip(*found, strict=True) if found else ():
        assert (a - b).norm() <= 0.05 * (a.norm() + o.grad.norm())


def test_batched_gradients(device: str) -> None:
    o = Operands(device, torch.float64)
    leaves = [leaf.detach().clone().requires_grad_() for leaf in o.leaves]
    y = ours(leaves, [t.clone() for t in o.running], True, "relu6")
    grads = torch.stack([o.grad, -2 * o.grad])
    single = torch.autograd.grad(y, leaves, o.grad, retain_graph=True)
    for batched, one in zip(torch.autograd.grad(y, leaves, grads, is_grads_batched=True), single, strict=True):
        torch.testing.assert_close(batched, torch.stack([one, -2 * one]), rtol=1e-6, atol=1e-9)


def test_torch_fx_keeps_the_modules_whole(device: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = fastconv.ConvBnAct2d(3, 8, 3, padding=1, activation="relu")
            self.norm = fastconv.BatchNormAct2d(8, activation="silu")

        def forward(self, x: Tensor) -> Tensor:
            y = self.block(x)
            return self.norm(y, residual=y)

    net = Net().to(device).eval()
    x = torch.randn(2, 3, 6, 7, device=device)
    traced = torch.fx.symbolic_trace(net)
    torch.testing.assert_close(traced(x), net(x))
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["block", "norm"]
    torch.testing.assert_close(torch.fx.symbolic_trace(net.block)(x), net.block(x))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"residual": torch.zeros(2, 3, 8, 8)}, RuntimeError, r"residual must .* of the output, \[2, 4, 6, 6\]"),
        ({"residual": torch.zeros(2, 4, 6, 6).double()}, RuntimeError, "output and residual must have the same dtype"),
        ({"norm_weight": torch.ones(3)}, RuntimeError, "norm_weight must .* as the output has channels, 4, .*3"),
        ({"norm_bias": torch.ones(3)}, RuntimeError, "norm_bias must .* as the output has channels, 4, .*3"),
        ({"norm_bias": torch.ones(4).double()}, RuntimeError, "norm_bias must be float32 where the output is float32"),
        ({"running_mean": torch.ones(3)}, RuntimeError, "running_mean must .* as the output has channels, 4, .*3"),
        ({"momentum": None, "num_batches_tracked": torch.zeros(2).long()}, RuntimeError, "num_batches_tracked must"),
        ({"momentum": None}, RuntimeError, "momentum=None needs num_batches_tracked"),
        ({"running_mean": None, "training": False}, RuntimeError, "running_mean is needed"),
        ({"input": torch.zeros(1, 3, 3, 3)}, ValueError, r"got output size .*\[1, 4, 1, 1\]"),
        ({"input": torch.zeros(3, 8, 8)}, RuntimeError, "input must be 4-D"),
        ({"input": torch.zeros(2, 2, 8, 8)}, RuntimeError, "input must have"),
        ({"weight": torch.zeros(4, 3, 3, 3).half()}, RuntimeError, "input and weight must have the same dtype"),
        ({"eps": 0.0}, ValueError, "eps must be positive in training, but got 0.0"),
        ({"activation": "tanh"}, ValueError, "activation must be"),
        ({"weight": None}, TypeError, "weight must be a Tensor, but got NoneType"),
        *(
            ({name: np.ones(4)}, TypeError, rf"\(\): {name} must be a Tensor, but got ndarray")
            for name in (*NAMES, "running_mean", "running_var", "num_batches_tracked")
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("padding", [0, "valid"])
def test_errors_have_the_callers_names(
    device: str, change: dict[str, Any], error: type[Exception], words: str, padding: Any
) -> None:
    """In one call, and in two."""
    arguments: dict[str, Any] = {"input": torch.zeros(2, 3, 8, 8), "weight": torch.zeros(4, 3, 3, 3), "bias": None}
    arguments |= {"running_mean": torch.zeros(4), "running_var": torch.ones(4), "training": True} | change
    arguments = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in arguments.items()}
    call: Any = fastconv.conv_bn_act
    with pytest.raises(error, match=words):
        call(**arguments, padding=padding)
    if "num_batches_tracked" in change and error is RuntimeError:
        assert not arguments["num_batches_tracked"].any() and not arguments["running_mean"].any()


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("make", [nn.SyncBatchNorm, nn.BatchNorm2d, lambda _: nn.Identity()])
def test_another_module_in_the_place_of_the_batch_norm(device: str, make: Any, activation: Any) -> None:
    layer: Any = fastconv.ConvBnAct2d(3, 8, 3, activation=activation, dtype=torch.float64, device=device).eval()
    layer.bn = make(8).to(device, torch.float64).eval()
    x, residual = (torch.randn(2, *size, dtype=torch.float64, device=device) for size in ((3, 6, 7), (8, 4, 5)))
    traced = torch.fx.symbolic_trace(layer)
    for added in (None, residual):
        y = layer.bn(F.conv2d(x, layer.conv.weight))
        expected = reference.ACTIVATIONS[activation](y if added is None else y + added)
        torch.testing.assert_close(layer(x, added), expected)
        torch.testing.assert_close(traced(x, added), expected)


def test_converted_to_sync_batch_norm_it_keeps_its_activation(device: str) -> None:
    layer = fastconv.ConvBnAct2d(3, 8, 3, activation="relu", device=device)
    layer(torch.randn(4, 3, 6, 7, device=device))
    x = torch.randn(2, 3, 6, 7, device=device)
    expected = layer.eval()(x)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(layer)
    assert type(converted.bn) is nn.SyncBatchNorm
    torch.testing.assert_close(converted(x), expected)
