"""Filters as large as their stride: how patches are moved, by definition, and when the planner does so."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import _fastconv_native as native
from shapes import PASSES, Problem, patch_problems
from sweeps import examples
from test_index_maths import Convolution, are_same_but_for_repetitions, products_by_definition
from test_planner import DTYPES, GPUS, check_plan, native_problem

KERNELS = [kernel for kernel in native.kernel_table() if kernel.name.startswith("patches_")]
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
Quad = tuple[int, int, int, int]


def strides(sizes: tuple[int, ...], order: str, gap: int = 0) -> Quad:
    """Of a tensor whose dimensions lie in this order, outermost first; with a gap after each of the innermost."""
    found, step = {}, 1
    for dim in reversed(order):
        found[dim] = step
        step = step * sizes["nchw".index(dim)] + (gap if step == 1 else 0)
    return found["n"], found["c"], found["h"], found["w"]


def offset(strides: Quad, *index: int) -> int:
    return sum(stride * i for stride, i in zip(strides, index, strict=True))


def moves_by_definition(
    problem: native.ConvProblem, steps: Problem, inner: native.ConvProblem, whole: bool
) -> list[tuple[int, int]]:
    """`whole`: also what is in no patch."""
    step, moves = inner.w_strides[1], []
    for n, c, h, w in itertools.product(*map(range, (problem.n, problem.c, problem.h, problem.w))):
        (p, r), (q, s) = (
            divmod(at + padding, stride)
            for at, padding, stride in zip((h, w), steps.padding, steps.stride, strict=True)
        )
        (r, left_h), (s, left_w) = (divmod(at, step) for at, step in zip((r, s), steps.dilation, strict=True))
        meets = left_h == left_w == 0 and r < problem.r and s < problem.s
        if p < problem.p and q < problem.q and meets:
            # The element's channel is its place in the filter, so that the same filter multiplies it.
            channel, rest = divmod(offset(problem.w_strides, 0, c, r, s), step)
            assert rest == 0 and channel < inner.c
            moves.append((offset(problem.x_strides, n, c, h, w), offset(inner.x_strides, n, channel, p, q)))
        elif whole:
            moves.append((offset(problem.x_strides, n, c, h, w), -1))
    return moves


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    image=st.sampled_from(["nchw", "nhwc", "cnhw", "nhcw", "nwch"]),
    gap=st.sampled_from([0, 0, 1, 8]),
    filter_=st.sampled_from(["nchw", "nhwc", "nwhc", "nwch", "nhcw"]),
    align=st.sampled_from([2, 4, 8, 16, 128]),
)
@settings(max_examples=examples(60))
def test_every_element_is_moved_once_to_where_its_tap_finds_it(
    kernel: native.Kernel, data: st.DataObject, dtype: str, image: str, gap: int, filter_: str, align: int
) -> None:
    problem = data.draw(patch_problems(kernel.pass_))
    given: dict[str, Any] = {"dtype": dtype, "align": max(align, SIZES[dtype])}
    asked = native_problem(
        problem,
        kernel.pass_,
        **given,
        x_strides=strides(problem.input_size, image, gap),
        w_strides=strides(problem.weight_size, filter_),
    )
    inner = native.make_plan(asked, GPUS[90], kernel.name).inner
    assert inner is not None
    moves = native.patch_moves(asked, kernel, GPUS[90])
    assert sorted(moves) == sorted(moves_by_definition(asked, problem, inner[0], kernel.pass_ == "dgrad"))
    assert (inner[0].n, inner[0].c, inner[0].p, inner[0].q) == (
        asked.n,
        math.prod(problem.weight_size[1:]),
        asked.p,
        asked.q,
    )


VIT = Problem(64, 3, 224, 224, 768, 16, 16, stride=(16, 16))
LAYERS = {
    "vit_16": VIT,
    "vit_14": VIT.with_(k=1024, r=14, s=14, stride=(14, 14)),
    "convnext": VIT.with_(k=96, r=4, s=4, stride=(4, 4)),
    "downsampling": Problem(64, 96, 56, 56, 192, 2, 2, stride=(2, 2)),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", ["vit_16", "vit_14"])
def test_large_patches_are_moved_for_tensor_cores(name: str, pass_: str, channels_last: bool) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        plan = check_plan(
            native_problem(LAYERS[name], pass_, dtype=dtype, channels_last=channels_last), pass_, GPUS[90]
        )
        assert plan.kernel.startswith("patches_") and plan.inner is not None, plan
        assert plan.inner[1].kernel.startswith("wgrad_" if pass_ == "wgrad" else "halo_"), plan
        assert plan.workspace_bytes >= plan.inner[1].workspace_bytes + math.prod(LAYERS[name].input_size) * SIZES[dtype]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("pass_", PASSES)
def test_large_batches_are_moved_as_well(pass_: str, channels_last: bool) -> None:
    """Whose patches, or what the product asks for beside them, take more than other kernels' workspace."""
    for n, dtype in itertools.product([448, 1024], ["float32", "bfloat16"]):
        asked = native_problem(VIT.with_(n=n), pass_, dtype=dtype, channels_last=channels_last)
        assert native.make_plan(asked, GPUS[90]).kernel.startswith("patches_"), (n, dtype)


