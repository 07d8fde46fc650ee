"""Outputs of few channels in blocks that are pixels: what is multiplied, by definition, and when it is planned."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import _fastconv_native as native
from shapes import PUBLIC, Problem, subpixel_problems
from sweeps import examples
from test_index_maths import Convolution, are_same, are_same_but_for_repetitions, products_by_definition
from test_patches import SIZES, strides
from test_planner import DTYPES, GPUS, PRECISIONS, check_plan, native_problem

KERNELS = {kernel.name: kernel for kernel in native.kernel_table() if kernel.name.startswith("subpixel_")}
kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)
orders = st.sampled_from(["nchw", "nhwc", "cnhw", "nhcw", "nwch"])


@kernels
@given(data=st.data(), dtype=st.sampled_from(DTYPES), target=orders, filter_=orders, gap=st.sampled_from([0, 0, 1, 8]))
@settings(max_examples=examples(80))
def test_every_product_is_formed_once_and_no_other(
    kernel: native.Kernel, data: st.DataObject, dtype: str, target: str, filter_: str, gap: int
) -> None:
    problem = data.draw(subpixel_problems(kernel.pass_))
    problem = problem.with_(c=min(problem.c, 8), k=min(problem.k, 8))
    sides = {"x_strides": problem.input_size, "y_strides": problem.output_size}
    written = "x_strides" if kernel.pass_ == "dgrad" else "y_strides"
    asked = native_problem(
        problem,
        kernel.pass_,
        dtype=dtype,
        align=data.draw(st.sampled_from([SIZES[dtype], 8, 16, 128])),
        w_strides=strides(problem.weight_size, filter_),
        **{written: strides(sides[written], target, gap)},
    )
    if kernel.why_not(asked, GPUS[90]) is not None:
        return
    conv = Convolution((asked.n, asked.c, asked.h, asked.w), problem.weight_size, *problem.geometry)
    first = products_by_definition(conv, asked, kernel.pass_)
    # Those are of the first channel.
    dim, channels, to = (1, asked.c, asked.x_strides) if kernel.pass_ == "dgrad" else (0, asked.k, asked.y_strides)
    expected = np.concatenate([first + [0, i * asked.w_strides[dim], i * to[1]] for i in range(channels)])
    assert are_same(native.subpixel_products(asked, kernel, GPUS[90]), expected)


@kernels
@given(data=st.data(), dtype=st.sampled_from(DTYPES), channels_last=st.booleans(), arch=st.sampled_from([75, 80, 90]))
@settings(max_examples=examples(40))
def test_the_inner_problem_is_one_that_other_families_compute(
    kernel: native.Kernel, data: st.DataObject, dtype: str, channels_last: bool, arch: int
) -> None:
    """In whole vectors of filters, and without a further inner plan."""
    problem = data.draw(subpixel_problems(kernel.pass_))
    asked = native_problem(problem, kernel.pass_, dtype=dtype, channels_last=channels_last)
    plan = native.make_plan(asked, GPUS[arch], kernel.name)
    if plan.kernel != kernel.name:
        return
    assert plan.inner is not None and plan.inner[1].inner is None
    inner = plan.inner[0]
    assert inner.pass_ == "fprop" and inner.k * SIZES[dtype] % 16 == 0 and inner.y_strides[3] == inner.k
    assert all(other.why_not(inner, GPUS[arch]) for other in KERNELS.values() if other.pass_ == "fprop")
    check_plan(inner, "fprop", GPUS[arch])


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("subpixel_dgrad_1", Problem(1, 3, 33, 38, 24, 11, 11, stride=(4, 4), padding=(2, 2))),
        ("subpixel_dgrad_2", Problem(2, 3, 13, 22, 32, 7, 7, stride=(2, 2), padding=(3, 3))),
        ("subpixel_fprop_4", Problem(1, 40, 9, 21, 3, 3, 3, padding=(1, 1))),
    ],
)
def test_kernels_of_hopper_multiply_blocks(kernel: str, problem: Problem) -> None:
    """Whose padding may be as large as the filter, and whose steps are those of blocks."""
    halo = [k for k in native.kernel_table() if k.name.startswith("halo_fprop_")]
    for dtype, precision, channels_last in itertools.product(["float16", "float32"], ["ieee", "tf32"], [False, True]):
        asked = native_problem(
            problem, KERNELS[kernel].pass_, dtype=dtype, precision=precision, channels_last=channels_last
        )
        found = native.make_plan(asked, GPUS[90], kernel).inner
        assert found is not None
        inner, products = found[0], native.products(found[0], "direct")
        runs = [k for k in halo if k.why_not(inner, GPUS[90]) is None]
        for k in runs:
            native.check_copies(inner, k, GPUS[90])
            assert are_same_but_for_repetitions(native.halo_products(inner, k, GPUS[90]), products), k.name
        assert runs


FIRST = {
    "rn50_stem": PUBLIC["rn50_stem"],
    "alexnet": Problem(128, 3, 224, 224, 64, 11, 11, stride=(4, 4), padding=(2, 2)),
    "mobilenet": Problem(128, 3, 224, 224, 32, 3, 3, stride=(2, 2), padding=(1, 1)),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", FIRST)
def test_gradients_of_rgb_images_are_blocks_for_tensor_cores(name: str, channels_last: bool) -> None:
    modes = [("float16", "ieee"), ("bfloat16", "ieee"), *(("float32", mode) for mode in PRECISIONS)]
    for dtype, precision in modes:
        asked = native_problem(FIRST[name], "dgrad", dtype=dtype, precision=precision, channels_last=channels_last)
        plan = check_plan(asked, "dgrad", GPUS[90])
        assert plan.kernel.startswith("subpixel_") and plan.inner is not None, plan
        assert plan.inner[1].kernel.startswith("halo_fprop_"), plan
        assert plan.inner[1].kernel in native.explain(asked, GPUS[90])
        blocks = SIZES[dtype] * math.prod(FIRST[name].input_size)
        assert plan.workspace_bytes >= plan.inner[1].workspace_bytes + blocks


@pytest.mark.parametrize(
    ("name", "factor", "taps", "filters"),
    # Where all blocks begin at the image's first row, alexnet's see 4x4 pixels.
    [("rn50_stem", 1, 4, 12), ("rn50_stem", 2, 5, 48), ("alexnet", 1, 3, 48), ("mobilenet", 1, 2, 12)],
)
def test_blocks_begin_where_they_see_the_fewest_pixels(name: str, factor: int, taps: int, filters: int) -> None:
    inner = native.make_plan(native_problem(FIRST[name], "dgrad"), GPUS[90], f"subpixel_dgrad_{factor}").inner
    assert inner is not None
    assert (inner[0].r, inner[0].s, inner[0].k) == (taps, taps, filters)


def test_few_filters_of_many_taps_are_blocks_for_tensor_cores() -> None:
    problem = Problem(16, 64, 128, 128, 3, 9, 9, padding=(4, 4), bias=True)
    for dtype, channels_last in itertools.product(["float16", "float32"], [False, True]):
        plan = check_plan(native_problem(problem, dtype=dtype, channels_last=channels_last), "fprop", GPUS[90])
        assert plan.kernel.startswith("subpixel_fprop_") and plan.inner is not None, plan
        assert plan.inner[1].kernel.startswith("halo_fprop_"), plan


@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
def test_small_images_are_not_worth_three_kernels(pass_: str) -> None:
    for dtype, precision, channels_last in itertools.product(DTYPES, PRECISIONS, [False, True]):
        for c, k in ((3, 40), (40, 3), (5, 6)):
            asked = native_problem(
                Problem(2, c, 9, 8, k, 3, 3), pass_, dtype=dtype, precision=precision, channels_last=channels_last
            )
            assert not native.make_plan(asked, GPUS[90]).kernel.startswith("subpixel_"), asked


@pytest.mark.parametrize(
    "changes",
    [
        {"few": 9},
        {"few": 4, "many": 4, "groups": 2},
        {"n": 0},
        {"many": 0},
        {"r": 1, "s": 1},
        {"r": 2, "s": 2, "stride": (2, 2), "few": 1},
        {"stride": (40, 40)},  # of an input gradient: a block has 4800 outputs
        {"r": 90, "s": 3, "h": 200},
        {"dilation": (100, 1), "h": 300},
        {"n": 2**20, "h": 2**12, "w": 2**12},  # counts
    ],
    ids=str,
)
def test_other_convolutions_are_refused(changes: dict[str, Any]) -> None:
    sizes = {"few": 3, "many": 24, **{key: changes[key] for key in ("few", "many") if key in changes}}
    changes = {key: value for key, value in changes.items() if key not in sizes}
    for kernel in KERNELS.values():
        c, k = (sizes["few"], sizes["many"]) if kernel.pass_ == "dgrad" else (sizes["many"], sizes["few"])
        if k == 0:
            continue  # illegal
        problem = Problem(2, c, 33, 34, k, 3, 3).with_(**changes)
        assert kernel.why_not(native_problem(problem, kernel.pass_), GPUS[90]) is not None, kernel.name
