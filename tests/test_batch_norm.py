"""fastconv.batch_norm_act: batch normalisation, residual and activation as one op."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastconv
import reference
from fastconv.activation import ACTIVATIONS

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
SIZE = (4, 24, 6, 10)
TENSORS = ["input", "running_mean", "running_var", "weight", "bias", "residual", "num_batches_tracked"]


class Operands:
    """Of a call, on a device."""

    def __init__(
        self, device: str, dtype: torch.dtype, layout: str = "nchw", size: Any = SIZE, wide: bool = True
    ) -> None:
        generator = torch.Generator().manual_seed(sum(size))

        def random(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, dtype=torch.float64)

        def image() -> Tensor:
            return random(*size).to(device, dtype).contiguous(memory_format=LAYOUTS[layout])

        def parameter() -> Tensor:
            wide_dtype = torch.float64 if dtype == torch.float64 else torch.float32
            return random(size[1]).to(device, wide_dtype if wide else dtype)

        self.input, self.residual, self.grad = image(), image(), image()
        self.weight, self.bias, self.running_mean = parameter(), parameter(), parameter()
        self.running_var = parameter().abs() + 0.1

    def leaves(self, residual: bool) -> list[Tensor]:
        chosen = [self.input, self.weight, self.bias, *([self.residual] if residual else [])]
        return [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in chosen]


Function = Callable[..., Tensor]


def by_torch(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    z = F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return reference.ACTIVATIONS[activation](z if residual is None else z + residual)


def train(
    function: Function, o: Operands, training: bool, activation: str | None, residual: bool, double: bool = False
) -> list[Tensor]:
    """Output, running statistics and gradients."""
    leaves = [leaf.detach().double().requires_grad_() if double else leaf for leaf in o.leaves(residual)]
    running = [tensor.double() if double else tensor.clone() for tensor in (o.running_mean, o.running_var)]
    input, weight, bias, *more = leaves
    options: dict[str, Any] = {"activation": activation, "residual": more[0] if more else None}
    y = function(input, *running, weight, bias, training, 0.2, 1e-3, **options)
    return [y.detach(), *running, *torch.autograd.grad(y, leaves, o.grad.to(y.dtype))]


def assert_right(actual: list[Tensor], expected: list[Tensor], count: int) -> None:
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        scale = e.norm()
        if i in (4, 5):  # sums of random signs
            scale = scale.clamp_min(0.5 * count**0.5)
        sums = torch.finfo(torch.float64 if a.dtype == torch.float64 else torch.float32).eps
        assert (a.double() - e).norm() <= (torch.finfo(a.dtype).eps + 32 * sums) * scale, i
        assert a.shape == e.shape


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_values_and_gradients(device: str, activation: str | None, dtype: torch.dtype, layout: str) -> None:
    for residual, training, size in itertools.product((False, True), (False, True), (SIZE, (3, 5, 7, 3))):
        o = Operands(device, dtype, layout, size, wide=training)
        actual = train(fastconv.batch_norm_act, o, training, activation, residual)
        assert_right(actual, train(by_torch, o, training, activation, residual, double=True), o.grad.numel())
        assert actual[0].stride() == o.input.stride() and actual[0].dtype == dtype
        assert actual[3].stride() == o.input.stride()
        assert [a.dtype for a in actual[4:6]] == [o.weight.dtype, o.bias.dtype]


def test_views_are_read_right(device: str) -> None:
    """Gaps, other layouts, odd addresses."""
    plain = Operands(device, torch.float32)
    expected = train(by_torch, plain, True, "relu", True, double=True)

    def gaps(t: Tensor) -> Tensor:
        return torch.cat([t, t], 1)[:, : t.shape[1]]

    def odd(t: Tensor) -> Tensor:
        return torch.cat([t.new_zeros(1), t.flatten()])[1:].view_as(t)

    def other(t: Tensor) -> Tensor:
        return t.contiguous(memory_format=torch.channels_last)

    def apart(t: Tensor) -> Tensor:
        return torch.stack([t, t], 1)[:, 0]

    for of_input, of_residual, of_grad in itertools.product((gaps, odd, other), repeat=3):
        o = Operands(device, torch.float32)
        leaves = [
            t.requires_grad_() for t in (of_input(o.input), apart(o.weight), apart(o.bias), of_residual(o.residual))
        ]
        input, weight, bias, residual = leaves
        running = o.running_mean, o.running_var
        options: dict[str, Any] = {"activation": "relu", "residual": residual}
        y = fastconv.batch_norm_act(input, *running, weight, bias, True, 0.2, 1e-3, **options)
        grads = torch.autograd.grad(y, leaves, of_grad(o.grad))
        assert_right([y.detach(), *running, *grads], expected, o.grad.numel())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_gradients_of_any_order(device: str, activation: Any, residual: bool, training: bool) -> None:
    o = Operands(device, torch.float64, size=(3, 2, 2, 3))

    def function(input: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None) -> Tensor:
        running = o.running_mean.clone(), o.running_var.clone()
        options: dict[str, Any] = {"activation": activation, "residual": residual}
        return fastconv.batch_norm_act(input, *running, weight, bias, training, **options)

    leaves = o.leaves(residual)
    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_gradients_of_arguments_that_depend_on_each_other(device: str) -> None:
    o = Operands(device, torch.float64)

    def gradients(function: Function, create_graph: bool) -> tuple[Tensor, ...]:
        x, p = o.input.clone().requires_grad_(), o.weight.clone().requires_grad_()
        h = x * 2
        y = function(h, None, None, h.square().mean((0, 2, 3)) * p, p, True, activation="silu")
        return torch.autograd.grad(y.pow(3).sum(), (x, p), create_graph=create_graph)

    expected = gradients(by_torch, False)
    for create_graph in (False, True):
        torch.testing.assert_close(gradients(fastconv.batch_norm_act, create_graph), expected)


def test_a_mask_has_the_order_of_the_input(device: str) -> None:
    """One image, of rows, columns and channels."""
    x = torch.randn(5, 6, 4, dtype=torch.float64, device=device).permute(2, 0, 1).unsqueeze(0).requires_grad_()
    residual, grad = (torch.randn(1, 4, 5, 6, dtype=torch.float64, device=device) for _ in range(2))
    for layout, create_graph in itertools.product(LAYOUTS.values(), (False, True)):
        grads: list[Tensor] = []
        for function in (fastconv.batch_norm_act, by_torch):
            added = residual.contiguous(memory_format=layout)
            y = function(x, None, None, training=True, activation="relu", residual=added)
            grads += torch.autograd.grad(y, x, grad, create_graph=create_graph)
        torch.testing.assert_close(*grads)


def test_what_needs_no_gradient_gets_none(device: str) -> None:
    o = Operands(device, torch.float32)
    expected = train(by_torch, o, True, "silu", True, double=True)[3:]
    for needs in itertools.product((False, True), repeat=4):
        leaves = [leaf.detach().requires_grad_(need) for leaf, need in zip(o.leaves(True), needs, strict=True)]
        input, weight, bias, residual = leaves
        y = fastconv.batch_norm_act(
            input, None, None, weight, bias, True, eps=1e-3, activation="silu", residual=residual
        )
        assert y.requires_grad == any(needs)
        if any(needs):
            y.backward(o.grad)
        for leaf, need, gradient in zip(leaves, needs, expected, strict=True):
            assert (leaf.grad is not None) == need
            assert leaf.grad is None or (leaf.grad - gradient).norm() < 1e-5 * gradient.norm()


def test_without_parameters(device: str) -> None:
    o = Operands(device, torch.float32)
    y = fastconv.batch_norm_act(o.input, None, None, training=True)
    expected = F.batch_norm(o.input.double(), None, None, training=True)
    assert (y.double() - expected).norm() < 1e-6 * expected.norm()


def test_batches_count_alike_without_a_momentum(device: str) -> None:
    """In float64, of three batches: the mean of their means."""
    o = Operands(device, torch.float64)
    running = torch.zeros_like(o.running_mean), torch.ones_like(o.running_var)
    count = torch.tensor(0, device=device)
    batches = [o.input, o.residual + 3, o.grad - 2]
    for batch in batches:
        fastconv.batch_norm_act(batch, *running, training=True, momentum=None, num_batches_tracked=count)
    assert count.item() == 3
    for found, values in (
        (running[0], [batch.mean((0, 2, 3)) for batch in batches]),
        (running[1], [batch.var((0, 2, 3)) for batch in batches]),
    ):
        torch.testing.assert_close(found, torch.stack(values).mean(0))


def test_vmap_and_jacobians(device: str) -> None:
    o = Operands(device, torch.float64, size=(3, 2, 2, 3))

    def function(input: Tensor) -> Tensor:
        return fastconv.batch_norm_act(input, None, None, o.weight, o.bias, True, activation="gelu")

    inputs = torch.stack([o.input, o.residual])
    torch.testing.assert_close(torch.vmap(function)(inputs), torch.stack([function(x) for x in inputs]))
    expected = torch.autograd.functional.jacobian(function, o.input)
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(function)(o.input), expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("residual", [False, True])
def test_compiled_without_a_graph_break(device: str, residual: bool, backend: str) -> None:
    torch._dynamo.reset()
    for training, layout in itertools.product((True, False), LAYOUTS):
        o = Operands(device, torch.float32, layout)
        compiled = torch.compile(fastconv.batch_norm_act, fullgraph=True, backend=backend)
        actual = train(compiled, o, training, "relu", residual)
        for a, e in zip(actual, train(fastconv.batch_norm_act, o, training, "relu", residual), strict=True):
            torch.testing.assert_close(a, e)
            assert a.stride() == e.stride()


def test_opcheck(device: str) -> None:
    for dtype, layout, residual in itertools.product((torch.float32, torch.bfloat16), LAYOUTS, (False, True)):
        o = Operands(device, dtype, layout)
        input, weight, bias, *more = o.leaves(residual)
        added = more[0] if more else None
        count = torch.tensor(1, device=device)
        running = o.running_mean, o.running_var
        arguments = input, *running, weight, bias, True
        options = {"activation": "relu", "residual": added, "num_batches_tracked": count}
        tests = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
        torch.library.opcheck(torch.ops.fastconv.batch_norm_act.default, arguments, options, test_utils=tests)
        plain = [t.detach() if isinstance(t, Tensor) else t for t in (input, added, weight, bias, *running, count)]
        private = (*plain, True, 0.1, 1e-5, 1, True)
        torch.library.opcheck(torch.ops.fastconv._batch_norm_act.default, private, test_utils=tests[:2])
        _, statistics, mask = torch.ops.fastconv._batch_norm_act(*private)
        backward = (o.grad, *plain[:1], None, *plain[2:4], statistics, mask, True, 1, 15 if residual else 7)
        torch.library.opcheck(torch.ops.fastconv._batch_norm_act_backward.default, backward, test_utils=tests[:2])


def test_checkpointing_and_saved_tensor_hooks(device: str) -> None:
    o = Operands(device, torch.float32)
    expected = train(fastconv.batch_norm_act, o, True, "relu", True)

    def checkpointed(*args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = torch.utils.checkpoint.checkpoint(
            fastconv.batch_norm_act, *args, use_reentrant=False, **kwargs
        )
        return result

    actual = train(checkpointed, o, True, "relu", True)
    torch.testing.assert_close([actual[0], *actual[3:]], [expected[0], *expected[3:]], rtol=0, atol=0)
    with torch.autograd.graph.save_on_cpu():
        actual = train(fastconv.batch_norm_act, o, True, "relu", True)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"activation": "tanh"}, ValueError, "activation must be 'relu'"),
        ({"residual": torch.zeros(4, 24, 6, 9)}, RuntimeError, "residual must have the size of the input"),
        ({"residual": torch.zeros(SIZE, dtype=torch.float64)}, RuntimeError, "same dtype"),
        ({"weight": torch.ones(23)}, RuntimeError, "weight must be 1-D"),
        ({"bias": torch.ones(24, 1)}, RuntimeError, "bias must be 1-D"),
        ({"running_mean": torch.zeros(23)}, RuntimeError, "running_mean must be 1-D"),
        ({"weight": torch.ones(24, dtype=torch.float16)}, RuntimeError, "weight must be"),
        ({"running_var": None, "training": False}, RuntimeError, "running_var"),
        ({"momentum": None}, RuntimeError, "momentum=None needs num_batches_tracked"),
        ({"input": torch.zeros(24, 6, 10)}, RuntimeError, "4-D"),
        ({"input": torch.zeros(1, 24, 1, 1)}, ValueError, "more than 1 value per channel"),
        ({"input": torch.zeros(SIZE, dtype=torch.complex64)}, NotImplementedError, "input must be float32"),
        (
            {"input": torch.zeros(SIZE).double()},
            RuntimeError,
            "must be float64 where the input is float64, but",
        ),
        ({"input": torch.zeros(SIZE).half(), "bias": torch.ones(24).double()}, RuntimeError, "be float16 or float32"),
        ({"eps": 0}, ValueError, "eps must be positive in training, but got 0"),
        ({"eps": -1e-5}, ValueError, "eps must be positive in training, but got -1e-05"),
        ({"eps": -1e-5, "training": False}, ValueError, "eps must be at least 0, but got -1e-05"),
        *(
            ({name: np.ones(24)}, TypeError, rf"batch_norm_act\(\): {name} must be a Tensor, but got ndarray")
            for name in TENSORS
        ),
        ({"input": None}, TypeError, "input must be a Tensor, but got NoneType"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_bad_input(device: str, change: dict[str, Any], error: type, words: str) -> None:
    o = Operands(device, torch.float32)
    arguments: dict[str, Any] = {"input": o.input, "running_mean": o.running_mean, "running_var": o.running_var}
    arguments |= {"weight": o.weight, "bias": o.bias, "training": True}
    arguments |= {k: v.to(device) if isinstance(v, Tensor) else v for k, v in change.items()}
    with pytest.raises(error, match=words):
        fastconv.batch_norm_act(**arguments)


def test_an_eps_is_refused_where_torch_refuses_it(device: str) -> None:
    o = Operands(device, torch.float64)
    options: dict[str, Any] = {"momentum": 0.1}
    for eps, training in itertools.product((1e-5, 0.0, -1e-5), (True, False)):
        results = []
        for function in (fastconv.batch_norm_act, F.batch_norm, torch.ops.fastconv.batch_norm_act):
            try:
                running = o.running_mean.clone(), o.running_var.clone()
                results.append(function(o.input, *running, training=training, eps=eps, **options).sum().item())
            except ValueError:
                results.append(None)
        assert results[0] == results[2] and (results[0] is None) == (eps < 0 or (training and eps == 0))
        # Some releases of torch refuse fewer; up to 2.11 it refuses 0 outside training, too.
        assert results[0] is None or results[1] is not None or eps == 0, (eps, training)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("count", [torch.zeros(2).long(), torch.zeros(()), torch.zeros(0).long()], ids=str)
def test_a_bad_number_of_batches_is_left_as_it_is(device: str, count: Tensor, momentum: float | None) -> None:
    """In one op, by torch's, and of no image."""
    count, o = count.to(device), Operands(device, torch.float32)

    def function(input: Tensor) -> Tensor:
        running = o.running_mean, o.running_var
        options: dict[str, Any] = {"momentum": momentum, "num_batches_tracked": count}
        return fastconv.batch_norm_act(input, *running, training=True, **options)

    before = count.clone(), o.running_mean.clone()
    for call in (
        lambda: function(o.input),
        lambda: function(o.input[:0]),
        lambda: torch.func.jvp(function, (o.input,), (o.input,)),
    ):
        with pytest.raises(RuntimeError, match="num_batches_tracked must be one int64"):
            call()
        assert torch.equal(count, before[0]) and torch.equal(o.running_mean, before[1])


