"""The convolutions that the tests compute: by name, and as hypothesis strategies; and tensors in every layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
PASSES = ["fprop", "dgrad", "wgrad"]


@dataclass(frozen=True)
class Problem:
    """A legal convolution. n is None for an unbatched input."""

    n: int | None
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = False

    @property
    def input_size(self) -> tuple[int, ...]:
        return (self.c, self.h, self.w) if self.n is None else (self.n, self.c, self.h, self.w)

    @property
    def weight_size(self) -> tuple[int, int, int, int]:
        return (self.k, self.c // self.groups, self.r, self.s)

    @property
    def output_size(self) -> tuple[int, ...]:
        image = (self.h, self.w)
        pixels = (
            (image[i] + 2 * self.padding[i] - self.dilation[i] * (kernel - 1) - 1) // self.stride[i] + 1
            for i, kernel in enumerate((self.r, self.s))
        )
        batch = () if self.n is None else (self.n,)
        return (*batch, self.k, *pixels)

    @property
    def geometry(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
        """What follows the tensors in every op's argument list."""
        return (self.stride, self.padding, self.dilation, self.groups)

    @property
    def products(self) -> int:
        return math.prod(self.output_size) * math.prod(self.weight_size[1:])

    def with_(self, **changes: Any) -> Problem:
        return replace(self, **changes)


