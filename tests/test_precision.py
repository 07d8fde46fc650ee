"""The precision contract: what each mode promises, how it is chosen, and that Inf and NaN pass through."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastconv
import reference
from bench.errors import TF32_ROUNDING, used_tf32
from check import KERNELS, MODES, Kernel, expect_pass, run_forced, run_pass
from fastconv.precision import Precision
from shapes import PASSES, Problem, operands, tensor

Convolve = Callable[..., Tensor]
# Four half-ulps of float32. Below it the order of summation decides which of two implementations was lucky.
FEW_ROUNDINGS = 2**-22
# Large enough that an error's norm is an average and not luck: 10,000 elements or more in each result.
PROBLEMS = {
    "3x3": Problem(2, 64, 28, 28, 64, 3, 3, padding=(1, 1)),
    "5x7": Problem(1, 32, 40, 36, 64, 5, 7),
    "pointwise": Problem(4, 256, 14, 14, 128, 1, 1),
    "long_reduction": Problem(1, 1024, 9, 9, 160, 3, 3, padding=(1, 1)),
    "grouped": Problem(4, 128, 14, 14, 128, 3, 3, padding=(1, 1), groups=4),
    "depthwise": Problem(8, 96, 20, 20, 96, 7, 7, padding=(3, 3), groups=96),
    "strided": Problem(2, 64, 29, 29, 128, 3, 3, stride=(2, 2), padding=(1, 1)),
    "rgb_stem": Problem(8, 3, 64, 64, 72, 7, 7, stride=(2, 2), padding=(3, 3)),
    "patches": Problem(16, 3, 68, 64, 80, 8, 8, stride=(8, 8)),
    "rgb_output": Problem(4, 160, 40, 40, 3, 5, 5, padding=(2, 2)),
}


@contextlib.contextmanager
def strict_torch() -> Iterator[None]:
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True):
        yield


def gradients_by(
    convolve: Convolve, problem: Problem, dtype: torch.dtype, device: str
) -> dict[str, tuple[Tensor, reference.Expected]]:
    """Each pass's result with what it should be."""
    o = operands(problem, dtype, device)
    x, w = o.input.requires_grad_(), o.weight.requires_grad_()
    y = convolve(x, w, None, *problem.geometry)
    dx, dw = torch.autograd.grad(y, (x, w), o.grad_output)
    expected = reference.gradients(x, w, o.grad_output, *problem.geometry)
    return {
        "fprop": (y, reference.output(x, w, None, *problem.geometry)),
        "dgrad": (dx, expected.input),
        "wgrad": (dw, expected.weight),
    }


def errors(convolve: Convolve, problem: Problem, dtype: torch.dtype, device: str) -> dict[str, float]:
    results = gradients_by(convolve, problem, dtype, device)
    return {pass_: reference.normwise_error(*result) for pass_, result in results.items()}


def in_mode(mode: Precision) -> Convolve:
    return lambda x, w, b, *geometry: fastconv.conv2d(x, w, b, *geometry, precision=mode)


@pytest.mark.parametrize("name", PROBLEMS)
def test_ieee_is_as_exact_as_torch_in_strict_float32(device: str, name: str) -> None:
    """At most 1.2 times the error of torch's own: cuDNN's with TF32 off on a GPU, oneDNN's on a CPU."""
    with strict_torch():
        limit = errors(torch.nn.functional.conv2d, PROBLEMS[name], torch.float32, device)
    ours = errors(in_mode("ieee"), PROBLEMS[name], torch.float32, device)
    for pass_ in PASSES:
        assert ours[pass_] <= max(1.2 * limit[pass_], FEW_ROUNDINGS), pass_


@pytest.mark.parametrize("name", PROBLEMS)
def test_bf16x3_is_within_2e_5(device: str, name: str) -> None:
    ours = errors(in_mode("bf16x3"), PROBLEMS[name], torch.float32, device)
    assert all(error <= 2e-5 for error in ours.values()), ours