@pytest.mark.parametrize("name", LAYERS)
def test_the_plan_says_what_multiplies(name: str) -> None:
    for dtype, arch in itertools.product(DTYPES, GPUS):
        asked = native_problem(LAYERS[name], dtype=dtype)
        inner = native.make_plan(asked, GPUS[arch], "patches_fprop_rows").inner
        assert inner is not None
        assert inner[1].kernel in native.explain(asked, GPUS[arch], "patches_fprop_rows")


def test_rows_of_patches_start_where_the_copy_engine_can_read() -> None:
    """588 values of 16 bits are 1176 bytes: rows are as long as whole pieces of 16."""
    inner = native.make_plan(native_problem(LAYERS["vit_14"], dtype="float16"), GPUS[90], "patches_fprop_rows").inner
    assert inner is not None and inner[0].c == 588 and inner[0].x_strides[3] == 592


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize(
    "problem", [Problem(2, 3, 12, 13, 40, 2, 2, stride=(2, 2)), Problem(2, 5, 9, 9, 24, 3, 3, (3, 3))]
)
def test_kernels_of_hopper_multiply_patches_whose_rows_have_gaps(problem: Problem, pass_: str) -> None:
    kernels = [k for k in native.kernel_table() if k.pass_ == pass_ and k.name.startswith(("halo_", "wgrad_"))]
    products = native.wgrad_products if pass_ == "wgrad" else native.halo_products
    for dtype, precision, layout in itertools.product(["float16", "float32"], ["ieee", "tf32"], ["rows", "planes"]):
        asked = native_problem(problem, pass_, dtype=dtype, precision=precision)
        found = native.make_plan(asked, GPUS[90], f"patches_{pass_}_{layout}").inner
        if found is None:
            assert (pass_, layout) == ("dgrad", "planes")
            continue
        inner, ran = found[0], 0
        one_tap = Convolution((inner.n, inner.c, inner.h, inner.w), (inner.k, inner.c, 1, 1), (1, 1), (0, 0), (1, 1), 1)
        expected = products_by_definition(one_tap, inner, pass_)
        for kernel in kernels:
            if kernel.why_not(inner, GPUS[90]) is None:
                native.check_copies(inner, kernel, GPUS[90])
                assert are_same_but_for_repetitions(products(inner, kernel, GPUS[90]), expected), kernel.name
                ran += 1
        assert ran > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"stride": (4, 3)},
        {"r": 3},
        {"padding": (0, 1)},
        {"dilation": (2, 1)},
        {"r": 1, "s": 1, "stride": (1, 1)},
        {"c": 4, "groups": 2},
        {"n": 2**20, "h": 2**12, "w": 2**12},  # counts
        {"n": 0},
    ],
    ids=str,
)
def test_other_filters_are_refused(changes: dict[str, Any]) -> None:
    problem = Problem(2, 3, 33, 34, 40, 4, 4, stride=(4, 4)).with_(**changes)
    for kernel in KERNELS:
        asked = native_problem(problem, kernel.pass_, dtype="float16")
        # An input gradient's filter may be smaller than its stride, and padded.
        taken = kernel.pass_ == "dgrad" and changes in ({"r": 3}, {"padding": (0, 1)})
        assert (kernel.why_not(asked, GPUS[90]) is None) == taken, kernel.name


def test_filters_with_gaps_are_refused() -> None:
    problem = Problem(2, 3, 33, 34, 40, 4, 4, stride=(4, 4))
    for kernel in KERNELS:
        asked = native_problem(problem, kernel.pass_, w_strides=strides(problem.weight_size, "nchw", gap=1))
        assert kernel.why_not(asked, GPUS[90]) is not None, kernel.name
