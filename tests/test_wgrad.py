"""How the sm_90a weight gradient tiles a problem, without a GPU: its plans against the definition of a convolution."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import _fastconv_native as native
from shapes import PUBLIC
from sweeps import examples
from test_index_maths import HOPPER, Convolution, are_same, parts_of_operands, products_by_definition

PRECISIONS = ["tf32", "bf16x3", "ieee"]
ALL_KERNELS = [kernel for kernel in native.kernel_table() if kernel.name.startswith("wgrad_")]
FLOAT32_KERNELS = [kernel for kernel in ALL_KERNELS if kernel.name.endswith("_f32")]
FLOATS_KERNELS = [kernel for kernel in FLOAT32_KERNELS if "_floats_" in kernel.name]
KERNELS = [kernel for kernel in ALL_KERNELS if kernel not in FLOAT32_KERNELS]
PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))
SIZES = st.tuples(st.integers(1, 15), st.integers(1, 33))
TAPS = st.tuples(st.integers(1, 5), st.integers(1, 5))
PADDING = st.tuples(st.integers(0, 3), st.integers(0, 3))


@st.composite
def dense_planes(draw: st.DrawFn, kernel: native.Kernel, channels: int, outputs: tuple[int, int]) -> Convolution:
    """With so many rows and columns of gradients."""
    taps, stride, dilation = draw(st.tuples(*[st.integers(1, 3)] * 2)), draw(PAIR), draw(PAIR)
    if draw(st.integers(0, 3)) == 0:
        taps = stride = (1, 1)
    reach = [
        (out - 1) * step + (r - 1) * d + 1 for out, step, r, d in zip(outputs, stride, taps, dilation, strict=True)
    ]
    down, across = (draw(st.integers(0, min(3, (size - 1) // 2))) for size in reach)
    h, w = reach[0] - 2 * down, reach[1] - 2 * across
    filters = draw(st.sampled_from([8, 40, 72, 136]))
    images = draw(st.integers(1, 2))
    return Convolution((images, channels, h, w), (filters, channels, *taps), stride, (down, across), dilation, groups=1)


@st.composite
def stageable(draw: st.DrawFn, kernel: native.Kernel) -> Convolution:
    """With as many channels as the kernel stages at a time, or twice that, few pixels, and rows that it can copy."""
    width, floats = int(kernel.name.split("_")[1].split("x")[0]), "_floats_" in kernel.name
    channels = draw(st.sampled_from([width, 2 * width] if width == 64 and not floats else [width, width - 8]))
    if kernel.name.endswith(("warps", "f32")):
        channels -= draw(st.integers(0, 3))
    h, w = draw(SIZES)
    taps, stride, padding, dilation = draw(TAPS), draw(PAIR), draw(PADDING), draw(PAIR)
    if kernel.name.endswith("pixels"):
        taps, stride, padding, w = (1, 1), (1, 1), (0, 0), w + -w % 8
    elif kernel.name.endswith("rows"):
        h += 7
    elif draw(st.integers(0, 3)) == 0:
        taps = (1, 1)
    if floats:
        outputs = draw(st.sampled_from([(4, 19), (8, 7), (3, 20), (1, 44), (6, 14), (12, 1), (2, 30)]))
        return draw(dense_planes(kernel, channels, outputs))
    filters = draw(st.sampled_from([40, 72, 136] if kernel.name.endswith("rows") else [8, 72]))
    return Convolution(
        (draw(st.integers(1, 5)), channels, h, w), (filters, channels, *taps), stride, padding, dilation, groups=1
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@given(data=st.data())
@settings(max_examples=examples(8))
def test_every_product_is_formed_once_and_no_other(kernel: native.Kernel, data: st.DataObject) -> None:
    conv = data.draw(stageable(kernel))
    assume(not native.validate(*conv))
    # Kernels for contiguous channels write NCHW anew as such.
    channels_last = "tma" in kernel.name and data.draw(st.booleans())
    problem = native.ConvProblem(*conv, pass_="wgrad", dtype="float16", channels_last=channels_last)
    assume(kernel.why_not(problem, HOPPER) is None)
    expected = products_by_definition(conv, problem, "wgrad")
    filters = {0, data.draw(st.integers(1, 7)), problem.k - 1} if kernel.name.endswith("rows") else {0}
    for k in filters:
        assert are_same(native.wgrad_products(problem, kernel, HOPPER, k), expected)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_products_of_parts_come_once_and_small_ones_first(parts: int) -> None:
    products = native.split_products(parts)
    assert sorted(products) == [(i, j) for i in range(parts) for j in range(parts) if i + j < parts]
    assert [i + j for i, j in products] == sorted((i + j for i, j in products), reverse=True)
    # What reads ahead of its products reads one behind the last: it must be found as fast (taps took 10 times as long).
    assert native.split_products(parts, beyond=2)[-2:] == [(1, -1), (2, -2)]


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        pytest.param(kernel, precision, id=f"{kernel.name}-{precision}")
        for kernel, precision in itertools.product(FLOAT32_KERNELS, PRECISIONS)
        if "_scaled" not in kernel.name or precision == ("ieee" if "promoted" in kernel.name else "tf32")
    ],
)
@given(data=st.data())
@settings(max_examples=examples(8))
def test_every_product_of_parts_is_formed_once_and_no_other(
    kernel: native.Kernel, precision: str, data: st.DataObject
) -> None:
    conv = data.draw(stageable(kernel))
    assume(not native.validate(*conv))
    groups = data.draw(st.sampled_from([1, 1, 2]))
    if groups > 1:
        (n, c, h, w), (k, _, r, s) = conv[:2]
        conv = conv._replace(input=(n, groups * c, h, w), weight=(groups * k, c, r, s), groups=groups)
        assume(not native.validate(*conv))
    floats = "_floats_" in kernel.name
    channels_last = not floats and data.draw(st.booleans())
    problem = native.ConvProblem(
        *conv, pass_="wgrad", dtype="float32", precision=precision, channels_last=channels_last
    )
    assume(kernel.why_not(problem, HOPPER) is None)
    native.check_copies(problem, kernel, HOPPER)
    expected = products_by_definition(conv, problem, "wgrad")
    k = data.draw(st.integers(0, problem.k_per_group - 1)) if floats else 0
    for product in range(len(native.split_products(parts_of_operands(kernel.name, precision)))):
        assert are_same(native.wgrad_products(problem, kernel, HOPPER, k, product=product), expected)


# Planes that begin like the tensor, rows that begin anywhere, the last tiles of which have few columns; filters that
# are no multiple of a block's.
PLANES = {
    "rows two pixels off": ((1, 16, 6, 264), (72, 16, 3, 3), (1, 1)),
    "rows one and three pixels off": ((1, 16, 10, 137), (72, 16, 3, 3), (1, 1)),
    "rows that end within a tile, but with a step": ((2, 16, 6, 82), (40, 16, 3, 3), (1, 1)),
    "rows of one copy": ((3, 16, 14, 14), (40, 16, 3, 3), (1, 1)),
    "rows of one copy that begin anywhere": ((2, 16, 9, 15), (72, 16, 2, 3), (1, 1)),
    "strided": ((2, 16, 18, 150), (40, 16, 3, 5), (2, 2)),
    "planes without taps": ((2, 16, 15, 20), (136, 16, 1, 1), (1, 1)),
}


# One SM has large tiles, many have small ones.
@pytest.mark.parametrize(("precision", "sms"), [("bf16x3", 1), ("bf16x3", 132), ("ieee", 1)])
@pytest.mark.parametrize("name", PLANES)
def test_gradients_as_they_lie_begin_anywhere(name: str, precision: str, sms: int) -> None:
    device = native.DeviceSpec.cuda(90, sms, 227 << 10)
    x, w, stride = PLANES[name]
    conv = Convolution(x, w, stride, (0, 0), (1, 1), groups=1)
    problem = native.ConvProblem(*conv, pass_="wgrad", dtype="float32", precision=precision)
    expected = products_by_definition(conv, problem, "wgrad")
    kernels = [kernel for kernel in FLOATS_KERNELS if kernel.why_not(problem, device) is None]
    assert ["scaled" in kernel.name for kernel in kernels] == [False, True][: 1 + (precision == "ieee")]
    for kernel, k in itertools.product(kernels, [9, problem.k - 1]):
        assert are_same(native.wgrad_products(problem, kernel, device, k), expected)


def test_gradients_as_they_lie_are_planes_without_gaps() -> None:
    size, strides = (2, 16, 10, 18), {"dense": (8192, 256, 16, 1), "rows": (8192, 512, 32, 1), "columns": (1, 2, 64, 4)}
    for name, y_strides in strides.items():
        problem = native.ConvProblem(
            size, (32, 16, 3, 3), pass_="wgrad", dtype="float32", precision="bf16x3", y_strides=y_strides
        )
        takes = [kernel.name for kernel in FLOATS_KERNELS if kernel.why_not(problem, HOPPER) is None]
        assert bool(takes) == (name == "dense"), name


@pytest.mark.parametrize("pitch", [1, 4])
def test_images_of_one_pixel_are_no_row_if_they_lie_apart(pitch: int) -> None:
    conv = Convolution((64, 16, 1, 1), (32, 16, 1, 1), (1, 1), (0, 0), (1, 1), groups=1)
    problem = native.ConvProblem(
        *conv, pass_="wgrad", dtype="float32", precision="bf16x3", y_strides=(4, 4 * 64, pitch, pitch)
    )
    expected = products_by_definition(conv, problem, "wgrad")
    kernels = [kernel for kernel in FLOATS_KERNELS if kernel.why_not(problem, HOPPER) is None]
    assert bool(kernels) == (pitch == 1)
    for kernel in kernels:
        assert are_same(native.wgrad_products(problem, kernel, HOPPER, problem.k - 1), expected)


@st.composite
def folded(draw: st.DrawFn, width: int) -> Convolution:
    """Few channels and a stride: as many channels times strides as a kernel stages at a time, or fewer."""
    strides = [
        (c, down, across)
        for c, down, across in itertools.product(range(1, 6), range(1, 5), range(1, 5))
        if down * across > 1 and width // 2 < max(c * down * across, 9) <= width
    ]
    c, down, across = draw(st.sampled_from(strides))
    (r, s), padding = draw(TAPS), draw(PADDING)
    p, q = draw(st.integers(2, 9)), draw(st.sampled_from([4, 7, 8, 16]))
    h, w = (p - 1) * down + r - 2 * padding[0], (q - 1) * across + s - 2 * padding[1] + draw(st.integers(0, across - 1))
    assume(h > 0 and w > 0)
    return Convolution((draw(st.integers(1, 3)), c, h, w), (72, c, r, s), (down, across), padding, (1, 1), groups=1)


@pytest.mark.parametrize(
    "kernel", [kernel for kernel in KERNELS if kernel.name.endswith(("tma", "rows"))], ids=lambda kernel: kernel.name
)
@given(data=st.data())
@settings(max_examples=examples(8))
def test_folded_strides_form_every_product_once_and_no_other(kernel: native.Kernel, data: st.DataObject) -> None:
    conv = data.draw(folded(int(kernel.name.split("_")[1].split("x")[0])))
    assume(not native.validate(*conv))
    channels_last = "tma" in kernel.name and data.draw(st.booleans())
    problem = native.ConvProblem(*conv, pass_="wgrad", dtype="float16", channels_last=channels_last)
    assume(kernel.why_not(problem, HOPPER) is None)
    expected = products_by_definition(conv, problem, "wgrad")
    for k in {0, problem.k - 1} if kernel.name.endswith("rows") else {0}:
        assert are_same(native.wgrad_products(problem, kernel, HOPPER, k), expected)


# Rows and planes that begin anywhere: input, weight, stride, padding.
AWKWARD = {
    "rows of dy": ((1, 32, 16, 24), (64, 32, 3, 5), 1, (0, 0)),
    "rows and planes of dy": ((1, 16, 16, 64), (128, 16, 3, 3), 1, (0, 0)),
    "rows of both": ((2, 32, 12, 28), (40, 32, 3, 3), 1, (1, 1)),
    "strided": ((1, 32, 8, 28), (40, 32, 3, 3), 2, (1, 1)),
    "half planes": ((2, 64, 14, 14), (72, 64, 3, 3), 1, (1, 1)),
    "odd planes": ((5, 64, 7, 7), (64, 64, 3, 3), 1, (1, 1)),
    "planes without taps": ((8, 64, 14, 14), (64, 64, 1, 1), 1, (0, 0)),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_any_address_of_rows_and_planes(name: str) -> None:
    x, w, stride, padding = AWKWARD[name]
    conv = Convolution(x, w, (stride, stride), padding, (1, 1), groups=1)
    problem = native.ConvProblem(*conv, pass_="wgrad", dtype="float16")
    expected = products_by_definition(conv, problem, "wgrad")
    staged = [kernel for kernel in KERNELS if kernel.name.endswith(("tma", "rows"))]
    kernels = [kernel for kernel in staged if kernel.why_not(problem, HOPPER) is None]
    assert kernels
    for kernel in kernels:
        for k in [0, 1, problem.k - 1] if kernel.name.endswith("rows") else [0]:
            assert are_same(native.wgrad_products(problem, kernel, HOPPER, k), expected)


# On one SM small tensors are more than all warps write at once.
@pytest.mark.parametrize(
    ("name", "sms", "x", "w", "stride", "padding"),
    [
        ("64x3_1x3_rows", 1, (3, 40, 33, 32), (40, 40, 3, 5), 2, (2, 0)),
        ("64x1_2x2_rows", 1, (3, 40, 33, 32), (40, 40, 3, 5), 2, (2, 0)),
        ("64x1_2x2_rows", 1, (2, 40, 64, 40), (40, 40, 3, 1), 1, (0, 0)),
        ("64x3_1x3_rows", 1, (1, 40, 8, 1040), (40, 40, 1, 33), 1, (0, 0)),
        # Sums of a few clusters, of many, of one.
        ("64x3_1x3_rows", 132, (1, 256, 192, 192), (128, 256, 3, 3), 1, (1, 1)),
        ("64x3_1x3_rows", 132, (1, 64, 512, 512), (512, 64, 3, 3), 1, (1, 1)),
        ("64x3_1x3_rows", 132, (2, 512, 96, 96), (16, 512, 3, 3), 1, (1, 1)),
        ("64x3_1x3_rows", 132, (4, 64, 264, 264), (16, 64, 3, 3), 1, (1, 1)),
        ("64x3_1x3_rows", 132, (2, 512, 128, 128), (512, 512, 3, 3), 1, (1, 1)),
        ("16x3_3x2_rows", 132, (16, 16, 1024, 1024), (128, 16, 3, 3), 1, (0, 0)),
        ("32x3_1x3_rows", 132, (8, 32, 512, 512), (64, 32, 5, 9), 1, (2, 4)),
    ],
)
def test_tiles_wait_for_what_is_streamed_beside_the_products(
    name: str,
    sms: int,
    x: tuple[int, int, int, int],
    w: tuple[int, int, int, int],
    stride: int,
    padding: tuple[int, int],
) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.name == f"wgrad_{name}")
    conv = Convolution(x, w, (stride, stride), padding, (1, 1), groups=1)
    problem = native.ConvProblem(*conv, pass_="wgrad", dtype="float16")
    native.check_streaming(problem, kernel, native.DeviceSpec.cuda(90, sms, 227 << 10))


@pytest.mark.parametrize(("name", "clusters"), [("rn50_l3_1x1", False), ("rn50_l3_3x3", False), ("rn50_l4_3x3", True)])
def test_clusters_add_sums_where_no_other_kernel_does(name: str, clusters: bool) -> None:
    """Else blocks leave theirs to that kernel: measured faster (builds-h200-20261125T070748Z.json)."""
    problem = PUBLIC[name]
    conv = (problem.input_size, problem.weight_size, *problem.geometry)
    asked = native.ConvProblem(*conv, pass_="wgrad", dtype="float16", channels_last=True)
    found = re.search(r"cluster (\d+) split (\d+)", str(native.make_plan(asked, HOPPER)))
    assert found
    cluster, split = int(found[1]), int(found[2])
    assert split > 1 and cluster == (split if clusters else 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name, problem in PUBLIC.items() if problem.c >= 16 * problem.groups])
def test_hopper_sums_wide_gradients_on_tensor_cores(name: str, dtype: str) -> None:
    problem = PUBLIC[name]
    conv = (problem.input_size, problem.weight_size, *problem.geometry)
    plan = native.make_plan(native.ConvProblem(*conv, pass_="wgrad", dtype=dtype, channels_last=True), HOPPER)
    assert plan.kernel.startswith("wgrad_")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["seed_5x7", "seed_3x3", "seed_5x9d"])
def test_hopper_sums_large_float32_gradients_on_tensor_cores(name: str, precision: str) -> None:
    problem = PUBLIC[name]
    conv = (problem.input_size, problem.weight_size, *problem.geometry)
    for channels_last in (False, True):
        float32 = native.ConvProblem(
            *conv, pass_="wgrad", dtype="float32", precision=precision, channels_last=channels_last
        )
        plan = native.make_plan(float32, HOPPER)
        if (name, precision, channels_last) == ("seed_3x3", "tf32", True):
            assert plan.kernel == "mma_wgrad_256x128_nhwc"  # 7.1 ms where two parts take 10.8 (docs/perf-log.md)
            continue
        assert plan.kernel.startswith("wgrad_") and plan.kernel.endswith("_f32")
        pays = name == "seed_3x3" or (name == "seed_5x7" and precision == "bf16x3")
        assert ("_floats_" in plan.kernel) == (pays and not channels_last)


def test_some_kernel_takes_what_hopper_can_stage() -> None:
    """Any layout, any number of channels: TMA or the producer warps, whatever the widths."""
    for channels_last, c in itertools.product([False, True], [1, 8, 17, 33, 64, 200]):
        problem = native.ConvProblem(
            (2, c, 14, 14), (40, c, 3, 3), (1, 1), (1, 1), (1, 1), 1, pass_="wgrad", dtype="float16",
            channels_last=channels_last,
        )  # fmt: skip
        assert any(kernel.why_not(problem, HOPPER) is None for kernel in KERNELS)