@pytest.mark.cuda
@pytest.mark.parametrize("name", PROBLEMS)
def test_tf32_is_as_exact_as_cudnn_in_tf32(cuda: str, name: str) -> None:
    """At most 1.1 times cuDNN's error with TF32 on, or 2^-11, TF32's rounding, where cuDNN chose not to use it."""
    with torch.backends.cudnn.flags(allow_tf32=True, deterministic=True):
        limit = errors(torch.nn.functional.conv2d, PROBLEMS[name], torch.float32, cuda)
    ours = errors(in_mode("tf32"), PROBLEMS[name], torch.float32, cuda)
    for pass_ in PASSES:
        promised = 1.1 * limit[pass_] if used_tf32(limit[pass_]) else TF32_ROUNDING
        assert ours[pass_] <= promised, pass_


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_dtypes_lose_only_the_rounding_of_the_result(device: str, dtype: torch.dtype, name: str) -> None:
    """Rounding to nearest loses at most half an ulp of each element; float32 accumulation adds no more than 1e-5."""
    for pass_, error in errors(in_mode("ieee"), PROBLEMS[name], dtype, device).items():
        assert error <= 0.5 * torch.finfo(dtype).eps + 1e-5, pass_


@pytest.mark.parametrize("name", PROBLEMS)
def test_float64_is_exact_to_the_order_of_summation(device: str, name: str) -> None:
    """Two float64 sums of L terms differ by about sqrt(L) roundings of 1.1e-16, here 96 at most."""
    ours = errors(in_mode("ieee"), PROBLEMS[name], torch.float64, device)
    assert all(error <= 1.1e-14 for error in ours.values()), ours


@pytest.mark.parametrize("scale", [1e-18, 1e15])
def test_ieee_keeps_float32s_range(device: str, scale: float) -> None:
    """Products of 1e-36 and of 1e30 are far outside what 16-bit parts could hold."""
    o = operands(PROBLEMS["3x3"].with_(n=1, c=16, k=16))
    x, w = (o.input * scale).to(device), (o.weight * scale).to(device)
    actual, expected = fastconv.conv2d(x, w, precision="ieee"), reference.output(x, w)
    assert reference.normwise_error(actual, expected) <= 1e-6


@pytest.mark.parametrize("name", ["3x3", "pointwise"])
def test_ieee_reaches_the_largest_numbers(device: str, name: str) -> None:
    """One product of nearly 2^128 a sum: its parts' products are no larger."""
    problem = PROBLEMS[name].with_(n=1)
    x, w = torch.zeros(problem.input_size), torch.zeros(problem.weight_size)
    x[:, 5], w[:, 5, 0, 0] = (1 + 2**-8) * 2.0**100, (1 + 2**-8) * 2.0**27 * 0.99
    dy = torch.zeros(problem.output_size)
    dy[:, :, 3, 4] = (1 + 2**-8) * 2.0**26
    x, w, dy = x.to(device).requires_grad_(), w.to(device).requires_grad_(), dy.to(device)
    y = fastconv.conv2d(x, w, None, *problem.geometry, precision="ieee")
    (dw,) = torch.autograd.grad(y, w, dy)
    for actual, right in (
        (y, reference.output(x, w, None, *problem.geometry)),
        (dw, reference.gradients(x, w, dy, *problem.geometry).weight),
    ):
        assert actual.isfinite().all()
        assert (reference.f64(actual) - right.value).abs().max() <= FEW_ROUNDINGS * right.value.abs().max()


@pytest.mark.parametrize("name", ["3x3", "pointwise"])
@pytest.mark.parametrize(("scale", "other"), [(1e-38, 1.0), (1e-40, 1.0), (1e-36, 1e-3), (1e-39, 1e20), (1e-41, 1e10)])
def test_ieee_keeps_denormal_numbers(device: str, name: str, scale: float, other: float) -> None:
    """A product may lose some units of the smallest number that float32 has, or four of them, the last bit of a third
    part, times the other factor."""
    problem = PROBLEMS[name]
    o = operands(problem)
    x, w = (o.input * scale).to(device), (o.weight * other).to(device)
    x.requires_grad_(), w.requires_grad_()
    y = fastconv.conv2d(x, w, None, *problem.geometry, precision="ieee")
    expected = reference.output(x, w, None, *problem.geometry)
    roundings = 2**-149 * math.sqrt(problem.products)  # of as many products as an image of errors at random has
    smallest = roundings * max(2, 4 * other)
    dw = torch.autograd.grad(y, w, o.grad_output.to(device))[0]
    gradients = reference.gradients(x, w, o.grad_output.to(device), *problem.geometry)
    for actual, right, bound in ((y, expected, smallest), (dw, gradients.weight, 4 * roundings)):
        error = (reference.f64(actual) - right.value).norm()
        assert error <= max(FEW_ROUNDINGS * right.value.norm(), bound), (float(error), float(right.value.norm()))


