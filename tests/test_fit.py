"""Cost constants and what they are fitted to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import _fastconv_native as native
from bench import fit, report


def test_costs_are_fitted_to_measurements() -> None:
    """A constant that is far off is found again, and what is written is what a costs.def holds."""
    data = fit.load(report.RESULTS, ["h200"])
    before = native.costs()
    rate = before["halo.kProductRate"][0]
    try:
        good = fit.loss(data)
        native.set_cost("halo.kProductRate", 0, rate / 4)
        assert fit.loss(data) > 1.5 * good
        fit.fit(data, ["halo.kProductRate"], rounds=3, least=1e-5, prior=0)
        assert native.costs()["halo.kProductRate"][0] == pytest.approx(rate, rel=0.3)
        assert fit.loss(data) < 1.1 * good
    finally:
        fit.reset(before)
    assert native.costs() == before
    assert all(math.isfinite(value) for values in before.values() for value in values)


def test_fitted_costs_are_written_into_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "families" / "costs.def"
    table.parent.mkdir()
    table.write_text(
        "FASTCONV_COST(a, kOne, .5)  // why (and how)\nFASTCONV_COSTS(a, kTwo, 0, 2)\nFASTCONV_COST(b, kOne, 7)\n"
    )
    monkeypatch.setattr(fit, "COSTS", tmp_path)
    old = {"a.kOne": [0.5], "a.kTwo": [0.0, 2.0], "b.kOne": [7.0]}
    fit.write(old, old | {"a.kOne": [0.25], "a.kTwo": [0.0, 2.5]})
    assert table.read_text() == (
        "FASTCONV_COST(a, kOne, .25)  // why (and how)\nFASTCONV_COSTS(a, kTwo, 0, 2.5)\nFASTCONV_COST(b, kOne, 7)\n"
    )
