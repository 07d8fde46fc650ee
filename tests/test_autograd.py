"""Everything that torch differentiates through F.conv2d, it differentiates through fastconv."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import fastconv
import reference
from shapes import Problem, operands, tensor

TINY = {
    "plain": Problem(2, 2, 5, 4, 3, 3, 2, bias=True),
    "strided": Problem(1, 2, 6, 7, 2, 3, 3, stride=(2, 3), padding=(1, 2)),
    "dilated": Problem(1, 2, 6, 7, 2, 2, 3, padding=(1, 0), dilation=(3, 2), bias=True),
    "grouped": Problem(2, 4, 4, 4, 6, 2, 2, padding=(1, 1), groups=2, bias=True),
    "depthwise": Problem(1, 3, 4, 4, 3, 3, 3, padding=(1, 1), groups=3),
    "unbatched": Problem(None, 2, 4, 5, 3, 2, 2, bias=True),
}
tiny = pytest.mark.parametrize("name", TINY)
ENTRIES: dict[str, Callable[..., Tensor]] = {"function": fastconv.conv2d, "op": torch.ops.fastconv.conv2d}
entries = pytest.mark.parametrize("entry", ENTRIES)
F64 = torch.float64


def leaves(problem: Problem, device: str, dtype: torch.dtype = F64) -> tuple[Tensor, ...]:
    o = operands(problem, dtype, device)
    return tuple(t.requires_grad_() for t in (o.input, o.weight, o.bias) if t is not None)


def convolution(entry: str, problem: Problem) -> Callable[..., Tensor]:
    """A function of (input, weight[, bias])."""

    def call(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return ENTRIES[entry](x, w, b, *problem.geometry)

    return call


def theirs(problem: Problem) -> Callable[..., Tensor]:
    return lambda x, w, b=None: F.conv2d(x, w, b, *problem.geometry)


def assert_same(actual: Any, expected: Any) -> None:
    """float64 on both sides: equal but for the order of summation."""
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


class Calls(TorchDispatchMode):
    """What the dispatcher runs, below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((str(func).removesuffix(".default"), args))
        return func(*args, **(kwargs or {}))

    def gradients(self) -> list[bool]:
        """Whether input, weight and bias have had theirs computed, each once at most."""
        found = [0, 0, 0]
        for name, args in self.seen:
            for i, which in enumerate(("input", "weight", "bias")):
                found[i] += name == f"fastconv.conv2d_{which}"
                found[i] += name == "fastconv._conv2d_backward" and args[4] >> i & 1
        assert max(found) <= 1
        return list(map(bool, found))


@tiny
@entries
def test_gradcheck(device: str, entry: str, name: str) -> None:
    function, inputs = convolution(entry, TINY[name]), leaves(TINY[name], device)
    assert gradcheck(function, inputs, check_forward_ad=entry == "function", check_undefined_grad=True)


@tiny
@entries
def test_gradgradcheck(device: str, entry: str, name: str) -> None:
    assert gradgradcheck(convolution(entry, TINY[name]), leaves(TINY[name], device))


@tiny
def test_batched_gradients(device: str, name: str) -> None:
    """torch.autograd.grad(is_grads_batched=True), which vmaps the backward."""
    assert gradcheck(convolution("function", TINY[name]), leaves(TINY[name], device), check_batched_grad=True)


@tiny
def test_forward_over_reverse_gradcheck(device: str, name: str) -> None:
    function, inputs = convolution("function", TINY[name]), leaves(TINY[name], device)
    assert gradgradcheck(
        function, inputs, check_fwd_over_rev=True, check_rev_over_rev=False, check_undefined_grad=False
    )