@pytest.mark.parametrize("name", PROBLEMS)
def test_ieee_with_a_wide_range_of_values(device: str, name: str) -> None:
    """exp(4 sigma): thirteen binary orders of magnitude in one tensor."""
    problem = PROBLEMS[name]
    o = operands(problem)
    x, w = o.input.mul(4).exp().to(device), o.weight.mul(4).exp().to(device)
    actual = fastconv.conv2d(x, w, None, *problem.geometry, precision="ieee")
    expected = reference.output(x, w, None, *problem.geometry)
    with strict_torch():
        theirs = torch.nn.functional.conv2d(x, w, None, *problem.geometry)
    limit = 1.2 * reference.normwise_error(theirs, expected)
    assert reference.normwise_error(actual, expected) <= max(limit, FEW_ROUNDINGS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("where", ["input", "weight", "grad_output"])
@pytest.mark.parametrize(
    ("c", "k", "layout"),
    [
        (5, 6, "contiguous"),
        (3, 40, "contiguous"),
        (3, 40, "channels_last"),
        (32, 48, "contiguous"),
        (32, 48, "channels_last"),
    ],
)
def test_inf_and_nan_propagate(
    device: str, mode: Precision, special: float, where: str, c: int, k: int, layout: str
) -> None:
    """Where float64 has Inf or NaN, so have we, and nowhere else.

    Only where no zero of a padding meets an infinite tap: those products are NaN in some correct implementations and
    left out in others, torch's own among both. And the tensor cores' weight gradient may make NaNs of other taps of the
    input's channel (docs/precision.md).
    """
    problem = Problem(2, c, 9, 8, k, 3, 3)
    o = operands(problem, torch.float32, device, views=(layout,) * 3)
    getattr(o, where)[-1, 2, 1, 1] = special
    x, w = o.input.requires_grad_(), o.weight.requires_grad_()
    y = fastconv.conv2d(x, w, None, *problem.geometry, precision=mode)
    dx, dw = torch.autograd.grad(y, (x, w), o.grad_output)
    g = reference.gradients(x, w, o.grad_output, *problem.geometry)
    inside = (..., slice(2, -2), slice(2, -2)) if where == "weight" else ...
    taps = g.weight.value
    if device == "cuda" and c != 5 and where == "input":
        spared = taps[:, 2].isfinite()
        assert spared.any() and not spared.all()
        dw[:, 2][spared] = taps[:, 2][spared].to(dw)
    pairs = (
        (y, reference.output(x, w, None, *problem.geometry).value),
        (dx[inside], g.input.value[inside]),
        (dw, taps),
    )
    assert any((~e.isfinite()).any() for _, e in pairs)
    for actual, e in pairs:
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(actual).cpu(), kind(e))


