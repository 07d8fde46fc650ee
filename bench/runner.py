"""Measures a problem in every combination asked for: one Row each."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from bench import opponents, timing
from bench.errors import Reference, Tensors, random_tensors, reference, verdict
from bench.floors import Ceilings, floor_of
from bench.modes import Mode
from bench.report import Result, Row
from bench.suites import Problem

MEMORY_FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


@dataclass(frozen=True)
class Plan:
    """What to measure and how."""

    device: torch.device
    modes: Sequence[Mode]
    layouts: Sequence[str]
    passes: Sequence[str]
    opponents: Sequence[str]
    ceilings: Ceilings
    seconds: float
    kernel_forced: bool  # then it is no failure that it refuses a problem

    @property
    def rows_per_problem(self) -> int:
        return len(self.modes) * len(self.layouts) * len(self.passes)


def measure(problem: Problem, plan: Plan) -> Iterator[Row]:
    for dtype, group in itertools.groupby(plan.modes, key=lambda mode: mode.torch_dtype):
        modes = list(group)
        base = input_sets(problem, dtype, plan.device)
        references = {pass_: reference(problem, pass_, base[0]) for pass_ in plan.passes}
        for layout in plan.layouts:
            sets = [data.to(MEMORY_FORMATS[layout]) for data in base]
            for mode, pass_ in itertools.product(modes, plan.passes):
                yield _measure_row(problem, pass_, mode, layout, sets, references[pass_], plan)


def input_sets(problem: Problem, dtype: torch.dtype, device: torch.device) -> list[Tensors]:
    generator = torch.Generator(device)
    generator.seed()
    count = timing.set_count(problem.elements * dtype.itemsize, timing.cache_bytes(device))
    return [random_tensors(problem, dtype, generator) for _ in range(count)]


def _measure_row(
    problem: Problem, pass_: str, mode: Mode, layout: str, sets: Sequence[Tensors], expected: Reference, plan: Plan
) -> Row:
    with timing.tf32_allowed(mode.opponent_tf32):
        results = _measure_contenders(problem, pass_, mode, layout, sets, expected, plan)
    ours = results["fastconv"]
    if plan.kernel_forced and "no kernel for" in ours.failure:
        status = "refused"
    elif ours.error is None:
        status = "FAILED" if ours.time is None else "WRONG"
    else:
        status = verdict(mode, ours.error, results["torch"].error if "torch" in results else None)
    floor = floor_of(problem, pass_, mode, plan.ceilings)
    return Row(
        problem=problem.name,
        shape=problem.describe(),
        count=problem.count,
        source=problem.source,
        mode=mode.label,
        layout=layout,
        pass_=pass_,
        flops=problem.flops,
        floor_ms=floor.ms,
        floor_flops=floor.flops,
        floor_bytes=floor.bytes,
        bound=floor.bound,
        status=status,
        plan=_explanation(problem, pass_, mode, layout, plan.device),
        results=results,
        kind=problem.kind,
    )


def _measure_contenders(
    problem: Problem, pass_: str, mode: Mode, layout: str, sets: Sequence[Tensors], expected: Reference, plan: Plan
) -> dict[str, Result]:
    errors: dict[str, float] = {}
    contenders: dict[str, timing.Timed] = {}
    failures: dict[str, str] = {}
    for name in ("fastconv", *plan.opponents):
        run = opponents.CONTENDERS[name](problem, pass_, mode, layout)
        try:
            poison(problem, pass_, sets[0])
            errors[name] = expected.error(run(sets[0]))
            contenders[name] = timing.prepare([functools.partial(run, data) for data in sets], plan.device)
        except torch.AcceleratorError:
            raise  # the CUDA context is lost: whatever follows would fail too
        except RuntimeError as failure:
            failures[name] = " ".join(str(failure).split())[:300]
    results = {name: Result(failure=failure) for name, failure in failures.items()}
    for name, time in timing.time_in_turns(contenders, plan.device, plan.seconds).items():
        finite = not math.isnan(errors[name])
        results[name] = Result(time, errors[name]) if finite else Result(time, failure="the result holds NaN")
    return results


def _explanation(problem: Problem, pass_: str, mode: Mode, layout: str, device: torch.device) -> str:
    try:
        return opponents.explain(problem, pass_, mode, layout, device)
    except RuntimeError as failure:  # a refusal; the row's status tells it already
        return f"- {failure}"


def poison(problem: Problem, pass_: str, data: Tensors) -> None:
    """Leaves NaN in the memory that the allocator will most likely hand out for the result."""
    size = {"fprop": problem.output, "dgrad": problem.input, "wgrad": problem.weight}[pass_]
    torch.full(size, float("nan"), dtype=data.x.dtype, device=data.x.device)
