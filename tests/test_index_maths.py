"""The index maths of tile/conv_coords.cuh and of the halo engine against the definition."""

from __future__ import annotations

import math
import re
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import _fastconv_native as native
from shapes import (
    THREE_STEPS,
    depthwise_problems,
    group_widths,
    least_products,
    patch_embeddings,
    precision_of,
    takes_pixels,
)
from sweeps import examples

Products = npt.NDArray[np.int64]  # a row each: offsets of source, filter and target
PAIR = st.tuples(st.integers(1, 4), st.integers(1, 4))

LIMIT = 2**31 - 1
# Where a rounded-up reciprocal would first go wrong: powers of two, their neighbours, and the ends.
EDGES = sorted({1, 2, 3, 5, 7, 641, 65537, LIMIT, LIMIT - 1} | {2**k + d for k in range(2, 31) for d in (-1, 0, 1)})


class Convolution(NamedTuple):
    input: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    groups, channels, filters = (draw(st.integers(1, 3)) for _ in range(3))
    return Convolution(
        input=(draw(st.integers(1, 2)), groups * channels, draw(st.integers(1, 9)), draw(st.integers(1, 9))),
        weight=(groups * filters, channels, *draw(PAIR)),
        stride=draw(PAIR),
        padding=draw(st.tuples(st.integers(0, 4), st.integers(0, 4))),
        dilation=draw(PAIR),
        groups=groups,
    )


def products_by_definition(conv: Convolution, problem: native.ConvProblem, pass_: str) -> Products:
    """(source, filter, target) offsets of output channel 0 of group 0."""
    # dgrad reduces over the group's filters and produces its input channel 0.
    reduced = problem.k_per_group if pass_ == "dgrad" else problem.c_per_group
    n, channel, p, q, r, s = np.ogrid[
        tuple(slice(size) for size in (problem.n, reduced, problem.p, problem.q, problem.r, problem.s))
    ]
    h = p * conv.stride[0] - conv.padding[0] + r * conv.dilation[0]
    w = q * conv.stride[1] - conv.padding[1] + s * conv.dilation[1]
    k, c = (channel, 0) if pass_ == "dgrad" else (0, channel)

    def offsets(strides: tuple[int, int, int, int], *index: Any) -> Any:
        return sum(stride * i for stride, i in zip(strides, index, strict=True))

    x = offsets(problem.x_strides, n, c, h, w)
    y = offsets(problem.y_strides, n, k, p, q)
    f = offsets(problem.w_strides, k, c, r, s)
    exists = (h >= 0) & (h < problem.h) & (w >= 0) & (w < problem.w)
    columns = np.broadcast_arrays(*((y, f, x) if pass_ == "dgrad" else (x, f, y)), exists)
    return np.stack([column[columns[3]] for column in columns[:3]], axis=1)


def are_same(products: Products, expected: Products) -> bool:
    """In any order."""

    def in_order(of: Products) -> Products:
        return of[np.lexsort(of.T)]

    return np.array_equal(in_order(products), in_order(expected))


def are_same_but_for_repetitions(products: Products, expected: Products) -> bool:
    return np.array_equal(np.unique(products, axis=0), np.unique(expected, axis=0))


@pytest.mark.parametrize("method", ["direct", "direct_channels_inner", "im2col"])
@pytest.mark.parametrize("pass_", ["fprop", "dgrad", "wgrad"])
@given(conv=convolutions(), channels_last=st.booleans())
def test_every_product_is_formed_once_and_no_other(
    conv: Convolution, channels_last: bool, pass_: str, method: str
) -> None:
    assume(not native.validate(*conv))
    problem = native.ConvProblem(*conv, pass_=pass_, channels_last=channels_last)
    assert are_same(native.products(problem, method), products_by_definition(conv, problem, pass_))


HOPPER = native.DeviceSpec.cuda(90, 132, 227 << 10)
ANY_KERNELS = [kernel for kernel in native.kernel_table() if kernel.name.startswith("depthwise_any_")]


@st.composite
def depthwise_convolutions(draw: st.DrawFn) -> Convolution:
    groups, image, filter_ = draw(st.integers(1, 5)), st.integers(1, 24), st.sampled_from([1, 2, 3, 4, 7, 9, 14])
    return Convolution(
        input=(draw(st.integers(1, 3)), groups, draw(image), draw(image)),
        weight=(groups * draw(st.integers(1, 2)), 1, draw(filter_), draw(filter_)),
        stride=draw(PAIR),
        padding=draw(st.tuples(st.integers(0, 7), st.integers(0, 7))),
        dilation=draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (3, 4)])),
        groups=groups,
    )


