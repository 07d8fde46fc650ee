"""KernelBench's problems that begin with a convolution: its modules beside those with fastconv's layers.

    python -m bench.kernelbench --kernelbench ~/KernelBench --problem '57*,63*' --level 1

Needs a checkout of KernelBench, or the folders level1 and level2 of it. Solutions are in solutions/, each a file that
KernelBench's own scripts take. The exit status is 1 if its check does not pass.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench import environment, report
from bench.__main__ import choices
from bench.kernelbench import measure, tables
from bench.kernelbench.problems import LEVELS, SOLUTIONS, Problem, problems

TITLE = "KernelBench's convolutions"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.kernelbench", description=__doc__.partition("\n")[0])
    add = made.add_argument
    add("--kernelbench", type=Path, help="a checkout, or a folder with its level1 and level2")
    add("--problem", type=choices(), default=["*"], help="file names or shell patterns, '57*'; default: all")
    add("--level", type=choices(list(map(str, LEVELS))), default=list(map(str, LEVELS)), help="default: 1,2")
    add("--precision", type=choices(list(measure.PRECISIONS)), default=list(measure.PRECISIONS), help="default,strict")
    add("--opponent", type=choices(list(measure.OPPONENTS)), default=["eager"], help="eager,compile; default: eager")
    add("--trials", type=int, default=20, help="timed calls; default: %(default)s, KernelBench's 100 take minutes more")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--solutions", type=Path, default=SOLUTIONS, help="other ones")
    add("--quick", action="store_true", help="small images, to see that everything runs")
    add("--out", type=Path, default=report.RESULTS, help="default: bench/results")
    add("--render", type=Path, nargs="+", metavar="JSON", help="table and picture of earlier runs, beside the first")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if options.render:
        runs = [json.loads(path.read_text()) for path in options.render]
        rows = [row for run in runs for row in run["rows"]]
        written(options.render[0].with_suffix(""), {**runs[0], "rows": rows})
        return 0
    if options.kernelbench is None:
        made.error("--kernelbench is needed")
    chosen = problems(options.kernelbench, [int(level) for level in options.level], options.problem, options.solutions)
    if not chosen:
        made.error(f"no solution matches {','.join(options.problem)}")
    if missing := [str(problem.statement) for problem in chosen if not problem.statement.is_file()]:
        made.error(f"there is no {missing[0]}")
    return run(chosen, options)


def run(chosen: Sequence[Problem], options: argparse.Namespace) -> int:
    device = torch.device(options.device)
    path = environment.stem(options.out, "kernelbench", device)
    settings = {
        "trials": options.trials,
        "warm-ups": measure.WARM_UPS,
        "checks": measure.CHECKS,
        "tolerance": measure.TOLERANCE,
        "opponents": options.opponent,
        "quick": options.quick,
    }
    found: dict[str, Any] = {**environment.run_facts(device), "settings": settings, "rows": []}
    try:
        with report.sigterm_exits():
            for problem in chosen:
                for precision in options.precision:
                    row = measure.row(problem, precision, device, options.opponent, options.trials, options.quick)
                    found["rows"].append(row)
                    write_json(path, found)  # each time: nobody warns of the end of a borrowed machine
                    print(tables.times([row]).splitlines()[-1], row.get("failure", ""), flush=True)
    finally:
        if found["rows"]:
            print(written(path, found))
    return int(any(row["status"] != "ok" for row in found["rows"]))


def write_json(path: Path, found: dict[str, Any]) -> None:
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(found, indent=1) + "\n")
    whole.replace(path.with_suffix(".json"))


def written(path: Path, found: dict[str, Any]) -> str:
    """Table and picture. The table, and where it is."""
    rows, settings = found["rows"], found["settings"]
    title = f"{TITLE}, {found['machine']['device']}"
    about = (
        f"Forward passes without gradients, float32{', of small images' if settings['quick'] else ''}. Means of "
        f"{settings['trials']} calls, each with a cold L2 cache, by CUDA events (on the CPU: by a clock, warm). "
        "default: cuDNN and fastconv may use TF32, as torch has it by default; strict: neither. eager, compile: as "
        "KernelBench times them; searched: with cudnn.benchmark=True."
    )
    table = tables.markdown(rows)
    path.with_suffix(".md").write_text(environment.headed(title, found["build"], f"{about}\n\n{table}"))
    tables.draw(rows, title, path.with_suffix(".png"))
    return f"\n{table}\n\nwrote {path}.json, {path}.md, {path}.png"


if __name__ == "__main__":
    sys.exit(main())
