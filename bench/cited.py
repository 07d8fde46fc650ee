"""Files under bench/results that nothing cites. Needs no GPU.

    python -m bench.cited --remove

A file stays if some text, script or source names it, if a pattern in Markdown does (`alternatives-*.json`), or if
`bench.targets` reads it. Tables and pictures can be made again: `python -m bench --render`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from bench import performance, report, targets

PLACES = ("README.md", "CHANGELOG.md", "docs", "bench", "tests", "device", "examples", "include", "src", "python")
TEXTS = {".md", ".py", ".json", ".h", ".cuh", ".cpp", ".cu", ".def", ".sh", ""}
NAME = re.compile(r"[A-Za-z][\w.*?-]*\.(?:jsonl?|md|txt|png)\b")


def texts(root: Path, results: Path) -> list[Path]:
    files = [path for place in PLACES for path in (root / place, *(root / place).rglob("*")) if path.is_file()]
    return [path for path in files if path.suffix in TEXTS and results not in path.parents]


def uncited(root: Path, results: Path) -> list[Path]:
    names, patterns = set[str](), set[str]()
    for path in texts(root, results):
        found = set(NAME.findall(path.read_text()))
        names |= found
        if path.suffix == ".md":
            patterns |= {name for name in found if "*" in name or "?" in name}
    for gpu in performance.gpus(results):
        names |= {f"{file}.json" for file, _ in targets.last_rows(results, gpu).values()}
    files = sorted(path for path in results.rglob("*") if path.is_file())
    return [
        path
        for path in files
        if path.name not in names and not any(fnmatchcase(path.name, pattern) for pattern in patterns)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cited", description=__doc__.partition("\n")[0])
    parser.add_argument("--remove", action="store_true", help="and removes them")
    options = parser.parse_args(arguments)
    for path in uncited(performance.ROOT, report.RESULTS):
        print(path.relative_to(performance.ROOT))
        if options.remove:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