def test_an_empty_batch_is_as_torch_has_it(device: str) -> None:
    x = torch.zeros(0, 3, 4, 4, device=device, requires_grad=True)
    for training in (False, True):
        ours, theirs = fastconv.BatchNormAct2d(3, device=device), torch.nn.BatchNorm2d(3, device=device)
        for norm in (ours, theirs):
            y = norm.train(training)(x)
            y.sum().backward()
            assert y.shape == x.shape
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
        torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"momentum": None, "eps": 0.5}],
    ids=str,
)
def test_the_module_is_torchs_with_an_activation(device: str, options: dict[str, Any]) -> None:
    """In training, eval, and training with frozen statistics, in this order."""
    ours = fastconv.BatchNormAct2d(24, dtype=torch.float64, device=device, activation="gelu", **options)
    theirs = torch.nn.BatchNorm2d(24, dtype=torch.float64, device=device, **options)
    o = Operands(device, torch.float64)
    if theirs.affine:
        theirs.weight.data, theirs.bias.data = o.weight, o.bias
    ours.load_state_dict(theirs.state_dict())
    for training in (True, True, False, True, False):
        ours.train(training), theirs.train(training)
        x, z = (o.input.clone().requires_grad_() for _ in range(2))
        y, expected = ours(x, o.residual), F.gelu(theirs(z) + o.residual)
        torch.testing.assert_close(y, expected)
        y.backward(o.grad), expected.backward(o.grad)
        torch.testing.assert_close(x.grad, z.grad)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
        torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
    assert "activation='gelu'" in repr(ours)