# One problem for each thing that a kernel can get wrong, small enough for float64 on a CPU.
CASES = {
    "plain_3x3": Problem(2, 8, 14, 14, 16, 3, 3),
    "pointwise": Problem(2, 32, 9, 11, 24, 1, 1, bias=True),
    "pointwise_strided": Problem(2, 8, 9, 9, 16, 1, 1, stride=(2, 2)),
    "one_element": Problem(1, 1, 1, 1, 1, 1, 1, bias=True),
    "one_pixel_output": Problem(3, 5, 7, 4, 6, 7, 4),
    "single_channel": Problem(2, 1, 19, 23, 3, 5, 5, padding=(2, 2)),
    "rgb_stem": Problem(2, 3, 37, 41, 16, 7, 7, stride=(2, 2), padding=(3, 3), bias=True),
    "latent": Problem(2, 4, 13, 18, 40, 3, 3, padding=(1, 1), bias=True),
    "many_filters_of_rgb": Problem(2, 3, 33, 42, 72, 4, 3, stride=(4, 2), padding=(1, 1), bias=True),
    "patch_embedding": Problem(2, 3, 32, 32, 48, 8, 8, stride=(8, 8), bias=True),
    "many_images_of_rgb": Problem(600, 3, 14, 18, 40, 3, 3, padding=(1, 1), bias=True),
    "patches_with_rows_left_over": Problem(2, 3, 33, 34, 40, 4, 4, stride=(4, 4)),
    "patches_of_rgb": Problem(2, 3, 28, 40, 72, 4, 4, stride=(4, 4), bias=True),
    "patches_of_16": Problem(2, 64, 48, 50, 64, 16, 16, stride=(16, 16)),
    "patches_of_2": Problem(3, 40, 14, 15, 72, 2, 2, stride=(2, 2), bias=True),
    "strided_even_rows": Problem(2, 72, 11, 16, 24, 3, 3, stride=(2, 2), padding=(1, 1)),
    "rgb_output": Problem(2, 40, 21, 26, 3, 3, 3, padding=(1, 1), bias=True),
    "rgb_input_of_many_taps": Problem(2, 3, 59, 64, 64, 11, 11, stride=(4, 4), padding=(2, 2)),
    "grey_output": Problem(1, 64, 30, 31, 1, 5, 5, padding=(2, 2), bias=True),
    "prime_channels": Problem(2, 209, 5, 7, 67, 3, 3, padding=(1, 1)),
    "partial_tiles": Problem(1, 17, 67, 131, 33, 3, 3),
    "kernel_larger_than_image": Problem(2, 4, 3, 2, 6, 7, 5, padding=(4, 3)),
    "padding_larger_than_kernel": Problem(2, 4, 6, 5, 6, 3, 3, padding=(5, 4)),
    "stride_larger_than_kernel": Problem(2, 4, 23, 19, 6, 2, 3, stride=(5, 4)),
    "stride_skips_last_rows": Problem(2, 4, 12, 11, 6, 3, 3, stride=(4, 3), padding=(1, 0)),
    "dilated": Problem(2, 6, 21, 25, 10, 5, 9, padding=(2, 4), dilation=(2, 3)),
    "dilated_strided": Problem(2, 6, 21, 25, 10, 3, 2, stride=(3, 2), padding=(2, 1), dilation=(2, 4), bias=True),
    "atrous_12": Problem(1, 16, 33, 33, 8, 3, 3, padding=(12, 12), dilation=(12, 12)),
    "row_filter": Problem(2, 8, 9, 40, 8, 1, 13, padding=(0, 6)),
    "column_filter": Problem(2, 8, 40, 9, 8, 13, 1, padding=(6, 0)),
    "grouped": Problem(2, 12, 13, 11, 18, 3, 3, padding=(1, 1), groups=3, bias=True),
    "channels_32": Problem(2, 32, 16, 16, 40, 3, 3, padding=(1, 1)),
    "pointwise_planes": Problem(2, 72, 8, 16, 72, 1, 1),
    "pointwise_shifted_planes": Problem(2, 64, 10, 10, 72, 1, 1),
    "even_planes": Problem(2, 44, 10, 10, 44, 3, 3, padding=(1, 1)),
    "wide_groups": Problem(1, 128, 9, 9, 128, 3, 3, padding=(1, 1), groups=2),
    "narrow_groups": Problem(2, 32, 9, 9, 32, 3, 3, padding=(1, 1), groups=8),
    "groups_of_8": Problem(2, 48, 17, 30, 48, 3, 3, padding=(1, 1), groups=6),
    "groups_of_one_pixel": Problem(2, 32, 1, 1, 32, 3, 3, padding=(1, 1), groups=4),
    "groups_of_16": Problem(2, 64, 13, 14, 48, 3, 3, padding=(1, 1), groups=4, bias=True),
    "groups_of_16_and_as_many_filters": Problem(2, 64, 13, 14, 64, 3, 3, padding=(1, 1), groups=4, bias=True),
    "groups_of_16_strided": Problem(2, 64, 15, 29, 64, 3, 3, stride=(2, 2), padding=(1, 1), groups=4),
    "groups_of_8_strided": Problem(2, 32, 15, 29, 64, 3, 3, stride=(2, 2), padding=(1, 1), groups=4),
    "groups_of_4_strided": Problem(2, 32, 15, 29, 32, 3, 3, stride=(2, 2), padding=(1, 1), groups=8, bias=True),
    "groups_of_4_strided_even_rows": Problem(2, 48, 12, 16, 48, 3, 3, stride=(2, 2), padding=(1, 1), groups=12),
    "groups_of_wide_rows": Problem(1, 24, 40, 250, 18, 5, 3, padding=(2, 2), dilation=(1, 2), groups=3, bias=True),
    "groups_of_many_images": Problem(600, 32, 6, 6, 32, 3, 3, padding=(1, 1), groups=4),
    "depthwise": Problem(2, 21, 15, 17, 21, 3, 3, padding=(1, 1), groups=21, bias=True),
    "depthwise_strided": Problem(2, 16, 15, 17, 16, 5, 5, stride=(2, 2), padding=(2, 2), groups=16),
    "depthwise_31": Problem(1, 4, 32, 32, 4, 31, 31, padding=(15, 15), groups=4),
    "depthwise_3x3": Problem(2, 8, 9, 12, 8, 3, 3, padding=(1, 1), groups=8, bias=True),
    "depthwise_5x5": Problem(2, 8, 11, 12, 8, 5, 5, padding=(2, 2), groups=8, bias=True),
    "depthwise_7x7": Problem(2, 8, 10, 20, 8, 7, 7, padding=(3, 3), groups=8, bias=True),
    "depthwise_3x3_valid": Problem(2, 8, 9, 12, 8, 3, 3, groups=8, bias=True),
    "depthwise_3x3_full": Problem(2, 8, 9, 10, 8, 3, 3, padding=(2, 2), groups=8),
    "depthwise_5x5_valid": Problem(2, 8, 9, 16, 8, 5, 5, padding=(1, 0), groups=8, bias=True),
    "depthwise_5x5_full": Problem(2, 8, 9, 12, 8, 5, 5, padding=(4, 4), groups=8),
    "depthwise_7x7_valid": Problem(2, 8, 12, 16, 8, 7, 7, groups=8),
    "depthwise_7x7_full": Problem(2, 8, 12, 10, 8, 7, 7, padding=(6, 6), groups=8),
    "depthwise_3x1": Problem(2, 8, 12, 16, 8, 3, 1, groups=8, bias=True),
    "depthwise_3x7_valid": Problem(2, 8, 12, 16, 8, 3, 7, groups=8, bias=True),
    "depthwise_3x7_full": Problem(2, 8, 12, 10, 8, 3, 7, padding=(2, 6), groups=8),
    "depthwise_3x3_by_2": Problem(2, 8, 13, 16, 8, 3, 3, stride=(2, 2), padding=(1, 1), groups=8),
    "depthwise_5x5_by_2": Problem(2, 8, 14, 16, 8, 5, 5, stride=(2, 2), padding=(2, 2), groups=8),
    "depthwise_3x3_by_2_of_14": Problem(2, 8, 28, 28, 8, 3, 3, stride=(2, 2), padding=(1, 1), groups=8),
    "depthwise_7x7_narrow": Problem(6, 8, 12, 3, 8, 7, 7, padding=(3, 3), groups=8),
    "depthwise_5x5_by_2_narrow": Problem(6, 8, 20, 5, 8, 5, 5, stride=(2, 2), padding=(2, 2), groups=8),
    "depthwise_7x7_by_2": Problem(2, 8, 15, 24, 8, 7, 7, stride=(2, 2), padding=(3, 3), groups=8),
    "depthwise_dilated": Problem(2, 12, 19, 20, 12, 3, 3, padding=(2, 3), dilation=(2, 3), groups=12),
    "depthwise_dilated_strided": Problem(2, 6, 19, 20, 6, 3, 3, (2, 4), padding=(1, 3), dilation=(3, 2), groups=6),
    "depthwise_padding_beyond": Problem(2, 8, 6, 8, 8, 3, 3, padding=(5, 4), groups=8, bias=True),
    "depthwise_tall": Problem(2, 8, 150, 8, 8, 3, 3, padding=(1, 1), groups=8),
    "depthwise_13": Problem(3, 40, 14, 19, 40, 13, 13, padding=(6, 6), groups=40, bias=True),
    "depthwise_row": Problem(2, 5, 9, 70, 5, 1, 3, padding=(0, 1), groups=5),
    "depthwise_column": Problem(2, 35, 20, 9, 35, 5, 1, padding=(2, 0), groups=35, bias=True),
    "depthwise_sequence_15": Problem(2, 9, 1, 200, 9, 1, 15, padding=(0, 7), groups=9, bias=True),
    "depthwise_sequence_31": Problem(2, 24, 1, 333, 24, 1, 31, padding=(0, 30), groups=24),
    "depthwise_sequence_63": Problem(2, 16, 400, 1, 16, 63, 1, padding=(62, 0), dilation=(2, 1), groups=16, bias=True),
    "depthwise_sequence_gaps": Problem(
        2, 16, 1, 200, 16, 1, 3, padding=(0, 16), dilation=(1, 16), groups=16, bias=True
    ),
    "depthwise_even_strided": Problem(2, 24, 18, 27, 24, 4, 6, stride=(3, 4), padding=(1, 2), groups=24),
    "depthwise_even_dilated_strided": Problem(
        2, 6, 31, 35, 6, 3, 4, stride=(2, 3), padding=(3, 2), dilation=(3, 2), groups=6
    ),
    "depthwise_stride_above_filter": Problem(2, 6, 21, 22, 12, 2, 1, stride=(3, 4), groups=6, bias=True),
    "channel_multiplier": Problem(2, 7, 12, 10, 21, 3, 3, padding=(1, 1), groups=7),
    "channel_divider": Problem(2, 24, 8, 8, 6, 3, 3, groups=6),
    "batch_1": Problem(1, 64, 14, 14, 64, 3, 3, padding=(1, 1), bias=True),
    "one_tile_of_many_channels": Problem(1, 256, 9, 10, 72, 3, 3, padding=(1, 1), bias=True),
    "one_tile_of_many_filters": Problem(1, 72, 9, 10, 256, 3, 3, padding=(1, 1)),
    "many_filters": Problem(2, 72, 9, 16, 136, 3, 3, padding=(1, 1), bias=True),
    "few_channels": Problem(1, 16, 10, 24, 40, 3, 3, padding=(1, 1)),
    "few_filters": Problem(1, 40, 10, 24, 16, 3, 3, padding=(1, 1)),
    "few_filters_of_wide_rows": Problem(2, 48, 9, 250, 13, 3, 3, bias=True),
    "few_filters_far_apart": Problem(2, 40, 11, 90, 16, 2, 9, padding=(1, 6), dilation=(2, 3)),
    "few_channels_of_wide_rows": Problem(2, 16, 14, 300, 40, 3, 3, padding=(0, 1)),
    "wide_rows": Problem(2, 16, 6, 134, 40, 3, 3, bias=True),
    "wide_rows_of_gradients": Problem(2, 40, 6, 134, 16, 3, 3, padding=(1, 1)),
    "wide_rows_strided": Problem(1, 16, 17, 300, 40, 3, 3, stride=(2, 2), padding=(2, 2), dilation=(2, 2)),
    "wide_rows_of_odd_planes": Problem(2, 16, 5, 263, 40, 1, 7, padding=(3, 3)),
    "strided_few_taps": Problem(2, 32, 14, 24, 48, 3, 1, stride=(3, 1), padding=(3, 0), dilation=(1, 2)),
    "unbatched": Problem(None, 6, 10, 9, 8, 3, 3, padding=(1, 1), bias=True),
    "empty_batch": Problem(0, 4, 8, 8, 6, 3, 3, bias=True),
    "many_images": Problem(65, 2, 5, 5, 3, 3, 3),
    "long_reduction": Problem(1, 512, 7, 7, 8, 3, 3, padding=(1, 1)),
    "wide_image": Problem(1, 2, 1, 3001, 4, 1, 3),
    "tall_image": Problem(1, 2, 3001, 1, 4, 3, 1),
}

