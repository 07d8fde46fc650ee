"""Where the results fall short of the least that is asked for, as each case was last measured. Needs no GPU.

    python -m bench.targets --problem 'rn50_*' --dtype fp16

Lists the time of a case beside the time that `targets.json` asks for, which follows from the fastest opponent in the
same run or from the floor. `floor`: of the time that is asked for; more than 100 % cannot be had.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bench import report
from bench.__main__ import choices
from bench.modes import DTYPES, LONG, PRECISIONS, modes_of
from bench.opponents import OPPONENTS
from bench.suites import LAYOUTS, PASSES

TARGETS = Path(__file__).parent / "targets.json"


@dataclass(frozen=True)
class Rule:
    """`speed_up` and `share_of_floor`: of the passes, as PASSES has them; None: nothing is asked for."""

    problems: Sequence[str]
    modes: Sequence[str] = ()
    layouts: Sequence[str] = LAYOUTS
    speed_up: Sequence[float | None] = (None,) * len(PASSES)
    share_of_floor: Sequence[float | None] = (None,) * len(PASSES)

    def names(self, row: dict[str, Any]) -> bool:
        return (
            any(fnmatchcase(row["problem"], pattern) for pattern in self.problems)
            and (not self.modes or row["mode"] in self.modes)
            and row["layout"] in self.layouts
        )

    def ms(self, row: dict[str, Any]) -> float | None:
        """The time that is asked for, if any is."""
        place, times = PASSES.index(row["pass_"]), []
        speed_up, share = self.speed_up[place], self.share_of_floor[place]
        opponents = [row["results"][name]["time"] for name in OPPONENTS if name in row["results"]]
        if speed_up is not None and any(opponents):
            times.append(min(time["ms"] for time in opponents if time) / speed_up)
        if share is not None:
            times.append(row["floor_ms"] / share)
        return min(times, default=None)


def rules_of(text: str) -> list[Rule]:
    return [Rule(**rule) for rule in json.loads(text)["rules"]]


def last_rows(results: Path, gpu: str) -> dict[tuple[str, str, str, str], tuple[str, dict[str, Any]]]:
    """Of each case the last result of the planner's own choice, and the file that it is in."""
    found: dict[tuple[str, str, str, str], tuple[str, dict[str, Any]]] = {}
    for path in report.files(results, gpu):
        measured = json.loads(path.read_text())
        if measured.get("settings", {}).get("kernel"):
            continue
        for row in measured.get("rows", []):
            if row.get("results", {}).get("fastconv", {}).get("time"):
                found[row["problem"], row["mode"], row["layout"], row["pass_"]] = path.stem, row
    return found


def lines(rows: Iterable[tuple[str, dict[str, Any]]], rules: Sequence[Rule]) -> list[list[str]]:
    """Those that fall short, the furthest first."""
    found = []
    for file, row in rows:
        rule = next((rule for rule in rules if rule.names(row)), None)
        asked = rule.ms(row) if rule else None
        ms = row["results"]["fastconv"]["time"]["ms"]
        if asked is None or (ms <= asked and row["status"] == "ok"):
            continue
        case = [row["problem"], row["mode"], row["layout"], row["pass_"], row["status"]]
        times = [f"{ms:.4f}", f"{asked:.4f}", f"{asked / ms:.2f}", f"{row['floor_ms'] / asked:.0%}"]
        found.append((asked / ms, [*case, *times, file.rpartition("-")[2], row["plan"].partition(" ")[0]]))
    return [line for _, line in sorted(found)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.targets", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--problem", type=choices(), default=["*"], help="names or shell patterns; default: all")
    add("--pass", dest="pass_", type=choices(PASSES), default=list(PASSES), help="fprop,dgrad,wgrad")
    add("--layout", type=choices(LAYOUTS), default=list(LAYOUTS), help="default: nchw,nhwc")
    add("--dtype", type=choices(list(DTYPES), LONG), default=list(DTYPES), help="default: all")
    add("--precision", type=choices(PRECISIONS), default=list(PRECISIONS), help="of fp32; default: all")
    add("--gpu", default="h200", help="as the names of results have it")
    add("--results", type=Path, default=report.RESULTS)
    add("--targets", type=Path, default=TARGETS)
    options = parser.parse_args(arguments)
    modes = [mode.label for mode in modes_of(options.dtype, options.precision)]
    rows = [
        (file, row)
        for (problem, mode, layout, pass_), (file, row) in last_rows(options.results, options.gpu).items()
        if any(fnmatchcase(problem, pattern) for pattern in options.problem)
        and (mode in modes and layout in options.layout and pass_ in options.pass_)
    ]
    header = ["problem", "mode", "layout", "pass", "status", "ms", "asked", "reached", "floor", "measured", "kernel"]
    print(report.table(header, lines(rows, rules_of(options.targets.read_text())), left=5))
    return 0


if __name__ == "__main__":
    sys.exit(main())