def test_a_convolution_before_it(device: str) -> None:
    torch.manual_seed(0)
    layer = fastconv.ConvBnAct2d(3, 8, 3, padding=1, activation="relu", dtype=torch.float64, device=device)
    assert [*layer.state_dict()][:2] == ["conv.weight", "bn.weight"] and layer.conv.bias is None
    x, residual = (torch.randn(2, channels, 6, 7, dtype=torch.float64, device=device) for channels in (3, 8))
    z = F.conv2d(x.cpu(), layer.conv.weight.cpu(), padding=1)
    expected = F.relu(F.batch_norm(z, None, None, training=True) + residual.cpu())
    torch.testing.assert_close(layer(x, residual).cpu(), expected)
    weight, norm = layer.conv.weight, layer.bn
    functional = fastconv.conv_bn_act(
        x, weight, None, None, None, norm.weight, norm.bias, 1, 1, training=True, activation="relu", residual=residual
    )
    torch.testing.assert_close(functional.cpu(), expected)
    with pytest.raises(ValueError, match="activation must be"):
        fastconv.ConvBnAct2d(3, 8, 3, activation="tanh")  # type: ignore[arg-type]


@pytest.mark.cuda
def test_bits_repeat() -> None:
    o = Operands("cuda", torch.bfloat16, "nhwc", (32, 64, 28, 28))
    first = train(fastconv.batch_norm_act, o, True, "relu", True)
    for _ in range(100):
        for a, b in zip(first, train(fastconv.batch_norm_act, o, True, "relu", True), strict=True):
            assert torch.equal(a, b)