# The public problems that the project is measured on, whole.
PUBLIC = {
    "seed_5x7": Problem(8, 64, 512, 256, 128, 5, 7),
    "seed_3x3": Problem(16, 16, 1024, 1024, 128, 3, 3),
    "seed_5x9d": Problem(8, 32, 512, 512, 64, 5, 9, padding=(2, 4), dilation=(2, 3)),
    "rn50_stem": Problem(64, 3, 224, 224, 64, 7, 7, stride=(2, 2), padding=(3, 3)),
    "rn50_l1_3x3": Problem(64, 64, 56, 56, 64, 3, 3, padding=(1, 1)),
    "rn50_l2_3x3": Problem(64, 128, 28, 28, 128, 3, 3, padding=(1, 1)),
    "rn50_l3_3x3": Problem(64, 256, 14, 14, 256, 3, 3, padding=(1, 1)),
    "rn50_l4_3x3": Problem(64, 512, 7, 7, 512, 3, 3, padding=(1, 1)),
    "rn50_l2_3x3s2": Problem(64, 128, 56, 56, 128, 3, 3, stride=(2, 2), padding=(1, 1)),
    "rn50_l1_1x1": Problem(64, 64, 56, 56, 256, 1, 1),
    "rn50_l3_1x1": Problem(64, 1024, 14, 14, 256, 1, 1),
    "vgg_224": Problem(32, 64, 224, 224, 64, 3, 3, padding=(1, 1)),
    "unet_512": Problem(8, 128, 256, 256, 128, 3, 3, padding=(1, 1)),
    "sd_vae_512": Problem(2, 512, 128, 128, 512, 3, 3, padding=(1, 1)),
    "resnext_g32": Problem(64, 256, 28, 28, 256, 3, 3, padding=(1, 1), groups=32),
    "dw_3x3": Problem(64, 256, 56, 56, 256, 3, 3, padding=(1, 1), groups=256),
    "dw_7x7": Problem(64, 384, 28, 28, 384, 7, 7, padding=(3, 3), groups=384),
    "dw_5x5s2": Problem(64, 240, 56, 56, 240, 5, 5, stride=(2, 2), padding=(2, 2), groups=240),
    "deeplab_d12": Problem(8, 2048, 33, 33, 256, 3, 3, padding=(12, 12), dilation=(12, 12)),
    "b1_l3": Problem(1, 256, 14, 14, 256, 3, 3, padding=(1, 1)),
}