@tiny
def test_gradient_ops_are_differentiable(device: str, name: str) -> None:
    """Both are bilinear in their operands."""
    problem = TINY[name]
    o = operands(problem, F64, device)
    x, w, dy = (t.requires_grad_() for t in (o.input, o.weight, o.grad_output))

    def grad_input(w: Tensor, dy: Tensor) -> Tensor:
        return fastconv.grad.conv2d_input(problem.input_size, w, dy, *problem.geometry)

    def grad_weight(x: Tensor, dy: Tensor) -> Tensor:
        return fastconv.grad.conv2d_weight(x, problem.weight_size, dy, *problem.geometry)

    for function, inputs in ((grad_input, (w, dy)), (grad_weight, (x, dy))):
        assert gradcheck(function, inputs, check_forward_ad=True)
        assert gradgradcheck(function, inputs)


@entries
def test_bias_gradient_is_differentiable(device: str, entry: str) -> None:
    """Double backward through the bias alone."""
    problem = TINY["grouped"]
    x, w, b = leaves(problem, device)
    y = convolution(entry, problem)(x.detach(), w.detach(), b)
    dy = torch.randn_like(y).requires_grad_()
    (db,) = torch.autograd.grad(y, b, dy, create_graph=True)
    (ddy,) = torch.autograd.grad(db, dy, torch.ones_like(db))
    assert_same(ddy, torch.ones_like(y))


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3))[1:], ids=str)
@entries
def test_only_the_wanted_gradients_are_computed(device: str, entry: str, wanted: tuple[bool, ...]) -> None:
    problem = Problem(2, 4, 9, 8, 6, 3, 3, groups=2, bias=True)
    o = operands(problem, F64, device)
    assert o.bias is not None
    inputs = [t.requires_grad_(w) for t, w in zip((o.input, o.weight, o.bias), wanted, strict=True)]
    y = convolution(entry, problem)(*inputs)
    with Calls() as calls:
        y.backward(o.grad_output)
    assert calls.gradients() == list(wanted)
    expected = reference.gradients(o.input, o.weight, o.grad_output, *problem.geometry)
    for leaf, w, gradient in zip(inputs, wanted, (expected.input, expected.weight, expected.bias), strict=True):
        if w:
            assert leaf.grad is not None
            reference.assert_right(leaf.grad, gradient)
        else:
            assert leaf.grad is None


@entries
def test_a_frozen_filter_does_not_keep_the_activations(device: str, entry: str) -> None:
    problem = TINY["plain"]
    o = operands(problem, F64, device)
    o.input.requires_grad_()
    saved: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        saved.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        convolution(entry, problem)(o.input, o.weight)
    assert {t.data_ptr() for t in saved} == {o.weight.data_ptr()}


@entries
def test_no_grad_and_inference_mode(device: str, entry: str) -> None:
    problem = TINY["plain"]
    inputs = leaves(problem, device)
    function = convolution(entry, problem)
    with torch.no_grad():
        assert not function(*inputs).requires_grad
    with torch.inference_mode():
        y = function(*inputs)
        assert y.is_inference() and not y.requires_grad
    assert not function(*(t.detach() for t in inputs)).requires_grad
    assert_same(y.clone(), theirs(problem)(*inputs).detach())


@entries
def test_retain_graph(device: str, entry: str) -> None:
    x, w = tensor((2, 3, 6, 6), F64, device).requires_grad_(), tensor((4, 3, 3, 3), F64, device, 1).requires_grad_()
    y = ENTRIES[entry](x, w).square().sum()
    first = torch.autograd.grad(y, (x, w), retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(y, (x, w)), strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, (x, w))


@entries
def test_changing_a_saved_tensor_is_noticed(device: str, entry: str) -> None:
    x, w = tensor((2, 3, 6, 6), F64, device), tensor((4, 3, 3, 3), F64, device, 1).requires_grad_()
    y = ENTRIES[entry](x, w)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_of_more_than_a_convolution(device: str, use_reentrant: bool) -> None:
    """What is recomputed while the convolution's backward pass asks for its tensors needs autograd."""
    problem = TINY["grouped"]
    x, w, b = leaves(problem, device)
    convolve = convolution("function", problem)

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return convolve(torch.relu(x), w, b)

    expected = torch.autograd.grad(function(x, w, b).square().sum(), (x, w, b))
    checkpoint(function, x, w, b, use_reentrant=use_reentrant).square().sum().backward()
    assert_same([x.grad, w.grad, b.grad], list(expected))