@pytest.mark.parametrize("kernel", ANY_KERNELS, ids=lambda kernel: kernel.name)
@given(
    conv=depthwise_convolutions(),
    channels_last=st.booleans(),
    # Threads, channels, images, parts, taps, buffers.
    tiling=st.one_of(
        st.none(),
        st.tuples(*[st.integers(1, 3)] * 2, *[st.integers(1, 2)] * 3, *[st.integers(1, 9)] * 2, st.integers(1, 2)),
    ),
)
@settings(max_examples=examples(40))
def test_depthwise_with_any_filter_forms_every_product_once(
    conv: Convolution, channels_last: bool, tiling: tuple[int, ...] | None, kernel: native.Kernel
) -> None:
    assume(not native.validate(*conv))
    problem = native.ConvProblem(*conv, pass_=kernel.pass_, channels_last=channels_last)
    products = native.depthwise_any_products(problem, kernel, HOPPER, tiling)
    assert are_same(products, products_by_definition(conv, problem, kernel.pass_))


# Those of planes are run in test_emulated.py.
GROUPED_KERNELS = [k for k in native.kernel_table() if re.match("grouped_(fprop|dgrad|wgrad)_", k.name)]


@st.composite
def grouped_convolutions(draw: st.DrawFn) -> Convolution:
    channels = st.sampled_from([1, 2, 3, 4, 6, 8, 9, 12, 16])
    groups, reduced, produced = draw(st.integers(1, 5)), draw(channels), draw(channels)
    image = st.integers(1, 20)
    return Convolution(
        input=(draw(st.integers(1, 2)), groups * reduced, draw(image), draw(image)),
        weight=(groups * produced, reduced, *draw(PAIR)),
        stride=draw(st.sampled_from([(1, 1), (2, 2), (1, 3), (4, 2)])),
        padding=draw(st.tuples(st.integers(0, 4), st.integers(0, 4))),
        dilation=draw(st.sampled_from([(1, 1), (2, 1), (2, 3)])),
        groups=groups,
    )


@given(width=st.integers(1, 300), step=st.integers(1, 300), first=st.integers(0, 300))
def test_pixels_of_narrow_groups_are_found_one_from_the_other(width: int, step: int, first: int) -> None:
    places = native.grouped_pixels(width, step, first, 20)
    assert places == [divmod(first + i * step, width) for i in range(20)]


@pytest.mark.parametrize("kernel", GROUPED_KERNELS, ids=lambda kernel: kernel.name)
@given(
    conv=grouped_convolutions(),
    channels_last=st.booleans(),
    align=st.sampled_from([4, 16]),
    tile=st.one_of(st.none(), st.tuples(*[st.integers(1, 9)] * 2, st.integers(1, 3))),
    data=st.data(),
)
@settings(max_examples=examples(40))
def test_narrow_groups_form_every_product_once(
    conv: Convolution,
    channels_last: bool,
    align: int,
    tile: tuple[int, int, int] | None,
    data: st.DataObject,
    kernel: native.Kernel,
) -> None:
    assume(not native.validate(*conv))
    problem = native.ConvProblem(
        *conv,
        pass_=kernel.pass_,
        channels_last=channels_last,
        align=align,
        dtype="float16" if "half" in kernel.name else "float32",
        precision="tf32",
    )
    assume(kernel.why_not(problem, HOPPER) is None)
    group = data.draw(st.integers(0, conv.groups - 1))
    wgrad = kernel.pass_ == "wgrad"
    form = native.grouped_wgrad_products if wgrad else native.grouped_products
    parts_or_run = data.draw(st.integers(1, 4)) if wgrad else 1
    products = form(problem, kernel, HOPPER, group, None if tile is None else (*tile, parts_or_run))
    assert are_same(products, products_by_definition(conv, problem, kernel.pass_))


STEM_KERNELS = [kernel for kernel in native.kernel_table() if kernel.name.startswith("stem_")]


@st.composite
def images_of_few_channels(draw: st.DrawFn, kernel: native.Kernel) -> tuple[Convolution, int]:
    """And the bytes whose multiples tensors begin at."""
    channels = draw(st.integers(1, 4))
    many = least_products(kernel.name, 1) > 8
    image, filter_ = st.integers(8 if many else 1, 20), st.sampled_from([3, 4, 7] if many else [1, 2, 3, 4, 7])
    taps = st.sampled_from(THREE_STEPS) if "3_steps" in kernel.name else st.tuples(filter_, filter_)
    squares = "squares" in kernel.name
    conv = Convolution(
        input=(draw(st.integers(1, 3)), channels, draw(image), draw(image)),
        weight=(draw(st.sampled_from([40, 64, 72] if squares else [1, 2, 32, 40, 64, 72])), channels, *draw(taps)),
        stride=draw(st.sampled_from([(2, 2), (1, 2)] if squares else [(1, 1), (2, 2), (1, 3), (4, 2)])),
        padding=draw(st.tuples(st.integers(0, 4), st.integers(0, 4))),
        dilation=draw(st.sampled_from([(1, 1), (2, 1)] if squares else [(1, 1), (2, 1), (2, 3)])),
        groups=1,
    )
    assume(not native.validate(*conv))
    return conv, draw(st.sampled_from([4, 8, 16]))


