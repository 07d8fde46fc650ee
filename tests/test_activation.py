"""fastconv.conv2d with an activation and a residual: as one node of autograd, and in all the other ways to call it."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastconv
import reference
from fastconv.activation import ACTIVATIONS

LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NAMES = ["input", "weight", "bias", "residual"]


def operands(device: str, dtype: torch.dtype, layout: str = "nchw", bias: bool = True, residual: bool = True) -> Any:
    """input, weight, bias and residual; the output's gradient."""
    generator = torch.Generator().manual_seed(5)

    def random(*size: int) -> Tensor:
        tensor = torch.randn(*size, generator=generator, dtype=torch.float64).to(device, dtype)
        return tensor.contiguous(memory_format=LAYOUTS[layout]) if len(size) == 4 else tensor

    images = random(3, 8, 9, 11), random(16, 4, 3, 3)
    leaves = [*images, random(16) if bias else None, random(3, 16, 5, 6) if residual else None]
    return leaves, random(3, 16, 5, 6)


def ours(leaves: Any, activation: Any, function: Any = None, /, **options: Any) -> Tensor:
    input, weight, bias, residual = leaves
    function = function or fastconv.conv2d
    options = {"precision": "ieee", "residual": residual} | options
    options.setdefault("activation", activation)
    output: Tensor = function(input, weight, bias, (2, 2), (1, 1), (1, 1), 2, **options)
    return output


def torchs(leaves: Any, activation: Any, dtype: torch.dtype) -> Tensor:
    """In float64, of the convolution's output in `dtype`: whether a value is below zero hangs on that."""
    input, weight, bias, residual = leaves
    z = F.conv2d(input, weight, bias, 2, 1, 1, 2)
    z = z + (z.detach().to(dtype).double() - z.detach())
    return reference.ACTIVATIONS[activation](z if residual is None else z + residual)


def train(function: Any, leaves: Any, grad: Tensor, *arguments: Any) -> dict[str, Tensor]:
    leaves = [None if leaf is None else leaf.detach().clone().requires_grad_() for leaf in leaves]
    y = function(leaves, *arguments)
    named = [(name, leaf) for name, leaf in zip(NAMES, leaves, strict=True) if leaf is not None]
    grads = torch.autograd.grad(y, [leaf for _, leaf in named], grad)
    return {"output": y.detach()} | {name: g for (name, _), g in zip(named, grads, strict=True)}