def test_a_trace_keeps_gradients(device: str) -> None:
    """Traced without grad, and after eager calls have left what they remember."""
    x, w = tensor((2, 4, 7, 6), F64, device), tensor((6, 4, 3, 2), F64, device, 1)
    fastconv.conv2d(x, w)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for stride in (1, 3):  # a stride met before, and one met in a trace first

            def function(x: Tensor, w: Tensor, stride: int = stride) -> Tensor:
                return fastconv.conv2d(x, w, None, stride)

            traced = torch.jit.trace(function, (x, w))
            inputs = [t.clone().requires_grad_() for t in (x, w)]
            with torch.enable_grad():
                actual = torch.autograd.grad(traced(*inputs).square().sum(), inputs)
                expected = torch.autograd.grad(function(inputs[0], inputs[1]).square().sum(), inputs)
            assert_same(list(actual), list(expected))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(device: str, use_reentrant: bool) -> None:
    problem = TINY["grouped"]
    inputs = leaves(problem, device)
    function = convolution("function", problem)
    expected = torch.autograd.grad(function(*inputs).square().sum(), inputs)
    checkpoint(function, *inputs, use_reentrant=use_reentrant).square().sum().backward()
    assert_same([t.grad for t in inputs], list(expected))


@tiny
def test_forward_mode_tangents(device: str, name: str) -> None:
    """Each input alone and all together; a dropped tangent is None or zero."""
    problem = TINY[name]
    primals = tuple(t.detach() for t in leaves(problem, device))
    for chosen in itertools.product([False, True], repeat=len(primals)):
        with fwAD.dual_level():
            duals = [
                fwAD.make_dual(p, tensor(p.shape, F64, device, 9 + i)) if c else p
                for i, (p, c) in enumerate(zip(primals, chosen, strict=True))
            ]
            ours = fwAD.unpack_dual(convolution("function", problem)(*duals))
            expected = fwAD.unpack_dual(theirs(problem)(*duals))
            assert_same(ours.primal, expected.primal)
            assert (ours.tangent is None) == (not any(chosen))
            if any(chosen):
                assert_same(ours.tangent, expected.tangent)


@tiny
def test_func_grad_and_vjp(device: str, name: str) -> None:
    problem = TINY[name]
    inputs = tuple(t.detach() for t in leaves(problem, device))
    every = tuple(range(len(inputs)))
    for function in (torch.func.grad, torch.func.grad_and_value):
        ours = function(lambda *a: convolution("function", problem)(*a).sin().sum(), every)(*inputs)
        assert_same(ours, function(lambda *a: theirs(problem)(*a).sin().sum(), every)(*inputs))


@tiny
@pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "hessian"])
def test_func_jacobians(device: str, name: str, transform: str) -> None:
    problem = TINY[name]
    inputs = tuple(t.detach() for t in leaves(problem, device))
    apply = getattr(torch.func, transform)
    for argument in range(len(inputs)):
        ours = apply(lambda *a: convolution("function", problem)(*a).square(), argument)(*inputs)
        assert_same(ours, apply(lambda *a: theirs(problem)(*a).square(), argument)(*inputs))


@tiny
def test_func_jvp(device: str, name: str) -> None:
    problem = TINY[name]
    inputs = tuple(t.detach() for t in leaves(problem, device))
    tangents = tuple(tensor(t.shape, F64, device, 5 + i) for i, t in enumerate(inputs))
    assert_same(
        torch.func.jvp(convolution("function", problem), inputs, tangents),
        torch.func.jvp(theirs(problem), inputs, tangents),
    )


