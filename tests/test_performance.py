"""docs/performance.md and the README's table follow from what is committed under bench/results, which all is cited."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import cited, performance, report

committed = pytest.mark.skipif(not report.RESULTS.is_dir(), reason="an sdist has no results")


@committed
@pytest.mark.parametrize(
    ("path", "text"),
    [
        (performance.PAGE, lambda: performance.page(report.RESULTS)),
        (performance.README, lambda: performance.readme(performance.README.read_text(), report.RESULTS)),
    ],
    ids=["page", "README"],
)
def test_committed_figures_are_those_of_the_results(path: Path, text: Any) -> None:
    assert path.read_text() == text(), "to be made anew: python -m bench.performance"


@committed
def test_committed_results_are_cited() -> None:
    command = ["git", "ls-files", "-z", str(report.RESULTS)]
    tracked = subprocess.run(command, cwd=performance.ROOT, capture_output=True, text=True, check=True).stdout
    files = {performance.ROOT / name for name in tracked.split("\0")}
    assert len(files) > 1 and not files.intersection(cited.uncited(performance.ROOT, report.RESULTS))


def times(step: float, other: float) -> dict[str, Any]:
    """Of the other library and of fastconv."""
    return {"torch": {"ms": step, "spread": 0.01}, "fastconv": {"ms": other, "spread": 0.02}}


MACHINE = {"machine": {"device": "NVIDIA H200", "CPU threads": 2}, "versions": {"torch": "2.11", "cuDNN": "91900"}}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Of two runs of whole models the second counts; of two runs of a layer, the second."""

    def write(name: str, **data: Any) -> None:
        (tmp_path / name).write_text(json.dumps({**MACHINE, **data}))

    def model(name: str, **data: Any) -> dict[str, Any]:
        return {"model": name, "batch": 8, "setting": "tf32", **data}

    write("steps-h200-20261201T000000Z.json", rows=[model("older", failure="none")])
    won = model("won", step=times(20, 10), inference=times(5, 5.05))
    lost = model("lost", step=times(10, 10.3), inference=times(4, 8))
    write("steps-h200-20261202T000000Z.json", rows=[won, lost, model("failed", failure="out of memory")])

    def layer(ms: float, status: str = "ok", pass_: str = "fprop") -> dict[str, Any]:
        time = {"spread": 0.0, "least_ms": 1.0, "samples": 5, "method": "events"}
        found = {name: {"time": {**time, "ms": of}, "error": 0.0} for name, of in (("fastconv", ms), ("torch", 1.0))}
        row = {"problem": "seed_3x3", "shape": "N16", "count": 1, "source": "", "mode": "fp16", "layout": "nchw"}
        floor = {"flops": 1, "floor_ms": 0.1, "floor_flops": 1, "floor_bytes": 1, "bound": "bytes"}
        return {**row, **floor, "pass_": pass_, "status": status, "plan": "halo_fprop tile 1", "results": found}

    write("public-h200-20261201T000000Z.json", rows=[layer(0.1), layer(0.5, pass_="dgrad")])
    write("public-h200-20261202T000000Z.json", rows=[layer(4.0), layer(0.5, "loose", "wgrad")])
    case = {"model": "resnet50", "dtype": "bf16", "layout": "nhwc", "pass": "dgrad"}
    rows = [{**case, "layer": f"l{us}", "ours_us": us, "torch_us": 100.0} for us in (50.0, 101.0, 200.0)]
    write("cpu-cpu-20261201T000000Z.json", rows=rows, batch=4)
    return tmp_path


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line.startswith("| ")]


def test_readme_shows_losses_of_the_last_run(results: Path) -> None:
    header, _, *rows = cells(performance.readme_table(results))
    assert [len(row) for row in rows] == [len(header)] * 3
    assert rows[0] == ["won", "8", "TF32, NCHW", "20.00", "10.00", "400", "800", "5.000", "5.050"]
    assert rows[1] == ["lost", "8", "TF32, NCHW", "10.00", "**10.30**", "800", "**777**", "4.000", "**8.000**"]
    assert rows[2][3] == "out of memory"
    marks = f"{performance.TIMES}{performance.END}{performance.CPU}{performance.END}"
    text = f"before{performance.TABLE}stale{performance.END}between{marks}after"
    made = performance.readme(text, results)
    assert made.startswith("before") and "lost" in made and "stale" not in made and made.endswith("after")
    assert performance.readme(made, results) == made
    with pytest.raises(ValueError, match="the README must hold"):
        performance.readme("before", results)


def test_readme_without_a_run_says_so(tmp_path: Path) -> None:
    assert performance.readme_table(tmp_path) == "`python -m bench.steps` has not been run yet."
    assert performance.readme_commands(tmp_path) == performance.readme_cpu(tmp_path) == ""


