"""How much of the long sweeps runs. conftest.py sets it before tests are collected."""

from __future__ import annotations

import pytest

all_cases = False


def sweep(one_in: int) -> pytest.MarkDecorator:
    """Of the test's parametrised cases a sample runs, one in so many, unless --all is given."""
    return pytest.mark.sweep(one_in)


def examples(count: int) -> int:
    """What hypothesis draws for a case: a fifth, and at least three, unless --all is given."""
    return count if all_cases else max(3, count // 5)
