"""What the planner knows and what is: each kernel that it expects to come near its choice, timed beside it and torch.

    python -m bench.alternatives --problem 'rn50_*' --layout nchw --pass wgrad --within 1.4

The first kernel of a row is the planner's. Its cost models are fitted to such tables (docs/perf-log.md).
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench import environment, opponents, report, timing
from bench.__main__ import choices
from bench.errors import Tensors
from bench.modes import DTYPES, Mode
from bench.runner import MEMORY_FORMATS, input_sets
from bench.suites import LAYOUTS, PASSES, Problem, load_suite, select


def expected_us(explanation: Sequence[str]) -> dict[str, float]:
    """Of `opponents.explain_all`: the planner's kernel, then the others that take the problem, cheapest first."""
    plan = re.match(r"plan: (\S+) .*cost_us (\S+)", explanation[0])
    if plan is None:
        return {}
    found = [re.match(r"\s+(\S+): cost_us (\S+)", line) for line in explanation[1:]]
    others = sorted((float(match[2]), match[1]) for match in found if match)
    return {plan[1]: float(plan[2]), **{name: cost for cost, name in others if name != plan[1]}}


def measure(
    problem: Problem, pass_: str, mode: Mode, layout: str, within: float, device: torch.device, seconds: float
) -> dict[str, Any]:
    expected = expected_us(opponents.explain_all(problem, pass_, mode, layout, device))
    near = [name for name, us in expected.items() if us <= within * min(expected.values())]
    sets = [data.to(MEMORY_FORMATS[layout]) for data in input_sets(problem, mode.torch_dtype, device)]

    def run(contender: str, kernel: str | None, data: Tensors) -> torch.Tensor:
        opponents.force_kernel(kernel)  # for the calls that are captured in a graph, or for every one
        return opponents.CONTENDERS[contender](problem, pass_, mode, layout)(data)

    def prepared(contender: str, kernel: str | None) -> timing.Timed:
        return timing.prepare([functools.partial(run, contender, kernel, data) for data in sets], device)

    contenders = {name: prepared("fastconv", name) for name in near} | {"torch": prepared("torch", None)}
    times = timing.time_in_turns(contenders, device, seconds)
    opponents.force_kernel(None)
    return {
        "problem": problem.name,
        "layout": layout,
        "pass": pass_,
        "torch_us": 1e3 * times["torch"].ms,
        "kernels": [{"name": name, "expected_us": expected[name], "us": 1e3 * times[name].ms} for name in near],
    }


def markdown(rows: Sequence[dict[str, Any]], opponent: str) -> str:
    lines = []
    for row in rows:
        what = [row["problem"], row["layout"], row["pass"]]
        for kernel in row["kernels"]:
            lines.append([*what, kernel["name"], f"{kernel['expected_us']:.1f}", f"{kernel['us']:.1f}"])
            what = ["", "", ""]
        lines.append(["", "", "", opponent, "", f"{row['torch_us']:.1f}"])
    return report.table(["problem", "layout", "pass", "kernel", "expected us", "us"], lines, left=4)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.alternatives", description=__doc__)
    cuda = torch.cuda.is_available()
    add = parser.add_argument
    add("--suite", default="public")
    add("--problem", type=choices(), default=[], help="names or shell patterns; default: all of the suite")
    add("--pass", dest="pass_", type=choices(PASSES), default=list(PASSES), help="fprop,dgrad,wgrad")
    add("--layout", type=choices(LAYOUTS), default=list(LAYOUTS), help="default: nchw,nhwc")
    add("--dtype", default="float16" if cuda else "float32", choices=list(DTYPES))
    add("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")
    add("--within", type=float, default=1.4, help="times the planner's least: which kernels are timed")
    add("--seconds", type=float, default=0.02, help="a kernel, after warm-up")
    add("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    device, mode = torch.device(options.device), Mode(options.dtype, "ieee" if options.dtype == "float32" else None)
    timing.use_device(device)
    rows = [
        measure(problem, pass_, mode, layout, options.within, device, options.seconds)
        for problem in select(load_suite(options.suite).problems, options.problem)
        for layout in options.layout
        for pass_ in options.pass_
    ]
    title = f"Kernels near the planner's choice, {mode.label}, {environment.device_name(device)}"
    table = markdown(rows, opponents.display_name("torch", device))
    path = environment.write_table(options.out, "alternatives", device, title, table, dtype=mode.label, rows=rows)
    print(f"{table}\n\nwrote {path}.json, {path}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