CASES = [(a, bias, residual) for a, bias, residual in itertools.product(ACTIVATIONS, (False, True), (False, True))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients(device: str, dtype: torch.dtype, layout: str) -> None:
    for activation, bias, residual in CASES:
        leaves, grad = operands(device, dtype, layout, bias, residual)
        doubles = [None if leaf is None else leaf.double() for leaf in leaves]
        found, expected = (
            train(ours, leaves, grad, activation),
            train(torchs, doubles, grad.double(), activation, dtype),
        )
        for name, tensor in found.items():
            error = (tensor.double() - expected[name]).norm() / expected[name].norm()
            assert error <= 8 * torch.finfo(dtype).eps, (activation, bias, residual, name)
            assert tensor.dtype == dtype and tensor.shape == expected[name].shape
            if tensor.dim() == 4 and name != "residual":
                assert tensor.is_contiguous(memory_format=LAYOUTS[layout])


def test_what_cuts_off_is_exactly_the_plain_output_cut_off(device: str) -> None:
    for dtype, layout, bias in itertools.product(DTYPES, LAYOUTS, (False, True)):
        leaves, _ = operands(device, dtype, layout, bias, residual=False)
        plain = ours(leaves, None)
        for activation in ("relu", "relu6"):
            assert torch.equal(ours(leaves, activation), reference.ACTIVATIONS[activation](plain))


def test_it_is_one_node(device: str) -> None:
    leaves, _ = operands(device, torch.float32)
    for leaf in leaves:
        leaf.requires_grad_()
    assert type(ours(leaves, "silu").grad_fn).__name__ == "_Conv2dActBackward"
    assert type(ours([*leaves[:3], None], "relu").grad_fn).__name__ == "_Conv2dActBackward"


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_gradients_of_any_order(device: str, activation: str, residual: bool) -> None:
    generator = torch.Generator().manual_seed(1)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(device).requires_grad_()

    leaves = [random(2, 2, 4, 3), random(2, 2, 2, 2), random(2), *([random(2, 2, 3, 2)] if residual else [])]

    def function(input: Tensor, weight: Tensor, bias: Tensor, more: Tensor | None = None) -> Tensor:
        return fastconv.conv2d(input, weight, bias, activation=activation, residual=more)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_what_needs_no_gradient_gets_none(device: str) -> None:
    leaves, grad = operands(device, torch.float64)
    for activation in (None, "relu", "silu"):
        expected = train(ours, leaves, grad, activation)
        for chosen in itertools.chain(*(itertools.combinations(range(4), some) for some in (1, 2, 3))):
            some = [leaf.detach().clone().requires_grad_(i in chosen) for i, leaf in enumerate(leaves)]
            ours(some, activation).backward(grad)
            for i, (name, leaf) in enumerate(zip(NAMES, some, strict=True)):
                assert (leaf.grad is not None) == (i in chosen)
                if leaf.grad is not None:
                    torch.testing.assert_close(leaf.grad, expected[name], rtol=0, atol=1e-12)


def test_views_are_read_right(device: str) -> None:
    """A residual and a gradient with gaps, of the other layout, expanded."""
    leaves, grad = operands(device, torch.float32)
    views = [
        lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t[:1, :, :1, :1].expand_as(t),
    ]
    for of_residual, of_grad, activation in itertools.product(views, views, ("relu", "gelu")):
        viewed = [*leaves[:3], of_residual(leaves[3])]
        expected = train(torchs, [leaf.double() for leaf in viewed], of_grad(grad).double(), activation, torch.float32)
        for name, tensor in train(ours, viewed, of_grad(grad), activation).items():
            assert (tensor.double() - expected[name]).norm() <= 1e-5 * expected[name].norm(), name


def test_autocast(device: str) -> None:
    leaves, grad = operands(device, torch.float32, "nhwc")
    leaves = [leaf.requires_grad_() for leaf in leaves]
    leaves[3] = leaves[3].detach().bfloat16().requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        y = ours(leaves, "silu")
        with torch.no_grad():
            inferred = ours(leaves, "silu")
    assert y.dtype == inferred.dtype == torch.bfloat16
    y.backward(grad.bfloat16())
    expected = train(torchs, [leaf.detach().double() for leaf in leaves], grad.double(), "silu", torch.bfloat16)
    torch.testing.assert_close(inferred, y.detach())
    for name, leaf in zip(NAMES, leaves, strict=True):
        assert leaf.grad.dtype == leaf.dtype
        assert (leaf.grad.double() - expected[name]).norm() <= 0.02 * expected[name].norm(), name


def test_transforms_see_torchs_ops(device: str) -> None:
    leaves, _ = operands(device, torch.float64)
    input, *others = leaves

    def function(input: Tensor) -> Tensor:
        return ours([input, *others], "silu")

    plain = function(input)
    torch.testing.assert_close(torch.vmap(function)(torch.stack([input, -input]))[0], plain)
    step = 1e-6
    tangent = torch.func.jvp(function, (input,), (input.square(),))[1]
    torch.testing.assert_close(tangent, (function(input + step * input.square()) - plain) / step, rtol=1e-4, atol=1e-4)
    unbatched = fastconv.conv2d(input[0], others[0], groups=2, activation="relu", precision="ieee")
    torch.testing.assert_close(unbatched, F.relu(F.conv2d(input[0], others[0], groups=2)))
    same = fastconv.conv2d(input, others[0], padding="same", groups=2, activation="relu", precision="ieee")
    torch.testing.assert_close(same, F.relu(F.conv2d(input, others[0], padding="same", groups=2)))


def test_compiled_and_exported(device: str) -> None:
    torch._dynamo.reset()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = fastconv.Conv2d(3, 8, 3, activation="relu6", precision="ieee")
            self.second = fastconv.Conv2d(8, 8, 3, padding=1, activation="hardswish", precision="ieee")

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.second(y, y)

    torch.manual_seed(0)
    net = Net().to(device)
    x = torch.randn(2, 3, 9, 10, device=device)
    expected = net(x)
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="aot_eager")(x), expected)
    torch.testing.assert_close(torch.export.export(net, (x,)).module()(x), expected)