@pytest.mark.cuda
@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_than_2_31_elements(layout: str) -> None:
    size = (33000, 64, 32, 32)
    x, grad = (
        torch.empty(size, dtype=torch.bfloat16, device="cuda", memory_format=LAYOUTS[layout]).normal_()
        for _ in range(2)
    )
    x.requires_grad_()
    y = fastconv.batch_norm_act(x, None, None, training=True, activation="relu")
    (grad_x,) = torch.autograd.grad(y, x, grad)
    count, sums = x.numel() // 64, [torch.zeros(64, dtype=torch.float64, device="cuda") for _ in range(4)]

    def normal(images: slice) -> Tensor:
        return (x.detach()[images].double() - mean[:, None, None]) / deviation[:, None, None]

    parts = [slice(first, first + 1000) for first in range(0, size[0], 1000)]
    for part in parts:
        images = x.detach()[part].double()
        sums[0] += images.sum((0, 2, 3))
        sums[1] += images.square().sum((0, 2, 3))
    mean = sums[0] / count
    deviation = (sums[1] / count - mean.square() + 1e-5).sqrt()
    for part in parts:
        z = normal(part)
        passed = torch.where(z > 0, grad[part].double(), 0)
        sums[2] += passed.sum((0, 2, 3))
        sums[3] += (passed * z).sum((0, 2, 3))
    for part in (slice(0, 2), slice(16383, 16385), slice(32998, 33000)):
        z = normal(part)
        expected = (
            torch.where(z > 0, grad[part].double(), 0) - (sums[2][:, None, None] + z * sums[3][:, None, None]) / count
        )
        for a, e in ((y.detach()[part], z.relu()), (grad_x[part], expected / deviation[:, None, None])):
            assert (a.double() - e).norm() < 0.005 * e.norm()


@pytest.mark.cuda
def test_an_image_of_more_than_2_32_pixels() -> None:
    x = torch.empty(1, 1, 65536, 65544, dtype=torch.float16, device="cuda").normal_(3.0, 2.0)
    mean, variance = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    y = fastconv.batch_norm_act(x, mean, variance, training=True, momentum=1.0)
    assert abs(float(mean) - 3) < 1e-3 and abs(float(variance) - 4) < 4e-3
    for rows in (slice(0, 8), slice(32764, 32772), slice(65528, 65536)):
        expected = (x[..., rows, :].double() - mean.double()) / (variance.double() + 1e-5).sqrt()
        torch.testing.assert_close(y[..., rows, :].double(), expected, atol=2e-3, rtol=2e-3)
