"""How long the README's two commands take from a fresh clone, downloads included.

    python -m bench.commands

Without CUDA kernels, as on a machine that has no GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import fastconv  # noqa: F401  its version is recorded at the end, half an hour from now
from bench import environment, report

COMMANDS = ("./dev train", "./dev test")  # in this order, as the first one sets up what both need


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.commands", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as room:
        subprocess.run(["git", "clone", "-q", environment.ROOT, room], check=True)
        for command in COMMANDS:
            begin = time.monotonic()
            status = subprocess.run(command.split(), cwd=room, env={**os.environ, "FASTCONV_CUDA": "0"}).returncode
            rows.append({"command": command, "seconds": round(time.monotonic() - begin), "exit_status": status})
            print(rows[-1], flush=True)
    lines = [[str(value) for value in row.values()] for row in rows]
    device, cores = torch.device("cpu"), len(os.sched_getaffinity(0))
    title = f"The README's commands, {environment.device_name(device)}, {cores} cores"
    table = report.table(["command", "seconds", "exit status"], lines, left=1)
    path = environment.write_table(options.out, "commands", device, title, table, cores=cores, rows=rows)
    print(f"{table}\n\nwrote {path}.json, {path}.md")
    return max(row["exit_status"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
