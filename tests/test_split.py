"""float32 tensors as operands of the tensor cores (tile/split.h): the parts of values, and where they lie."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import _fastconv_native as native
from sweeps import examples
from test_index_maths import HOPPER, parts_of_operands

SMALLEST = 2.0**-133  # bf16, denormal
OPERANDS = [("bf16", 2), ("bf16", 3), ("tf32", 1), ("fp16", 1), ("fp16", 2)]
CHUNK = {"bf16": 8, "tf32": 4, "fp16": 8}
SECTOR = {"bf16": 16, "tf32": 8, "fp16": 16}  # channels


def float32(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.float32)


def parts_of(values: np.ndarray, parts: int) -> np.ndarray:
    """[part][value], float64."""
    bits = np.array(native.split_parts(values.astype(np.float32).view(np.uint32).tolist(), parts), np.uint32)
    return float32(bits << 16).astype(np.float64)


def numbers(kind: str) -> np.ndarray:
    rng = np.random.default_rng()
    n = 1 << 14
    if kind == "normal":
        return rng.standard_normal(n).astype(np.float32)
    if kind == "wide":
        return (np.exp(4 * rng.standard_normal(n)) * rng.choice([-1, 1], n)).astype(np.float32)
    if kind == "any":
        values = float32(rng.integers(0, 1 << 32, n, dtype=np.uint64))
        return np.where(np.isfinite(values), values, np.float32(1))
    if kind == "denormal":
        return float32(rng.integers(0, 1 << 24, n, dtype=np.uint64) | rng.integers(0, 2, n, dtype=np.uint64) << 31)
    assert kind == "huge"
    return float32(0x7F7FFFFF - rng.integers(0, 1 << 17, n, dtype=np.uint64))


@pytest.mark.parametrize("kind", ["normal", "wide", "any", "denormal", "huge"])
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_add_up(kind: str, parts: int) -> None:
    values = numbers(kind)
    split, exact = parts_of(values, parts), values.astype(np.float64)
    rest = exact.copy()
    half = 2.0 ** (-7 if kind == "huge" else -8)  # of the last of a part's 8 bits; near the end they are rounded down
    scale = 128 if parts == 3 else 1  # of a part, after the one before it
    for i, part in enumerate(split):
        smallest = SMALLEST / scale**i
        bound = np.maximum(np.abs(rest) * half, smallest / 2)
        rest -= part / scale**i
        assert (np.abs(rest) <= bound).all()
    if kind != "huge":
        assert (np.abs(rest) <= np.maximum(np.abs(exact) * 2.0**-16, smallest / 2)).all()
    if parts == 3:
        assert (np.abs(rest) <= smallest / 2).all()
        assert (rest[np.abs(exact) >= 2.0**-123] == 0).all()


def test_parts_are_rounded_to_even() -> None:
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-23, 1, 0, -0.0, 2.0**-134], np.float32)
    first = native.split_parts(values.view(np.uint32).tolist(), 2)[0]
    assert first == [0x3F80, 0x3F82, 0xBF80, 0x3F81, 0x3F80, 0, 0x8000, 0]


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("place", range(8))
def test_infinities_and_nan(parts: int, place: int) -> None:
    for sign, bits in [(1, 0x7F800000), (-1, 0xFF800000)]:
        values = np.arange(1, 9, dtype=np.float32)
        values.view(np.uint32)[place] = bits
        split = parts_of(values, parts)
        if parts == 3:  # whose small products' sums are made finite before the large ones come
            assert split[0, place] == sign * np.inf
        else:
            assert split[:, place].tolist() == [sign, sign * np.inf][-parts:]
        assert (np.delete(split, place, axis=1).sum(0) == np.delete(values, place)).all()
    for bits in (0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF):
        values.view(np.uint32)[place] = bits
        assert np.isnan(parts_of(values, parts)[0, place])


@pytest.mark.parametrize("kind", ["normal", "wide", "any", "denormal", "huge"])
def test_tf32_is_the_nearest(kind: str) -> None:
    bits = numbers(kind).view(np.uint32)
    sign, magnitude = bits & 0x80000000, bits & 0x7FFFFFFF
    expected = sign | np.minimum((magnitude + 0x1000) & ~np.uint32(0x1FFF), 0x7F7FE000)
    assert native.to_tf32(bits.tolist()) == expected.tolist()


def half_parts_of(values: np.ndarray, scale: float, parts: int) -> np.ndarray:
    """[part][value], float64."""
    bits = np.array(native.half_parts(values.tolist(), scale, parts), np.uint16)
    return bits.view(np.float16).astype(np.float64)


ZEROS = native.measure([0.0])


@pytest.mark.parametrize("exponent", [-120, -3, 0, 60])
def test_scaled_parts_are_the_nearest(exponent: int) -> None:
    """Of numbers that one scale fits: of eleven bits, then of eleven more of what is left."""
    values = np.ldexp(numbers("wide"), exponent).astype(np.float32)
    most = np.abs(values).max()
    fits, (scale, _), _ = native.operand_range(native.measure([float(most)]), ZEROS)
    assert fits and 2.0**14 <= scale * float(most) < 2.0**15
    exact = scale * values.astype(np.float64)
    (one,) = half_parts_of(values, scale, 1)
    assert (one == exact.astype(np.float16)).all()
    first, second = half_parts_of(values, scale, 2)
    assert (first == one).all() and (second == ((exact - first) * 2048).astype(np.float16)).all()
    assert (np.abs(first + second / 2048 - exact) <= np.maximum(np.abs(exact) * 2.0**-23, 2.0**-36)).all()


def fits(first: np.ndarray, second: np.ndarray | None = None, parts: int = 1) -> bool:
    """Two tensors in either order; the second is ordinary if it is not given."""
    second = np.ones(1, np.float32) if second is None else second
    ranges = [native.measure(values.astype(np.float32).ravel().tolist()) for values in (first, second)]
    found = {native.operand_range(*pair, parts=parts)[0] for pair in (ranges, ranges[::-1])}
    assert len(found) == 1
    return found.pop()


def groups(*largest: float) -> np.ndarray:
    """One of 32 numbers each."""
    return np.repeat(np.array(largest), 32)


def test_numbers_too_far_apart_do_not_fit() -> None:
    for values in [
        groups(1),
        groups(3.4e38),
        groups(2.0**-112),
        groups(1, 2.0**-26),
        groups(2.0**-26, 0, 1),
        groups(0),
    ]:
        assert fits(values)
    for values in [groups(1, 2.0**-27), groups(2.0**-113), groups(2.0**-101, 2.0**-127), groups(1, 1e-40)]:
        assert not fits(values)
    for special in (np.inf, -np.inf, np.nan):
        assert not fits(np.append(groups(1), special)) and not fits(np.append(groups(0), special))
    assert fits(groups(1, 2.0**-16), parts=2) and not fits(groups(1, 2.0**-17), parts=2)
    assert native.operand_range(ZEROS, ZEROS) == (True, [1, 1], [1, 1])


@pytest.mark.parametrize("size", [1, 33, 63, 64, 100, 1 << 16])
def test_what_is_measured(size: int) -> None:
    rng = np.random.default_rng(size)
    values = (np.exp(4 * rng.standard_normal(size)) * rng.choice([-1, 0, 1], size)).astype(np.float32)
    filled = np.append(values, np.zeros(-size % 32, np.float32)).reshape(-1, 32)
    largest = np.abs(filled).max(1)
    some = largest[largest > 0]
    small = (filled != 0) & (np.abs(filled).astype(np.float64) * 2**24 < largest[:, None])
    bits = [int(np.float32(v).view(np.uint32)) for v in (largest.max(), some.min() if some.size else np.nan)]
    least = bits[1] if some.size else 0x7FFFFFFF
    assert native.measure(values.tolist()) == (bits[0], least, int((values != 0).sum()), int(small.sum()))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "scales",
    [
        np.exp2(-30 * np.arange(32) / 31),  # channels side by side
        np.exp2(-40 * (np.arange(32) % 2)),  # columns that no tap reads beside those that it reads
        np.exp2(-40 * (np.arange(32) < 16)),  # a group of channels beside another
        np.where(np.arange(128) == 5, 2.0**-40, 1),  # one channel
        np.where(np.arange(8192) == 5, 2.0**-40, 1),
    ],
)
def test_small_numbers_beside_large_ones_do_not_fit(scales: np.ndarray, parts: int) -> None:
    """Each group's largest is as large, so that nothing else tells."""
    values = np.random.default_rng(0).standard_normal((1 << 18) // scales.size * scales.size).reshape(-1, scales.size)
    assert fits(values, parts=parts) and not fits(values * scales, parts=parts)
    assert fits(values * np.maximum(scales, 2.0**-8), parts=parts)  # not so small
    few = values.copy()
    few.reshape(-1)[:: few.size // 17] *= 2.0**-60
    assert few.size // 16384 == 16 and not fits(few, parts=parts)
    few.reshape(-1)[0] = 1
    assert fits(few, parts=parts)


@pytest.mark.parametrize("sigma", range(7))
def test_numbers_of_wide_ranges_are_not_for_two_parts(sigma: int) -> None:
    """Numbers times exp(sigma * normal): where a sum is mostly one product, two parts lose more than float32 does."""
    rng = np.random.default_rng(sigma)
    values = rng.standard_normal(1 << 17) * np.exp(sigma * rng.standard_normal(1 << 17))
    if sigma <= 1:
        assert fits(values, parts=1) and fits(values, parts=2)
    elif sigma >= 3:
        assert not fits(values, parts=2)


@given(st.tuples(st.integers(-112, 127), st.integers(-112, 127)))
def test_scales_are_undone(exponents: tuple[int, int]) -> None:
    fitting, scales, back = native.operand_range(*(native.measure([2.0**e]) for e in exponents))
    assert fitting
    for factor in (*scales, *back):
        assert factor == np.float32(factor) and np.isfinite(factor) and np.frexp(factor)[0] == 0.5
    assert scales[0] * scales[1] * (back[0] * back[1]) == 1
    assert [np.log2(scale) + e for scale, e in zip(scales, exponents, strict=True)] == [14, 14]


def test_tf32_keeps_infinities_and_nan() -> None:
    special = [0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 0x3F801000, 0xBF801000, 0x3F800FFF]
    nan = 0x7FFFFFFF
    assert native.to_tf32(special) == [*special[:2], nan, nan, nan, 0x3F802000, 0xBF802000, 0x3F800000]


@st.composite
def strides_of(draw: st.DrawFn, size: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """NCHW, NHWC or any other order, with or without gaps; some run backwards or stand still."""
    order = draw(st.sampled_from([(0, 1, 2, 3), (0, 2, 3, 1)]) | st.permutations(range(4)))
    gaps = draw(st.sampled_from([[0], [0, 4], [0, 2], [0, 1, 3]]))
    strides, pitch = [0] * 4, 1
    for dimension in reversed(order):
        strides[dimension] = pitch
        pitch *= size[dimension]
        pitch += draw(st.sampled_from(gaps))
    if draw(st.integers(0, 4)) == 0:
        odd = draw(st.integers(0, 3))
        strides[odd] *= draw(st.sampled_from([-1, 0]))
    return strides[0], strides[1], strides[2], strides[3]


SPLITS = st.tuples(st.sampled_from(OPERANDS), st.sampled_from([4, 8, 16, 128]), st.sampled_from([0, 16, 32, 64]))


@given(data=st.data(), how=SPLITS, groups=st.sampled_from([1, 1, 2, 3]))
def test_images_become_rows_of_operands(data: st.DataObject, how: tuple, groups: int) -> None:
    (operand, parts), align, unit_rows = how
    c = data.draw(st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16, 20, 24, 32, 33, 40, 68]))
    size = (data.draw(st.integers(1, 3)), c, *data.draw(st.tuples(st.integers(1, 9), st.integers(1, 24))))
    whole = (size[0], c * groups, *size[2:])
    strides = data.draw(strides_of(whole))
    written, _ = native.split(size, strides, groups, align, operand, parts, unit_rows)
    rounded = -(-c // SECTOR[operand]) * SECTOR[operand]
    to_n, to_c, to_h, to_w = native.split_strides(size, groups, operand, parts)
    assert to_c == 1
    expected: native.SplitElements = [None] * len(written)
    for n, h, w, part, group, channel in product(*map(range, (*(size[i] for i in (0, 2, 3)), parts, groups, rounded))):
        index = (n, group * c + channel, h, w)
        source = sum(i * stride for i, stride in zip(index, strides, strict=True)) if channel < c else None
        at = n * to_n + h * to_h + w * to_w + (group + part * groups) * rounded + channel
        assert expected[at] is None
        expected[at] = source, part
    assert written == expected
    assert len(written) - sum(e is not None for e in expected) < 128 * CHUNK[operand] // 16


@given(data=st.data(), how=SPLITS, groups=st.sampled_from([1, 1, 2]), dgrad=st.booleans())
def test_filters_become_rows_of_operands(data: st.DataObject, how: tuple, groups: int, dgrad: bool) -> None:
    (operand, parts), align, unit_rows = how
    few = st.sampled_from([1, 3, 4, 8, 17, 40])
    k, c, r, s = data.draw(st.tuples(few, few, st.integers(1, 4), st.integers(1, 4)))
    weight = (k * groups, c, r, s)
    strides = data.draw(strides_of(weight))
    problem = native.ConvProblem(
        (1, c * groups, 8, 8), weight, (1, 1), (0, 0), (1, 1), groups,
        pass_="dgrad" if dgrad else "fprop", w_strides=strides, align=align,
    )  # fmt: skip
    written, _ = native.filter_split(problem, operand, parts, unit_rows)
    rows, channels = (c, k) if dgrad else (k, c)
    rounded = -(-channels // SECTOR[operand]) * SECTOR[operand]
    expected: native.SplitElements = []
    for part, group, row, h, w, channel in product(*map(range, (parts, groups, rows, r, s, rounded))):
        filter_k, filter_c = (channel, row) if dgrad else (row, channel)
        index = (group * k + filter_k, filter_c, h, w)
        source = sum(i * stride for i, stride in zip(index, strides, strict=True)) if channel < channels else None
        expected.append((source, part))
    assert written[: len(expected)] == expected
    assert all(element is None for element in written[len(expected) :])
    assert len(written) - len(expected) < 128 * CHUNK[operand] // 16


SM90_KERNELS = [k for k in native.kernel_table() if k.name.startswith(("halo_", "wgrad_"))]
ZERO, NOTHING = -(1 << 62), -(1 << 61)  # no elements of a tensor


@st.composite
def float_problems(draw: st.DrawFn, pass_: str, precision: str) -> native.ConvProblem:
    """Any layout, alignment and number of channels, grouped or not, pointwise or not."""
    channels = st.sampled_from([3, 4, 8, 15, 16, 17, 24, 33, 40, 72])
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    groups, c, k = draw(st.sampled_from([1, 1, 2, 3])), draw(channels), draw(channels)
    pointwise = (1, 1), (1, 1), (0, 0), (1, 1)
    taps, stride, padding, dilation = draw(st.just(pointwise) | st.tuples(pair, pair, pair, pair))
    geometry = stride, padding, dilation, groups
    x = (draw(st.integers(1, 3)), groups * c, draw(st.integers(1, 9)), draw(st.integers(1, 12)))
    w = (groups * k, c, *taps)
    assume(not native.validate(x, w, *geometry))
    n, _, p, q = native.output_size(x, w, *geometry)
    options: dict[str, Any] = {"channels_last": draw(st.booleans())}
    if draw(st.booleans()):
        sizes = {"x_strides": x, "w_strides": w, "y_strides": (n, groups * k, p, q)}
        options = {name: draw(strides_of(size)) for name, size in sizes.items()}
        options["align"] = draw(st.sampled_from([4, 8, 16]))
    return native.ConvProblem(x, w, *geometry, pass_=pass_, precision=precision, **options)


def floats_elements(p: native.ConvProblem, name: str, sizes: list[int], every: int = 1) -> np.ndarray:
    """Of every coordinate of a map of planes, or every so many, outermost dimension first: the tensor's element."""
    _, image, group, channel, pixel = np.indices(sizes[::-1])
    channels, width, strides = (p.c_per_group, p.w, p.x_strides) if name == "x" else (p.k_per_group, p.q, p.y_strides)
    index = image, group * channels + every * channel, *np.divmod(pixel, width)
    return sum((i * stride for i, stride in zip(index, strides, strict=True)), np.zeros_like(pixel))


def mapped_elements(p: native.ConvProblem, pass_: str, name: str, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Of every coordinate of a tensor map, outermost dimension first: the tensor's element, or ZERO, and the part."""
    at = np.indices(sizes[::-1])
    index: tuple[np.ndarray, ...]
    if name == "w":
        strides = p.w_strides
        part, group = np.divmod(at[0], p.groups)
        k, c = (at[4], at[1]) if pass_ == "dgrad" else (at[1], at[4])
        exists = (k < p.k_per_group) & (c < p.c_per_group)
        index = group * p.k_per_group + k, c, at[2], at[3]
    else:
        n, h, w = (p.n, p.h, p.w) if name == "x" else (p.n, p.p, p.q)
        channels, strides = (p.c_per_group, p.x_strides) if name == "x" else (p.k_per_group, p.y_strides)
        part, group = np.divmod(at[3], p.groups)
        exists = at[4] < channels
        columns, rows, images = sizes[2:]
        assert (images, rows, columns) == (n, h, w) or (p.r, p.s) == (1, 1)  # which may be one row
        image, row, column = np.unravel_index((at[0] * rows + at[1]) * columns + at[2], (n, h, w))
        index = image, group * channels + at[4], row, column
    elements = sum((i * stride for i, stride in zip(index, strides, strict=True)), np.zeros_like(part))
    return np.where(exists, elements, ZERO), part


@pytest.mark.parametrize("precision", ["tf32", "bf16x3", "ieee"])
@pytest.mark.parametrize("pass_", ["fprop", "dgrad", "wgrad"])
@given(data=st.data())
@settings(max_examples=examples(40))
def test_tensor_maps_hold_every_part_of_every_value(pass_: str, precision: str, data: st.DataObject) -> None:
    problem = data.draw(float_problems(pass_, precision))
    kernels = [k for k in SM90_KERNELS if k.pass_ == pass_ and k.why_not(problem, HOPPER) is None]
    assume(kernels)
    kernel = data.draw(st.sampled_from(kernels))
    native.check_copies(problem, kernel, HOPPER)
    parts = parts_of_operands(kernel.name, precision)
    maps = native.operand_maps(problem, kernel, HOPPER)
    assert set(maps) == {"fprop": {"x", "w"}, "dgrad": {"y", "w"}, "wgrad": {"x", "y"}}[pass_]
    for name, (sizes, strides, written) in maps.items():
        at = sum(i * stride for i, stride in zip(np.indices(sizes[::-1]), strides[::-1], strict=True))
        h, w, c, plane = problem.h, problem.w, problem.c_per_group, problem.x_strides[1]
        if name == "y":
            h, w, c, plane = problem.p, problem.q, problem.k_per_group, problem.y_strides[1]
        if "_floats" in kernel.name and name == ("x" if pass_ == "fprop" else "y"):
            assert sizes == [h * w, c, problem.groups, problem.n, 1] and not written
            assert (at == floats_elements(problem, name, sizes)).all()
            continue
        if "transposed" in kernel.name and name != "w":  # planes that begin as the first does, or copied without maps
            if sizes[0] == 0:
                continue
            every = strides[1] // plane if sizes[1] > 1 else 1
            assert sizes[0] == h * w and sizes[2:] == [problem.groups, problem.n, 1] and not written
            assert (sizes[1] - 1) * every < c and every * plane % 4 == 0
            assert (at == floats_elements(problem, name, sizes, every)).all()
            continue
        channels, groups = (sizes[0], sizes[4]) if name == "w" else sizes[:2]
        reduced = problem.k_per_group if name == "y" or (name, pass_) == ("w", "dgrad") else problem.c_per_group
        assert channels >= reduced and groups == parts * problem.groups
        if name == "w":
            produced = problem.c_per_group if pass_ == "dgrad" else problem.k_per_group
            assert sizes[1:4] == [problem.s, problem.r, produced]
        else:
            assert prod(sizes[2:]) == problem.n * (problem.h * problem.w if name == "x" else problem.p * problem.q)
        expected, part = mapped_elements(problem, pass_, name, sizes)
        if not written:  # the tensor is read in place
            assert parts == 1 and (at == expected).all()
            continue
        held = np.array([(NOTHING, 0) if e is None else (ZERO if e[0] is None else e[0], e[1]) for e in written])
        assert (held[at, 0] == expected).all() and (held[at, 1] == part).all()


@pytest.mark.parametrize("precision", ["tf32", "bf16x3", "ieee"])
@pytest.mark.parametrize(
    ("pass_", "x", "w", "padding"),
    [
        ("fprop", (1, 64, 2, 8), (16, 64, 3, 3), 1),
        ("fprop", (1, 64, 4, 12), (16, 64, 3, 3), 0),
        ("fprop", (1, 64, 6, 8), (16, 64, 3, 3), 0),
        ("dgrad", (1, 16, 4, 12), (48, 16, 3, 3), 0),
    ],
)
def test_the_few_blocks_of_a_small_output_have_room_to_split_its_filter(
    pass_: str, x: tuple[int, int, int, int], w: tuple[int, int, int, int], padding: int, precision: str
) -> None:
    problem = native.ConvProblem(
        x, w, (1, 1), (padding, padding), (1, 1), 1, pass_=pass_, precision=precision, align=128
    )
    kernels = [k for k in SM90_KERNELS if k.pass_ == pass_ and k.why_not(problem, HOPPER) is None]
    assert any("_floats" in kernel.name for kernel in kernels)
    for kernel in kernels:
        native.check_copies(problem, kernel, HOPPER)


def dense(size: tuple[int, int, int, int], layout: str) -> tuple[int, int, int, int]:
    _, c, h, w = size
    return (h * w * c, 1, w * c, c) if layout == "NHWC" else (c * h * w, h * w, w, 1)


@pytest.mark.parametrize(
    ("layout", "size", "align", "read", "vector"),
    [
        ("NCHW", (2, 64, 14, 14), 16, "rows", 4),
        ("NCHW", (2, 64, 14, 15), 16, "rows", 2),
        ("NCHW", (2, 64, 14, 14), 8, "rows", 2),
        ("NCHW", (2, 64, 14, 14), 4, "rows", 1),
        ("NCHW", (2, 64, 7, 7), 16, "rows", 1),
        ("NCHW", (2, 64, 1, 1), 16, "channels", 4),
        ("NHWC", (2, 64, 7, 7), 16, "channels", 4),
        ("NHWC", (2, 20, 7, 7), 16, "channels", 4),
        ("NHWC", (2, 64, 7, 7), 8, "channels", 1),
        ("NHWC", (2, 30, 7, 7), 16, "channels", 1),
        ("NHWC", (2, 3, 32, 32), 16, "rows", 1),
        ("NHWC", (2, 1, 32, 32), 16, "rows", 4),
    ],
)
def test_as_much_is_read_at_once_as_can_be(
    layout: str, size: tuple[int, int, int, int], align: int, read: str, vector: int
) -> None:
    assert native.split_plan(size, dense(size, layout), 1, align, "bf16", 2)[:2] == (read, vector)


def test_rows_are_read_in_the_order_in_which_they_lie() -> None:
    """Lines here; rows of a channels_last filter for dgrad."""
    assert native.split_plan((2, 64, 16, 12), (64 * 192, 192, 1, 16), 1, 16, "bf16", 2)[:2] == ("rows", 4)


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("c", [8, 16, 32])
@pytest.mark.parametrize("width", [32, 34, 33])
def test_banks_of_shared_memory_are_used_evenly(operand: tuple[str, int], layout: str, c: int, width: int) -> None:
    size = (1, c, 16, width)
    rows = 2048 // max(c, SECTOR[operand[0]])
    for align in (4, 8, 16):
        assert native.split(size, dense(size, layout), 1, align, *operand, rows)[1] == 1


@pytest.mark.parametrize(("channels", "unit"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 32), (64, 32)])
def test_units_have_the_channels_that_exist(channels: int, unit: int) -> None:
    size = (16, channels, 512, 512)
    *_, most, rows, units = native.split_plan(size, dense(size, "NCHW"), 1, 16, "bf16", 3)
    assert (most, rows * unit) == (unit, 2048)
    assert units == 16 * 512 * 512 // rows * -(-channels // unit)


@pytest.mark.parametrize(
    ("images", "rows"), [(512, 64), (511, 32), (256, 32), (255, 16), (128, 16), (127, 16), (1, 16)]
)
def test_small_tensors_are_moved_by_many_warps(images: int, rows: int) -> None:
    size = (images, 64, 8, 8)
    plan = native.split_plan(size, dense(size, "NCHW"), 1, 16, "bf16", 3)
    assert plan[2:] == (32, rows, images * 64 // rows * 2)