def test_the_op(device: str) -> None:
    op = torch.ops.fastconv.conv2d_act.default
    leaves, _ = operands(device, torch.float32)
    for activation in (None, "relu6", "gelu_tanh"):
        torch.testing.assert_close(ours(leaves, activation, op), ours(leaves, activation))
    arguments = (*leaves[:3], [2, 2], [1, 1], [1, 1], 2)
    options = {"activation": "relu", "residual": leaves[3]}
    torch.library.opcheck(op, arguments, options, test_utils=("test_schema", "test_faketensor"))
    expected = ours(leaves, "relu")
    compiled = torch.compile(lambda *args: op(*args, **options), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*arguments), expected)
    packed = fastconv.ops.pack((2, 2, 1, 1, 1, 1), 2, "ieee")
    for index, trains in itertools.product((1, 3), (True, False)):
        private = torch.ops.fastconv._conv2d_act.default
        torch.library.opcheck(private, (*leaves, packed, index, trains), test_utils="test_schema")
        y, filters, kept = private(*leaves, packed, index, trains)
        assert (kept is not None) == (trains and index == 3)  # silu
        torch.testing.assert_close(y, ours(leaves, ACTIVATIONS[index]))
        if not trains:
            continue
        backward = y.clone(), *leaves[:2], filters, y if kept is None else kept, leaves[3], packed, index, 15
        torch.library.opcheck(torch.ops.fastconv._conv2d_act_backward.default, backward, test_utils="test_schema")


def test_no_parameter_is_cast_that_nobody_asked_to(device: str) -> None:
    """Autocast does, but not of float64."""
    leaves, _ = operands(device, torch.float32)
    input, weight, bias, _ = leaves
    for some in (
        [input.double(), weight, bias, None],
        [input, weight.half(), bias, None],
        [input, weight, bias.half(), None],
    ):
        with pytest.raises(RuntimeError, match="same dtype"):
            ours(some, "relu")
    with torch.autocast(device, torch.bfloat16), pytest.raises(RuntimeError, match="same dtype"):
        ours([input, weight.double(), bias, None], "relu")
    call: Any = fastconv.conv_bn_act
    with pytest.raises(RuntimeError, match="same dtype"):
        call(input.bfloat16(), weight, None, None, None, groups=2, training=True, precision="ieee")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"activation": "tanh"}, ValueError, "activation must be 'relu', .* but got 'tanh'"),
        ({"residual": torch.zeros(3, 16, 5, 1)}, RuntimeError, "residual must have the size of the output"),
        ({"residual": torch.zeros(3, 16, 5, 6).half()}, RuntimeError, "output and residual must have the same dtype"),
    ],
)
def test_bad_input(device: str, change: dict[str, Any], error: type[Exception], words: str) -> None:
    leaves, _ = operands(device, torch.float32)
    change = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in change.items()}
    for function in (fastconv.conv2d, torch.ops.fastconv.conv2d_act.default):
        with pytest.raises(error, match=words):
            ours(leaves, "relu", function, **change)