@pytest.mark.cuda
@pytest.mark.parametrize("pass_", ["fprop", "dgrad", "wgrad"])
def test_sums_that_overflow_have_their_sign(cuda: str, pass_: str) -> None:
    """Though the small parts of operands have signs of their own and their sums overflow as well."""
    most = torch.finfo(torch.float32).max
    kernels = [kernel for kernel in KERNELS if kernel.device == "cuda" and kernel.pass_ == pass_]
    ran = set()
    odd = (1, 1) if pass_ == "dgrad" else (0, 0)  # planes that begin within sectors
    shapes = [(32, 64, 18), (64, 64, 48), (64, 32, 18), (24, 24, 18), (3, 80, 18), (5, 7, 18)]
    problems = [Problem(2, c, 12, w, k, 3, 3, padding=(1, 1)) for c, k, w in shapes]
    problems += [Problem(1, c, 6, 134, k, 3, 3, padding=odd) for c, k in ((16, 40), (40, 16))]
    if pass_ == "dgrad":  # two columns at once
        problems.append(Problem(2, 64, 12, 48, 64, 3, 3, stride=(2, 2), padding=(1, 1)))
    cases = [(problem, "contiguous") for problem in problems]
    cases += [(Problem(2, 3, 32, 64, 80, 4, 4, stride=(4, 4)), layout) for layout in ("contiguous", "channels_last")]
    for problem, layout in cases:
        o = operands(problem, torch.float32, cuda, views=(layout,) * 3)
        huge, other, dim = {
            "fprop": (o.input, o.weight, 0),
            "dgrad": (o.grad_output, o.weight, 1),
            "wgrad": (o.grad_output, o.input, 1),
        }[pass_]
        huge.uniform_(2e38, 3.4e38)
        signs = torch.tensor([1.0, -1.0, 2.0**-20], device=cuda)  # of neighbouring results
        shape = [-1 if i == dim else 1 for i in range(4)]
        other.uniform_(0.5, 1).mul_(signs.repeat(other.shape[dim])[: other.shape[dim]].view(shape))
        expected = expect_pass(pass_, o, problem)
        finite, infinite = expected.value.abs() < 0.9 * most, expected.value.abs() > 1.1 * most
        assert finite.any() and infinite.any()
        right = torch.where(infinite, torch.inf * expected.value.sign(), expected.value)
        bound = expected.bound(torch.float32)
        for kernel in kernels:
            actual = run_forced(kernel, o, problem)
            if actual is None:
                continue
            assert torch.equal(actual.cpu()[infinite], right[infinite].float()), (kernel.name, problem)
            error = (actual.cpu().double() - right)[finite].abs()
            assert (error <= bound[finite]).all(), (kernel.name, problem, float((error / bound[finite]).max()))
            ran.add(kernel.name)
    # Of the halo engine, few channels and patch embeddings, the weight gradient.
    promoted = ("promoted", "3_parts", "_f32")
    in_parts = {kernel.name for kernel in kernels if any(part in kernel.name for part in promoted)}
    in_parts = {name for name in in_parts if "_scaled" not in name or "promoted" in name}  # others are for tf32
    assert in_parts <= ran, in_parts - ran


@pytest.mark.cuda
@pytest.mark.parametrize("sign", [1, -1])
def test_infinite_gradients_of_many_pixels(cuda: str, sign: int) -> None:
    """Sums of small products move to other registers more often than the largest finite numbers can be added up."""
    x = torch.full((46, 512, 56, 56), 1.1, device=cuda)
    dy = torch.full((46, 512, 54, 54), sign * math.inf, device=cuda)
    dw = fastconv.grad.conv2d_weight(x, (512, 512, 3, 3), dy, precision="ieee")
    assert (dw == sign * math.inf).all()


@pytest.mark.parametrize(("channels", "kernel_size"), [(3, 3), (3, 7), (4, 4)])
def test_ieee_of_few_products(device: str, channels: int, kernel_size: int) -> None:
    """Sums too short for a tensor core that truncates them, of images of few channels."""
    problem = Problem(1, channels, kernel_size, kernel_size, 64, kernel_size, kernel_size)
    o = operands(problem, torch.float32, device)
    dw = run_pass("wgrad", o, problem)
    expected = expect_pass("wgrad", o, problem)
    assert reference.normwise_error(dw, expected) <= 2.0**-24  # each is one product, rounded once


MODES_OF = {
    "tf32_floats": ["tf32"],
    "_parts_floats": ["tf32", "bf16x3"],
    "promoted_floats": ["ieee"],
    "promoted_scaled_floats": ["ieee"],
    "wgrad": MODES,
}
AS_THEY_LIE = dict.fromkeys(
    (kernel, mode)
    for kernel in KERNELS
    for name, modes in MODES_OF.items()
    if "_floats" in kernel.name and name in kernel.name
    for mode in modes
    if "_scaled" not in kernel.name or mode == "ieee"
)