def _batch(t: Tensor, dim: int | None, seed: int) -> Tensor:
    """Three of a kind, stacked at dim."""
    if dim is None:
        return t
    return torch.stack([tensor(t.shape, F64, str(t.device), seed + i) for i in range(3)], dim)


@pytest.mark.parametrize(
    "dims",
    [d for d in itertools.product([None, 0, 1, -1], [None, 0, 2], [None, 0, 1]) if any(i is not None for i in d)],
    ids=str,
)
@entries
def test_vmap_in_all_dims(device: str, entry: str, dims: tuple[int | None, ...]) -> None:
    problem = TINY["grouped"]
    inputs = tuple(t.detach() for t in leaves(problem, device))
    batched = tuple(_batch(t, d, 20 * i) for i, (t, d) in enumerate(zip(inputs, dims, strict=True)))
    ours = torch.vmap(convolution(entry, problem), in_dims=dims)(*batched)
    one_by_one = [
        theirs(problem)(*(t if d is None else t.select(d, i) for t, d in zip(batched, dims, strict=True)))
        for i in range(3)
    ]
    assert_same(ours, torch.stack(one_by_one))


@pytest.mark.parametrize("dims", [(None, 0), (0, None), (0, 0), (1, 2), (-1, 1)], ids=str)
@tiny
def test_vmap_over_the_gradients(device: str, name: str, dims: tuple[int | None, int | None]) -> None:
    problem = TINY[name]
    o = operands(problem, F64, device)
    pairs: list[tuple[Tensor, Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Any]]] = [
        (
            o.weight,
            lambda w, dy: fastconv.grad.conv2d_input(problem.input_size, w, dy, *problem.geometry),
            lambda w: torch.func.vjp(lambda x: theirs(problem)(x, w), o.input)[1],
        ),
        (
            o.input,
            lambda x, dy: fastconv.grad.conv2d_weight(x, problem.weight_size, dy, *problem.geometry),
            lambda x: torch.func.vjp(lambda w: theirs(problem)(x, w), o.weight)[1],
        ),
    ]
    for first, gradient, vjp in pairs:
        operand, dy = _batch(first, dims[0], 3), _batch(o.grad_output, dims[1], 30)
        ours = torch.vmap(gradient, in_dims=dims)(operand, dy)
        one_by_one = []
        for i in range(3):
            a = operand if dims[0] is None else operand.select(dims[0], i)
            g = dy if dims[1] is None else dy.select(dims[1], i)
            one_by_one.append(vjp(a)(g)[0])
        assert_same(ours, torch.stack(one_by_one))


BAD_UNDER_VMAP = {
    "float64 bias": (lambda x, w, b: fastconv.conv2d(x, w, b.double()), "bias.*dtype.*float64"),
    "integer bias": (lambda x, w, b: fastconv.conv2d(x, w, b.long()), "bias"),
    "bias of rank 2": (lambda x, w, b: fastconv.conv2d(x, w, b[:, None]), r"bias.*\[4, 1\]"),
    "bias of another length": (lambda x, w, b: fastconv.conv2d(x, w, b[:3]), r"bias.*4.*\[3\]"),
    "float32 bias of half operands": (lambda x, w, b: fastconv.conv2d(x.half(), w.half(), b), "bias.*dtype"),
    "float64 weight": (lambda x, w, b: fastconv.conv2d(x, w.double(), b), "weight.*dtype"),
    "no groups": (lambda x, w, b: fastconv.conv2d(x, w, b, groups=0), "groups.*0"),
    "channels": (lambda x, w, b: fastconv.conv2d(x[:, :2], w, b), "channels"),
    "kernel too high": (lambda x, w, b: fastconv.conv2d(x[:, :, :2], w, b), "padded input"),
    "gradient's size": (lambda x, w, b: fastconv.grad.conv2d_input(x.shape, w, x), "grad_output.*size"),
    "gradient's groups": (lambda x, w, b: fastconv.grad.conv2d_weight(x, w.shape, x, groups=0), "groups.*0"),
}


