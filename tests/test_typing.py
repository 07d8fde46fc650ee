"""Type checkers know fastconv: they refuse in a user's file what they refuse of torch's, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import fastconv

USER = Path(__file__).with_name("typing_user.py")
WRONG = [number for number, line in enumerate(USER.read_text().splitlines(), 1) if line.endswith("# error")]


def run(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Where no configuration of ours is found, and fastconv only where Python finds it."""
    above = Path(fastconv.__file__).parents[1]
    path = "" if above.name == "site-packages" else str(above)
    environment = {**os.environ, "MYPYPATH": path, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(fastconv.__file__).with_name("py.typed").exists()


def test_mypy(tmp_path: Path) -> None:
    result = run(tmp_path, "mypy", "--strict", "--cache-dir", str(tmp_path), str(USER))
    found = {int(number) for number in re.findall(r"typing_user\.py:(\d+): error", result.stdout)}
    assert sorted(found) == WRONG, result.stdout + result.stderr


def test_pyright(tmp_path: Path) -> None:
    result = run(tmp_path, "pyright", "--outputjson", "--pythonpath", sys.executable, str(USER))
    report = json.loads(result.stdout)["generalDiagnostics"]
    found = {item["range"]["start"]["line"] + 1 for item in report if item["severity"] == "error"}
    assert sorted(found) == WRONG, result.stdout + result.stderr
