"""What the planner knows and what is: each kernel that it expects to come near its choice, timed beside it and torch.

    python -m bench.alternatives --problem 'rn50_*' --layout nchw --pass wgrad --within 1.4
    python -m bench.alternatives --pass fprop --kernel 'halo_fprop_*384x64*' --dtype fp32 --precision tf32,bf16x3

`--kernel` names those to be timed instead, where they take the problem. The first kernel of a row is always the
planner's. Its cost models are fitted to such tables (docs/perf-log.md).
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench import environment, opponents, report, timing
from bench.__main__ import add_case_options, cases, choices
from bench.errors import Tensors
from bench.modes import Mode
from bench.runner import MEMORY_FORMATS, input_sets
from bench.suites import Problem


def expected_us(explanation: Sequence[str]) -> dict[str, float]:
    """Of `opponents.explain_all`: the planner's kernel, then the others that take the problem, cheapest first."""
    plan = re.match(r"plan: (\S+) .*cost_us (\S+)", explanation[0])
    if plan is None:
        return {}
    found = [re.match(r"\s+(\S+): cost_us (\S+)", line) for line in explanation[1:]]
    others = sorted((float(match[2]), match[1]) for match in found if match)
    return {plan[1]: float(plan[2]), **{name: cost for cost, name in others if name != plan[1]}}


def named(text: str) -> list[str]:
    """The kernels that a comma-separated list of names or shell patterns means."""
    names, found = opponents.kernel_names(), []
    for pattern in choices()(text):
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise argparse.ArgumentTypeError(
                f"no kernel matches {pattern!r}; python -m fastconv info --kernels lists them"
            )
        found += matches
    return found


def compared(expected: dict[str, float], kernels: Sequence[str], within: float) -> list[str]:
    """The planner's kernel, then those of `kernels` that take the problem; if none are named, those not far behind."""
    least = min(expected.values(), default=0)
    beside = kernels or [name for name, us in expected.items() if us <= within * least]
    return [name for place, name in enumerate(expected) if place == 0 or name in beside]


def measure(
    problem: Problem,
    pass_: str,
    mode: Mode,
    layout: str,
    kernels: Sequence[str],
    within: float,
    device: torch.device,
    seconds: float,
) -> dict[str, Any]:
    expected = expected_us(opponents.explain_all(problem, pass_, mode, layout, device))
    names = compared(expected, kernels, within)
    sets = [data.to(MEMORY_FORMATS[layout]) for data in input_sets(problem, mode.torch_dtype, device)]

    def run(contender: str, kernel: str | None, data: Tensors) -> torch.Tensor:
        opponents.force_kernel(kernel)  # for the calls that are captured in a graph, or for every one
        return opponents.CONTENDERS[contender](problem, pass_, mode, layout)(data)

    def prepared(contender: str, kernel: str | None) -> timing.Timed:
        return timing.prepare([functools.partial(run, contender, kernel, data) for data in sets], device)

    with timing.tf32_allowed(mode.opponent_tf32):
        contenders = {}
        for name in names:
            try:
                contenders[name] = prepared("fastconv", name)
            except RuntimeError as refusal:
                # What explains has strides of its own for images of one pixel, which are not always a tensor's.
                if "no kernel for" not in str(refusal):
                    raise
        names = list(contenders)
        contenders["torch"] = prepared("torch", None)
        times = timing.time_in_turns(contenders, device, seconds)
    opponents.force_kernel(None)
    return {
        "problem": problem.name,
        "mode": mode.label,
        "layout": layout,
        "pass": pass_,
        "torch_us": 1e3 * times["torch"].ms,
        "kernels": [{"name": name, "expected_us": expected[name], "us": 1e3 * times[name].ms} for name in names],
    }


def markdown(rows: Sequence[dict[str, Any]], opponent: str) -> str:
    lines = []
    for row in rows:
        what = [row["problem"], row["mode"], row["layout"], row["pass"]]
        timed = [(kernel["name"], f"{kernel['expected_us']:.1f}", kernel["us"]) for kernel in row["kernels"]]
        for name, expected, us in [*timed, (opponent, "", row["torch_us"])]:
            lines.append([*what, name, expected, f"{us:.1f}"])
            what = [""] * len(what)
    return report.table(["problem", "mode", "layout", "pass", "kernel", "expected us", "us"], lines, left=5)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.alternatives", description=__doc__)
    add_case_options(parser)
    add = parser.add_argument
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--within", type=float, default=1.4, help="times the planner's least: which kernels are timed")
    which.add_argument("--kernel", type=named, default=[], help="names or shell patterns: which, instead of --within")
    add("--seconds", type=float, default=0.02, help="a kernel, after warm-up")
    add("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    timing.use_device(device)
    rows: list[dict[str, Any]] = []
    try:
        with report.sigterm_exits():
            for problem, layout, mode, pass_ in cases(options):
                kernels, within, seconds = options.kernel, options.within, options.seconds
                rows.append(measure(problem, pass_, mode, layout, kernels, within, device, seconds))
    finally:
        title = f"Kernels beside the planner's choice, {environment.device_name(device)}"
        table = markdown(rows, opponents.display_name("torch", device))
        path = environment.write_table(options.out, "alternatives", device, title, table, rows=rows)
        print(f"{table}\n\nwrote {path}.json, {path}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