@pytest.mark.parametrize("dims", [(0, 0, 0), (0, None, None), (None, 0, 0), (None, None, 0), (0, 0, None)], ids=str)
@pytest.mark.parametrize("what", BAD_UNDER_VMAP)
def test_vmap_refuses_what_a_plain_call_refuses(device: str, what: str, dims: tuple[int | None, ...]) -> None:
    """With the same words."""
    call, names = BAD_UNDER_VMAP[what]
    sample = [tensor(size, device=device, seed=i) for i, size in enumerate(((2, 3, 8, 7), (4, 3, 3, 3), (4,)))]
    kinds = (RuntimeError, NotImplementedError, ValueError)
    with pytest.raises(kinds, match=names) as plain:
        call(*sample)
    batched = [t if dim is None else torch.stack([t, t]) for t, dim in zip(sample, dims, strict=True)]
    with pytest.raises(kinds) as mapped:
        torch.vmap(call, in_dims=dims)(*batched)
    assert str(mapped.value) == str(plain.value)


def test_vmap_under_autocast_casts_like_a_plain_call(device: str) -> None:
    """A second layer's input has autocast's dtype, its filter has not."""
    x, w, b = (tensor(size, device=device) for size in ((2, 3, 8, 8), (2, 3, 3, 3, 3), (3,)))
    with torch.autocast(device, torch.bfloat16):
        two = lambda f: fastconv.conv2d(fastconv.conv2d(x, f, b), f, b)  # noqa: E731
        mapped = torch.vmap(two)(w)
        assert mapped.dtype == torch.bfloat16
        one_by_one = torch.stack([two(f) for f in w])
    # Under vmap the bias is added after the sum was rounded.
    assert (mapped - one_by_one).norm() <= 2 * torch.finfo(torch.bfloat16).eps * one_by_one.norm()


def test_nested_vmap(device: str) -> None:
    problem = TINY["plain"]
    x, w, b = (t.detach() for t in leaves(problem, device))
    xs, ws = _batch(x, 0, 1), _batch(w, 0, 10)
    ours = torch.vmap(torch.vmap(convolution("function", problem), in_dims=(0, None, None)), in_dims=(None, 0, None))(
        xs, ws, b
    )
    assert_same(
        ours, torch.stack([torch.stack([theirs(problem)(xs[j], ws[i], b) for j in range(3)]) for i in range(3)])
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_per_sample_gradients(device: str, groups: int) -> None:
    """The use that vmap over grad exists for: one gradient of the parameters an image."""
    torch.manual_seed(0)
    layer = fastconv.Conv2d(4, 6, 3, padding=1, groups=groups, device=device, dtype=F64)
    parameters = {k: v.detach() for k, v in layer.named_parameters()}
    images = tensor((5, 4, 6, 6), F64, device)

    def loss(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (image,)).square().sum()

    ours = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, images)
    for i, image in enumerate(images):
        layer.zero_grad()
        layer(image).square().sum().backward()
        for key, parameter in layer.named_parameters():
            assert_same(ours[key][i], parameter.grad)


def test_gradient_penalty(device: str) -> None:
    """A WGAN-GP step: the gradient of a gradient's norm reaches the filter."""
    x, w = tensor((2, 3, 7, 7), F64, device).requires_grad_(), tensor((4, 3, 3, 3), F64, device, 1).requires_grad_()
    results = []
    for function in (fastconv.conv2d, F.conv2d):
        (dx,) = torch.autograd.grad(function(x, w, None, 2, 1).relu().square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad((dx.norm() - 1) ** 2, (x, w)))
    assert_same(*results)