def cut(problem: Problem) -> Problem:
    """The same layer on one image, with as few rows and columns as still fill more than one tile."""
    reach = [d * (k - 1) + 1 for d, k in zip(problem.dilation, (problem.r, problem.s), strict=True)]
    h, w = (
        min(size, span + 19 * s) for size, span, s in zip((problem.h, problem.w), reach, problem.stride, strict=True)
    )
    return problem.with_(n=1, h=h, w=w)


# Each axis draws from sizes at which tiles, vectors and warps end, one more and one less.
_CHANNELS = [1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 64, 67, 128, 209]


# Filters of nine to twelve taps, four of which are a step.
THREE_STEPS = [(3, 3), (3, 4), (4, 3), (2, 5), (12, 1), (1, 9)]

# As kernels for Hopper meet NCHW: transposed while staged, or written anew as rows of pixels.
NCHW = {
    "odd planes": Problem(3, 72, 9, 7, 136, 3, 3, padding=(1, 1)),
    "even planes": Problem(2, 64, 10, 14, 64, 3, 3, padding=(1, 1)),
    "aligned planes": Problem(2, 40, 16, 24, 48, 3, 3, dilation=(2, 1)),
    "strided": Problem(3, 64, 33, 17, 72, 3, 3, stride=(2, 2), padding=(1, 1)),
    "channels that no row is full of": Problem(2, 35, 12, 12, 43, 3, 3, padding=(1, 1)),
    "pairs of pixels that lie aligned": Problem(2, 38, 9, 10, 38, 3, 3, padding=(1, 1)),
    "groups": Problem(2, 96, 9, 11, 192, 3, 3, groups=3),
    "pointwise": Problem(5, 128, 7, 7, 64, 1, 1),
    "pointwise, every second plane 8 bytes beside 16": Problem(70, 72, 14, 14, 264, 1, 1, bias=True),
    "the same in groups, fewer pixels than a tile": Problem(3, 132, 2, 34, 144, 1, 1, groups=2),
    "more blocks than run at once": Problem(1, 1088, 5, 4, 1088, 3, 3, padding=(1, 1)),
    "rows that begin within sectors": Problem(4, 16, 100, 390, 128, 3, 3),
    "filters fewer than a tile's, rows that begin within sectors": Problem(3, 16, 61, 264, 100, 3, 3, bias=True),
    "gradients whose rows do": Problem(2, 72, 34, 262, 16, 3, 3, padding=(1, 1)),
    "rows of wide tiles that do": Problem(4, 64, 200, 319, 64, 2, 2),
    "more pixels than all warps write at once": Problem(4, 64, 264, 264, 16, 3, 3, padding=(1, 1)),
    "the same, and sums of a few clusters each": Problem(1, 256, 192, 192, 128, 3, 3, padding=(1, 1)),
    "small images larger than a box of TMA": Problem(64, 32, 18, 18, 32, 3, 3, padding=(1, 1)),
}

