"""CUDA kernels without a GPU: thread by thread on the CPU (tests/emulated), against float64."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import _fastconv_emulated as emulated
import _fastconv_native as native
import reference
import sweeps
from check import MODES as PRECISIONS
from check import expect_pass
from fastconv.activation import ACTIVATIONS
from shapes import (
    CASES,
    NCHW,
    PASSES,
    STEMS,
    THREE_STEPS,
    VIEWS,
    Operands,
    Problem,
    for_squares,
    group_widths,
    least_products,
    operands,
    patch_embeddings,
    precision_of,
    sequence_problems,
    takes_pixels,
    wide_problems,
)
from sweeps import examples

ALL_KERNELS = [kernel for kernel in native.kernel_table() if kernel.is_cuda]
FAMILIES = ("depthwise_banded_", "depthwise_cross_", "depthwise_diagonal_", "depthwise_pairs_")
KERNELS = [pytest.param(kernel, id=kernel.name) for kernel in ALL_KERNELS if kernel.name.startswith(FAMILIES)]
HALF = [torch.float16, torch.bfloat16]
MODES = [*((dtype, "ieee") for dtype in (*HALF, torch.float64)), *((torch.float32, mode) for mode in PRECISIONS)]
NAMED = [p for p in {**CASES, **NCHW, **STEMS}.values() if p.n and p.products < 40e6]
LAYOUTS = ["contiguous", "channels_last"]
SMS = 3
MARGIN = 64  # elements, whole lines of 128 bytes


def is_compiled(kernel: native.Kernel, dtype: torch.dtype) -> bool:
    return emulated.is_compiled(kernel.name, str(dtype).removeprefix("torch."))


def half(kernel: native.Kernel, preferred: torch.dtype = torch.float16) -> torch.dtype:
    """The other type of 16 bits if the kernel is emulated in that one alone."""
    return next(dtype for dtype in (preferred, *HALF) if is_compiled(kernel, dtype))


def surrounded(t: Tensor) -> tuple[Tensor, Tensor]:
    """The same values and strides amid NaNs, and the memory that holds both."""
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    memory = torch.full((MARGIN + last + 1 + MARGIN,), math.nan, dtype=t.dtype)
    view = memory.as_strided(t.shape, t.stride(), MARGIN)
    view.copy_(t)
    return view, memory


@dataclass
class Result:
    value: Tensor
    columns_by_definition: int
    plan: native.Plan


def run(
    kernel: native.Kernel,
    o: Operands,
    problem: Problem,
    sms: int = 132,
    haste: bool = False,
    view: str = "contiguous",
    precision: str = "ieee",
    smem_kib: int = 227,
    activation: int = 0,
    wide_bias: bool = False,
    arch: int = 90,
) -> Result | None:
    """What the kernel computes, which writes nothing else; None if it refuses, or a kernel within its plan is emulated
    in the other type of 16 bits."""
    target = {"fprop": problem.output_size, "dgrad": problem.input_size, "wgrad": problem.weight_size}[kernel.pass_]
    poison = VIEWS[view](torch.full(target, math.nan, dtype=o.input.dtype))
    x, w, y = (
        surrounded(poison if kernel.pass_ == pass_ else t)
        for pass_, t in (("dgrad", o.input), ("wgrad", o.weight), ("fprop", o.grad_output))
    )
    bias = None
    if o.bias is not None and kernel.pass_ == "fprop":
        bias = surrounded(o.bias.float() if wide_bias else o.bias)[0]
    tensors = [x[0], w[0], y[0]]
    conv = native.ConvProblem(
        problem.input_size,
        problem.weight_size,
        *problem.geometry,
        pass_=kernel.pass_,
        dtype=str(o.input.dtype).removeprefix("torch."),
        precision=precision,
        bias=bias is not None,
        x_strides=x[0].stride(),
        w_strides=w[0].stride(),
        y_strides=y[0].stride(),
        align=math.gcd(128, *(t.data_ptr() for t in tensors)),
    )
    device = native.DeviceSpec.cuda(arch, sms, smem_kib << 10)
    if kernel.why_not(conv, device) is not None or not emulated.runs(kernel.name, conv, device):
        return None
    columns = emulated.run(
        kernel.name,
        conv,
        device,
        x=x[0].data_ptr(),
        w=w[0].data_ptr(),
        y=y[0].data_ptr(),
        bias=0 if bias is None else bias.data_ptr(),
        activation=activation,
        wide_bias=wide_bias,
        haste=haste,
    )
    actual, memory = {"dgrad": x, "wgrad": w, "fprop": y}[kernel.pass_]
    value = actual.clone()
    actual.fill_(math.nan)
    assert memory.isnan().all(), "written beside the output"
    return Result(value, columns, native.make_plan(conv, device, kernel.name))


def spoil(kernel: native.Kernel, o: Operands, value: float, data: st.DataObject) -> None:
    """One number of the image tensor that windows slide over."""
    changed = {"fprop": o.input, "dgrad": o.grad_output, "wgrad": o.input}[kernel.pass_]
    changed[tuple(data.draw(st.integers(0, size - 1)) for size in changed.shape)] = value


def assert_right_where_finite(actual: Tensor, expected: reference.Expected, precision: str = "ieee") -> None:
    """And infinite or NaN where that is expected."""
    for same in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(same(actual), same(expected.value)), same.__name__
    finite = expected.value.isfinite()
    error, bound = (actual.double() - expected.value).abs(), expected.bound(actual.dtype, precision)
    assert (error[finite] <= bound[finite]).all()


@st.composite
def small_problems(draw: st.DrawFn, kernel: str) -> Problem:
    """What a kernel's name says; no kernel refuses them, so that none is left out unnoticed."""
    size, stride = kernel.split("_")[3], 2 if "s2" in kernel else 1
    pixels, any_rows, some_rows = takes_pixels(kernel), size.startswith("any"), "x" in size
    words = not pixels and not kernel.endswith("_odd")
    staged = not pixels and "_tma" in kernel
    wide = [100] if staged and "wgrad" in kernel else [134, 520] if staged else [134]
    if any_rows or some_rows:
        most_r, most_s = 13, int(size[-2:]) - 8  # of a window
    else:
        most_r = int(size[0])
        most_s = most_r if pixels else 9
    least_r = 1 if any_rows or some_rows or pixels else max(1, most_r - 1)
    r, s = draw(st.one_of(st.just(most_r), st.integers(least_r, most_r))), draw(st.integers(1, most_s))
    if pixels and most_r > 3:
        r, s = draw(st.permutations([r, draw(st.integers(most_s - 1, most_s))]))
    if staged and "wgrad" in kernel and draw(st.booleans()):  # a filter of several parts
        r += most_r
    if words and stride == 1:
        s -= 1 - s % 2  # rows of input and output are even
    padding = draw(st.sampled_from([(r // 2, s // 2), (r // 2, s // 2), (r - 1, s - 1), (0, 0), (r // 2, s + 1)]))
    if "dgrad" in kernel and stride == 2 and not pixels:
        r, s = most_r, s - (1 - s % 2)
        padding = (r // 2, s // 2)
    c = draw(st.sampled_from([8, 16, 40] if pixels else [1, 2, 3]))
    width = draw(st.sampled_from(group_widths(kernel)))
    c += -c % width
    k = c * draw(st.sampled_from([1, 1, 1, 2] if "dgrad" not in kernel and not pixels else [1]))
    h, w = (
        draw(st.integers(1, 24)),
        draw(st.one_of(st.integers(1, 40), st.sampled_from(wide)) if c <= 8 else st.integers(1, 20)),
    )
    h, w = max(h, r - 2 * padding[0]), max(w, s - 2 * padding[1])
    if words:
        w += w % 2
        if stride == 2 and (w + 2 * padding[1] - s) // 2 % 2 == 0:
            w += 2
    several = "_pairs_" in kernel or "_cross_" in kernel
    n, bias = draw(st.integers(1, 9 if several else 3)), draw(st.booleans())
    problem = Problem(n, c, h, w, k, r, s, (stride, stride), padding, groups=c // width, bias=bias)
    if staged:  # what is copied is a multiple of 16 bytes
        copied = [problem.output_size] * ("fprop" not in kernel) + [problem.input_size] * ("dgrad" not in kernel)
        if any(math.prod(size) % 8 != 0 for size in copied):
            problem = problem.with_(n=8 * n)
    return problem


def source_view(kernel: native.Kernel) -> str:
    return "channels_last" if takes_pixels(kernel.name) else "contiguous"


def element_type(kernel: native.Kernel, of_halves: torch.dtype) -> tuple[torch.dtype, str]:
    """And precision, of a kernel that is for one of float32's precisions or for 16 bits."""
    if re.search("tf32|quads_fprop_2_(parts|halves)", kernel.name):
        return torch.float32, precision_of(kernel.name)
    return half(kernel, of_halves), "ieee"


@pytest.mark.parametrize("kernel", KERNELS)
@given(
    data=st.data(),
    dtype=st.sampled_from(HALF),
    seed=st.integers(0, 2**31),
    sms=st.sampled_from([1, 4, 132]),
    haste=st.booleans(),
    weight_view=st.sampled_from(["contiguous", "channels_last", "transposed"]),
)
@settings(max_examples=examples(20))
def test_emulated_kernels(
    kernel: native.Kernel,
    data: st.DataObject,
    dtype: torch.dtype,
    seed: int,
    sms: int,
    haste: bool,
    weight_view: str,
) -> None:
    problem, view = data.draw(small_problems(kernel.name)), source_view(kernel)
    dtype, precision = element_type(kernel, dtype)
    o = operands(problem, dtype, "cpu", seed, (view, weight_view, view))
    # The least that holds two boxes of these kernels, or all that there is.
    least_kib = 120 if "_pairs_" in kernel.name else 190 if "_cross_" in kernel.name else 227
    smem_kib = data.draw(st.sampled_from([least_kib, 227]))
    written_view = weight_view if kernel.pass_ == "wgrad" else view
    result = run(kernel, o, problem, sms, haste, written_view, precision, smem_kib)
    assert result is not None, "refused"
    reference.assert_right(result.value, expect_pass(kernel.pass_, o, problem), kernel.name, precision)
    assert result.columns_by_definition == 0


@pytest.mark.parametrize(("n", "h", "w"), [(2, 9, 28), (5, 20, 12), (4, 20, 12), (8, 7, 4), (3, 11, 2)])
@pytest.mark.parametrize("kernel", [k for k in KERNELS if "_cross_" in str(k.id)])
def test_rows_of_two_images_share_steps_of_columns(kernel: native.Kernel, n: int, h: int, w: int) -> None:
    """As a single SM's plans have it (test_planner); but rows of half a step alone are filled up."""
    taps, stride = int(kernel.name.split("_")[3][0]), 2 if kernel.name.endswith("s2") else 1
    padding = (taps // 2, taps // 2)
    problem = Problem(n, 40, stride * h, stride * w, 40, taps, taps, (stride, stride), padding, groups=40)
    o = operands(problem, half(kernel), "cpu", 0, ("channels_last", "contiguous", "channels_last"))
    result = run(kernel, o, problem, 1)
    assert result is not None, "refused"
    reference.assert_right(result.value, expect_pass("wgrad", o, problem), kernel.name, "ieee")
    assert result.columns_by_definition == 0


@pytest.mark.parametrize("kernel", [k for k in KERNELS if re.search(r"(diagonal|pairs)_dgrad_\d(_tma)?$", str(k.id))])
def test_a_filter_of_one_row_may_have_any_stride_from_row_to_row(kernel: native.Kernel) -> None:
    """Also none, as torch has it for a dimension of one: with the last tap first, only columns go backwards."""
    taps, view = int(kernel.name.split("_")[3][0]), source_view(kernel)
    problem = Problem(2, 8, 6, 9, 8, 1, taps, padding=(0, taps // 2), groups=8)
    o = operands(problem, half(kernel), "cpu", 0, (view, "contiguous", view))
    o = replace(o, weight=o.weight.as_strided(o.weight.shape, (taps, taps, 0, 1)))
    result = run(kernel, o, problem, view=view)
    assert result is not None, "refused"
    reference.assert_right(result.value, expect_pass(kernel.pass_, o, problem), kernel.name, "ieee")


@pytest.mark.parametrize("kernel", [k for k in KERNELS if "wgrad" not in str(k.id)])
@given(
    data=st.data(),
    dtype=st.sampled_from(HALF),
    seed=st.integers(0, 2**31),
    special=st.sampled_from([math.inf, -math.inf, math.nan]),
    of_filter=st.booleans(),
)
@settings(max_examples=examples(8))
def test_emulated_kernels_and_values_that_are_not_finite(
    kernel: native.Kernel, data: st.DataObject, dtype: torch.dtype, seed: int, special: float, of_filter: bool
) -> None:
    """They reach what they should and no more."""
    problem, view = data.draw(small_problems(kernel.name)), source_view(kernel)
    dtype, precision = element_type(kernel, dtype)
    o = operands(problem, dtype, "cpu", seed, (view, "contiguous", view))
    source = o.grad_output if kernel.pass_ == "dgrad" else o.input
    # Products of padding with a filter's infinities: of a gradient, torch has none.
    changed = o.weight if of_filter and kernel.pass_ == "fprop" else source
    index = tuple(data.draw(st.integers(0, size - 1)) for size in changed.shape)
    changed[index] = special
    result = run(kernel, o, problem, view=view, precision=precision)
    assert result is not None, "refused"
    expected = expect_pass(kernel.pass_, o, problem)
    assert_right_where_finite(result.value, expected, precision)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if re.search(r"(cross|diagonal)_wgrad_\d", str(k.id))])
@given(data=st.data(), seed=st.integers(0, 2**31), special=st.sampled_from([math.inf, math.nan]))
@settings(max_examples=examples(20))
def test_values_that_are_not_finite_reach_taps_that_meet_them(
    kernel: native.Kernel, data: st.DataObject, seed: int, special: float
) -> None:
    """Not those that a column beyond the image would meet, or a row that a run of rows lacks."""
    problem, view = data.draw(small_problems(kernel.name)), source_view(kernel)
    o = operands(problem, half(kernel), "cpu", seed, (view, "contiguous", view))
    o.input[tuple(data.draw(st.integers(0, size - 1)) for size in o.input.shape)] = special
    result = run(kernel, o, problem, view=view)
    assert result is not None, "refused"
    assert torch.equal(result.value.isfinite(), expect_pass("wgrad", o, problem).value.isfinite())


@pytest.mark.parametrize("kernel", [k for k in KERNELS if "_cross_" in str(k.id)])
@given(data=st.data(), seed=st.integers(0, 2**31), special=st.sampled_from([math.inf, math.nan]))
@settings(max_examples=examples(20))
def test_gradients_that_are_not_finite_reach_taps_that_meet_pixels(
    kernel: native.Kernel, data: st.DataObject, seed: int, special: float
) -> None:
    """Not those that meet padding there."""
    problem, view = data.draw(small_problems(kernel.name)), source_view(kernel)
    o = operands(problem, half(kernel), "cpu", seed, (view, "contiguous", view))
    _, c, p, q = index = tuple(data.draw(st.integers(0, size - 1)) for size in o.grad_output.shape)
    o.grad_output[index] = special
    result = run(kernel, o, problem, view=view)
    assert result is not None, "refused"
    finite = torch.ones_like(result.value, dtype=torch.bool)
    for r, s in itertools.product(range(problem.r), range(problem.s)):
        h, w = problem.stride[0] * p - problem.padding[0] + r, problem.stride[1] * q - problem.padding[1] + s
        finite[c, 0, r, s] = not (0 <= h < problem.h and 0 <= w < problem.w)
    assert torch.equal(result.value.isfinite(), finite)


SEQUENCES = [pytest.param(it, id=it.name) for it in ALL_KERNELS if it.name.startswith("depthwise_sequence_")]


@pytest.mark.parametrize("kernel", SEQUENCES)
@given(
    data=st.data(),
    dtype=st.sampled_from(HALF),
    seed=st.integers(0, 2**31),
    sms=st.sampled_from([1, 4, 132]),
    haste=st.booleans(),
    weight_view=st.sampled_from(["contiguous", "channels_last", "transposed"]),
    written_view=st.sampled_from([None, None, "misaligned"]),
    special=st.sampled_from([None, None, math.inf, math.nan]),
)
@settings(max_examples=examples(40))
def test_emulated_sequences(
    kernel: native.Kernel,
    data: st.DataObject,
    dtype: torch.dtype,
    seed: int,
    sms: int,
    haste: bool,
    weight_view: str,
    written_view: str | None,
    special: float | None,
) -> None:
    problem, view = data.draw(sequence_problems(kernel.name))
    dtype = torch.float32 if kernel.name.endswith("floats") else half(kernel, dtype)
    o = operands(problem, dtype, "cpu", seed, (view, weight_view, view))
    written = weight_view if kernel.pass_ == "wgrad" else view if view == "channels_last" else written_view or view
    # Of a weight gradient they may spread over a channel's taps.
    if special is not None and kernel.pass_ != "wgrad":
        spoil(kernel, o, special, data)
    result = run(kernel, o, problem, sms, haste, written)
    assert result is not None, "refused"
    assert_right_where_finite(result.value, expect_pass(kernel.pass_, o, problem))


@pytest.mark.parametrize("view", ["contiguous", "channels_last"])
@pytest.mark.parametrize("kernel", [it for it in SEQUENCES if "_dgrad_" in str(it.id) and "_gaps" not in str(it.id)])
def test_an_infinite_tap_meets_no_zero_of_a_stride(kernel: native.Kernel, view: str) -> None:
    """What lies between the elements of dy is no part of the gradient."""
    taps = {"34": 17, "66": 40, "114": 70}.get(kernel.name.split("_")[3], 5)
    for stride, padding in itertools.product((2, 3), (0, 1, 4)):
        problem = Problem(2, 8, 1, 641, 8, 1, taps, stride=(1, stride), padding=(0, padding), groups=8)
        dtype = torch.float32 if kernel.name.endswith("floats") else half(kernel)
        o = operands(problem, dtype, "cpu", 3, (view, "contiguous", view))
        o.weight[1, 0, 0, 2] = math.inf
        result = run(kernel, o, problem, view=view)
        assert result is not None, "refused"
        expected = expect_pass("dgrad", o, problem).value
        inside = (..., slice(taps + 5, -taps - 5))  # at the border it meets padding
        assert torch.equal(result.value[inside].isfinite(), expected[inside].isfinite())
        assert not expected[inside].isfinite().all() and expected[inside].isfinite()[:, 1].any()


QUADS = [pytest.param(it, id=it.name) for it in ALL_KERNELS if it.name.startswith("quads_fprop_")]


@st.composite
def quads_problems(draw: st.DrawFn, kernel: str) -> Problem:
    side = st.sampled_from([1, 2, 3, 3, 4, 7])
    r, s = draw(st.sampled_from(THREE_STEPS) if "3_steps" in kernel else st.tuples(side, side))
    c = draw(st.integers(1, 4))
    if c * r * s < least_products(kernel, c):
        c, r, s = 3, max(r, 3), max(s, 3)
    stride, dilation = (draw(st.tuples(*[st.integers(1, most)] * 2)) for most in (4, 2))
    padding = draw(st.sampled_from([(0, 0), (r // 2, s // 2), (r, s), (2, 9)]))
    h, w = draw(st.integers(1, 20)), draw(st.one_of(st.integers(1, 40), st.integers(1, 12).map(lambda i: 8 * i)))
    whole = least_products(kernel, c) > 1  # some outputs have all taps
    h, w = (
        max(x, 1 + d * (taps - 1) - (0 if whole else 2 * p))
        for x, d, taps, p in zip((h, w), dilation, (r, s), padding, strict=True)
    )
    n, k = draw(st.integers(1, 3)), draw(st.sampled_from([1, 5, 8, 24, 33, 40, 64, 96, 160]))
    return for_squares(kernel, Problem(n, c, h, w, k, r, s, stride, padding, dilation, bias=draw(st.booleans())))


@pytest.mark.parametrize("kernel", QUADS)
@given(
    dtype=st.sampled_from(HALF),
    seed=st.integers(0, 2**31),
    sms=st.sampled_from([1, 4, 132]),
    haste=st.booleans(),
    # But for those whose elements share memory.
    views=st.tuples(
        *[st.sampled_from([*["contiguous", "channels_last"] * 3, *(v for v in VIEWS if not v.startswith("same_"))])] * 3
    ),
    special=st.sampled_from([None, None, math.inf, math.nan]),
    data=st.data(),
)
@settings(max_examples=examples(40))
def test_emulated_quads(
    kernel: native.Kernel,
    dtype: torch.dtype,
    seed: int,
    sms: int,
    haste: bool,
    views: tuple[str, str, str],
    special: float | None,
    data: st.DataObject,
) -> None:
    dtype, _ = element_type(kernel, dtype)
    problem = data.draw(quads_problems(kernel.name))
    o = operands(problem, dtype, "cpu", seed, views)
    if special is not None:
        changed = data.draw(st.sampled_from([o.input, o.weight]))
        changed[tuple(data.draw(st.integers(0, size - 1)) for size in changed.shape)] = special
    precision = precision_of(kernel.name)
    result = run(kernel, o, problem, sms, haste, views[2], precision)
    assert result is not None, "refused"
    expected = expect_pass("fprop", o, problem)
    if special is None:
        reference.assert_right(result.value, expected, kernel.name, precision)
        return
    assert_right_where_finite(result.value, expected, precision)


@pytest.mark.parametrize("taps", [3, 7])
@pytest.mark.parametrize("kernel", [it for it in QUADS if "2_halves" in str(it.id)])
def test_quads_that_one_scale_does_not_fit_have_other_parts(kernel: native.Kernel, taps: int) -> None:
    """From the first tile of a block that does not fit on; those before it have fp16 parts.

    Of 7x7 the filter as it was is larger than a tile.
    """
    pad = taps // 2
    problem = for_squares(kernel.name, Problem(6, 3, 24, 32, 40, taps, taps, padding=(pad, pad), bias=True))
    view = "channels_last" if kernel.name.endswith("nhwc") else "contiguous"
    scaled, mixed = (operands(problem, torch.float32, "cpu", 0, (view,) * 3) for _ in range(2))
    mixed.input[2:4, :, ::2] *= 2.0**-40
    values = []
    for o in (scaled, mixed):
        result = run(kernel, o, problem, 1, False, view, "ieee")
        assert result is not None, "refused"
        reference.assert_right(result.value, expect_pass("fprop", o, problem), kernel.name, "ieee")
        values.append(result.value)
    for images, same in ((slice(0, 2), True), (slice(4, 6), False)):
        assert torch.equal(values[0][images], values[1][images]) == same, images


@pytest.mark.parametrize("kernel", QUADS)
@pytest.mark.parametrize(
    ("case", "problem", "sms"),
    [
        ("several sets", Problem(2, 3, 24, 48, 64, 3, 3, padding=(1, 1), bias=True), 1),
        ("the last block lacks a set", Problem(4, 3, 8, 16, 160, 3, 3, padding=(1, 1), bias=True), 3),
        ("three tiles", Problem(9, 3, 24, 48, 24, 3, 3, padding=(1, 1), bias=True), 1),
        ("many units", Problem(4, 3, 24, 48, 64, 3, 3, padding=(1, 1), bias=True), 1),
        ("not as many of each warp", Problem(3, 3, 14, 48, 64, 3, 3, padding=(1, 1), bias=True), 1),
    ],
)
@pytest.mark.parametrize("haste", [False, True])
def test_blocks_of_quads(kernel: native.Kernel, case: str, problem: Problem, sms: int, haste: bool) -> None:
    """Each place of a tile is filled once more with the third."""
    problem = for_squares(kernel.name, problem)
    dtype, _ = element_type(kernel, torch.float16)
    view = "channels_last" if kernel.name.endswith("nhwc") else "contiguous"
    o = operands(problem, dtype, "cpu", 0, (view,) * 3)
    precision = precision_of(kernel.name)
    result = run(kernel, o, problem, sms, haste, view, precision)
    assert result is not None, "refused"
    found = re.search(r"grid (\d+) block (\d+) (\d+)x(\d+) pixels of (\d+) sets, walkers (\d+)", str(result.plan))
    assert found is not None, result.plan
    grid, threads, rows, columns, sets, walkers = map(int, found.groups())
    p, q = problem.output_size[2:]
    tiles = len(o.input) * -(-p // rows) * -(-q // columns)
    lacking = 32 * sets * grid // walkers - problem.k
    is_so = {"several sets": sets > 1, "the last block lacks a set": sets > 1 and lacking >= 32}
    assert is_so.get(case, tiles >= 3 * walkers), result.plan
    if "2_parts_3_steps" in kernel.name:  # all or some warps stage the next tile before their fourth unit
        units = rows * columns * sets / threads
        assert {"many units": units >= 4, "not as many of each warp": 3 < units < 4}.get(case, True), result.plan
    reference.assert_right(result.value, expect_pass("fprop", o, problem), kernel.name, precision)


@pytest.mark.parametrize("kernel", [it for it in QUADS if not re.search("3_steps|squares", str(it.id))])
@pytest.mark.parametrize("view", ["contiguous", "channels_last"])
def test_quads_of_filters_that_shared_memory_has_no_room_for_twice(kernel: native.Kernel, view: str) -> None:
    """Once packed and once as they were."""
    dtype, _ = element_type(kernel, torch.float16)
    side = 24 if dtype in HALF else 17
    problem = Problem(1, 4, 8, 8, 40, side, side, padding=(side // 2,) * 2, bias=True)
    o = operands(problem, dtype, "cpu", 0, (view,) * 3)
    precision = precision_of(kernel.name)
    result = run(kernel, o, problem, SMS, False, view, precision)
    assert result is not None, "refused"
    reference.assert_right(result.value, expect_pass("fprop", o, problem), kernel.name, precision)


@sweeps.sweep(6)
@pytest.mark.parametrize("kernel", [it for it in QUADS if precision_of(str(it.id)) != "ieee"])  # these are too small
@pytest.mark.parametrize(
    ("size", "strides"),
    [
        ((1, 1, 2, 8), (8, 8, 2**30, 1)),
        ((1, 1, 8, 2), (8, 8, 1, 2**30)),
        ((2, 3, 1, 8), (32, 8, 2**33, 1)),  # of a row that has no other, any
        ((2, 3, 8, 1), (32, 8, 1, 2**33)),
    ],
)
def test_quads_of_rows_that_lie_far_apart(
    kernel: native.Kernel, size: tuple[int, int, int, int], strides: tuple[int, int, int, int]
) -> None:
    """Padding is not read, however far away it would be."""
    problem = for_squares(kernel.name, Problem(*size, 8, 3, 3, padding=(1, 1)))
    dtype, _ = element_type(kernel, torch.float16)
    o = operands(problem, dtype, "cpu", 0, ("contiguous",) * 3)
    last = sum((n - 1) * stride for n, stride in zip(size, strides, strict=True))
    # Pages that nothing touches take no memory.
    memory = torch.empty(last + 1, dtype=dtype)
    o = replace(o, input=memory.as_strided(size, strides).copy_(o.input))
    y = torch.full(problem.output_size, math.nan, dtype=dtype)
    conv = native.ConvProblem(
        size,
        problem.weight_size,
        *problem.geometry,
        dtype=str(dtype).removeprefix("torch."),
        precision=precision_of(kernel.name),
        x_strides=strides,
        align=math.gcd(128, *(t.data_ptr() for t in (o.input, o.weight, y))),
    )
    device = native.DeviceSpec.cuda(90, SMS, 227 << 10)
    assert kernel.why_not(conv, device) is None
    pointers: Any = {"x": o.input.data_ptr(), "w": o.weight.data_ptr(), "y": y.data_ptr()}
    emulated.run(kernel.name, conv, device, **pointers, bias=0, haste=False)
    reference.assert_right(y, expect_pass("fprop", o, problem), kernel.name, precision_of(kernel.name))


@st.composite
def planes_problems(draw: st.DrawFn, kernel: str) -> Problem:
    """Groups that kernels of planes take; none is refused."""
    stride, words = 2 if "s2" in kernel else 1, "tf32" not in kernel
    width, c, padding = (
        draw(st.sampled_from([2, 4, 8, 16])),
        draw(st.sampled_from([8, 16, 24])),
        draw(st.integers(0, 4)),
    )
    c = c if width < 16 else 2 * c
    h = max(draw(st.integers(1, 24)), 3 - 2 * padding)
    w = draw(st.one_of(st.integers(1, 20), st.sampled_from([63, 64, 65, 127, 128]) if c == 8 else st.integers(1, 8)))
    w *= stride if not words else 2 * stride
    w = min(w, (128 if width < 16 else 32) * stride)
    if stride == 2 and not words:
        w -= draw(st.integers(0, 1))
    return Problem(draw(st.integers(1, 5)), c, h, w, c, 3, 3, (stride, stride), (padding, 1), groups=c // width)


@pytest.mark.parametrize(
    "kernel", [pytest.param(kernel, id=kernel.name) for kernel in ALL_KERNELS if "grouped_planes" in kernel.name]
)
@given(
    data=st.data(),
    half=st.sampled_from(HALF),
    seed=st.integers(0, 2**31),
    sms=st.sampled_from([1, 4, 132]),
    haste=st.booleans(),
    weight_view=st.sampled_from(["contiguous", "channels_last", "transposed"]),
    special=st.sampled_from([None, None, math.inf, math.nan]),
)
@settings(max_examples=examples(60))
def test_emulated_planes_of_groups(
    kernel: native.Kernel,
    data: st.DataObject,
    half: torch.dtype,
    seed: int,
    sms: int,
    haste: bool,
    weight_view: str,
    special: float | None,
) -> None:
    problem, (dtype, precision) = data.draw(planes_problems(kernel.name)), element_type(kernel, half)
    o = operands(problem, dtype, "cpu", seed, ("contiguous",) * 3)
    if special is not None:
        changed = data.draw(st.sampled_from([o.input, o.grad_output]))
        changed[tuple(data.draw(st.integers(0, size - 1)) for size in changed.shape)] = special
    result = run(kernel, o, problem, sms, haste, weight_view, precision)
    assert result is not None, "refused"
    expected = expect_pass("wgrad", o, problem)
    if special is None:
        reference.assert_right(result.value, expected, kernel.name, precision)
    assert torch.equal(result.value.isfinite(), expected.value.isfinite())


QUADS_WGRAD = [pytest.param(it, id=it.name) for it in ALL_KERNELS if it.name.startswith("quads_wgrad_")]


@st.composite
def quads_wgrad_problems(draw: st.DrawFn, kernel: native.Kernel) -> Problem:
    """What is copied of dy are eight neighbours."""
    side = st.sampled_from([1, 2, 3, 3, 4, 7])
    r, s = draw(side), draw(side)
    stride, dilation = (draw(st.tuples(*[st.integers(1, most)] * 2)) for most in (4, 2))
    padding = draw(st.sampled_from([(0, 0), (r // 2, s // 2), (r, s)]))
    p, q = (
        draw(st.integers(1, 12)),
        draw(st.sampled_from([8, 16, 24, 40]) if "nchw" in kernel.name else st.integers(1, 40)),
    )
    # Rows and columns that give so many outputs, and some that no filter sees.
    h, w = (
        max(1, (outputs - 1) * step + d * (taps - 1) + 1 - 2 * pad + draw(st.integers(0, step - 1)))
        for outputs, step, d, taps, pad in zip((p, q), stride, dilation, (r, s), padding, strict=True)
    )
    c = draw(st.integers(1, 3 if "3_channels" in kernel.name else 4))
    k = draw(st.sampled_from([8, 16, 40, 64, 72, 136] if "nhwc" in kernel.name else [1, 5, 16, 33, 64, 72]))
    return Problem(draw(st.integers(1, 3)), c, h, w, k, r, s, stride, padding, dilation)


@pytest.mark.parametrize("kernel", QUADS_WGRAD)
@given(
    dtype=st.sampled_from(HALF),
    seed=st.integers(0, 2**31),
    sms=st.sampled_from([1, 4, 132]),
    haste=st.booleans(),
    views=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    data=st.data(),
)
@settings(max_examples=examples(40))
def test_emulated_weight_gradients_of_quads(
    kernel: native.Kernel,
    dtype: torch.dtype,
    seed: int,
    sms: int,
    haste: bool,
    views: tuple[str, str],
    data: st.DataObject,
) -> None:
    problem = data.draw(quads_wgrad_problems(kernel))
    of_y = "channels_last" if kernel.name.endswith("nhwc") else "contiguous"
    assume("nchw" not in kernel.name or problem.output_size[3] % 8 == 0)
    o = operands(problem, half(kernel, dtype), "cpu", seed, (views[0], views[1], of_y))
    result = run(kernel, o, problem, sms, haste, views[1])
    assert result is not None, "refused"
    reference.assert_right(result.value, expect_pass("wgrad", o, problem), kernel.name)


IN_PARTS = [
    pytest.param(kernel, id=kernel.name) for kernel in ALL_KERNELS if re.match("stem_|quads_fprop_2_", kernel.name)
]
SCALED_TILES = [it for it in IN_PARTS if re.search("_half_|_halves_", str(it.id))]


def shrink(t: Tensor, index: int) -> None:
    """All of a channel, filter, row or column, so that sums have nothing else."""
    dim = index % 4
    t.select(dim, index // 4 % t.shape[dim]).mul_(2.0**-60)


def put(value: float) -> Callable[[Tensor, int], object]:
    def change(t: Tensor, index: int) -> None:
        t[tuple(index % size for size in t.shape)] = value

    return change


CHANGES: dict[str, Callable[[Tensor, int], object]] = {
    "nothing": lambda t, _: None,
    "zeros": lambda t, _: t.zero_(),
    "a row of zeros": lambda t, i: t.select(i % 4, 0).zero_(),
    "all small": lambda t, _: t.mul_(2.0**-100),
    "all large": lambda t, _: t.mul_(2.0**100),
    "much smaller ones that meet no others": shrink,
    "a much larger one": put(2.0**60),
    "an infinity": put(math.inf),
    "a NaN": put(math.nan),
}


@st.composite
def stem_problems(draw: st.DrawFn, kernel: str) -> Problem:
    c, taps = draw(st.integers(1, 4)), st.sampled_from([3, 3, 4, 5, 7])
    r, s = draw(st.sampled_from(THREE_STEPS) if "3_steps" in kernel else st.tuples(taps, taps))
    if c * r * s < least_products(kernel, c):
        c, r, s = 3, max(r, 3), max(s, 3)
    stride, dilation = (draw(st.tuples(*[st.integers(1, most)] * 2)) for most in (3, 2))
    if "wgrad" in kernel:  # whose sums are of pixels
        stride, dilation = (1, 1), (1, 1)
    padding = draw(st.sampled_from([(0, 0), (r // 2, s // 2), (r, s)]))
    h, w = (max(draw(st.integers(16, 20)), 1 + d * (taps - 1)) for d, taps in zip(dilation, (r, s), strict=True))
    n, k = draw(st.integers(1, 3)), draw(st.sampled_from([1, 5, 24, 33]))
    return for_squares(kernel, Problem(n, c, h, w, k, r, s, stride, padding, dilation, bias=draw(st.booleans())))


@pytest.mark.parametrize("kernel", IN_PARTS)
@given(
    seed=st.integers(0, 2**31),
    sms=st.sampled_from([1, 4, 132]),
    haste=st.booleans(),
    views=st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
    name=st.sampled_from(sorted(CHANGES)),
    index=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=examples(15))
def test_emulated_images_of_few_channels(
    kernel: native.Kernel,
    seed: int,
    sms: int,
    haste: bool,
    views: tuple[str, str, str],
    name: str,
    index: int,
    data: st.DataObject,
) -> None:
    """Numbers of all kinds: whether one scale fits them shows tile by tile."""
    problem, precision = data.draw(stem_problems(kernel.name)), precision_of(kernel.name)
    o = operands(problem, torch.float32, "cpu", seed, views)
    CHANGES[name](data.draw(st.sampled_from([o.input, o.grad_output if kernel.pass_ == "wgrad" else o.weight])), index)
    result = run(kernel, o, problem, sms, haste, views[1 if kernel.pass_ == "wgrad" else 2], precision)
    assert result is not None, "refused"
    expected = expect_pass(kernel.pass_, o, problem)
    if not expected.value.isfinite().all() and kernel.pass_ == "fprop":
        for same in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(same(result.value), same(expected.value)), same.__name__
    elif expected.value.isfinite().all():
        reference.assert_right(result.value, expected, kernel.name, precision)


@sweeps.sweep(4)
@pytest.mark.parametrize("exponent", [-20, -30, -40, -60])
@pytest.mark.parametrize(
    ("pass_", "problem", "sms", "changed"),
    [
        ("fprop", Problem(4, 1, 28, 28, 32, 3, 3, padding=(1, 1)), 132, lambda o: o.weight[3]),
        ("fprop", Problem(2, 3, 8, 8, 160, 3, 3, padding=(1, 1)), 2, lambda o: o.weight[7]),
        ("fprop", Problem(2, 3, 8, 8, 32, 5, 5, padding=(4, 4)), 132, lambda o: o.input[:, :, :, 0]),
        ("fprop", Problem(1, 3, 32, 32, 32, 3, 3, padding=(1, 1)), 132, lambda o: o.input[0, :, 30:, 20:]),
        ("fprop", Problem(1, 3, 32, 32, 64, 7, 7, stride=(2, 2), padding=(3, 3)), 132, lambda o: o.weight[7]),
        ("wgrad", Problem(8, 3, 8, 8, 64, 3, 3, stride=(2, 2), padding=(1, 1)), 132, lambda o: o.grad_output[:, 5]),
        ("wgrad", Problem(8, 3, 8, 8, 32, 3, 3, padding=(1, 1)), 132, lambda o: o.input[:, 1]),
    ],
)
def test_small_numbers_that_meet_no_large_ones_are_as_exact(
    pass_: str, problem: Problem, sms: int, changed: Callable[[Operands], Tensor], exponent: int
) -> None:
    """Filters, channels and columns of few numbers, in blocks and tiles that have many others."""
    ran = 0
    for kernel in (it for it in ALL_KERNELS if re.match(rf"(stem|quads)_{pass_}_(1_half|2_halves)_", it.name)):
        o, precision = operands(problem, torch.float32, "cpu"), precision_of(kernel.name)
        changed(o).mul_(2.0**exponent)
        result = run(kernel, o, problem, sms, precision=precision)
        if result is not None:  # two halves are not for sums of few products
            reference.assert_right(result.value, expect_pass(pass_, o, problem), kernel.name, precision)
            ran += 1
    assert ran


@pytest.mark.parametrize("changed", ["input", "weight"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", [it for it in SCALED_TILES if "stem_fprop" in str(it.id)])
def test_tiles_that_one_scale_does_not_fit_have_the_parts_of_others(
    kernel: native.Kernel, layout: str, changed: str
) -> None:
    """Bit for bit; and those that it fits do not."""
    precision = precision_of(kernel.name)
    others = "stem_fprop_" + ("3_parts" if "2_halves" in kernel.name else "2_parts")
    partner = next(it for it in ALL_KERNELS if it.name.startswith(others))  # for how many filters does not matter
    problem = Problem(4, 3, 16, 16, 40, 3, 3, padding=(1, 1))
    for factor, same in [(1.0, False), (2.0**-4, False), (2.0**-40, True)]:
        o = operands(problem, torch.float32, "cpu", views=(layout,) * 3)
        values = getattr(o, changed)
        values.as_strided((values.numel(),), (1,))[::2] *= factor
        mine, theirs = (run(it, o, problem, 3, False, layout, precision) for it in (kernel, partner))
        assert mine is not None and theirs is not None
        assert torch.equal(mine.value, theirs.value) == same, factor
        reference.assert_right(mine.value, expect_pass("fprop", o, problem), kernel.name, precision)


# Outputs of which a lane stores four neighbours, two or one; of the last set and tile some do not exist.
STORED = {
    "four pixels": (Problem(2, 3, 9, 22, 37, 3, 3, bias=True), "contiguous", (1, 4)),
    "two pixels": (Problem(2, 3, 19, 45, 37, 3, 3, stride=(2, 2), bias=True), "contiguous", (1, 2)),
    "a pixel": (Problem(2, 3, 9, 23, 37, 3, 3, bias=True), "contiguous", (1, 1)),
    "four filters": (Problem(2, 3, 9, 23, 36, 3, 3, bias=True), "channels_last", (4, 1)),
    "a filter": (Problem(2, 3, 9, 23, 37, 3, 3, bias=True), "channels_last", (1, 1)),
}


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("kernel", [it for it in IN_PARTS if "stem_fprop" in str(it.id)])
def test_lanes_store_neighbours_of_images_of_few_channels(kernel: native.Kernel, name: str) -> None:
    problem, view, neighbours = STORED[name]
    precision, geometry = precision_of(kernel.name), (problem.input_size, problem.weight_size, *problem.geometry)
    asked = native.ConvProblem(
        *geometry, dtype="float32", precision=precision, channels_last=view == "channels_last", align=16
    )
    device = native.DeviceSpec.cuda(90, 3, 227 << 10)
    assert native.stem_neighbours(asked, kernel, device) == neighbours
    o = operands(problem, torch.float32, "cpu", views=(view,) * 3)
    result = run(kernel, o, problem, 3, view=view, precision=precision)
    assert result is not None
    reference.assert_right(result.value, expect_pass("fprop", o, problem), kernel.name, precision)


@pytest.mark.parametrize("kernel", [it for it in IN_PARTS if "stem_fprop_2_halves" in str(it.id)])
def test_sums_as_large_as_float32_holds_are_finite(kernel: native.Kernel) -> None:
    """Of numbers whose first parts are rounded up, so that only the small products bring the sum back to what it is."""
    problem, most = Problem(1, 3, 8, 8, 32, 3, 3), torch.finfo(torch.float32).max / 2.0**123
    up = [1 + (i + 0.75) / 1024 for i in range(1024)]
    products = problem.c * problem.r * problem.s
    x, w = max(itertools.product(up[:64], up), key=lambda it: (it[0] * it[1] * products <= most, it[0] * it[1]))
    o = operands(problem, torch.float32, "cpu")
    o.input.fill_(x * 2.0**62), o.weight.fill_(w * 2.0**61)
    assert 1 - 2.0**-12 < x * w * products / most < 1
    result = run(kernel, o, problem, 3)
    assert result is not None
    reference.assert_right(result.value, expect_pass("fprop", o, problem), kernel.name)


EMBED = [pytest.param(kernel, id=kernel.name) for kernel in ALL_KERNELS if kernel.name.startswith("embed_")]


@pytest.mark.parametrize("kernel", EMBED)
@given(
    drawn=patch_embeddings(),
    dtype=st.sampled_from(HALF),
    seed=st.integers(0, 2**31),
    sms=st.sampled_from([1, 4, 132]),
    haste=st.booleans(),
    # But for those whose elements share memory.
    views=st.tuples(
        *[st.sampled_from([*["contiguous", "channels_last"] * 3, *(v for v in VIEWS if not v.startswith("same_"))])] * 2
    ),
    special=st.sampled_from([None, None, None, math.inf, math.nan]),
    data=st.data(),
)
@settings(max_examples=examples(40))
def test_emulated_patch_embeddings(
    kernel: native.Kernel,
    drawn: tuple[Problem, str],
    dtype: torch.dtype,
    seed: int,
    sms: int,
    haste: bool,
    views: tuple[str, str],
    special: float | None,
    data: st.DataObject,
) -> None:
    problem, image_view = drawn
    # The strictest that a kernel is for; 16 bits have none.
    precision = "ieee" if "2_parts" not in kernel.name else "bf16x3"
    floats = "_parts_" in kernel.name
    few = kernel.pass_ == "wgrad" and problem.products // math.prod(problem.weight_size) < 8
    if floats and (few or math.prod(problem.weight_size[1:]) < 8):
        precision = "bf16x3"
    o = operands(problem, torch.float32 if floats else half(kernel, dtype), "cpu", seed, (image_view, *views))
    if special is not None:
        changed = data.draw(st.sampled_from([o.input, o.weight if kernel.pass_ == "fprop" else o.grad_output]))
        changed[tuple(data.draw(st.integers(0, size - 1)) for size in changed.shape)] = special
    result = run(kernel, o, problem, sms, haste, views[1 if kernel.pass_ == "fprop" else 0], precision)
    assert result is not None, "refused"
    expected = expect_pass(kernel.pass_, o, problem)
    if special is None:
        reference.assert_right(result.value, expected, kernel.name, precision)
        return
    assert_right_where_finite(result.value, expected, precision)


POINTWISE = [pytest.param(kernel, id=kernel.name) for kernel in ALL_KERNELS if kernel.name.startswith("pointwise_")]


@st.composite
def pointwise_problems(draw: st.DrawFn) -> Problem:
    """Rows of any alignment, of one image or of several; with a stride only pixels that lie apart."""
    extents = st.one_of(st.integers(1, 12), st.integers(1, 9).map(lambda i: 8 * i), st.integers(60, 140))
    c, k = draw(extents), draw(extents)
    h, w = draw(st.sampled_from([(1, 1), (1, 7), (7, 7), (5, 8), (12, 12), (9, 15)]))
    n = draw(st.sampled_from([1, 2, 3, 33] if h == 1 else [1, 2, 3]))
    return Problem(n, c, h, w, k, 1, 1, bias=draw(st.booleans()))


@pytest.mark.parametrize("kernel", POINTWISE)
@given(
    problem=pointwise_problems(),
    stride=st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 3)]),
    dtype=st.sampled_from([*HALF, torch.float32]),
    seed=st.integers(0, 2**31),
    sms=st.sampled_from([1, 4, 132]),
    haste=st.booleans(),
    view=st.sampled_from(["contiguous", "channels_last", "misaligned", "misaligned_channels_last"]),
    filter_pitch=st.sampled_from([0, 0, 1, 8]),  # elements between two filters
    special=st.sampled_from([None, None, math.inf, math.nan]),
    data=st.data(),
)
@settings(max_examples=examples(40))
def test_emulated_pointwise_convolutions(
    kernel: native.Kernel,
    problem: Problem,
    stride: tuple[int, int],
    dtype: torch.dtype,
    seed: int,
    sms: int,
    haste: bool,
    view: str,
    filter_pitch: int,
    special: float | None,
    data: st.DataObject,
) -> None:
    if "channels_last" in view and kernel.pass_ != "dgrad":
        problem = problem.with_(stride=stride)
    if kernel.name.endswith("128x32_wgmma"):  # rows of the product: wgmma has 64 of them
        assume("channels_last" in view)
    dtype, precision = (dtype, "tf32") if dtype == torch.float32 else (half(kernel, dtype), "ieee")
    assume(is_compiled(kernel, dtype))
    o = operands(problem, dtype, "cpu", seed, (view, "contiguous", view))
    if special is not None:
        spoil(kernel, o, special, data)
    # Rows of a wider matrix, also where there is one, whose pitch then is nobody's.
    o = replace(o, weight=torch.nn.functional.pad(o.weight[:, :, 0, 0], (0, filter_pitch))[:, : problem.c, None, None])
    written = "contiguous" if kernel.pass_ == "wgrad" else view
    result = run(kernel, o, problem, sms, haste, written, precision)
    assert result is not None, "refused"
    assert_right_where_finite(result.value, expect_pass(kernel.pass_, o, problem), precision)


TAPS = [pytest.param(kernel, id=kernel.name) for kernel in ALL_KERNELS if kernel.name.startswith("taps_")]


def of_kernel(name: str) -> tuple[list[torch.dtype], str]:
    """Element types of a kernel of several taps, and the precision that it is for."""
    if "parts" in name or "scaled" in name:
        return [torch.float32], "bf16x3" if "2_parts" in name else "ieee"
    return ([torch.float32], "tf32") if "tf32" in name else (HALF, "ieee")


@st.composite
def tap_problems(draw: st.DrawFn) -> Problem:
    """Channels of whole chunks, which are read as they lie where they are side by side, or any."""
    groups, chunk = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 8]))
    extents = st.one_of(st.just(1), st.integers(1, 18), st.integers(60 // chunk, 140 // chunk))
    c, k = (chunk * draw(extents) * groups for _ in range(2))
    r, s = draw(st.sampled_from([(1, 1), (3, 3), (1, 3), (2, 5), (4, 1)]))
    stride, dilation = (draw(st.tuples(*[st.integers(1, 3)] * 2)) for _ in range(2))
    padding = draw(st.tuples(*[st.integers(0, 3)] * 2))
    h, w = draw(st.sampled_from([(1, 1), (1, 7), (7, 7), (5, 8), (12, 12), (9, 15)]))
    h, w = max(h, dilation[0] * (r - 1) + 1 - 2 * padding[0]), max(w, dilation[1] * (s - 1) + 1 - 2 * padding[1])
    n = draw(st.sampled_from([1, 2, 3, 33] if h == 1 else [1, 2, 3]))
    bias = draw(st.booleans())
    return Problem(n, c, h, w, k, r, s, stride, padding, dilation, groups, bias)


IMAGE_VIEWS = ["contiguous", "misaligned", "channels_last", "misaligned_channels_last"]


@pytest.mark.parametrize("kernel", TAPS)
@given(
    dtype=st.sampled_from(HALF),
    seed=st.integers(0, 2**31),
    sms=st.sampled_from([1, 4, 132]),
    haste=st.booleans(),
    views=st.tuples(*[st.sampled_from(IMAGE_VIEWS)] * 2),
    weight_view=st.sampled_from(["contiguous", "channels_last", "misaligned", "transposed"]),
    special=st.sampled_from([None, None, math.inf, math.nan]),
    problem=tap_problems(),
    smem_kib=st.sampled_from([227, 163, 99, 64]),
    data=st.data(),
)
@settings(max_examples=examples(40))
def test_emulated_taps(
    kernel: native.Kernel,
    dtype: torch.dtype,
    seed: int,
    sms: int,
    haste: bool,
    views: tuple[str, str],
    weight_view: str,
    special: float | None,
    problem: Problem,
    smem_kib: int,
    data: st.DataObject,
) -> None:
    assume(smem_kib > 64 or "128x128" not in kernel.name)  # of which no two stages fit
    dtypes, precision = of_kernel(kernel.name)
    dtype = half(kernel, dtype) if dtypes == HALF else dtypes[0]
    assume(is_compiled(kernel, dtype))
    o = operands(problem, dtype, "cpu", seed, (views[0], weight_view, views[1]))
    if special is not None:
        spoil(kernel, o, special, data)
    assume(weight_view != "transposed" or kernel.pass_ != "wgrad")  # whose rows of taps do not follow each other
    written = {"fprop": views[1], "dgrad": views[0], "wgrad": weight_view}[kernel.pass_]
    result = run(kernel, o, problem, sms, haste, written, precision, smem_kib=smem_kib, arch=80)
    if precision == "ieee" and dtype == torch.float32:
        # Of few products multiply-adds are more exact; and what cannot be measured is not scaled.
        assume(result is not None)
    assert result is not None, "refused"
    assert_right_where_finite(result.value, expect_pass(kernel.pass_, o, problem), precision)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(2, 8, 60, 3, 8, 3, 1, padding=(20000, 0), dilation=(20000, 1)),
        Problem(2, 8, 3, 60, 8, 1, 3, padding=(0, 20000), dilation=(1, 20000)),
        Problem(1, 8, 60, 1, 8, 2, 1, padding=(2**25, 0), dilation=(2**26, 1)),
        Problem(1, 8, 1, 60, 8, 1, 2, padding=(0, 2**25), dilation=(1, 2**26)),
        Problem(2, 8, 5, 5, 8, 1, 1, dilation=(2**28, 2**28)),
    ],
    ids=str,
)
def test_taps_reach_far_along_one_axis(pass_: str, problem: Problem) -> None:
    """Rows and columns share the bits of a number; one of them may need most."""
    (kernel,) = (it for it in ALL_KERNELS if it.name == f"taps_{pass_}_64x64")
    o = operands(problem, half(kernel), "cpu", 0)
    result = run(kernel, o, problem, 2, False, arch=80)
    assert result is not None, "refused"
    assert_right_where_finite(result.value, expect_pass(pass_, o, problem), "ieee")


@dataclass
class Choice:
    problem: Problem
    dtype: torch.dtype
    precision: str
    layout: str

    def describe(self, pass_: str) -> native.ConvProblem:
        return native.ConvProblem(
            self.problem.input_size,
            self.problem.weight_size,
            *self.problem.geometry,
            pass_=pass_,
            dtype=str(self.dtype).removeprefix("torch."),
            precision=self.precision,
            bias=self.problem.bias and pass_ == "fprop",
            channels_last=self.layout == "channels_last",
            align=64,
        )


@functools.cache
def choices(pass_: str) -> list[tuple[Choice, native.ConvProblem]]:
    """From the smallest problem to the largest."""
    every = itertools.product(sorted(NAMED, key=lambda p: p.products), MODES, LAYOUTS)
    return [(it, it.describe(pass_)) for it in (Choice(problem, *mode, layout) for problem, mode, layout in every)]


@sweeps.sweep(16)
@pytest.mark.parametrize("kernel", [pytest.param(kernel, id=kernel.name) for kernel in ALL_KERNELS])
def test_every_kernel(kernel: native.Kernel) -> None:
    """On some of the named problems that it accepts, the smallest and the largest among them, in all dtypes that are
    compiled."""
    devices = [native.DeviceSpec.cuda(90, sms, 227 << 10) for sms in (SMS, 3 * SMS)]
    accepted = [
        choice
        for choice, conv in choices(kernel.pass_)
        if all(emulated.runs(kernel.name, conv, device) for device in devices)
    ]
    assert accepted, "it refused every one"
    by_problem = [list(some) for _, some in itertools.groupby(accepted, key=lambda choice: choice.problem)]
    ran: collections.Counter[Any] = collections.Counter()
    cut_off = 0
    todo = [by_problem[i * (len(by_problem) - 1) // 3] for i in range(4)]
    todo += [[choice for choice in accepted if choice.dtype == dtype][:1] for dtype in {it.dtype for it in accepted}]
    for i, some in enumerate(todo):
        choice = min(some, key=lambda it: (ran[it.dtype], ran[it.precision], ran[it.layout]))
        if i >= 4 and ran[choice.dtype] > 0:
            continue
        ran.update((choice.dtype, choice.precision, choice.layout))
        o = operands(choice.problem, choice.dtype, "cpu", i, (choice.layout,) * 3)
        expected = expect_pass(kernel.pass_, o, choice.problem)
        for haste in (False, True):
            # Small problems have as many blocks to a tile as there are.
            result = run(kernel, o, choice.problem, 3 * SMS if i == 0 else SMS, haste, choice.layout, choice.precision)
            assert result is not None, choice
            reference.assert_right(result.value, expected, f"{kernel.name}, {choice}", choice.precision)
        if kernel.pass_ == "fprop" and i < 4:
            # To round and to cut off may change places, and the bias is the same in float32.
            name = ("relu", "relu6")[i % 2]
            order = SMS, i > 1, choice.layout, choice.precision
            wide = choice.dtype in HALF
            activated = run(kernel, o, choice.problem, *order, activation=ACTIVATIONS.index(name), wide_bias=wide)
            assert activated is not None and result is not None
            plain = run(kernel, o, choice.problem, SMS, False, choice.layout, choice.precision) if i == 0 else result
            assert plain is not None
            cut_off += int((plain.value < 0).sum())
            assert torch.equal(activated.value, reference.ACTIVATIONS[name](plain.value))
    assert all(ran[choice.dtype] > 0 for choice in accepted)
    assert cut_off > 0 or kernel.pass_ != "fprop"


@pytest.mark.parametrize("haste", [False, True])
@pytest.mark.parametrize(("name", "c", "k"), [("256x128_c16_tma", 16, 128), ("512x64_c32_tma", 32, 64)])
def test_resident_filters_are_waited_for_once(name: str, c: int, k: int, haste: bool) -> None:
    """In a block's first tiles, of which it has many here; those after them go without."""
    (kernel,) = (kernel for kernel in ALL_KERNELS if kernel.name == f"halo_fprop_{name}")
    problem = Problem(1, c, 40, 40, k, 3, 3, padding=(1, 1))
    plan = native.make_plan(
        Choice(problem, half(kernel), "ieee", "channels_last").describe("fprop"),
        native.DeviceSpec.cuda(90, 1, 227 << 10),
        kernel.name,
    )
    assert "resident" in repr(plan) and plan.grid == 1, plan
    o = operands(problem, half(kernel), "cpu", 0, ("channels_last",) * 3)
    result = run(kernel, o, problem, 1, haste, "channels_last")
    assert result is not None
    reference.assert_right(result.value, expect_pass("fprop", o, problem), kernel.name)


# 1,440 and 1,536 products a sum, in one slice where there is one SM.
LONG_SUMS = {
    "fprop": Problem(1, 160, 6, 12, 72, 3, 3, padding=(1, 1), bias=True),
    "dgrad": Problem(1, 72, 6, 12, 160, 3, 3, padding=(1, 1)),
    "wgrad": Problem(2, 40, 24, 32, 72, 1, 1),
}


@sweeps.sweep(3)
@pytest.mark.parametrize("haste", [False, True])
@pytest.mark.parametrize("smem_kib", [99, 163, 227])
def test_rings_of_any_number_of_stages(smem_kib: int, haste: bool) -> None:
    """Shared memory decides how many; the tables of depths are filled several times."""
    device = native.DeviceSpec.cuda(90, 1, smem_kib << 10)
    accepted = 0
    for kernel in (kernel for kernel in ALL_KERNELS if kernel.name.startswith("mma_")):
        problem = LONG_SUMS[kernel.pass_]
        dtype, precision = torch.float32, "tf32"
        layout = "channels_last" if "_nhwc" in kernel.name else "contiguous"
        asked = Choice(problem, dtype, precision, layout).describe(kernel.pass_)
        if kernel.why_not(asked, device) == "needs more shared memory":
            assert smem_kib < 227 and "128x128" not in kernel.name
            continue
        assert native.make_plan(asked, device, kernel.name).split == 1
        o = operands(problem, dtype, "cpu", 0, (layout,) * 3)
        result = run(kernel, o, problem, 1, haste, layout, precision, smem_kib)
        assert result is not None
        reference.assert_right(result.value, expect_pass(kernel.pass_, o, problem), kernel.name, precision)
        accepted += 1
    assert accepted >= 7


@pytest.mark.parametrize("haste", [False, True])
@pytest.mark.parametrize(
    ("name", "problem", "warps"),
    [
        ("128x32_c64_tma", Problem(5, 128, 14, 14, 40, 1, 1, stride=(2, 2)), 3),
        ("128x64_c64_tma", Problem(5, 72, 7, 7, 64, 2, 2), 2),
        ("128x64_c64_tma", Problem(2, 64, 40, 40, 64, 3, 3, padding=(1, 1)), 1),
        ("128x128_c16_promoted", Problem(1, 16, 40, 40, 64, 1, 1), 1),
    ],
)
def test_rows_copied_by_several_warps(name: str, problem: Problem, warps: int, haste: bool) -> None:
    """Bytes of the others' rows may land before the first warp has said how many there will be. Halos of one copy have
    one warp, however little there is to multiply."""
    (kernel,) = (kernel for kernel in ALL_KERNELS if kernel.name == f"halo_fprop_{name}")
    dtype, precision = (torch.float32, "bf16x3") if "promoted" in name else (half(kernel), "ieee")
    conv = Choice(problem, dtype, precision, "channels_last").describe("fprop")
    assert native.halo_copy_warps(conv, kernel, native.DeviceSpec.cuda(90, SMS, 227 << 10)) == warps
    o = operands(problem, dtype, "cpu", 0, ("channels_last",) * 3)
    result = run(kernel, o, problem, SMS, haste, "channels_last", precision)
    assert result is not None
    reference.assert_right(result.value, expect_pass("fprop", o, problem), kernel.name, precision)


@pytest.mark.parametrize("pass_", PASSES)
@given(
    problem=wide_problems(max_products=4_000_000),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 2**31),
    views=st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
    sms=st.sampled_from([1, 3, 8]),
    haste=st.booleans(),
)
@settings(max_examples=examples(5))
def test_every_legal_kernel(
    pass_: str,
    problem: Problem,
    mode: tuple[torch.dtype, str],
    seed: int,
    views: tuple[str, str, str],
    sms: int,
    haste: bool,
) -> None:
    """Whatever the planner could choose; unless all cases run, some of it."""
    dtype, precision = mode
    kernels = [kernel for kernel in ALL_KERNELS if kernel.pass_ == pass_ and is_compiled(kernel, dtype)]
    random.Random(seed).shuffle(kernels)
    o = operands(problem, dtype, "cpu", seed, views)
    expected = expect_pass(pass_, o, problem)
    target = views[{"dgrad": 0, "wgrad": 1, "fprop": 2}[pass_]]
    ran = 0
    for kernel in kernels:
        if ran == 10 and not sweeps.all_cases:
            break
        result = run(kernel, o, problem, sms, haste, target, precision)
        if result is not None:
            reference.assert_right(result.value, expected, kernel.name, precision)
            ran += 1
    assert ran > 0


def test_resident_filters_that_no_tile_of_a_block_reads() -> None:
    """They may be on their way still when the block writes its output anew, through the same shared memory."""
    problem = Problem(3, 72, 28, 15, 16, 2, 3, stride=(3, 2), padding=(1, 1))
    ran = 0
    for kernel in ALL_KERNELS:
        if kernel.name.startswith("halo_dgrad_256x128_c16_") and any(is_compiled(kernel, dtype) for dtype in HALF):
            o = operands(problem, half(kernel))
            result = run(kernel, o, problem, sms=8)
            if result is not None:
                reference.assert_right(result.value, expect_pass("dgrad", o, problem), kernel.name)
                ran += 1
    assert ran > 0