@pytest.mark.parametrize("kernel", STEM_KERNELS, ids=lambda kernel: kernel.name)
@given(
    data=st.data(),
    channels_last=st.booleans(),
    tiling=st.one_of(
        st.none(), st.tuples(*[st.integers(1, 9)] * 2, st.integers(1, 3), st.integers(1, 2), st.integers(1, 4))
    ),
)
@settings(max_examples=examples(40))
def test_images_of_few_channels_form_every_product_once(
    data: st.DataObject, channels_last: bool, tiling: tuple[int, int, int, int, int] | None, kernel: native.Kernel
) -> None:
    conv, align = data.draw(images_of_few_channels(kernel))
    problem = native.ConvProblem(
        *conv,
        pass_=kernel.pass_,
        channels_last=channels_last,
        align=align,
        dtype="float32",
        precision=precision_of(kernel.name),
    )
    why_not = kernel.why_not(problem, HOPPER)
    assume(why_not is None or "few products" not in why_not)
    assert why_not is None
    form = native.stem_wgrad_products if kernel.pass_ == "wgrad" else native.stem_products
    assert are_same(form(problem, kernel, HOPPER, tiling), products_by_definition(conv, problem, kernel.pass_))


QUADS_KERNELS = [kernel for kernel in native.kernel_table() if kernel.name.startswith("quads_fprop_")]


