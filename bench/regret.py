"""How far the planner's choices are from the best kernel that was measured of each problem. Needs no GPU.

    python -m bench.regret
    python -m bench.regret --gpu h100-80gb-hbm3 --beyond 1.02

Reads what `bench.alternatives` wrote, of each case the newest measurement. Its kernels were timed one after the other
in one run, so that their times can be compared; those that the planner expected to be slow were not timed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import report
from bench.hindsight import GPUS, Case, chosen
from bench.modes import Mode, modes_of
from bench.suites import Problem, load_suite, suite_names

MODES = {mode.label: mode for mode in modes_of(["float16", "bfloat16", "float32"], ["ieee", "bf16x3", "tf32"])}


def named_problems() -> dict[str, Problem]:
    return {problem.name: problem for name in suite_names() for problem in load_suite(name).problems}


class Choice(NamedTuple):
    """Of a case: what the planner takes now, and the best kernel that was measured."""

    problem: str
    mode: str
    layout: str
    pass_: str
    kernel: str
    us: float | None  # None: it was not measured
    best: str
    best_us: float

    @property
    def regret(self) -> float:
        return self.us / self.best_us if self.us else math.nan


def measured(results: Path, gpu: str) -> dict[tuple[str, str, str, str], dict[str, float]]:
    """Of each case the kernels' times, us."""
    found = {}
    for path in report.files(results, gpu):
        if path.stem.startswith("alternatives-"):
            for row in json.loads(path.read_text())["rows"]:
                times = {kernel["name"]: kernel["us"] for kernel in row["kernels"] if kernel["us"]}
                if times:
                    found[row["problem"], row["mode"], row["layout"], row["pass"]] = times
    return found


def choices(results: Path, gpu: str) -> list[Choice]:
    problems = named_problems()
    found = []
    for (name, label, layout, pass_), times in measured(results, gpu).items():
        if name not in problems:
            continue
        mode: Mode = MODES[label]
        case = Case(problems[name].describe(), label, layout, pass_)
        kernel = chosen(problems[name], case, mode, gpu).partition(" ")[0]
        best = min(times, key=lambda kernel: times[kernel])
        # Until 2026-11-30 kernels of both kinds of products had one name.
        us = times.get(kernel, times.get(kernel.removesuffix("_wgmma")))
        found.append(Choice(name, label, layout, pass_, kernel, us, best, times[best]))
    return found


def mean(found: Iterable[Choice]) -> float:
    """Geometric, over the choices that were measured."""
    return statistics.geometric_mean(choice.regret for choice in found if choice.us)


def by_problem(found: Iterable[Choice]) -> dict[str, float]:
    """The same of each problem, over modes, layouts and passes."""
    of_problem: dict[str, list[Choice]] = {}
    for choice in found:
        if choice.us:
            of_problem.setdefault(choice.problem, []).append(choice)
    return {problem: mean(choices) for problem, choices in of_problem.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.regret", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--beyond", type=float, default=1.05, help="times the best: what is listed")
    add("--gpu", default="h200", choices=GPUS, help="as the names of results have it")
    add("--results", type=Path, default=report.RESULTS)
    options = parser.parse_args(arguments)
    found = choices(options.results, options.gpu)
    known = [choice for choice in found if choice.us]
    lines = [
        [*choice[:4], choice.kernel, f"{choice.us:.1f}", choice.best, f"{choice.best_us:.1f}", f"{choice.regret:.3f}"]
        for choice in sorted(known, key=lambda choice: -choice.regret)
        if choice.regret > options.beyond
    ]
    header = ["problem", "mode", "layout", "pass", "chosen", "us", "best", "us", "regret"]
    print(report.table(header, lines, left=5))
    above = sum(choice.regret > 1.1 for choice in known)
    problems = by_problem(known)
    worst = max(problems, key=lambda problem: problems[problem])
    print(f"\n{len(found)} cases, {len(known)} choices measured: geometric mean {mean(known):.4f}, {above} above 1.1")
    print(f"{len(problems)} problems: the worst is {worst}, {problems[worst]:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