def test_readme_shows_the_cpu_and_the_commands(results: Path) -> None:
    assert cells(performance.readme_cpu(results))[::2] == [["model", "bf16, nhwc"], ["resnet50", "1.00 (0.50)"]]
    rows = [{"command": "./dev train", "seconds": 100}, {"command": "./dev test", "seconds": 20}]
    (results / "commands-cpu-20261201T000000Z.json").write_text(json.dumps({"cores": 2, "rows": rows}))
    text = performance.readme_commands(results)
    assert "on 2 cores" in text and "took 2 minutes" in text and "after it 1 minute (" in text


def test_page_lists_every_loss(results: Path) -> None:
    page = performance.page(results)
    assert "- lost, TF32, NCHW, step: 10.30 ms, cuDNN 10.00" in page
    assert "- lost, TF32, NCHW, inference: 8.000 ms, cuDNN 4.000" in page and "- won" not in page
    assert "Slower, or less exact than promised (`loose`): 2 of 3." in page
    found = cells(page)
    assert ["public", "fp16", "nchw", "fprop", "1", "0.25x", "0.25x", "0.25x", "1"] in found
    assert ["public", "fp16", "nchw", "dgrad", "1", "2.00x", "2.00x", "2.00x", "0"] in found
    (slow,) = (row for row in found if row[1:2] == ["seed_3x3"] and row[5] == "fprop")
    assert slow[6:] == ["4.000", "1.000", "0.25x", "ok", "20261202T000000Z", "halo_fprop"]
    (loose,) = (row for row in found if row[1:2] == ["seed_3x3"] and row[5] == "wgrad")
    assert loose[8:10] == ["2.00x", "loose"]
    assert ["resnet50", "bf16", "nhwc", "dgrad", "3", "1.00x", "0.50x", "2.00x", "1"] in found
    assert ["resnet50", "l200.0", "bf16", "nhwc", "dgrad", "200", "100", "0.50x"] in found and "l101.0" not in page
    assert "](../bench/results/public-h200-20261201T000000Z.json)" in page, "that the gradient is from"


def test_page_shows_fused_models_and_batch_norms(results: Path) -> None:
    def contenders(*ms: float) -> dict[str, Any]:
        names = ("torch", "fastconv", "fastconv, fused")
        return {name: {"ms": of, "spread": 0.01} for name, of in zip(names, ms, strict=True)}

    row = {"model": "resnet50", "batch": 8, "setting": "bf16", "step": contenders(20, 19, 10)}
    row |= {"inference": contenders(4, 4, 5), "losses": dict.fromkeys(contenders(1, 1, 1), [7.0, 6.5, 6.25])}
    row |= {
        "peak_mib": dict.fromkeys(contenders(1, 1, 1), 100.0),
        "busy_ms": dict.fromkeys(contenders(1, 1, 1), 9.5),
    }
    norm = {"size": "8x4x2x2", "mode": "bf16", "layout": "nhwc", "then": "+ relu", "pass": "both", "mib": 64.0}
    norm |= {"ms": {"fastconv": 0.5, "torch": 1.5}, "floor_ms": 0.4}
    for name, rows in (("fused", [row]), ("batch_norm", [norm])):
        (results / f"{name}-h200-20261203T000000Z.json").write_text(json.dumps({**MACHINE, "rows": rows}))
    found = cells(performance.page(results))
    assert "- resnet50, bf16, channels_last, inference: 5.000 ms, cuDNN 4.000" in performance.page(results)
    line = ["resnet50", "8", "bf16", "step", "fastconv, fused", "10.00", "1%", "2.00x", "800", "9.5", "100.0", "6.2500"]
    assert line in found
    assert ["8x4x2x2", "bf16", "nhwc", "+ relu", "both", "64", "0.5000", "1.5000", "3.00", "80%"] in found


def test_chart_is_drawn_from_the_last_run(results: Path) -> None:
    pytest.importorskip("matplotlib")
    path = results / "chart.svg"
    performance.draw(results, path)
    picture = path.read_text()
    assert "won, TF32, NCHW" in picture and ">777<" in picture and "older" not in picture
    performance.draw(results, path)
    assert path.read_text() == picture


def test_what_nothing_cites_is_listed(tmp_path: Path) -> None:
    results = tmp_path / "bench" / "results"
    (results / "tried").mkdir(parents=True)
    names = ["a-1.json", "b-1.json", "b-1.md", "c-1.txt", "tried/a-2.json", "tried/d-1.json", "e-1.png"]
    for name in names:
        (results / name).write_text("b-1.md, which a result may name")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "log.md").write_text("`a-*.json` and tried/d-1.json")
    (tmp_path / "bench" / "run.py").write_text('"c-1.txt" "e-*.png"')
    left = [str(path.relative_to(results)) for path in cited.uncited(tmp_path, results)]
    assert left == ["b-1.json", "b-1.md", "e-1.png"]