# Few channels and a stride, which kernels for Hopper fold into channels.
STEMS = {
    "7x7": Problem(2, 3, 40, 48, 64, 7, 7, stride=(2, 2), padding=(3, 3)),
    "odd rows and columns": Problem(1, 3, 37, 41, 40, 7, 5, stride=(2, 2), padding=(3, 2), bias=True),
    "padding of half a stride": Problem(2, 3, 32, 32, 64, 4, 4, stride=(2, 2), padding=(1, 1)),
    "odd stride": Problem(2, 2, 31, 29, 96, 5, 5, stride=(3, 3), padding=(1, 2), bias=True),
    "patches": Problem(2, 3, 32, 40, 96, 4, 4, stride=(4, 4), bias=True),
    "more channels than a stage": Problem(1, 3, 67, 63, 64, 11, 11, stride=(4, 4), padding=(2, 2)),
    "stride larger than the filter": Problem(3, 4, 33, 31, 64, 2, 3, stride=(3, 4), padding=(1, 1)),
    "one channel": Problem(1, 1, 60, 64, 24, 5, 3, stride=(4, 2), padding=(2, 0)),
    "columns alone": Problem(2, 4, 9, 64, 32, 3, 5, stride=(1, 2), padding=(1, 2)),
    "rows alone": Problem(2, 3, 40, 21, 48, 5, 3, stride=(2, 1), padding=(2, 1)),
}


