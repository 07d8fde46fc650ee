"""Tensors of more than 2^31 elements, in both layouts, dense in memory.

The float64 reference of a whole one would take minutes, so crops are compared: an offset that wraps reads or writes
somewhere else, and the crops lie on both sides of 2^31 and at the very end.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import reference
from check import poison
from shapes import Problem

pytestmark = pytest.mark.cuda
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
layouts = pytest.mark.parametrize("layout", LAYOUTS)
SIDE = 24  # of a crop

# seed_3x3 with one image more; the same, backwards; and a single image of 2^31 pixels.
LARGE_OUTPUT = Problem(17, 16, 1024, 1024, 128, 3, 3)
LARGE_INPUT = Problem(17, 128, 1024, 1024, 16, 3, 3)
LARGE_IMAGE = Problem(1, 1, 46400, 46400, 1, 3, 3)
CASES = {
    "large_output": (LARGE_OUTPUT, torch.float32),
    "large_input": (LARGE_INPUT, torch.float32),
    "large_image": (LARGE_IMAGE, torch.float16),
}
cases = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def enough_memory() -> Iterator[None]:
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 45 * 2**30:
        pytest.skip("needs 45 GiB of free GPU memory")
    yield
    torch.cuda.empty_cache()


def random(size: tuple[int, ...], dtype: torch.dtype, layout: str) -> Tensor:
    return torch.empty(size, dtype=dtype, device="cuda", memory_format=LAYOUTS[layout]).normal_()


def corners(size: tuple[int, ...], margin: int) -> list[tuple[int, int, int]]:
    """(image, row, column) of crops: the first, one in the middle, the last, none within `margin` of the border."""
    n, _, h, w = size
    last_row, last_column = h - SIDE - margin, w - SIDE - margin
    return [(0, margin, margin), (n // 2, h // 2, w // 3), (n - 1, last_row, margin), (n - 1, last_row, last_column)]


def crop(t: Tensor, image: int, row: int, column: int, before: int = 0, after: int = 0) -> Tensor:
    return t[image : image + 1, :, row - before : row + SIDE + after, column - before : column + SIDE + after]


@cases
@layouts
def test_forward(name: str, layout: str) -> None:
    problem, dtype = CASES[name]
    x, w = random(problem.input_size, dtype, layout), random(problem.weight_size, dtype, layout)
    poison("cuda", torch.empty(problem.output_size, dtype=dtype, device="meta"))
    y = torch.ops.fastconv.conv2d(x, w, precision="ieee")
    assert max(x.numel(), y.numel()) > 2**31
    for place in corners(y.shape, 0):
        reference.assert_right(crop(y, *place), reference.output(crop(x, *place, after=2), w))
    assert y.isfinite().all()


@cases
@layouts
def test_input_gradient(name: str, layout: str) -> None:
    problem, dtype = CASES[name]
    dy, w = random(problem.output_size, dtype, layout), random(problem.weight_size, dtype, layout)
    poison("cuda", torch.empty(problem.input_size, dtype=dtype, device="meta"))
    dx = torch.ops.fastconv.conv2d_input(problem.input_size, w, dy, precision="ieee")
    assert max(dx.numel(), dy.numel()) > 2**31
    for place in corners(dx.shape, 2):
        around = torch.empty(1, problem.c, SIDE + 4, SIDE + 4, dtype=dtype)
        whole = reference.gradients(around, w, crop(dy, *place, before=2)).input
        inner = (..., slice(2, -2), slice(2, -2))
        reference.assert_right(crop(dx, *place), reference.Expected(whole.value[inner], whole.magnitude[inner]))
    assert dx.isfinite().all()


@cases
@layouts
def test_weight_gradient(name: str, layout: str) -> None:
    """The output gradient is zero but for the crops, so that few products remain; the input is random everywhere."""
    problem, dtype = CASES[name]
    x = random(problem.input_size, dtype, layout)
    dy = torch.zeros(problem.output_size, dtype=dtype, device="cuda").contiguous(memory_format=LAYOUTS[layout])
    assert max(x.numel(), dy.numel()) > 2**31
    value, magnitude = torch.zeros(2, *problem.weight_size, dtype=torch.float64)
    for place in corners(dy.shape, 0):
        crop(dy, *place).normal_()
        part = reference.gradients(crop(x, *place, after=2), torch.empty(problem.weight_size), crop(dy, *place)).weight
        value += part.value
        magnitude += part.magnitude
    dw = torch.ops.fastconv.conv2d_weight(x, problem.weight_size, dy, precision="ieee")
    reference.assert_right(dw, reference.Expected(value, magnitude))


@layouts
def test_bias_gradient(layout: str) -> None:
    dy = random(LARGE_OUTPUT.output_size, torch.float32, layout)
    value = torch.stack([image.double().sum((1, 2)) for image in dy]).sum(0).cpu()
    magnitude = torch.stack([image.double().abs().sum((1, 2)) for image in dy]).sum(0).cpu()
    reference.assert_right(torch.ops.fastconv.conv2d_bias(dy), reference.Expected(value, magnitude))
