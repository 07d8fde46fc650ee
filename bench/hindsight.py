"""What the planner chooses now, beside all that was measured of the same problem. Needs no GPU.

    python -m bench.hindsight --problem 'rn50_*' --beyond 1.1

Lists where a plan in `bench/results/` took less time than the planner's choice, as each was last measured, and choices
that nobody measured where others were: for whoever changes a cost model without a device, and for the first call on
the next one.
Runs differ in clocks, kernels and versions, so that a few per cent between two files mean nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import fastconv
from bench import opponents, report
from bench.__main__ import choices
from bench.modes import DTYPES, LONG, PRECISIONS, Mode, modes_of
from bench.suites import LAYOUTS, PASSES, Problem, load_suite, select, suite_names
from fastconv.explain import H100, H200, gpu

# An H200 that acts as another GPU keeps its clocks and its memory.
ACTING = gpu("80")._replace(clock_mhz=H200.clock_mhz, memory_gbps=H200.memory_gbps, l2_bytes=H200.l2_bytes)
# As the names of results have them.
GPUS = {"h200": H200, "h100-80gb-hbm3": H100, "h200-as-80": ACTING}


class Case(NamedTuple):
    shape: str
    mode: str
    layout: str
    pass_: str


@dataclass(frozen=True)
class Known:
    """A plan's time, the last that was measured."""

    plan: str
    ms: float
    file: str

    @property
    def date(self) -> str:
        return self.file.rpartition("-")[2]


def plan_of(text: str) -> str:
    """A plan as `explain` and results word it, without what changes nothing or only with the cost model."""
    return re.sub(r", other numbers \[.*?\]| workspace_bytes \S+| cost_us \S+", "", text).strip()


def measured(results: Path, gpu: str) -> dict[Case, dict[str, Known]]:
    """Of each case its plans, of kernels that there still are: forced ones, and less accurate than promised, too."""
    found: dict[Case, dict[str, Known]] = {}
    kernels = opponents.kernel_names()
    for path in report.files(results, gpu):
        for row in json.loads(path.read_text()).get("rows", []):
            time = (row.get("results", {}).get("fastconv", {}).get("time") or {}).get("ms")
            if time is not None and row["status"] in ("ok", "loose") and row["plan"].partition(" ")[0] in kernels:
                case = Case(row["shape"], row["mode"], row["layout"], row["pass_"])
                plan = plan_of(row["plan"])
                found.setdefault(case, {})[plan] = Known(plan, time, path.stem)
    return found


def chosen(problem: Problem, case: Case, mode: Mode, gpu: str) -> str:
    text = fastconv.explain(
        problem.input,
        problem.weight,
        None,
        *problem.conv_args,
        pass_=case.pass_,
        precision=mode.precision or "ieee",
        dtype=mode.torch_dtype,
        channels_last=case.layout == "nhwc",
        device="cuda",
        arch=GPUS[gpu],
    )
    return plan_of(text.splitlines()[2].removeprefix("plan: "))


def lines(
    cases: Iterable[tuple[str, Case, str]], known: dict[Case, dict[str, Known]], beyond: float
) -> list[list[str]]:
    """`cases`: a problem's name, the case, the planner's choice. Slowest against the best known first."""
    found = []
    for name, case, choice in cases:
        plans = known.get(case)
        if not plans:
            continue
        best, mine = min(plans.values(), key=lambda plan: plan.ms), plans.get(choice)
        ratio = mine.ms / best.ms if mine else 0.0
        if mine and ratio <= beyond:
            continue
        ours = [f"{mine.ms:.4f}", mine.date, f"{ratio:.2f}"] if mine else ["-", "-", "-"]
        found.append((-ratio, [name, *case[1:], *ours, choice, f"{best.ms:.4f}", best.date, best.plan]))
    return [line for _, line in sorted(found)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.hindsight", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--suite", type=choices(suite_names()), default=["public", "few_channels"])
    add("--problem", type=choices(), default=[], help="names or shell patterns; default: all of the suites")
    add("--pass", dest="pass_", type=choices(PASSES), default=list(PASSES), help="fprop,dgrad,wgrad")
    add("--layout", type=choices(LAYOUTS), default=list(LAYOUTS), help="default: nchw,nhwc")
    add("--dtype", type=choices(list(DTYPES), LONG), default=["float16", "float32"], help="default: fp16,fp32")
    add("--precision", type=choices(PRECISIONS), default=list(PRECISIONS), help="of fp32; default: all")
    add("--beyond", type=float, default=1.04, help="times the best known plan: what is listed")
    add("--gpu", default="h200", choices=GPUS, help="as the names of results have it")
    add("--results", type=Path, default=report.RESULTS)
    options = parser.parse_args(arguments)
    problems = [problem for suite in options.suite for problem in load_suite(suite).problems]
    modes = modes_of(options.dtype, options.precision)
    cases = []
    for problem in select(problems, options.problem):
        for mode in modes:
            for layout in options.layout:
                for pass_ in options.pass_:
                    case = Case(problem.describe(), mode.label, layout, pass_)
                    cases.append((problem.name, case, chosen(problem, case, mode, options.gpu)))
    header = ["problem", "mode", "layout", "pass", "ms", "measured", "ratio", "chosen", "ms", "measured", "best known"]
    found = lines(cases, measured(options.results, options.gpu), options.beyond)
    print(report.table(header, found, left=4))
    return 0


if __name__ == "__main__":
    sys.exit(main())