@st.composite
def problems(
    draw: st.DrawFn, max_products: int = 3_000_000, batches: Sequence[int | None] = (None, 0, 1, 2, 3, 5)
) -> Problem:
    """Any legal problem whose float64 reference takes milliseconds."""
    kind = draw(st.sampled_from(["dense", "dense", "grouped", "depthwise", "multiplier"]))
    if kind == "dense":
        groups, c, k = 1, draw(st.sampled_from(_CHANNELS)), draw(st.sampled_from(_CHANNELS))
    else:
        groups = draw(st.integers(2, 17))
        c = groups * (draw(st.integers(1, 9)) if kind == "grouped" else 1)
        k = groups * (1 if kind == "depthwise" else draw(st.integers(1, 9)))

    def axis() -> tuple[int, int, int, int, int]:
        kernel = draw(st.integers(1, 9))
        dilation = draw(st.integers(1, 4)) if kernel > 1 else draw(st.integers(1, 2))
        stride = draw(st.integers(1, 5))
        reach = dilation * (kernel - 1) + 1
        padding = draw(st.integers(0, reach + 1))
        size = draw(st.integers(max(1, reach - 2 * padding), 40 + max(0, reach - 2 * padding)))
        return size, kernel, stride, padding, dilation

    (h, r, *rows), (w, s, *columns) = axis(), axis()
    stride, padding, dilation = zip(rows, columns, strict=True)
    problem = Problem(1, c, h, w, k, r, s, stride, padding, dilation, groups, draw(st.booleans()))
    # Shrinking the channels, not discarding the draw, keeps hypothesis from filtering most of what it makes.
    if problem.products > max_products:
        shrink = math.ceil(problem.products / max_products)
        problem = problem.with_(k=max(1, k // groups // shrink) * groups)
    if problem.products > max_products:
        problem = problem.with_(c=groups, k=groups)
    n = draw(st.sampled_from(list(batches)))
    return problem.with_(n=n if n is None or n * problem.products <= max_products else 1)


@st.composite
def wide_problems(draw: st.DrawFn, max_products: int = 20_000_000) -> Problem:
    """As tensor cores want them: 16 channels or filters a group, mostly in whole vectors, and some more pixels."""
    channels = st.sampled_from([3, 16, 20, 24, 32, 40, 64, 64, 67, 72, 128, 136])
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    c, k = draw(channels), draw(channels.filter(lambda channels: channels >= 16))
    if draw(st.booleans()):
        c, k = k, c

    def axis() -> tuple[int, int, int, int, int]:
        kernel, dilation = draw(st.sampled_from([1, 3, 3, 5, 7, 2, 4])), draw(st.sampled_from([1, 1, 1, 2, 3]))
        stride, reach = draw(st.sampled_from([1, 1, 1, 2, 3])), dilation * (kernel - 1) + 1
        padding = draw(st.sampled_from([0, reach // 2, reach // 2, reach]))
        least = max(1, reach - 2 * padding)
        size = least + draw(st.integers(0, 40))
        return draw(st.sampled_from([size, size + -size % 2, size + -size % 8])), kernel, stride, padding, dilation

    (h, r, *rows), (w, s, *columns) = axis(), axis()
    stride, padding, dilation = zip(rows, columns, strict=True)
    bias = draw(st.booleans())
    problem = Problem(1, groups * c, h, w, groups * k, r, s, stride, padding, dilation, groups, bias)
    return problem.with_(n=max(1, min(draw(st.integers(1, 5)), max_products // problem.products)))


@st.composite
def patch_problems(draw: st.DrawFn, pass_: str) -> Problem:
    """Filters as large as their stride, and images that often end with a part of a patch. Of input gradients the filter
    may be smaller, dilated, and padded."""
    if pass_ == "dgrad" and draw(st.booleans()):
        taps, gaps = (draw(st.tuples(st.integers(1, 4), st.integers(1, 3))) for _ in range(2))
        taps = (max(taps[0], 2), taps[1])
        extents = [gap * (tap - 1) + 1 for tap, gap in zip(taps, gaps, strict=True)]
        stride = extents[0] + draw(st.integers(0, 3)), extents[1] + draw(st.integers(0, 3))
        padding = draw(st.integers(0, extents[0] + 1)), draw(st.integers(0, extents[1] + 1))
        rows, columns = (
            max(1, draw(st.integers(0, 5)) * step + extent - 2 * pad + draw(st.integers(0, step - 1)))
            for step, extent, pad in zip(stride, extents, padding, strict=True)
        )
        c, k = draw(st.sampled_from([1, 3, 4, 8, 17])), draw(st.sampled_from([1, 5, 16, 40]))
        return Problem(draw(st.integers(1, 3)), c, rows, columns, k, *taps, stride, padding, gaps)
    r, s = draw(st.sampled_from([(1, 2), (3, 1), (2, 2), (4, 4), (3, 5), (8, 8), (2, 16), (14, 14), (16, 16)]))
    p, q = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    h, w = (n * taps + draw(st.sampled_from([0, 0, taps - 1, taps // 2])) for n, taps in ((p, r), (q, s)))
    c = draw(st.sampled_from([1, 2, 3, 4, 8, 17] if r * s < 64 else [1, 2, 3]))
    k = draw(st.sampled_from([1, 5, 16, 40, 72]))
    return Problem(draw(st.integers(1, 3)), c, h, w, k, r, s, stride=(r, s), bias=draw(st.booleans()))


@st.composite
def subpixel_problems(draw: st.DrawFn, pass_: str) -> Problem:
    """Few channels of what the pass computes, and all that decides which pixels a block of outputs sees."""
    few, many = draw(st.sampled_from([1, 2, 3, 3, 4, 7, 8])), draw(st.sampled_from([1, 5, 16, 24, 40]))
    c, k = (few, many) if pass_ == "dgrad" else (many, few)

    def axis() -> tuple[int, int, int, int, int]:
        kernel, stride = draw(st.sampled_from([1, 2, 3, 3, 4, 5, 7])), draw(st.sampled_from([1, 1, 2, 2, 3, 4]))
        dilation = draw(st.sampled_from([1, 1, 1, 2, 3]))
        reach = dilation * (kernel - 1) + 1
        padding = draw(st.sampled_from([0, reach // 2, reach // 2, reach + 1]))
        least = max(1, reach - 2 * padding)
        size = least + draw(st.integers(0, 20))
        return draw(st.sampled_from([size, size + -size % 2, size + -size % 8])), kernel, stride, padding, dilation

    (h, r, *rows), (w, s, *columns) = axis(), axis()
    if draw(st.booleans()):  # blocks are as large as both strides' product
        columns[0] = rows[0]
    stride, padding, dilation = zip(rows, columns, strict=True)
    return Problem(draw(st.integers(1, 3)), c, h, w, k, r, s, stride, padding, dilation, bias=draw(st.booleans()))


@st.composite
def patch_embeddings(draw: st.DrawFn) -> tuple[Problem, str]:
    """And a view of the image whose patches are read four values at a time."""
    view = draw(st.sampled_from(["contiguous", "channels_last", "batch_inside"]))
    if view == "channels_last":
        sizes = [(2, 2, 2), (2, 3, 4), (4, 2, 2), (4, 1, 2), (3, 4, 4), (4, 4, 4), (4, 3, 5), (4, 16, 1), (1, 4, 8)]
    else:
        sizes = [(1, 1, 4), (3, 4, 4), (4, 4, 4), (1, 8, 8), (2, 3, 8), (4, 1, 12), (1, 3, 4)]
    c, r, s = draw(st.sampled_from(sizes))
    p, q = draw(st.integers(1, 6)), draw(st.one_of(st.integers(1, 7), st.sampled_from([8, 14, 16])))
    # Rows and columns that are left over; of these, chunks.
    columns = 4 if view != "channels_last" else 4 // math.gcd(c, 4)
    h, w = p * r + draw(st.integers(0, r - 1)), q * s + draw(st.sampled_from(range(0, s, columns)))
    n, k = draw(st.integers(1, 3)), draw(st.sampled_from([1, 5, 8, 24, 33, 40, 64, 72]))
    return Problem(n, c, h, w, k, r, s, (r, s), bias=draw(st.booleans())), view


def takes_pixels(kernel: str) -> bool:
    """Depthwise kernels whose products have pixels as they lie, channels side by side, for an operand."""
    return any(family in kernel for family in ("_diagonal_", "_pairs_", "_cross_"))


def group_widths(kernel: str) -> list[int]:
    """Channels of a group that a depthwise kernel takes."""
    if "_groups_of_16" in kernel:
        return [16]
    if "_groups" in kernel:
        return [2, 4, 8]
    return [1, 2, 4, 8] if "_diagonal_wgrad_" in kernel else [1]


@st.composite
def sequence_problems(draw: st.DrawFn, kernel: str) -> tuple[Problem, str]:
    """Filters of one row or one column, and a view whose sequences the kernel reads."""
    gaps = "_gaps" in kernel
    most = 8 if gaps else 128 if kernel.endswith("floats") else int(kernel.split("_")[3])
    least = 1 if kernel.endswith(("floats", "_18", "_10", "_gaps")) else most // 4 + 1
    taps = draw(st.one_of(st.just(most), st.integers(least, most), st.integers(least, min(most, least + 6))))
    dilation = draw(st.sampled_from([8, 16, 24, 64] if gaps else [1, 1, 1, 2, 3, 8, 16]))
    dilation = min(dilation, max(1, 1024 // taps))  # or shared memory has no room for all strands
    stride = draw(st.sampled_from([1, 1, 2, 3, 4])) if dilation == 1 else 1
    reach = dilation * (taps - 1)
    padding = draw(st.sampled_from([reach // 2, reach // 2, 0, reach, reach + 3, 1]))
    if gaps:
        padding += -padding % 8
    eights = st.integers(1, 40).map(lambda i: 8 * i)
    length = draw(st.one_of(st.integers(1, 40), eights, st.sampled_from([520, 1030, 1033])))
    length = max(length, reach + 1 - 2 * padding)
    view = draw(st.sampled_from(["contiguous", "channels_last"]))
    c = draw(st.sampled_from([8, 16, 24, 40] if view == "channels_last" else [1, 2, 3, 9, 12]))
    beside, down = draw(st.sampled_from([1, 1, 2, 3])), taps > 1 and draw(st.booleans())
    if down and view == "contiguous":
        beside = 1  # or a column's pixels do not lie side by side
    pair = (lambda along, across: (along, across)) if down else (lambda along, across: (across, along))
    problem = Problem(
        *(draw(st.integers(1, 3)), c, *pair(length, beside), c, *pair(taps, 1)),
        stride=pair(stride, 1),
        padding=pair(padding, 0),
        dilation=pair(dilation, 1),
        groups=c,
        bias=draw(st.booleans()),
    )
    return problem, view


@st.composite
def depthwise_problems(draw: st.DrawFn, kernel: str) -> Problem:
    """What a depthwise kernel's name says fixed, and vectors of channels or columns possible in most."""
    if "_sequence_" in kernel:
        return draw(sequence_problems(kernel))[0]
    any_filter, banded, pixels = "_any" in kernel, "_banded_" in kernel, takes_pixels(kernel)
    if any_filter:
        r, s = draw(st.integers(1, 14)), draw(st.integers(1, 14))
    elif banded:
        s = draw(st.integers(1, 9))
        r = int(kernel.split("_")[3][0])
        r = draw(st.sampled_from([r, r, r - 1, 1 if r == 3 else r]))
    elif pixels:
        most = int(kernel.split("_")[3][0])
        r, s = draw(st.permutations([draw(st.sampled_from([most, most, most - 1, 1])), most - draw(st.integers(0, 1))]))
    else:
        r, s = (int(taps[0]) for taps in kernel.split("_")[2].split("x"))
    factor = draw(st.integers(1, 4)) if any_filter and not banded else 2 if "s2" in kernel else 1
    # Over the common divisor with the dilation the stride is the kernel's.
    dilation = draw(st.sampled_from([(1, 1), (1, 1), (1, 1), *([] if pixels else [(2, 3), (3, 1)])]))
    stride = draw(st.sampled_from([(factor, factor), (factor * dilation[0], factor * dilation[1])]))
    half = (r // 2, s // 2)
    if "valid" in kernel:
        half = (draw(st.integers(0, 4)), 0 if "fprop" in kernel else s - 1)
    padding = draw(st.one_of(st.just(half), st.tuples(st.integers(0, 9), st.integers(0, 9))))
    # Channels of a group.
    width = draw(st.sampled_from(group_widths(kernel)))
    channels, widths = ([8, 24, 72, 3], [8, 16, 33, 5, 40]) if pixels else ([4, 8, 12, 3], [8, 12, 16, 5, 7, 9])
    c, h, w = (draw(st.sampled_from(sizes)) for sizes in (channels, [7, 12, 70], widths))
    if "dgrad" in kernel and "valid" in kernel:  # columns of the output's gradient in fours
        w += -(w + s - 1) % 4
    least = [1 + d * (taps - 1) - 2 * p for taps, d, p in zip((r, s), dilation, padding, strict=True)]
    c += -c % width
    k = c * (draw(st.sampled_from([1, 1, 1, 2])) if width == 1 else 1)
    size = max(h, least[0]), max(w, least[1])
    groups = c // width
    return Problem(draw(st.integers(1, 2)), c, *size, k, r, s, stride, padding, dilation, groups, draw(st.booleans()))


def _random(size: Sequence[int], dtype: torch.dtype, device: str, seed: int) -> Tensor:
    # Drawn on the CPU and in float64, so that a seed names the same numbers on every device and in every dtype.
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, dtype=torch.float64, generator=generator).to(device=device, dtype=dtype)


def _channels_last(t: Tensor) -> Tensor:
    return t.to(memory_format=torch.channels_last) if t.dim() == 4 else t.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _embedded(t: Tensor, step: int, offset: int) -> Tensor:
    """The same values as every `step`-th column of a wider tensor, starting at `offset`."""
    wide = torch.full((*t.shape[:-1], t.shape[-1] * step + offset), math.nan, dtype=t.dtype, device=t.device)
    view = wide[..., offset : offset + t.shape[-1] * step : step]
    view.copy_(t)
    return view


def _misaligned(t: Tensor) -> Tensor:
    """The same values and strides, one element after an aligned address."""
    buffer = torch.full((t.numel() + 1,), math.nan, dtype=t.dtype, device=t.device)
    view = buffer[1:].as_strided(t.size(), t.stride(), 1)
    view.copy_(t)
    return view


# What each view has that a contiguous tensor has not; all are legal operands.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "channels_last": _channels_last,
    "transposed": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "batch_inside": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "every_other_column": lambda t: _embedded(t, 2, 1),
    "cropped": lambda t: _embedded(t, 1, 3),
    "misaligned": lambda t: _misaligned(t.contiguous()),
    "misaligned_channels_last": lambda t: _misaligned(_channels_last(t)),
    "same_image": lambda t: t[:1].expand(t.shape),
    "same_columns": lambda t: t[..., :1].expand(t.shape),
}


def tensor(
    size: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    view: str = "contiguous",
) -> Tensor:
    """Normally distributed numbers of a size, in one of VIEWS."""
    t = _random(size, dtype, device, seed)
    return VIEWS[view](t) if t.numel() else t


@dataclass(frozen=True)
class Operands:
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    grad_output: Tensor


def operands(
    problem: Problem,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    views: tuple[str, str, str] = ("contiguous", "contiguous", "contiguous"),
) -> Operands:
    """Input, weight, bias and output gradient of a problem; views are those of input, weight and gradient."""
    return Operands(
        tensor(problem.input_size, dtype, device, 4 * seed, views[0]),
        tensor(problem.weight_size, dtype, device, 4 * seed + 1, views[1]),
        tensor((problem.k,), dtype, device, 4 * seed + 2) if problem.bias else None,
        tensor(problem.output_size, dtype, device, 4 * seed + 3, views[2]),
    )


def precision_of(kernel: str) -> str:
    """Of kernels for images of few channels."""
    return "ieee" if "2_halves" in kernel or "3_parts" in kernel else "bf16x3" if "2_parts" in kernel else "tf32"


def for_squares(kernel: str, problem: Problem) -> Problem:
    """The same for kernels that take squares of pixels and 64 filters, if it is one of them."""
    if "squares" not in kernel:
        return problem
    stride, dilation = (problem.stride[0], 2), (problem.dilation[0], 1)
    return problem.with_(k=max(problem.k, 33), stride=stride, dilation=dilation)


def least_products(kernel: str, channels: int) -> int:
    """Of a sum that such a kernel takes."""
    if "2_halves" in kernel:
        return 64 if channels == 1 else 24
    return 8 if precision_of(kernel) == "ieee" else 1
