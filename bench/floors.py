"""The least time a direct convolution can take on a device: the larger of arithmetic and memory traffic.

Winograd and FFT methods do fewer products, and a float32 product can be split over faster units, so a time below the
floor is possible and no error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bench.modes import Mode
from bench.suites import Problem


@dataclass(frozen=True)
class Ceilings:
    """What the device can do at best. `tflops` is keyed by Mode.label."""

    copy_gbs: float
    tflops: Mapping[str, float]
    source: str


# Microbenchmarks of this project on one H200, 2026-11-20: copy, and wgmma with resident operands. The FFMA rate is
# nominal (132 SMs x 128 lanes x 2 at 1.78 GHz), and float64 is the data sheet's for tensor cores.
H200 = Ceilings(
    copy_gbs=4200,
    tflops={
        "fp32 ieee": 60,
        "fp32 bf16x3": 300,
        "fp32 tf32": 445,
        "fp16": 900,
        "bf16": 900,
        "fp64": 67,
    },
    source="H200 microbenchmarks 2026-11-20: copy, wgmma with resident operands; fp32 ieee: FFMA units, nominal",
)

# Where it acts as an older GPU: warps' own products (bench/micro/mma_rates.cu). Float32 in parts is three products.
H200_BY_WARPS = Ceilings(
    copy_gbs=4200,
    tflops={
        "fp32 ieee": 204,
        "fp32 bf16x3": 204,
        "fp32 tf32": 311,
        "fp16": 612,
        "bf16": 612,
        "fp64": 67,
    },
    source="H200 microbenchmarks: copy (2026-11-20); mma.sync of two warps a scheduler, random operands "
    "(mma-rates-h200-20261130T2152Z), for fp32 ieee and bf16x3 a third of bf16's",
)


@dataclass(frozen=True)
class Floor:
    flops: float  # products that meet a pixel, x 2
    bytes: float
    flops_ms: float
    bytes_ms: float

    @property
    def ms(self) -> float:
        return max(self.flops_ms, self.bytes_ms)

    @property
    def bound(self) -> str:
        return "flops" if self.flops_ms >= self.bytes_ms else "bytes"


def floor_of(problem: Problem, pass_: str, mode: Mode, ceilings: Ceilings) -> Floor:
    """Counts each operand read once and the result written once; of the input, where it is read, the pixels needed."""
    (row_pairs, column_pairs), (rows, columns) = problem.in_bounds()
    n, c, h, w = problem.input
    flops = 2 * n * problem.weight[0] * problem.weight[1] * row_pairs * column_pairs
    pixels = h * w if pass_ == "dgrad" else rows * columns
    elements = n * c * pixels + math.prod(problem.weight) + math.prod(problem.output)
    traffic = elements * mode.itemsize
    return Floor(flops, traffic, flops / (ceilings.tflops[mode.label] * 1e9), traffic / (ceilings.copy_gbs * 1e6))
