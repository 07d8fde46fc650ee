"""How wrong a result is: normwise error against float64, on part of the result where all of it would take long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from bench.modes import Mode
from bench.suites import Problem

# Work above which only the two ends of the result's first dimension are compared: indices go wrong at the ends first.
FULL_CHECK_FLOPS = 8e9
WGRAD_CHECK_CHANNELS = 4

# No correct method comes near these on random data; a wrong one is far above. Worst legitimate case for float32: a sum
# of 2^24 products in sequence, as in a weight gradient of a large image, about 5e-5.
WRONG_ABOVE = {
    "fp32 ieee": 1e-4,
    "fp32 bf16x3": 1e-4,
    "fp32 tf32": 1e-3,
    "fp16": 2e-3,
    "bf16": 1e-2,
    "fp64": 1e-10,
}


@dataclass(frozen=True)
class Tensors:
    """One set of data. `dy` is the gradient that arrives at the output."""

    x: torch.Tensor
    w: torch.Tensor
    dy: torch.Tensor

    def to(self, memory_format: torch.memory_format) -> Tensors:
        return Tensors(*(t.contiguous(memory_format=memory_format) for t in (self.x, self.w, self.dy)))


def random_tensors(problem: Problem, dtype: torch.dtype, generator: torch.Generator) -> Tensors:
    """Normal data; the filter is scaled so that outputs have unit variance and no 16-bit sum overflows."""

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, dtype=dtype, device=generator.device, generator=generator)

    reduction = problem.weight[1] * problem.weight[2] * problem.weight[3]
    return Tensors(normal(*problem.input), normal(*problem.weight) * reduction**-0.5, normal(*problem.output))


@dataclass(frozen=True)
class Reference:
    """float64 values of `rows` of the result's first dimension."""

    rows: torch.Tensor
    value: torch.Tensor

    def error(self, result: torch.Tensor) -> float:
        """norm(result - reference) / norm(reference); NaN if the result holds one."""
        part = result.detach().index_select(0, self.rows).double()
        return float((part - self.value).norm() / self.value.norm())


def reference(problem: Problem, pass_: str, data: Tensors) -> Reference:
    """Computed by PyTorch without cuDNN (im2col and a float64 matrix product), so that it judges both contenders."""
    everything = problem.flops <= FULL_CHECK_FLOPS
    n, (k, c_per_group, _, _) = problem.input[0], problem.weight
    groups = problem.groups
    if pass_ == "wgrad":
        # Whole groups, so that the slice is a convolution too.
        units = groups if groups > 1 else k
        chosen = _ends(units, units if everything else WGRAD_CHECK_CHANNELS, data.x.device)
        rows = chosen
        x = data.x
        if groups > 1:
            rows = _members(chosen, k // groups)
            x = x.index_select(1, _members(chosen, c_per_group))
            groups = chosen.numel()
        dy = data.dy.index_select(1, rows)
        w = data.w.index_select(0, rows)
    else:
        rows = _ends(n, n if everything else 1, data.x.device)
        x, w, dy = data.x.index_select(0, rows), data.w, data.dy.index_select(0, rows)

    x, w, dy = (t.double().contiguous() for t in (x, w, dy))
    with without_cudnn():
        if pass_ == "fprop":
            return Reference(rows, F.conv2d(x, w, None, *problem.conv_args[:3], groups))
        return Reference(rows, convolution_backward(problem, x, w, dy, pass_, groups))


def convolution_backward(
    problem: Problem, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, pass_: str, groups: int | None = None
) -> torch.Tensor:
    """PyTorch's own gradient of the input (`dgrad`) or the filter (`wgrad`), and only that one."""
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy,
        x,
        w,
        None,
        problem.stride,
        problem.padding,
        problem.dilation,
        False,
        (0, 0),
        problem.groups if groups is None else groups,
        (pass_ == "dgrad", pass_ == "wgrad", False),
    )
    result: torch.Tensor = dx if pass_ == "dgrad" else dw
    return result


TF32_ROUNDING = 2.0**-11
BF16X3_ERROR = 2e-5


def used_tf32(error: float) -> bool:
    """cuDNN may, and does not always. Two random roundings of a product leave about 2^-12, float32 less than 2^-14."""
    return error > 2.0**-14


def promised(mode: Mode, opponent_error: float | None) -> float:
    """The most that docs/precision.md allows, relative to the opponent's error where there is one."""
    if mode.precision == "bf16x3":
        return BF16X3_ERROR
    if opponent_error is not None and mode.precision == "ieee":
        return 1.2 * opponent_error
    if opponent_error is not None and mode.precision == "tf32":
        return 1.1 * opponent_error if used_tf32(opponent_error) else TF32_ROUNDING
    return WRONG_ABOVE[mode.label]


def verdict(mode: Mode, error: float, opponent_error: float | None) -> str:
    """`ok`; `loose` if beyond what is promised; `WRONG`."""
    if not error <= WRONG_ABOVE[mode.label]:
        return "WRONG"
    return "ok" if error <= promised(mode, opponent_error) else "loose"


def _ends(size: int, each: int, device: torch.device) -> torch.Tensor:
    indices = torch.arange(size, device=device)
    return indices if 2 * each >= size else torch.cat((indices[:each], indices[-each:]))


def _members(groups: torch.Tensor, width: int) -> torch.Tensor:
    return (groups[:, None] * width + torch.arange(width, device=groups.device)).flatten()


@contextlib.contextmanager
def without_cudnn() -> Iterator[None]:
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before