@pytest.mark.cuda
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(("kernel", "mode"), AS_THEY_LIE, ids=lambda value: getattr(value, "name", value))
def test_inf_and_nan_of_planes_as_they_lie(cuda: str, kernel: Kernel, special: float, mode: str) -> None:
    """They reach the results of their own pixels alone, though the ends of rows are staged with those beside them."""
    ran = 0
    for c, k, h in itertools.product((16, 32, 64), (24, 40), (10, 12)):
        problem = Problem(2, c, h, 19, k, 3, 3, padding=(1, 1) if kernel.pass_ == "fprop" else (0, 0))
        o = operands(problem, torch.float32, cuda)
        read = o.input if kernel.pass_ == "fprop" else o.grad_output
        read[-1, 2, 3, 0] = special  # after the end of a row
        if kernel.pass_ == "wgrad":
            o.input[-1, :, 2:5, 17:] = 0  # what that end would meet
        else:
            read[0, 5, 4, -1] = special  # before the first column of the next row, and its padding
            read[0, -1, -1, -1] = special  # before the next image
        actual = run_forced(kernel, o, problem, mode)
        if actual is None:
            continue
        expected = expect_pass(kernel.pass_, o, problem).value
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(actual).cpu(), kind(expected).cpu())
        ran += 1
    assert ran


def test_overflow_becomes_infinity(device: str) -> None:
    x, w = torch.full((1, 4, 3, 3), 3e38, device=device), torch.ones(2, 4, 3, 3, device=device)
    assert torch.isposinf(fastconv.conv2d(x, w, precision="ieee")).all()
    half = torch.full((1, 4, 3, 3), 6e4, device=device, dtype=torch.float16)
    assert torch.isposinf(fastconv.conv2d(half, w.half())).all()
    # float32 partial sums do not overflow where float16 ones would.
    sign = torch.ones(1, 4, 1, 1, device=device, dtype=torch.float16)
    sign[:, 2:] = -1
    assert torch.equal(
        fastconv.conv2d(half * sign, w.half()), torch.zeros(1, 2, 1, 1, device=device, dtype=torch.float16)
    )


@pytest.mark.parametrize("bad", ["fp32", "IEEE", "", "highest", 1, True])
def test_unknown_precision_is_refused(device: str, bad: Any) -> None:
    x, w = tensor((1, 2, 4, 4), device=device), tensor((2, 2, 3, 3), device=device)
    for call in (
        lambda: fastconv.conv2d(x, w, precision=bad),
        lambda: fastconv.Conv2d(2, 2, 3, precision=bad),
        lambda: fastconv.precision(bad),
        lambda: fastconv.grad.conv2d_input(x.shape, w, x[..., :2, :2], precision=bad),
        lambda: fastconv.grad.conv2d_weight(x, w.shape, x[..., :2, :2], precision=bad),
    ):
        with pytest.raises((ValueError, RuntimeError, TypeError), match="precision"):
            call()


def planned(precision: Any = None) -> str:
    """The precision that a call now would ask the planner for, by a problem for which TF32 is far cheaper."""
    return str(fastconv.explain((8, 64, 56, 56), (64, 64, 3, 3), precision=precision, arch=90))


@pytest.mark.parametrize("mode", MODES)
def test_the_argument_reaches_the_planner(mode: Precision) -> None:
    assert planned(precision=mode).startswith(f"fprop float32 ({mode}) ")


def test_the_context_manager_nests_and_restores() -> None:
    outside = planned()
    with fastconv.precision("bf16x3"):
        assert planned() == planned(precision="bf16x3")
        with fastconv.precision("ieee"):
            assert planned() == planned(precision="ieee")
            assert planned(precision="tf32") != planned()  # the argument goes before the context
        assert planned() == planned(precision="bf16x3")
        with contextlib.suppress(KeyError), fastconv.precision("ieee"):
            raise KeyError
        assert planned() == planned(precision="bf16x3")
        with fastconv.precision(None):
            assert planned() == outside
    assert planned() == outside