def test_third_derivative(device: str) -> None:
    x, w = tensor((1, 2, 4, 4), F64, device).requires_grad_(), tensor((2, 2, 2, 2), F64, device, 1).requires_grad_()
    results = []
    for function in (fastconv.conv2d, F.conv2d):
        value = function(x, w).sin().sum()
        for _ in range(3):
            (dx,) = torch.autograd.grad(value, x, create_graph=True)
            value = dx.tanh().sum()
        results.append(torch.autograd.grad(value, w)[0])
    assert_same(*results)


def test_gradients_accumulate_over_calls(device: str) -> None:
    x, w = tensor((2, 3, 6, 6), F64, device), tensor((4, 3, 3, 3), F64, device, 1).requires_grad_()
    for _ in range(3):
        fastconv.conv2d(x, w).square().sum().backward()
    once = torch.autograd.grad(fastconv.conv2d(x, w).square().sum(), w)[0]
    assert w.grad is not None
    assert_same(w.grad, 3 * once)


def test_one_tensor_as_input_and_filter(device: str) -> None:
    x = tensor((3, 3, 3, 3), F64, device).requires_grad_()
    ours, expected = (
        torch.autograd.grad(f(x, x, None, 1, 1).square().sum(), x)[0] for f in (fastconv.conv2d, F.conv2d)
    )
    assert_same(ours, expected)


# ---- the C++ node of eager calls: docs/autograd.md ----


def test_an_eager_calls_node_is_not_python(device: str) -> None:
    x, w, *_ = leaves(TINY["plain"], device)
    assert "ConvolutionOverrideable" in str(fastconv.conv2d(x, w).grad_fn)
    assert "Function" in str(type(fastconv.conv2d(x, w.detach()).grad_fn).__mro__)  # keeps no input
    with fwAD.dual_level():
        assert "Overrideable" not in str(fastconv.conv2d(fwAD.make_dual(x, torch.ones_like(x)), w).grad_fn)


@tiny
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_gradient_of_any_order_is_atens_convolution(device: str, name: str, depth: int) -> None:
    problem = TINY[name]
    x, w, *_ = leaves(problem, device)

    def differentiate(y: Tensor) -> Tensor:
        for _ in range(depth):
            grads = torch.autograd.grad(y.pow(3).sum(), (x, w), create_graph=True)
            y = torch.cat([grad.flatten() for grad in grads])
        return y

    with Calls() as calls:
        first = differentiate(fastconv.conv2d(x, w, None, *problem.geometry))
    plain = fastconv.conv2d(x, w, None, *problem.geometry)  # whose node is C++
    with Calls() as later:
        second = differentiate(plain)
    names = {call for call, _ in calls.seen + later.seen}
    assert any(call.startswith("fastconv.conv2d_input") for call in names)
    assert not any(call.startswith("aten.conv") or "cudnn" in call for call in names)
    assert_same(second, first)


@tiny
def test_tangents_pass_through_gradients_of_an_older_graph(device: str, name: str) -> None:
    problem = TINY[name]
    inputs = leaves(problem, device)
    tangents = []
    for function in (convolution("function", problem), theirs(problem)):
        torch.manual_seed(1)
        y = function(*inputs)
        with fwAD.dual_level():
            dy = fwAD.make_dual(torch.randn_like(y), torch.randn_like(y))
            tangents.append([fwAD.unpack_dual(grad).tangent for grad in torch.autograd.grad(y, inputs, dy)])
    assert_same(*tangents)


def test_flops_of_a_backward_pass_alone_are_counted(device: str) -> None:
    problem = TINY["grouped"]
    x, w, b = leaves(problem, device)
    y = fastconv.conv2d(x, w, b, *problem.geometry)
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    assert counter.get_total_flops() == 2 * 2 * problem.products


def test_atens_overrideable_convolution_is_for_fastconv_alone(device: str) -> None:
    x, w, *_ = leaves(TINY["plain"], device)
    with pytest.raises(RuntimeError, match=r"call fastconv\.conv2d"):
        torch.ops.aten.convolution_overrideable(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