@pytest.mark.parametrize("kernel", QUADS_KERNELS, ids=lambda kernel: kernel.name)
@given(
    data=st.data(),
    channels_last=st.booleans(),
    tiling=st.one_of(st.none(), st.tuples(*(st.integers(1, most) for most in (9, 4, 3, 4)))),
)
@settings(max_examples=examples(60))
def test_quads_form_every_product_once(
    data: st.DataObject, channels_last: bool, tiling: tuple[int, int, int, int] | None, kernel: native.Kernel
) -> None:
    conv, align = data.draw(images_of_few_channels(kernel))
    floats = re.search("tf32|2_parts|2_halves", kernel.name) is not None
    problem = native.ConvProblem(
        *conv,
        channels_last=channels_last,
        align=align if floats else align // 2,
        dtype="float32" if floats else "float16",
        precision=precision_of(kernel.name),
    )
    # Dilated filters may be larger than the image.
    taps = (
        min(taps, -(-size // step))
        for taps, size, step in zip(conv.weight[2:], conv.input[2:], conv.dilation, strict=True)
    )
    assume(conv.weight[1] * math.prod(taps) >= least_products(kernel.name, conv.weight[1]))
    assert kernel.why_not(problem, HOPPER) is None
    products = native.quads_products(problem, kernel, HOPPER, tiling)
    assert are_same(products, products_by_definition(conv, problem, "fprop"))


EMBED_KERNELS = [kernel for kernel in native.kernel_table() if kernel.name.startswith("embed_")]


@pytest.mark.parametrize("kernel", EMBED_KERNELS, ids=lambda kernel: kernel.name)
@given(data=st.data(), sms=st.sampled_from([1, 4, 132]))
@settings(max_examples=examples(25))
def test_patch_embeddings_form_every_product_once(data: st.DataObject, sms: int, kernel: native.Kernel) -> None:
    drawn, view = data.draw(patch_embeddings().filter(lambda drawn: drawn[1] != "batch_inside"))
    conv = Convolution((drawn.n or 1, drawn.c, drawn.h, drawn.w), drawn.weight_size, *drawn.geometry)
    asked = native.ConvProblem(
        *conv,
        pass_=kernel.pass_,
        channels_last=view == "channels_last",
        align=16,
        dtype="float32" if "_parts_" in kernel.name else "float16",
        precision="bf16x3",
    )
    products = native.embed_products(asked, kernel, native.DeviceSpec.cuda(90, sms, 227 << 10))
    assert are_same(products, products_by_definition(conv, asked, kernel.pass_))


@pytest.mark.parametrize("run", [4, 8])
def test_columns_of_runs_are_dealt_out_once(run: int) -> None:
    """And a lane's, two of each product, are whole runs."""
    columns = {(t, c): native.run_column(run, t, c) for t, c in product(range(4), range(8))}
    assert sorted(columns.values()) == list(range(32))
    for lane, first in product(range(4), range(0, 4, run // 2)):
        mine = [columns[t, lane * 2 + e] for t in range(first, first + run // 2) for e in range(2)]
        assert mine == list(range(mine[0], mine[0] + run)) and mine[0] % run == 0


# Sequences' products are seen where they are emulated.
DEPTHWISE_KERNELS = [
    kernel
    for kernel in native.kernel_table()
    if kernel.name.startswith("depthwise_") and kernel not in ANY_KERNELS and "_sequence_" not in kernel.name
]


@pytest.mark.parametrize("kernel", DEPTHWISE_KERNELS, ids=lambda kernel: kernel.name)
@given(data=st.data(), channels_last=st.booleans(), sms=st.sampled_from([1, 132]))
@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
def test_depthwise_threads_form_every_product_once(
    data: st.DataObject, channels_last: bool, sms: int, kernel: native.Kernel
) -> None:
    drawn = data.draw(depthwise_problems(kernel.name))
    conv = Convolution((drawn.n or 1, drawn.c, drawn.h, drawn.w), drawn.weight_size, *drawn.geometry)
    device = native.DeviceSpec.cuda(90, sms, 227 << 10)
    form, dtype, precision = native.depthwise_products, "float32", "tf32" if "tf32" in kernel.name else "ieee"
    if kernel.name.startswith("depthwise_banded_"):
        form, dtype, channels_last = native.depthwise_banded_products, "float16", False
    elif kernel.name.startswith("depthwise_diagonal_"):
        form, channels_last = native.depthwise_diagonal_products, True
        dtype = "float32" if precision == "tf32" else "float16"
    elif kernel.name.startswith("depthwise_pairs_"):
        form, dtype, channels_last = native.depthwise_pairs_products, "float16", True
    elif kernel.name.startswith("depthwise_cross_"):
        form, dtype, channels_last = native.depthwise_cross_products, "float16", True
    elif kernel.name.endswith("_tma"):
        dtype, channels_last = data.draw(st.sampled_from(["float32", "float16"])), "nhwc" in kernel.name
    problem = native.ConvProblem(
        *conv, pass_=kernel.pass_, dtype=dtype, precision=precision, channels_last=channels_last
    )
    assume(kernel.why_not(problem, device) is None)
    products = form(problem, kernel, device)
    assert are_same(products, products_by_definition(conv, problem, kernel.pass_))


# Banded kernels give it bytes, which need not be of a tensor.
BOXED_KERNELS = [
    k
    for k in DEPTHWISE_KERNELS
    if re.search("_pairs_|_cross_", k.name) or (k.name.endswith("_tma") and "_banded_" not in k.name)
]


@pytest.mark.parametrize("kernel", BOXED_KERNELS, ids=lambda k: k.name)
def test_the_copy_engine_is_given_images_only(kernel: native.Kernel) -> None:
    """No batch, or images that all have one address, are no tensors to it."""
    taps = int(next(part for part in kernel.name.split("_") if part[0].isdigit())[0])
    pixels, tf32 = takes_pixels(kernel.name), "_tf32_" in kernel.name
    group_channels = group_widths(kernel.name)[0]
    factor = 2 if "s2" in kernel.name else 1
    device = native.DeviceSpec.cuda(90, 132, 227 << 10)

    def why_not(n: int, image_stride: int | None = None) -> str | None:
        def problem(x: native.Quad | None = None, y: native.Quad | None = None) -> native.ConvProblem:
            return native.ConvProblem(
                (n, 16, 16, 16),
                (16, group_channels, taps, taps),
                (factor, factor),
                (taps // 2, taps // 2),
                groups=16 // group_channels,
                pass_=kernel.pass_,
                dtype="float16" if pixels and not tf32 else "float32",
                precision="tf32" if tf32 else "ieee",
                channels_last="nhwc" in kernel.name or pixels,
                x_strides=x,
                y_strides=y,
            )

        dense = problem()
        if image_stride is None:
            return kernel.why_not(dense, device)
        x, y = ((image_stride, *strides[1:]) for strides in (dense.x_strides, dense.y_strides))
        return kernel.why_not(problem(x, y), device)

    assert why_not(2) is None
    assert why_not(0) is not None
    assert "TMA" in (why_not(2, image_stride=0) or "")


HALO_KERNELS = [kernel for kernel in native.kernel_table() if kernel.name.startswith("halo_")]


def parts_of_operands(kernel: str, precision: str) -> int:
    """That float32 passes through the workspace in, for tensor cores."""
    if "scaled" in kernel:
        return 2 if "promoted" in kernel else 1
    return 1 if "_tf32" in kernel else 3 if precision == "ieee" else 2


@st.composite
def folded_convolutions(draw: st.DrawFn, filters: int) -> Convolution:
    """Few channels and a stride, which may be larger than the filter; in half of them an even one and even columns."""
    even = draw(st.booleans())

    def axis(strides: list[int]) -> tuple[int, int, int, int]:
        taps, stride, padding = draw(st.integers(1, 7)), draw(st.sampled_from(strides)), draw(st.integers(0, 5))
        size = draw(st.integers(max(1, taps - 2 * padding), 24))
        return size + size % 2 * even, taps, stride, padding

    (h, r, *rows), (w, s, *cols) = axis([1, 2, 3, 4]), axis([2, 4] if even else [1, 2, 3, 4])
    stride, padding = zip(rows, cols, strict=True)
    n, c = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    return Convolution((n, c, h, w), (filters, c, r, s), stride, padding, (1, 1), 1)


@st.composite
def staged_convolutions(draw: st.DrawFn, kernel: native.Kernel) -> Convolution:
    """With an input that the kernel stages, or output where that is the gradient's: `image` describes it."""
    if "folded" in kernel.name:
        return draw(folded_convolutions(filters=kernel.tile[1] // 2))
    dgrad, lines = kernel.pass_ == "dgrad", "lines" in kernel.name
    staging = next((name for name in STAGINGS if name in kernel.name), "tma")
    unit_stride = staging == "floats" and not dgrad
    whole = staging in ("planes", "shifted")
    side_by_side = "x3_" in kernel.name  # columns of the filter, three at a time, at most three pixels apart
    n = draw(st.integers(1, 2))
    if staging == "planes":
        image = draw(st.sampled_from([(1, 64), (8, 8), (8, 24), (2, 72), (3, 136)]))
    elif staging == "shifted":  # every second plane begins 8 bytes beside a multiple of 16
        image = draw(st.sampled_from([(14, 14), (10, 10), (1, 68), (3, 100)]))
    elif lines:  # only so many phases of planes; columns follow from the output's
        image = (draw(st.sampled_from([4, 8] if dtype_of(kernel)["dtype"] == "float16" else [4, 5, 6, 8])), 0)
    elif staging == "transposed" or (side_by_side and staging != "floats"):
        image = draw(
            st.one_of(st.tuples(st.integers(1, 12), st.integers(1, 14)), st.sampled_from([(3, 264), (1, 251)]))
        )
    elif staging == "floats":  # planes of whole units of 16 bytes
        image = draw(st.sampled_from([(1, 64), (4, 5), (2, 6), (8, 7), (3, 132), (2, 250), (12, 13)]))
    else:
        image = draw(st.tuples(st.integers(1, 12), st.integers(1, 16)))

    def axis(
        staged: int, strides: list[int], *, in_threes: bool = False, three: bool = False
    ) -> tuple[int, int, int, int, int]:
        taps, dilation, padding = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(0, 4))
        if in_threes:
            taps, dilation, strides = draw(st.sampled_from([3, 3, 6])), min(dilation, 3), [1]
        if three:
            taps, dilation, strides = 3, 1, [1]
        if whole:
            taps = dilation = 1
            padding = 0
        stride, reach = draw(st.sampled_from(strides)), dilation * (taps - 1) + 1
        if staged == 0:
            produced = draw(st.sampled_from([130, 182, 262, 388]))
            staged = produced + (reach - 1 - 2 * padding) * (-1 if dgrad else 1)
        size = staged
        if dgrad:
            size = (staged - 1) * stride + reach - 2 * padding + draw(st.integers(0, stride - 1))
        assume(size > 0 and size + 2 * padding >= reach)
        return size, taps, stride, padding, dilation

    # What a kernel takes of an input's columns; of a gradient's it takes every one.
    columns = [1] if whole else [1, 2, 4] if staging == "transposed" else [1, 2, 3]
    rows_together = side_by_side and staging == "floats"
    h, r, *rows = axis(
        image[0], [1] if whole or unit_stride or (lines and dgrad) else [1, 2, 3, 4], three=rows_together
    )
    if "_columns" in kernel.name:  # pairs of them
        w, s, *cols = image[1] * 2, draw(st.integers(1, 5)), 2, draw(st.integers(0, 3)), 1
        assume(s <= 2 * cols[1] + w)
    else:
        w, s, *cols = axis(image[1], [1] if lines or unit_stride else columns, in_threes=side_by_side)
    stride, padding, dilation = zip(rows, cols, strict=True)
    # Only the reduced channels cost time here, so the others are as many as the kernel wants.
    # Scaled kernels in two parts want sums of 24 products and more.
    few = kernel.tile[2] < (32 if "promoted_scaled" in kernel.name else 64)
    reduced, produced = draw(st.sampled_from([12, 16] if few else [40, 48])), kernel.tile[1] // 2
    c, k = (produced, reduced) if dgrad else (reduced, produced)
    return Convolution((n, c, h, w), (k, c, r, s), stride, padding, dilation, 1)


STAGINGS = ("tma", "transposed", "planes", "shifted", "floats", "pixels", "folded")
# By the kernel's name, the first that is in it: a precision.
FLOAT32 = {
    "tf32": "tf32",
    "promoted": "ieee",
    "2_halves": "ieee",
    "1_half": "tf32",
    "scaled": "tf32",
    "parts": "bf16x3",
}


def dtype_of(kernel: native.Kernel) -> dict[str, Any]:
    """Of a problem that the kernel may compute."""
    precision = next((p for name, p in FLOAT32.items() if name in kernel.name), None)
    return {"dtype": "float32", "precision": precision} if precision else {"dtype": "float16"}


@pytest.mark.parametrize("kernel", HALO_KERNELS, ids=lambda kernel: kernel.name)
@given(data=st.data())
@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))
def test_halo_engine_forms_every_product_once_and_no_other(kernel: native.Kernel, data: st.DataObject) -> None:
    conv = data.draw(staged_convolutions(kernel))
    # Pixels that lie apart are for the kernel that takes any strides; those for contiguous channels write NCHW anew.
    dtype = dtype_of(kernel)
    either = "tma" in kernel.name or "folded" in kernel.name or dtype["dtype"] == "float32"
    planes = "floats" in kernel.name or "transposed" in kernel.name
    channels_last = "pixels" in kernel.name or (
        not planes and "_columns" not in kernel.name and either and data.draw(st.booleans())
    )
    problem = native.ConvProblem(
        *conv,
        pass_=kernel.pass_,
        **dtype,
        channels_last=channels_last,
        align=2 if "pixels" in kernel.name else 128,
    )
    assume(kernel.why_not(problem, HOPPER) is None)
    expected = products_by_definition(conv, problem, kernel.pass_)
    assert are_same(native.halo_products(problem, kernel, HOPPER), expected)


@pytest.mark.parametrize("sm_count", [3, 132])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [(2, 2), (1, 3), (3, 2)])
def test_halo_engine_takes_the_phases_of_a_tile_in_rounds_that_follow_each_other(
    stride: tuple[int, int], groups: int, dtype: str, sm_count: int
) -> None:
    """Neighbouring columns of an input gradient share sectors of memory, and belong to different phases. A tile that
    waits for all tiles of another phase finds the sectors gone from L2, to be read and written once more."""
    input = (sm_count, 192 * groups, 37, 41)
    conv = Convolution(input, (64 * groups, 192, 3, 3), stride, (1, 1), (1, 1), groups)
    problem = native.ConvProblem(*conv, pass_="dgrad", dtype=dtype)
    device = native.DeviceSpec.cuda(90, sm_count, 227 << 10)
    phases, ran = stride[0] * stride[1], 0
    for kernel in HALO_KERNELS:
        if kernel.pass_ != "dgrad" or kernel.why_not(problem, device) is not None:
            continue
        grid, tiles = native.halo_tiles(problem, kernel, device)
        places: dict[tuple[int, ...], dict[int, int]] = {}
        for index, (phase, tile) in enumerate(tiles):
            places.setdefault(tuple(tile), {})[phase] = index
        assert len(places) * phases == len(tiles), kernel.name
        for place, at in places.items():
            assert sorted(at) == list(range(phases)), (kernel.name, place)
            assert all(0 < at[p] - at[p - 1] <= grid for p in range(1, phases)), (kernel.name, place)
        ran += grid < len(places)
    assert ran, "no kernel had more tiles of a phase than blocks"


@pytest.mark.parametrize("precision", ["tf32", "bf16x3", "ieee"])
@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
@pytest.mark.parametrize(("groups", "c", "k"), [(1, 72, 80), (2, 72, 80), (1, 16, 80), (1, 80, 16), (1, 24, 16)])
def test_halo_engine_multiplies_the_parts_that_the_precision_needs(
    groups: int, c: int, k: int, stride: tuple[int, int], pass_: str, precision: str
) -> None:
    """Each pair of parts (i, j), i + j < parts, once for every block of channels; small products first. The filter's
    part is there, also where it stays in shared memory. Stages that hold all parts are one block."""
    conv = Convolution((1, groups * c, 9, 10), (groups * k, c, 3, 3), stride, (1, 1), (1, 1), groups)
    problem = native.ConvProblem(*conv, pass_=pass_, precision=precision)
    ran = 0
    for kernel in HALO_KERNELS:
        if kernel.pass_ != pass_ or kernel.why_not(problem, HOPPER) is not None:
            continue
        parts = 1 if "transposed" in kernel.name else parts_of_operands(kernel.name, precision)
        channels = -(-(k if pass_ == "dgrad" else c) // kernel.tile[2])
        blocks = native.halo_blocks(problem, kernel, HOPPER)
        pairs = [(i, j) for i in range(parts) for j in range(parts) if i + j < parts]
        assert sorted(blocks) == [(c, i, j) for c in range(channels) for i, j in pairs], kernel.name
        sums = [i + j for _, i, j in blocks]
        assert sums == sorted(sums, reverse=True), kernel.name
        ran += 1
    assert ran


@pytest.mark.parametrize("kernel", [k for k in HALO_KERNELS if "lines" in k.name], ids=lambda kernel: kernel.name)
@given(data=st.data(), sm_count=st.sampled_from([1, 3, 132]), images=st.integers(1, 3))
@settings(max_examples=examples(20))
def test_every_byte_of_the_output_is_stored_once_and_inner_lines_whole(
    kernel: native.Kernel, data: st.DataObject, sm_count: int, images: int
) -> None:
    conv = data.draw(staged_convolutions(kernel))
    conv = conv._replace(input=(images, *conv.input[1:]))
    dtype = dtype_of(kernel)
    problem = native.ConvProblem(*conv, pass_=kernel.pass_, **dtype, align=128)
    device = native.DeviceSpec.cuda(90, sm_count, 227 << 10)
    assume(kernel.why_not(problem, device) is None)
    stores = sorted(native.line_stores(problem, kernel, device))
    ends = [first + count for first, count in stores]
    n, c, h, w = conv.input
    size = n * c * h * w if kernel.pass_ == "dgrad" else n * conv.weight[0] * problem.p * problem.q
    assert [first for first, _ in stores] == [0, *ends[:-1]]
    assert ends[-1] == (4 if dtype["dtype"] == "float32" else 2) * size
    assert all(first // 128 == (first + count - 1) // 128 for first, count in stores)
    if sm_count == 1:  # two runs, or one: what they share is ends of planes and of runs
        assert sum(count < 128 for _, count in stores) <= 2 * conv.weight[kernel.pass_ == "dgrad"] * (images + 2)


@pytest.mark.parametrize("size", [(1, 2), (3, 1), (16, 1)])
@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
def test_halo_engine_forms_the_products_of_tiny_nchw_images(pass_: str, size: tuple[int, int]) -> None:
    """A copy of raw planes brings at least one pixel that the one before it did not."""
    conv = Convolution((2, 40, *size), (40, 40, 3, 3), (1, 1), (1, 1), (1, 1), 1)
    problem = native.ConvProblem(*conv, pass_=pass_, dtype="float16")
    expected = products_by_definition(conv, problem, pass_)
    kernels = [k for k in HALO_KERNELS if k.pass_ == pass_ and k.why_not(problem, HOPPER) is None]
    assert any("transposed" in k.name for k in kernels)
    for kernel in kernels:
        assert are_same(native.halo_products(problem, kernel, HOPPER), expected), kernel.name


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
@given(data=st.data())
@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
def test_halo_engine_packs_the_filter_as_it_is_used(pass_: str, channels_last: bool, data: st.DataObject) -> None:
    packing = [
        k for k in HALO_KERNELS if k.pass_ == pass_ and "krsc" not in k.name and dtype_of(k)["dtype"] == "float16"
    ]
    columns = [k for k in packing if "_columns" in k.name]
    kernel = data.draw(st.sampled_from(packing + 8 * columns))
    groups, r, s = (
        data.draw(st.sampled_from([1, 1, 2])),
        *data.draw(st.sampled_from([(1, 1), (3, 3), (1, 4), (5, 7), (2, 2), (9, 11), (1, 300)])),
    )
    image = (10, 10) if "shifted" in kernel.name else (40, 608)
    if "planes" in kernel.name or "shifted" in kernel.name:
        r = s = 1
    reduced, produced = (
        data.draw(st.sampled_from([16, 38, 40, 64, 72])),
        kernel.tile[1] // 2 + data.draw(st.integers(0, 3)),
    )
    k, c = (reduced, produced) if pass_ == "dgrad" else (produced, reduced)
    stride, dilation = (
        data.draw(st.sampled_from([(1, 1), (2, 1), (2, 2)])),
        data.draw(st.sampled_from([(1, 1), (2, 3)])),
    )
    padding = (0, 0)
    if "_columns" in kernel.name:
        stride, dilation, padding = (stride[0], 2), (dilation[0], 1), (0, data.draw(st.integers(0, 3)))
    conv = Convolution((1, groups * c, *image), (groups * k, c, r, s), stride, padding, dilation, groups)
    assume(not native.validate(*conv))
    strides = (c * r * s, 1, s * c, c) if channels_last else (c * r * s, r * s, s, 1)
    problem = native.ConvProblem(
        *conv, pass_=pass_, dtype="float16", channels_last="tma" in kernel.name, w_strides=strides, align=16
    )
    assume(kernel.why_not(problem, HOPPER) is None)
    packed, expected = native.halo_packed_filter(problem, kernel, HOPPER)
    assume(packed)  # else it is read as it is
    assert packed == expected


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("across_log2", [0, 1, 2])
@pytest.mark.parametrize(
    ("vector", "together", "block_k", "element_bytes"),
    [
        *[(8, 4, 64, 2), (8, 2, 128, 2), (8, 1, 256, 2), (2, 4, 32, 2), (2, 2, 16, 2), (1, 2, 128, 2), (1, 1, 256, 2)],
        *[(4, 4, 64, 4), (4, 2, 128, 4), (4, 1, 256, 4), (2, 4, 32, 4), (2, 2, 64, 4), (2, 1, 128, 4)],
        *[(1, 2, 128, 4), (1, 1, 256, 4)],
        *[(1, 2, 64, 8), (1, 1, 64, 8), (1, 2, 64, 4)],  # pairs of columns
    ],
)
def test_sums_become_rows_of_pixels(
    vector: int, together: int, block_k: int, element_bytes: int, across_log2: int, narrow: bool
) -> None:
    """Of every channel that passes through shared memory at once, each pixel is stored once and is that sum."""
    stored, turns = native.pixel_rows(vector, together, block_k, element_bytes, narrow, across_log2)
    assert all(should == does for should, does in stored)
    channels = min(block_k, 8192 // (64 * element_bytes * together))
    pixels = range(64 * together)
    assert sorted(does for _, does in stored) == [i * block_k + c for i in pixels for c in range(channels)]
    assert turns == 1


@pytest.mark.parametrize(("block_k", "element_bytes"), [(64, 2), (256, 2), (32, 4), (128, 4)])
def test_sums_become_rows_of_channels(block_k: int, element_bytes: int) -> None:
    stored, turns = native.channel_rows(block_k, element_bytes)
    assert all(should == does for should, does in stored)
    channels = range(128 // element_bytes)
    assert sorted(does for _, does in stored) == [i * block_k + c for i in range(16) for c in channels]
    assert turns == 1


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_streams_meet_different_banks(element_bytes: int) -> None:
    """Where the output's planes are multiples of 16 bytes apart."""
    assert all(native.stream_turns(plane, element_bytes) == 1 for plane in range(0, 1024, 16))
    assert max(native.stream_turns(plane, element_bytes) for plane in range(0, 128, 4)) <= 4


@pytest.mark.parametrize("to_planes", [False, True])
@pytest.mark.parametrize(
    ("size", "align", "vector", "copy"),
    [
        ((2, 40, 7, 7), 16, 1, "runs"),
        ((2, 72, 14, 14), 16, 2, "runs"),
        ((1, 32, 33, 33), 16, 1, "runs"),
        ((2, 40, 16, 17), 16, 8, "boxes"),
        ((1, 64, 8, 25), 16, 8, "boxes"),
        ((3, 8, 12, 12), 16, 8, "boxes"),
        ((2, 40, 7, 7), 2, 1, "values"),
        ((2, 37, 14, 14), 4, 2, "values"),
        ((2, 70, 16, 17), 16, 8, "values"),
    ],
)
def test_planes_become_rows_of_pixels_and_back(
    size: tuple[int, int, int, int], align: int, vector: int, copy: str, to_planes: bool
) -> None:
    moved, expected, *how = native.reorder(size, align, to_planes)
    assert how == [vector, copy]
    assert moved == expected


@pytest.mark.parametrize("kernel", [k for k in HALO_KERNELS if "folded" in k.name], ids=lambda kernel: kernel.name)
@given(data=st.data(), channels_last=st.booleans())
@settings(max_examples=examples(15))
def test_halo_engine_packs_the_folded_filter_as_it_is_used(
    kernel: native.Kernel, data: st.DataObject, channels_last: bool
) -> None:
    conv = data.draw(folded_convolutions(filters=kernel.tile[1] // 2 + data.draw(st.integers(0, 3))))
    problem = native.ConvProblem(*conv, pass_="fprop", dtype="float16", channels_last=channels_last)
    assume(kernel.why_not(problem, HOPPER) is None)
    packed, expected = native.halo_packed_filter(problem, kernel, HOPPER)
    assert packed == expected


@pytest.mark.parametrize("divisor", EDGES)
def test_division_by_edges_of_edges(divisor: int) -> None:
    fast = native.FastDivmod(divisor)
    multiples = {m * divisor + d for m in (1, 2, 3, LIMIT // divisor) for d in (-1, 0, 1)}
    for dividend in {0, *EDGES, *multiples}:
        if 0 <= dividend <= LIMIT:
            assert fast.div(dividend) == dividend // divisor
            assert fast.divmod(dividend) == divmod(dividend, divisor)


@given(divisor=st.integers(1, LIMIT), dividend=st.integers(0, LIMIT))
@example(divisor=LIMIT, dividend=LIMIT)
@example(divisor=1, dividend=LIMIT)
@settings(max_examples=examples(2000))
def test_division_of_anything(divisor: int, dividend: int) -> None:
    assert native.FastDivmod(divisor).divmod(dividend) == divmod(dividend, divisor)


@given(divisor=st.integers(1, LIMIT), quotient=st.integers(0, LIMIT), below=st.integers(0, 2))
@settings(max_examples=examples(2000))
def test_division_just_around_multiples(divisor: int, quotient: int, below: int) -> None:
    """The only dividends at which an inexact reciprocal shows."""
    dividend = quotient * divisor - below
    if 0 <= dividend <= LIMIT:
        assert native.FastDivmod(divisor).divmod(dividend) == divmod(dividend, divisor)


def test_division_of_every_small_number() -> None:
    for divisor in range(1, 65):
        fast = native.FastDivmod(divisor)
        assert [fast.div(n) for n in range(1000)] == [n // divisor for n in range(1000)]


@given(
    size=st.integers(1, 40),
    kernel=st.integers(1, 9),
    stride=st.integers(1, 7),
    padding=st.integers(0, 20),
    dilation=st.integers(1, 6),
)
@settings(max_examples=examples(500))
def test_output_size_counts_the_positions_of_the_filter(
    size: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    """By sliding it: every start from which the last tap is still inside the padded image."""
    starts = range(-padding, size + padding, stride)
    count = sum(start + dilation * (kernel - 1) < size + padding for start in starts)
    actual = native.output_size((1, 1, size, 5), (1, 1, kernel, 1), (stride, 1), (padding, 0), (dilation, 1), 1)
    assert actual == ([1, 1, count, 5] if count else [])