def test_the_decorator_holds_while_the_function_runs() -> None:
    outside = planned()

    @fastconv.precision("bf16x3")
    def function(deeper: int = 0) -> list[str]:
        return [planned()] + (function(deeper - 1) if deeper else []) + [planned()]

    @fastconv.precision("ieee")
    def generator() -> Iterator[str]:
        yield planned()
        yield planned()

    @fastconv.precision("tf32")
    async def coroutine() -> str:
        await asyncio.sleep(0)
        return planned()

    assert planned() == outside
    assert function(2) == [planned(precision="bf16x3")] * 6
    assert planned() == outside
    values = generator()
    assert [next(values), planned(), next(values)] == [planned("ieee"), outside, planned("ieee")]

    async def both() -> tuple[str, str]:
        result = await coroutine()
        return result, planned()

    assert asyncio.run(both()) == (planned("tf32"), outside)
    assert function.__name__ == "function"


@pytest.mark.parametrize("what", [3, None, nn.Conv2d])
def test_a_decorator_of_something_else_raises_and_leaves_nothing(what: Any) -> None:
    outside = planned()
    with pytest.raises(TypeError, match="ieee.*decorates"):
        fastconv.precision("ieee")(what)
    assert planned() == outside


def test_a_setting_kept_for_later_restores_what_held_when_it_was_entered() -> None:
    outside = planned()
    kept = fastconv.precision("ieee")
    with kept:
        pass
    assert planned() == outside
    with fastconv.precision("bf16x3"):
        with kept, kept:
            assert planned() == planned("ieee")
        assert planned() == planned("bf16x3")
    assert planned() == outside


def test_a_setting_decorates_any_number_of_functions_and_serves_as_a_block_too() -> None:
    outside = planned()
    setting = fastconv.precision("ieee")
    functions = [setting(planned), setting(planned)]
    assert planned() == outside
    with setting:
        assert planned() == planned("ieee")
    assert planned() == outside and [f() for f in functions] == [planned("ieee")] * 2


def test_a_decorator_takes_back_its_own_setting_alone() -> None:
    with fastconv.precision(None):
        setting = fastconv.precision("ieee")
        fastconv.precision("bf16x3")
        assert setting(planned)() == planned("ieee")
        assert planned() == planned("bf16x3")


def test_where_tf32_is_allowed_exact_kernels_that_cost_no_more_are_taken() -> None:
    """First layers bound by memory, tiny images, narrow groups: cuDNN leaves them exact too."""
    with torch.backends.cudnn.flags(allow_tf32=True):
        for sizes in (
            ((4, 4, 10, 10), (1, 4, 1, 1)),
            ((1, 1, 10, 10), (1, 1, 3, 3)),
            ((32, 1, 224, 224), (16, 1, 3, 3)),
        ):
            assert " float32 (ieee) " in fastconv.explain(*sizes, arch=90)
            assert " float32 (tf32) " in fastconv.explain(*sizes, arch=90, precision="tf32")
        for dtype in (torch.float16, torch.float64):
            plan = fastconv.explain((8, 64, 56, 56), (64, 64, 3, 3), dtype=dtype, arch=90)
            assert plan == fastconv.explain((8, 64, 56, 56), (64, 64, 3, 3), dtype=dtype, arch=90, precision="ieee")


def planned_us(precision: Any, pass_: str, problem: Problem) -> float:
    text = fastconv.explain(
        problem.input_size, problem.weight_size, None, *problem.geometry, pass_=pass_, precision=precision, arch=90
    )
    (_, _, plan, *_) = text.splitlines()
    return float(re.findall(r"cost_us ([0-9.e+]+)", plan)[-1])  # the others are of plans within it


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_allowed_costs_a_few_per_cent_or_less_than_a_call_costs_the_host(name: str, pass_: str) -> None:
    problem = PROBLEMS[name]
    with torch.backends.cudnn.flags(allow_tf32=True):
        allowed, *chosen = (planned_us(p, pass_, problem) for p in (None, "ieee", "tf32"))
    assert allowed in chosen and allowed <= max(1.05 * chosen[1] + 1, 10 if pass_ == "fprop" else 12)


