"""How much of the long sweeps runs. conftest.py sets it before tests are collected."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable

import pytest

all_cases = False


def sweep(one_in: int) -> pytest.MarkDecorator:
    """Of the test's parametrised cases a sample runs, one in so many, unless --all is given."""
    return pytest.mark.sweep(one_in)


def examples(count: int) -> int:
    """What hypothesis draws for a case: a fifth, and at least three, unless --all is given."""
    return count if all_cases else max(3, count // 5)


def left_out(items: Iterable[pytest.Item], seed: int) -> set[str]:
    """Of the sweeps' cases those that the sample lacks, by their ids."""
    cases = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("sweep")
        if marker is not None:
            cases[item.nodeid.partition("[")[0], marker.args[0]].append(item.nodeid)
    return {
        name
        for (test, one_in), names in cases.items()
        for name in random.Random(f"{test} {seed}").sample(names, len(names) - -(-len(names) // one_in))
    }
