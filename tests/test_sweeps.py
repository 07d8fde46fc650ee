"""Of long sweeps a sample runs."""

from __future__ import annotations

from typing import cast

import pytest

import sweeps


class Item:
    def __init__(self, nodeid: str, one_in: int | None) -> None:
        self.nodeid, self.one_in = nodeid, one_in

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return sweeps.sweep(self.one_in).mark if name == "sweep" and self.one_in else None


def sample(seed: int) -> set[str]:
    items = [Item(f"a.py::test_sweep[{i}]", 8) for i in range(570)] + [Item(f"a.py::test[{i}]", None) for i in range(9)]
    everything = {item.nodeid for item in items}
    return everything - sweeps.left_out(cast("list[pytest.Item]", items), seed)


def test_of_a_sweep_one_in_so_many_runs_and_of_others_all() -> None:
    kept = sample(1)
    assert len([name for name in kept if "test_sweep" in name]) == 72  # rounded up
    assert len(kept) == 72 + 9


def test_a_seed_gives_the_same_sample_and_another_one_another() -> None:
    assert sample(1) == sample(1) != sample(2)
    assert len(set().union(*map(sample, range(60)))) == 570 + 9, "no case is left out for good"


def test_examples_are_fewer_but_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "all_cases", False)
    assert [sweeps.examples(count) for count in (5, 40, 60)] == [3, 8, 12]
    monkeypatch.setattr(sweeps, "all_cases", True)
    assert [sweeps.examples(count) for count in (5, 40, 60)] == [5, 40, 60]
