"""conv1d, conv_transpose2d and their layers: torch's, but for who computes."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import types
import unittest
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import fastconv
from reference import Expected, assert_right, f64
from shapes import tensor
from sweeps import examples

# As in test_bad_input.
sys.modules.setdefault("expecttest", types.ModuleType("expecttest")).__dict__.setdefault("TestCase", unittest.TestCase)
with mock.patch.object(torch.backends, "disable_global_flags", lambda: None):
    from torch.testing._internal.common_methods_invocations import op_db

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "conv1d": (fastconv.conv1d, F.conv1d),
    "conv_transpose2d": (fastconv.conv_transpose2d, F.conv_transpose2d),
}
LAYERS: dict[str, tuple[Any, Any]] = {
    "Conv1d": (fastconv.Conv1d, nn.Conv1d),
    "ConvTranspose2d": (fastconv.ConvTranspose2d, nn.ConvTranspose2d),
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
functions = pytest.mark.parametrize("name", FUNCTIONS)
layers = pytest.mark.parametrize("name", LAYERS)
INPUTS = {"Conv1d": (2, 4, 23), "ConvTranspose2d": (2, 4, 7, 9)}


def expected(theirs: Callable[..., Tensor], x: Tensor, w: Tensor, b: Tensor | None, *geometry: Any) -> Expected:
    value = theirs(f64(x), f64(w), None if b is None else f64(b), *geometry)
    return Expected(value, theirs(f64(x).abs(), f64(w).abs(), None if b is None else f64(b).abs(), *geometry))


def check(name: str, x: Tensor, w: Tensor, b: Tensor | None, *geometry: Any) -> None:
    """Values and gradients against float64."""
    ours, theirs = FUNCTIONS[name]
    given = [t.detach().requires_grad_() for t in (x, w, b) if t is not None]
    exact = [f64(t).requires_grad_() for t in given]
    sizes = [f64(t).abs().requires_grad_() for t in given]
    no_bias = [None] * (3 - len(given))
    y = ours(*given, *no_bias, *geometry, precision="ieee")
    wanted = expected(theirs, x, w, b, *geometry)
    if name == "conv_transpose2d" and b is not None:  # what is rounded first may be larger than the sum
        rounded = expected(theirs, x, w, None, *geometry)
        error, twice = (f64(y) - wanted.value).abs(), wanted.bound(y.dtype) + rounded.bound(y.dtype)
        assert (error <= twice).all()
    else:
        assert_right(y.detach(), wanted, name)
    dy = tensor(tuple(y.shape), y.dtype, str(y.device), 9)
    actual = torch.autograd.grad(y, given, dy)
    values = torch.autograd.grad(theirs(*exact, *no_bias, *geometry), exact, f64(dy))
    magnitudes = torch.autograd.grad(theirs(*sizes, *no_bias, *geometry), sizes, f64(dy).abs())
    for which, *of_one in zip(("input", "weight", "bias"), actual, values, magnitudes, strict=False):
        gradient, value, magnitude = of_one
        assert_right(gradient, Expected(value, magnitude), f"{name}, gradient of {which}")


@st.composite
def geometries(draw: st.DrawFn, name: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]:
    """Sizes of input and filters, and torch's other arguments."""
    groups, c, k = draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    batch = draw(st.sampled_from([(), (1,), (2,), (0,)]))
    if name == "conv1d":
        taps, step, gap = draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
        around = draw(st.sampled_from([0, 1, taps // 2, "valid", *(["same"] if step == 1 else [])]))
        length = draw(st.integers(1, 30)) + gap * (taps - 1)
        as_given = draw(st.sampled_from([lambda value: value, lambda value: (value,)]))
        arguments = as_given(step), around, as_given(gap), groups
        return (*batch, groups * c, length), (groups * k, c, taps), arguments
    pairs = [draw(st.tuples(st.integers(low, high), st.integers(low, high))) for low, high in ((1, 4), (1, 3), (1, 3))]
    (r, s), stride, dilation = pairs
    more = tuple(draw(st.integers(0, max(a, b) - 1)) for a, b in zip(stride, dilation, strict=True))
    # At most what leaves a row.
    h, w = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    padding = tuple(
        draw(st.integers(0, ((size - 1) * step + gap * (taps - 1) + extra) // 2))
        for size, step, gap, taps, extra in zip((h, w), stride, dilation, (r, s), more, strict=True)
    )
    return (*batch, groups * c, h, w), (groups * c, k, r, s), (stride, padding, more, groups, dilation)


@functions
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@given(data=st.data(), seed=st.integers(0, 2**31), bias=st.booleans(), channels_last=st.booleans())
@settings(max_examples=examples(60))
def test_values_and_gradients(
    device: str, name: str, dtype: torch.dtype, data: st.DataObject, seed: int, bias: bool, channels_last: bool
) -> None:
    size, filters, geometry = data.draw(geometries(name))
    x, w = tensor(size, dtype, device, seed), tensor(filters, dtype, device, seed + 1)
    if channels_last:
        x = (
            x.transpose(-1, -2).contiguous().transpose(-1, -2)
            if name == "conv1d"
            else x.movedim(-3, -1).contiguous().movedim(-1, -3)
        )
    outputs = filters[0] if name == "conv1d" else filters[1] * geometry[3]
    check(name, x, w, tensor((outputs,), dtype, device, seed + 2) if bias else None, *geometry)


@pytest.mark.parametrize("taps", [3, 4, 31, 63])
@pytest.mark.parametrize("dilation", [1, 2, 16])
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("inner", [False, True])
def test_depthwise_sequences(device: str, taps: int, dilation: int, dtype: torch.dtype, inner: bool) -> None:
    """Of lengths and paddings as models have them, some odd."""
    for length, padding in ((400, dilation * (taps - 1) // 2), (1025, dilation * (taps - 1)), (2052, 0)):
        x, w = tensor((2, 24, length), dtype, device), tensor((24, 1, taps), dtype, device, 1)
        if inner:
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        if length + 2 * padding > dilation * (taps - 1):
            check("conv1d", x, w, tensor((24,), dtype, device, 2), 1, padding, dilation, 24)


@functions
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128], ids=str)
def test_torchs_sample_inputs(device: str, name: str, dtype: torch.dtype) -> None:
    ours, theirs = FUNCTIONS[name]
    (info,) = (op for op in op_db if op.name == f"nn.functional.{name}")
    samples = list(info.sample_inputs(device, dtype, requires_grad=False))
    assert len(samples) >= 4
    for sample in samples:
        y = ours(sample.input, *sample.args, **sample.kwargs, precision="ieee")
        wanted = theirs(
            sample.input.cpu(), *(a.cpu() if isinstance(a, Tensor) else a for a in sample.args), **sample.kwargs
        )
        torch.testing.assert_close(y.cpu(), wanted)


Call = Callable[[Any], Any]
BAD: dict[str, list[tuple[Call, str]]] = {
    "conv1d": [
        (lambda f: f(tensor((2, 3, 4, 5)), tensor((4, 3, 3))), r"input must be 2-D .* but got size \[2, 3, 4, 5\]"),
        (lambda f: f(tensor((2, 3, 9)), tensor((4, 3, 1, 3))), r"weight must be 3-D .* but got size \[4, 3, 1, 3\]"),
        (lambda f: f(tensor((2, 3, 9)), tensor((4, 3, 3)), None, (1, 2)), "stride must have 1 value, but got 2"),
        (lambda f: f(tensor((2, 3, 9)), tensor((4, 3, 3)), None, 1.5), "stride must be an integer, but got 1.5"),
        (lambda f: f(tensor((2, 3, 9)), tensor((4, 3, 3)), None, 1, True), "padding must be an integer, but got True"),
        (
            lambda f: f(tensor((2, 3, 9)), tensor((4, 3, 3)), None, 2, "same"),
            r"conv1d\(\): .*stride 1, but got stride 2",
        ),
        (lambda f: f(tensor((2, 3, 9)), tensor((4, 3, 3)), None, 1, "full"), r"conv1d\(\): padding .* got 'full'"),
        (lambda f: f(tensor((2, 3, 9)), tensor((4, 3, 3)), None, 1, 0, 1, 1.0), r"conv1d\(\): groups .* got 1.0"),
        (lambda f: f(tensor((2, 3, 9)), tensor((4, 2, 3))), "channels"),
        (lambda f: f(tensor((2, 3, 2)), tensor((4, 3, 3))), "larger"),
        (lambda f: f(tensor((2, 3, 9)), None), r"conv1d\(\): weight must be a Tensor, but got NoneType"),
        (lambda f: f(tensor((2, 3, 9)), tensor((4, 3, 3)), tensor((3,))), "bias"),
        (lambda f: f(tensor((2, 3, 9)), tensor((4, 3, 3), torch.float64)), "dtype"),
        (lambda f: f(tensor((2, 3, 9)).int(), tensor((4, 3, 3)).int()), "int32"),
    ],
    "conv_transpose2d": [
        (lambda f: f(tensor((3, 4)), tensor((3, 4, 3, 3))), r"input must be 3-D .* but got size \[3, 4\]"),
        (lambda f: f(tensor((2, 3, 4, 4)), tensor((3, 4, 3))), r"weight must be 4-D .* but got size \[3, 4, 3\]"),
        (lambda f: f(tensor((2, 5, 4, 4)), tensor((3, 4, 3, 3))), "= 3 channels.* but got 5"),
        (
            lambda f: f(tensor((2, 3, 4, 4)), tensor((3, 4, 3, 3)), None, 1, 0, 0, 2),
            r"groups must .* divide weight.size\(0\) = 3, but got 2",
        ),
        (lambda f: f(tensor((2, 3, 4, 4)), tensor((3, 4, 3, 3)), None, 2, 0, 2), "output_padding.* got 2, stride 2"),
        (lambda f: f(tensor((2, 3, 4, 4)), tensor((3, 4, 3, 3)), None, 2, 0, -1), "output_padding.* got -1"),
        (lambda f: f(tensor((2, 3, 1, 1)), tensor((3, 4, 3, 3)), None, 1, 2), "must leave an output"),
        (lambda f: f(tensor((2, 3, 4, 4)), tensor((3, 4, 3, 3)), None, 0), r"stride must be at least 1"),
        (lambda f: f(tensor((2, 3, 4, 4)), tensor((3, 4, 3, 3)), None, 1, -1), "padding"),
        (lambda f: f(tensor((2, 3, 4, 4)), tensor((3, 4, 3, 3)), None, 1, "same"), "padding"),
        (lambda f: f(tensor((2, 3, 4, 4)), tensor((3, 4, 3, 3)), None, 1, 0, 0, 0), "groups must be at least 1"),
        (lambda f: f(tensor((2, 3, 4, 4)), tensor((3, 4, 3, 3)), tensor((3,))), r"bias must be 1-D .* = 4 .*\[3\]"),
        (lambda f: f(tensor((2, 3, 4, 4)), tensor((3, 4, 3, 3), torch.float64)), "input and weight .*dtype"),
        (lambda f: f([1.0], tensor((3, 4, 3, 3))), "input must be a Tensor, but got list"),
    ],
}


@pytest.mark.parametrize(("name", "index"), [(name, i) for name, calls in BAD.items() for i in range(len(calls))])
def test_is_refused_by_name_as_torch_refuses_it(name: str, index: int) -> None:
    call, names = BAD[name][index]
    kinds = (RuntimeError, ValueError, NotImplementedError, TypeError)
    ours, theirs = FUNCTIONS[name]
    with pytest.raises(kinds, match=names):
        call(ours)
    if "int32" not in names and "True" not in names:  # which torch takes
        with pytest.raises((*kinds, IndexError)):
            call(theirs)


@functions
def test_derivatives_of_any_order(name: str) -> None:
    sizes = {"conv1d": ((2, 4, 6), (6, 2, 3)), "conv_transpose2d": ((2, 4, 3, 2), (4, 3, 2, 3))}[name]
    geometry = {"conv1d": (2, 1, 2, 2), "conv_transpose2d": (2, 1, (0, 1), 2, (2, 1))}[name]
    x, w, b = (tensor(s, torch.float64, seed=i).requires_grad_() for i, s in enumerate([*sizes, (6,)]))

    def function(*operands: Tensor) -> Tensor:
        return FUNCTIONS[name][0](*operands, *geometry)

    torch.autograd.gradcheck(function, (x, w, b), check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(function, (x, w, b))


@functions
@pytest.mark.parametrize("batched", [(0, None), (None, 0), (0, 0)])
def test_vmap(name: str, batched: tuple[int | None, int | None]) -> None:
    sizes = {"conv1d": ((2, 4, 9), (6, 2, 3)), "conv_transpose2d": ((2, 4, 5, 4), (4, 3, 2, 3))}[name]
    geometry = {"conv1d": (2, 1, 2, 2), "conv_transpose2d": (2, 1, (0, 1), 2, (2, 1))}[name]
    x, w = (
        tensor((3, *s) if dim == 0 else s, torch.float64, seed=i)
        for i, (s, dim) in enumerate(zip(sizes, batched, strict=True))
    )
    b = tensor((6,), torch.float64, seed=5)
    ours, theirs = (torch.vmap(lambda x, w, f=f: f(x, w, b, *geometry), in_dims=batched)(x, w) for f in FUNCTIONS[name])
    torch.testing.assert_close(ours, theirs)


@functions
def test_tangents_meet_levels(name: str) -> None:
    sizes = {"conv1d": ((2, 4, 9), (6, 4, 3)), "conv_transpose2d": ((2, 4, 5, 4), (4, 3, 2, 3))}[name]
    x, w = (tensor(s, torch.float64, seed=i) for i, s in enumerate(sizes))
    ours, theirs = FUNCTIONS[name]
    hessians = [torch.func.jacfwd(torch.func.jacrev(lambda x, f=f: f(x, w).pow(3).sum()))(x) for f in (ours, theirs)]
    torch.testing.assert_close(*hessians)
    with forward_ad.dual_level():
        y = ours(forward_ad.make_dual(x, x), w)
        torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, theirs(x, w))


@functions
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_and_export(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    sizes = {"conv1d": ((2, 4, 9), (6, 4, 3)), "conv_transpose2d": ((2, 4, 5, 4), (4, 6, 2, 3))}[name]
    w, b = tensor(sizes[1], seed=1).requires_grad_(), tensor((6,), seed=2).requires_grad_()

    def function(x: Tensor) -> Tensor:
        return FUNCTIONS[name][0](x, w, b, 2, 1, activation="relu")

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for more in (0, 1, 2):
        x = tensor((*sizes[0][:-1], sizes[0][-1] + more)).requires_grad_()
        steps = []
        for call in (function, compiled):
            y = call(x)
            steps.append([y, *torch.autograd.grad(y.square().sum(), (x, w, b))])
        torch.testing.assert_close(*steps)

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x).detach()

    last = torch.export.Dim("last", min=4, max=100) if dynamic else None
    program = torch.export.export(Net(), (tensor(sizes[0]),), dynamic_shapes=({len(sizes[0]) - 1: last},))
    assert "fastconv" in str(program.graph)
    torch.testing.assert_close(program.module()(x.detach()) if dynamic else 0, function(x).detach() if dynamic else 0)


@functions
def test_autocast_and_flops(name: str) -> None:
    sizes = {"conv1d": ((2, 4, 9), (6, 4, 3)), "conv_transpose2d": ((2, 4, 5, 4), (4, 6, 2, 3))}[name]
    x, w, b = tensor(sizes[0]), tensor(sizes[1]).requires_grad_(), tensor((6,)).requires_grad_()
    found = []
    for function in FUNCTIONS[name]:
        with torch.autocast("cpu", torch.bfloat16), FlopCounterMode(display=False) as counter:
            y = function(x, w, b)
        dtypes = y.dtype, *(g.dtype for g in torch.autograd.grad(y.float().sum(), (w, b)))
        found.append((dtypes, counter.get_total_flops()))
    assert found[0] == found[1] and found[0][0][0] is torch.bfloat16


@functions
def test_activation_and_residual(name: str) -> None:
    sizes = {"conv1d": ((2, 4, 9), (6, 4, 3)), "conv_transpose2d": ((2, 4, 5, 4), (4, 6, 2, 3))}[name]
    x, w, b = (tensor(s, torch.float64, seed=i).requires_grad_() for i, s in enumerate([*sizes, (6,)]))
    ours, theirs = FUNCTIONS[name]
    z = theirs(x, w, b)
    residual = tensor(tuple(z.shape), torch.float64, seed=7).requires_grad_()
    wanted = F.silu(z + residual)
    y = ours(x, w, b, activation="silu", residual=residual)
    torch.testing.assert_close(y, wanted)
    operands = x, w, b, residual
    torch.testing.assert_close(
        torch.autograd.grad(y.cos().sum(), operands), torch.autograd.grad(wanted.cos().sum(), operands)
    )
    with pytest.raises(TypeError, match=rf"{name}\(\): residual must be a Tensor"):
        ours(x, w, residual=3.0)
    with pytest.raises(ValueError, match="activation"):
        ours(x, w, activation="tanh")


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops[str(func).removesuffix(".default")] += 1
        return func(*args, **(kwargs or {}))


VIEWS_ALONE = {"aten.unsqueeze", "aten.squeeze.dim", "fastconv.conv2d"}


def test_sequences_are_not_copied_in_either_layout(device: str) -> None:
    w = tensor((6, 4, 3), device=device)
    for x in (tensor((2, 4, 9), device=device), tensor((2, 9, 4), device=device).transpose(1, 2)):
        with _Seen() as seen:
            y = fastconv.conv1d(x, w)
        assert set(seen.ops) == VIEWS_ALONE
        assert (y.stride(1) == 1) == (x.stride(1) == 1)
    assert fastconv.conv1d(tensor((2, 4, 9), device=device), w).is_contiguous()


def test_gradients_have_the_strides_of_their_parameters(device: str) -> None:
    """As DistributedDataParallel wants them."""
    for layer, size in (
        (fastconv.Conv1d(4, 6, 1), (2, 4, 9)),
        (fastconv.Conv1d(4, 4, 3, groups=4), (2, 4, 9)),
        (fastconv.ConvTranspose2d(4, 6, 3), (2, 4, 5, 5)),
        (fastconv.ConvTranspose2d(4, 6, 3).to(memory_format=torch.channels_last), (2, 4, 5, 5)),  # type: ignore[call-overload]
    ):
        layer.to(device)(tensor(size, device=device)).sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.stride() == layer.weight.stride()


# ---- layers ----

ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "Conv1d": [
        {"kernel_size": 3},
        {"kernel_size": (5,), "stride": (2,), "padding": 2, "dilation": (2,), "bias": False},
        {"kernel_size": 4, "padding": "same", "groups": 2},
        {"kernel_size": 3, "padding": 2, "padding_mode": "reflect"},
        {"kernel_size": 4, "padding": "same", "padding_mode": "circular", "dtype": torch.float64},
    ],
    "ConvTranspose2d": [
        {"kernel_size": 3},
        {"kernel_size": (2, 3), "stride": (2, 3), "padding": (0, 1), "output_padding": (1, 2), "bias": False},
        {"kernel_size": 3, "stride": 2, "groups": 2, "dilation": (2, 3), "dtype": torch.float64},
    ],
}


def pair(name: str, index: int) -> tuple[Any, Any]:
    """Ours and torch's, from the same seed."""
    made = []
    for kind in LAYERS[name]:
        torch.manual_seed(3)
        made.append(kind(4, 6, **ARGUMENTS[name][index]))
    return made[0], made[1]


@pytest.mark.parametrize(("name", "index"), [(name, i) for name in LAYERS for i in range(len(ARGUMENTS[name]))])
def test_layers_are_torchs(name: str, index: int) -> None:
    ours, theirs = pair(name, index)
    assert isinstance(ours, type(theirs)) and repr(ours) == f"fastconv.{theirs!r}"
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = tensor(INPUTS[name], ours.weight.dtype)
    wanted = theirs(x)
    for layer in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(layer(x), wanted)
    torch.testing.assert_close(torch.fx.symbolic_trace(nn.Sequential(ours))(x), wanted)
    with pytest.raises(RuntimeError, match=f"cannot compile fastconv.{name}"):
        torch.jit.script(ours)


@layers
def test_signatures_are_torchs(name: str) -> None:
    ours, theirs = (inspect.signature(kind).parameters.values() for kind in LAYERS[name])
    assert [(p.name, p.kind, p.default) for p in ours][:-2] == [(p.name, p.kind, p.default) for p in theirs]
    function, torchs = FUNCTIONS[{"Conv1d": "conv1d", "ConvTranspose2d": "conv_transpose2d"}[name]]
    named = torchs.__doc__.partition("(")[2].partition(")")[0].replace(" ", "").split(",")  # type: ignore[union-attr]
    assert [p.split("=")[0] for p in named] == list(inspect.signature(function).parameters)[: len(named)]


def test_an_output_size_in_place_of_padding() -> None:
    ours, theirs = (kind(4, 6, 3, stride=2, padding=1) for kind in LAYERS["ConvTranspose2d"])
    theirs.load_state_dict(ours.state_dict())
    x = tensor((2, 4, 5, 6))
    for size in ([9, 11], [10, 12], [9, 12], (2, 6, 10, 11)):
        y = ours(x, output_size=size)
        assert list(y.shape[-2:]) == list(size[-2:])
        torch.testing.assert_close(y, theirs(x, list(size)))
    with pytest.raises(ValueError, match="output size"):
        ours(x, output_size=[8, 11])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = ours

        def forward(self, x: Tensor) -> Tensor:
            return self.up(x, [10, 12])

    traced = torch.fx.symbolic_trace(Net())
    assert [n.op for n in traced.graph.nodes] == ["placeholder", "call_module", "output"]
    torch.testing.assert_close(traced(x), ours(x, [10, 12]))


@layers
def test_layers_with_an_activation(name: str) -> None:
    ours, theirs = LAYERS[name][0](4, 6, 3, activation="gelu", precision="ieee"), LAYERS[name][1](4, 6, 3)
    theirs.load_state_dict(ours.state_dict())
    x = tensor(INPUTS[name])
    z = theirs(x)
    torch.testing.assert_close(ours(x), F.gelu(z))
    torch.testing.assert_close(ours(x, residual=z), F.gelu(z + z))
    assert "precision='ieee', activation='gelu'" in repr(ours)
    assert type(fastconv.revert(nn.Sequential(ours))[0]) is LAYERS[name][0]  # torch's has none
    with pytest.raises(ValueError, match="precision"):
        LAYERS[name][0](4, 6, 3, precision="exact")


class UNet(nn.Module):
    """Two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        up = self.up(self.middle(skip), output_size=skip.shape[-2:])
        return self.out(torch.cat([skip, up], 1))


def step(net: nn.Module, x: Tensor) -> list[Tensor]:
    net.zero_grad()
    net(x).square().sum().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (UNet, (2, 3, 8, 12)),
        (lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.GELU(), nn.Conv1d(8, 8, 5, padding=2, groups=8)), (2, 3, 20)),
        (lambda: nn.Sequential(nn.LazyConv1d(8, 3), nn.LazyConv1d(4, 3)), (2, 3, 20)),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 8, 4), dim=2), (2, 3, 20)),
    ],
)
def test_models_convert_whole(make: Callable[[], nn.Module], size: tuple[int, ...]) -> None:
    torch.manual_seed(4)
    net, x = make(), tensor(size)
    net(x)
    wanted, before = step(net, x), repr(net)
    assert fastconv.unconverted(net) != []
    assert fastconv.unconverted(fastconv.convert(net)) == []
    with _Seen() as seen:
        found = step(net, x)
    assert not any("convolution" in name for name in seen.ops) and any("fastconv" in name for name in seen.ops)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    if not any(map(nn.utils.parametrize.is_parametrized, net.modules())):  # which torch does not pickle
        torch.testing.assert_close(step(pickle.loads(pickle.dumps(net)), x), found)
    assert repr(fastconv.revert(net)) == before


class OwnCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(tensor((4, 3, 3))), nn.Parameter(tensor((3, 2, 3, 3)))

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv1d(x.flatten(2), self.w1, padding=1).sum() + F.conv_transpose2d(
            x, self.w2, stride=2, output_padding=1
        )
        no = [0, 0]
        return y.sum() + torch.convolution(x, self.w2, None, [1, 1], no, [1, 1], True, no, 1).sum()


def test_functions_are_replaced() -> None:
    net, x = OwnCalls(), tensor((2, 3, 4, 5))
    wanted = net(x)
    with _Seen() as plain:
        net(x)
    assert plain.ops["aten.convolution"] == 3
    with fastconv.replace_conv2d(), _Seen() as seen:
        torch.testing.assert_close(net(x), wanted)
    assert seen.ops["fastconv.conv2d"] == 1 and seen.ops["fastconv.conv2d_input"] == 2
    assert not seen.ops["aten.convolution"]
    (left,) = fastconv.unconverted(net)
    assert "functional=True" in left.reason
    assert fastconv.unconverted(fastconv.convert(net, functional=True)) == []
    torch.testing.assert_close(net(x), wanted)
    with fastconv.replace_conv2d():  # what fastconv does not compute
        images = torch.ones(1, 1, 4, dtype=torch.int64)
        assert torch.equal(F.conv1d(images, images[..., :2]), F.conv1d(images, images[..., :2]))
        assert F.conv_transpose1d(tensor((1, 2, 4)), tensor((2, 2, 3))).shape == (1, 2, 6)


@layers
def test_onnx(name: str, tmp_path: Any) -> None:
    pytest.importorskip("onnxruntime")
    from test_onnx import export

    for index, arguments in enumerate(ARGUMENTS[name]):
        if arguments.get("dtype") is torch.float64:
            continue
        layer, _ = pair(name, index)
        x = tensor(INPUTS[name])
        run = export(layer, x, tmp_path / "layer.onnx")
        torch.testing.assert_close(run(x), layer(x).detach(), rtol=1e-5, atol=1e-5)


@layers
def test_traced_by_torch_jit(name: str) -> None:
    layer, x = LAYERS[name][0](4, 6, 3), tensor(INPUTS[name])
    torch.testing.assert_close(torch.jit.trace(layer, x)(x), layer(x))


class Helpers(nn.Conv1d):
    """Names that nobody else's methods may take the place of."""

    def _call(self, *args: Any, **kwargs: Any) -> Tensor:
        return torch.zeros(1)

    _function = _set = _convolve = _call


def test_methods_of_subclasses_are_left_alone() -> None:
    layer, x = Helpers(4, 6, 3), tensor((2, 4, 9))
    wanted = layer(x)
    assert fastconv.unconverted(fastconv.convert(layer)) == []
    torch.testing.assert_close(layer(x), wanted)


@pytest.mark.parametrize("attribute", ["precision", "activation"])
def test_attributes_of_our_names_are_not_taken_for_ours(attribute: str) -> None:
    layer, x = nn.Conv1d(4, 6, 3), tensor((2, 4, 9))
    setattr(layer, attribute, nn.ReLU())
    wanted = layer(x)
    (left,) = fastconv.unconverted(fastconv.convert(layer))
    assert "attribute" in left.reason
    fastconv.convert(layer, functional=True)
    torch.testing.assert_close(layer(x), wanted)
    assert isinstance(getattr(layer, attribute), nn.ReLU)


def test_a_residual_of_another_rank_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"conv1d\(\): residual must be 3-D, as input is, but is 0-D"):
        fastconv.conv1d(tensor((2, 3, 9)), tensor((4, 3, 3)), residual=torch.tensor(1.0))


def test_explain_takes_sequences() -> None:
    size, filters = (8, 256, 400), (256, 1, 31)
    row = fastconv.explain((8, 256, 1, 400), (256, 1, 1, 31), None, 1, (0, 15), groups=256, arch=90)
    assert "depthwise_sequence" in row
    assert fastconv.explain(size, filters, None, 1, 15, groups=256, arch=90) == row
    tensors = torch.empty(size, device="meta"), torch.empty(filters, device="meta")
    assert fastconv.explain(*tensors, None, (1,), "same", groups=256, arch=90) == row
    adjacent = tensors[0].transpose(1, 2).contiguous().transpose(1, 2)
    last = fastconv.explain(size, filters, None, 1, 15, groups=256, arch=90, channels_last=True)
    assert fastconv.explain(adjacent, tensors[1], None, 1, 15, groups=256, arch=90) == last != row
