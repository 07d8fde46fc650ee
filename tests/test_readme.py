"""The documentation's Python snippets run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SNIPPETS = {
    f"{name}-{number}": snippet
    for name in ("README.md", "docs/models.md")
    for number, snippet in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL), 1)
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet_runs(name: str) -> None:
    exec(compile(SNIPPETS[name], name, "exec"), {})