# torch's CUDA tests of float32 with TF32 on, where cuDNN has no TF32 kernel. They ask for 1e-5 and less.
TORCHS_OWN = (
    Problem(2, 4, 6, 6, 4, 3, 3, groups=2, bias=True),  # groups against separate convolutions
    Problem(2, 16, 6, 6, 4, 3, 3, groups=2),
    Problem(1, 1, 10, 10, 1, 3, 3),  # against SciPy's
    Problem(10, 8, 10, 10, 6, 1, 1),  # a filter of size 1
    Problem(16, 1, 10, 10, 3, 1, 1),
)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("problem", TORCHS_OWN, ids=str)
def test_torchs_own_comparisons_are_planned_exact_in_its_default_settings(problem: Problem, pass_: str) -> None:
    with torch.backends.cudnn.flags(allow_tf32=True):
        assert planned_us(None, pass_, problem) == planned_us("ieee", pass_, problem)


@pytest.mark.cuda
def test_torchs_own_comparisons_hold_in_its_default_settings(cuda: str) -> None:
    with torch.backends.cudnn.flags(allow_tf32=True):
        for problem in TORCHS_OWN:
            for pass_, error in errors(fastconv.conv2d, problem, torch.float32, cuda).items():
                assert error <= 1e-6, (problem, pass_)


def test_the_setter_stays_until_it_is_set_again() -> None:
    outside = planned()
    fastconv.precision("bf16x3")
    try:
        assert planned() == planned(precision="bf16x3")
    finally:
        fastconv.precision(None)
    assert planned() == outside


def test_a_module_keeps_its_precision() -> None:
    layer = fastconv.Conv2d(8, 8, 3, precision="bf16x3")
    assert layer.precision == "bf16x3" and "precision='bf16x3'" in repr(layer)
    assert fastconv.Conv2d(8, 8, 3).precision is None


@pytest.fixture
def torch_flags() -> Iterator[None]:
    """Leaves torch's precision settings as it found them."""
    pairs = [("generic", "all"), ("cuda", "all"), ("cuda", "conv"), ("cuda", "matmul")]
    before = [torch._C._get_fp32_precision_getter(*p) for p in pairs]
    allowed = torch._C._get_cudnn_allow_tf32()
    yield
    torch._C._set_cudnn_allow_tf32(allowed)
    for p, value in zip(pairs, before, strict=True):
        torch._C._set_fp32_precision_setter(*p, value)


def test_the_default_follows_torchs_old_flag(torch_flags: None) -> None:
    for allowed, mode in ((True, "tf32"), (False, "ieee")):
        torch.backends.cudnn.allow_tf32 = allowed
        assert planned() == planned(precision=mode)


def test_the_default_follows_torchs_new_setting(torch_flags: None) -> None:
    for setting, mode in (("tf32", "tf32"), ("ieee", "ieee")):
        torch.backends.cudnn.conv.fp32_precision = setting  # type: ignore[attr-defined]
        assert planned() == planned(precision=mode)


def test_mixing_both_of_torchs_settings_does_not_raise(torch_flags: None, device: str) -> None:
    """torch.backends.cudnn.allow_tf32 itself raises then."""
    torch.backends.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    x, w = tensor((1, 2, 4, 4), device=device), tensor((2, 2, 3, 3), device=device)
    assert planned() == planned(precision="tf32")
    reference.assert_right(fastconv.conv2d(x, w, precision="ieee"), reference.output(x, w))


def test_torchs_matmul_precision_does_not_matter(device: str) -> None:
    """An inner GEMM by torch would follow it."""
    problem = PROBLEMS["3x3"]
    before = torch.get_float32_matmul_precision()
    strict = gradients_by(in_mode("ieee"), problem, torch.float32, device)
    try:
        torch.set_float32_matmul_precision("medium")
        loose = gradients_by(in_mode("ieee"), problem, torch.float32, device)
    finally:
        torch.set_float32_matmul_precision(before)
    assert all(torch.equal(strict[p][0], loose[p][0]) for p in PASSES)


def test_the_setting_belongs_to_the_thread() -> None:
    """As grad mode does; a process-wide one would let two data-parallel threads change each other's."""
    with fastconv.precision("bf16x3"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(planned).result() != planned() == planned(precision="bf16x3")
