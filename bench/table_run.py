"""A measurement that makes one table: its options, and its report even if the run is cut short."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import environment, report, timing

Row = dict[str, Any]


def parser(name: str, about: str, seconds: float = 0.02) -> argparse.ArgumentParser:
    """With the options that all of them have. about: the module's docstring."""
    made = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=about.partition("\n")[0])
    add = made.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--seconds", type=float, default=seconds, help="per measurement after warm-up")
    add("--out", type=Path, default=report.RESULTS, help="default: bench/results")
    add("--quick", action="store_true", help="small tensors, to see that everything runs")
    return made


def run(
    name: str,
    title: str,
    measure: Callable[[torch.device], Iterator[Row]],
    markdown: Callable[[Sequence[Row]], str],
    options: argparse.Namespace,
    **data: Any,
) -> int:
    """Prints the rows and writes them, with the data, as <name>-<device>-<stamp>.json and .md. The exit status."""
    device = torch.device(options.device)
    timing.use_device(device)
    rows: list[Row] = []
    try:
        with report.sigterm_exits():
            for row in measure(device):
                rows.append(row)
    finally:
        if rows:
            text = markdown(rows)
            title = f"{title}, {environment.device_name(device)}"
            path = environment.write_table(options.out, name, device, title, text, **data, rows=rows)
            print(f"{text}\n\nwrote {path}.json, {path}.md")
    return 0
