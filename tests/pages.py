"""The documentation's pages, and the code that they show."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results"
FOLDERS = ("bench", "device", "docs", "examples", "python", "release", "src", "tests")
INDEX = ROOT / "docs/index.md"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(path for top in FOLDERS for path in (ROOT / top).rglob("*.md") if RESULTS not in path.parents),
]
FENCE = re.compile(r"^ *```([^`\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[tuple[str, str]]:
    """Of a page: language, or directive, and text."""
    return [(language.strip(), text) for language, text in FENCE.findall(path.read_text())]


def listed() -> list[Path]:
    """The pages in the site's navigation."""
    found: list[Path] = []
    for directive, text in blocks(INDEX):
        assert directive == "{toctree}", directive
        for line in text.splitlines():
            if line and not line.startswith(":"):
                entry = re.sub(r".*<(.*)>", r"\1", line)
                paths = sorted(INDEX.parent.glob(f"{entry}.md"))
                assert paths, f"{line}: no such page"
                found += (path.resolve() for path in paths)
    return found