def test_the_module(device: str) -> None:
    torch.manual_seed(0)
    layer = fastconv.Conv2d(8, 16, 3, padding=1, activation="silu", padding_mode="reflect", device=device)
    plain = fastconv.Conv2d(8, 16, 3, padding=1, padding_mode="reflect", device=device)
    plain.load_state_dict(layer.state_dict())
    x, residual = torch.randn(2, 8, 6, 7, device=device), torch.randn(2, 16, 6, 7, device=device)
    expected = F.silu(plain(x) + residual)
    for it in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(it(x, residual), expected)
        assert "activation='silu'" in repr(it)
    torch.testing.assert_close(plain(x, residual=residual), plain(x) + residual)
    traced = torch.fx.symbolic_trace(nn.Sequential(layer))
    torch.testing.assert_close(traced(x), F.silu(plain(x)))
    with pytest.raises(ValueError, match="activation must be"):
        fastconv.Conv2d(3, 8, 3, activation="tanh")  # type: ignore[arg-type]


def test_a_subclass_with_its_own_convolution_is_activated_too(device: str) -> None:
    class Doubled(fastconv.Conv2d):
        def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return 2 * super()._conv_forward(input, weight, bias)

    layer = Doubled(3, 4, 3, activation="relu", device=device)
    x = torch.randn(2, 3, 6, 7, device=device)
    torch.testing.assert_close(layer(x), F.relu(2 * F.conv2d(x, layer.weight, layer.bias)), rtol=1e-3, atol=1e-3)


def test_a_batch_norm_behind_an_activated_layer_is_apart(device: str) -> None:
    layer = fastconv.ConvBnAct2d(3, 8, 3, activation="relu", device=device)
    x = torch.randn(2, 3, 6, 7, device=device)
    layer.conv.activation = "relu"
    expected = F.batch_norm(layer.conv(x), None, None, layer.bn.weight, layer.bn.bias, training=True)
    torch.testing.assert_close(layer(x), F.relu(expected))


def test_revert_refuses_nothing_but_keeps_the_activation() -> None:
    """torch's layer has none: one with an activation stays fastconv's."""
    model = nn.Sequential(fastconv.Conv2d(3, 4, 3, activation="relu"), fastconv.Conv2d(4, 4, 3))
    fastconv.revert(model)
    assert type(model[0]) is fastconv.Conv2d and type(model[1]) is nn.Conv2d


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_batched_gradients(device: str, activation: str) -> None:
    leaves, grad = operands(device, torch.float64)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    y = ours(leaves, activation)
    single = torch.autograd.grad(y, leaves, grad, retain_graph=True)
    grads = torch.stack([grad, -2 * grad])
    for batched, one in zip(torch.autograd.grad(y, leaves, grads, is_grads_batched=True), single, strict=True):
        torch.testing.assert_close(batched, torch.stack([one, -2 * one]))


def test_the_graph_of_gradients_has_the_gradients_of_the_forward_pass(device: str) -> None:
    """Whatever became of what was cast, and of a residual that is not read again."""
    for activation in ("relu", "silu"):
        found = []
        for graph in (False, True):
            leaves, grad = operands(device, torch.float32)
            leaves = [leaf.requires_grad_() for leaf in leaves]
            more = leaves[3].detach().bfloat16().requires_grad_()
            with torch.autocast(device, torch.bfloat16):
                shortcut = more * 1
                y = ours([*leaves[:3], shortcut], activation)
            with torch.no_grad():
                leaves[1].mul_(-3)
                if activation == "relu":
                    shortcut.add_(7)
            wanted = [*leaves[:3], more]
            found.append(torch.autograd.grad(y, wanted, grad.bfloat16(), create_graph=graph))
        for a, b in zip(*found, strict=True):
            assert (a - b).norm() <= 0.03 * a.norm()


def test_what_is_no_tensor_is_a_type_error(device: str) -> None:
    leaves, _ = operands(device, torch.float32)
    for some in ([*leaves[:3], 1.0], [leaves[0], None, None, None], [None, leaves[1], None, None]):
        with pytest.raises(TypeError):
            ours(some, "relu")
