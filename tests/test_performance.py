"""docs/performance.md and the README's table follow from what is committed under bench/results, which all is cited."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import cited, models, performance, report

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


def times(*ms: float) -> dict[str, Any]:
    """Of torch, fastconv and, if it was measured, fastconv fused."""
    return {name: {"ms": of, "spread": 0.01} for name, of in zip(models.CONTENDERS, ms, strict=False)}


def model(name: str, step: dict[str, Any], inference: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {"model": name, "batch": 8, "setting": "tf32", "step": step, "inference": inference, **data}


MACHINE = {"machine": {"device": "NVIDIA H200", "CPU threads": 2}, "versions": {"torch": "2.11", "cuDNN": "91900"}}


def write(results: Path, name: str, **data: Any) -> None:
    (results / name).write_text(json.dumps({**MACHINE, **data}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Whole models in files of three kinds, each model in the last of them that counts; of two runs of a layer, the
    second does."""
    older = [model(name, times(1, 1, 1), times(1, 1, 1)) for name in ("won", "lost", "failed")]
    won = model("won", times(20, 10), times(5, 5.05))
    write(tmp_path, "models-h200-20261130T000000Z.json", rows=older)
    write(tmp_path, "steps-h200-20261201T000000Z.json", rows=[won])
    write(tmp_path, "fused-h200-20261202T000000Z.json", rows=older[1:])
    facts: dict[str, Any] = {"losses": dict.fromkeys(models.CONTENDERS, [7.0, 6.5, 6.25])}
    facts["peak_mib"] = dict.fromkeys(models.CONTENDERS, 100.0)
    facts["busy_ms"] = dict(zip(models.CONTENDERS, (9.5, 8.3, 8.7), strict=True))
    lost = model("lost", times(10, 10.3, 11), times(4, 8, 2), **facts)
    failed = {"model": "failed", "batch": 8, "setting": "tf32", "failure": "out of memory"}
    versions = {"torch": "2.12", "cuDNN": "91900"}
    write(tmp_path, "models-h200-20261203T000000Z.json", rows=[lost, failed], versions=versions)

    def layer(ms: float, status: str = "ok", pass_: str = "fprop") -> dict[str, Any]:
        time = {"spread": 0.0, "least_ms": 1.0, "samples": 5, "method": "events"}
        found = {name: {"time": {**time, "ms": of}, "error": 0.0} for name, of in (("fastconv", ms), ("torch", 1.0))}
        row = {"problem": "seed_3x3", "shape": "N16", "count": 1, "source": "", "mode": "fp16", "layout": "nchw"}
        floor = {"flops": 1, "floor_ms": 0.1, "floor_flops": 1, "floor_bytes": 1, "bound": "bytes"}
        return {**row, **floor, "pass_": pass_, "status": status, "plan": "halo_fprop tile 1", "results": found}

    write(tmp_path, "public-h200-20261201T000000Z.json", rows=[layer(0.1), layer(0.5, pass_="dgrad")])
    write(tmp_path, "public-h200-20261202T000000Z.json", rows=[layer(4.0), layer(0.5, "loose", "wgrad")])
    case = {"model": "resnet50", "dtype": "bf16", "layout": "nhwc", "pass": "dgrad"}
    rows = [{**case, "layer": f"l{us}", "ours_us": us, "torch_us": 100.0} for us in (50.0, 101.0, 200.0)]
    write(tmp_path, "cpu-cpu-20261201T000000Z.json", rows=rows, batch=4)
    return tmp_path


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line.startswith("| ")]


def test_readme_shows_losses_of_the_last_runs(results: Path) -> None:
    table = performance.readme_table(results)
    header, _, failed, lost, won = cells(table)
    assert len(header) == len(failed) == len(lost) == len(won) == 11
    assert won == ["won", "8", "TF32, NCHW", "20.00", "10.00", "-", "5.000", "5.050", "-", "400", "-"]
    assert lost[3:] == ["10.00", "**10.30**", "**11.00**°", "4.000", "**8.000**", "2.000", "800", "**727**"]
    assert failed[3] == "out of memory"
    assert "torch 2.12, cuDNN 91900 or torch 2.11, cuDNN 91900" in table
    files = re.findall(r"\]\(bench/results/(.*?)\)", table)
    assert files == ["steps-h200-20261201T000000Z.json", "models-h200-20261203T000000Z.json"], "that rows are from"
    marks = f"{performance.TIMES}{performance.END}{performance.CPU}{performance.END}"
    text = f"before{performance.TABLE}stale{performance.END}between{marks}after"
    made = performance.readme(text, results)
    assert made.startswith("before") and "lost" in made and "stale" not in made and made.endswith("after")
    assert performance.readme(made, results) == made
    with pytest.raises(ValueError, match="the README must hold"):
        performance.readme("before", results)


def test_readme_without_a_run_says_so(tmp_path: Path) -> None:
    assert performance.readme_table(tmp_path) == "`python -m bench.models` has not been run yet."
    assert performance.readme_commands(tmp_path) == performance.readme_cpu(tmp_path) == ""


def test_readme_shows_the_cpu_and_the_commands(results: Path) -> None:
    assert cells(performance.readme_cpu(results))[::2] == [["model", "bf16, nhwc"], ["resnet50", "1.00 (0.50)"]]
    rows = [{"command": "./dev train", "seconds": 100}, {"command": "./dev test", "seconds": 20}]
    (results / "commands-cpu-20261201T000000Z.json").write_text(json.dumps({"cores": 2, "rows": rows}))
    text = performance.readme_commands(results)
    assert "on 2 cores" in text and "took 2 minutes" in text and "after it 1 minute (" in text


def test_page_lists_every_loss(results: Path) -> None:
    page = performance.page(results)
    assert "- lost, TF32, NCHW, step: 10.30 ms (fastconv), 10.00 ms (cuDNN)" in page
    assert "- lost, TF32, NCHW, step: 11.00 ms (fastconv, fused), 10.00 ms (cuDNN)" in page
    assert "- lost, TF32, NCHW, inference: 8.000 ms (fastconv), 4.000 ms (cuDNN)" in page
    assert page.count("- lost") == 3 and "- won" not in page
    assert "Slower, or less exact than promised (`loose`): 2 of 3." in page
    found = cells(page)
    assert ["public", "fp16", "nchw", "fprop", "1", "0.25x", "0.25x", "0.25x", "1", "2%"] in found  # .1 ms of 4
    assert ["public", "fp16", "nchw", "dgrad", "1", "2.00x", "2.00x", "2.00x", "0"] in [row[:9] for row in found]
    (slow,) = (row for row in found if row[1:2] == ["seed_3x3"] and row[5] == "fprop")
    assert slow[6:] == ["4.000", "1.000", "0.25x", "ok", "20261202T000000Z", "halo_fprop"]
    (loose,) = (row for row in found if row[1:2] == ["seed_3x3"] and row[5] == "wgrad")
    assert loose[8:10] == ["2.00x", "loose"]
    assert ["resnet50", "bf16", "nhwc", "dgrad", "3", "1.00x", "0.50x", "2.00x", "1"] in found
    assert ["resnet50", "l200.0", "bf16", "nhwc", "dgrad", "200", "100", "0.50x"] in found and "l101.0" not in page
    assert "](../bench/results/public-h200-20261201T000000Z.json)" in page, "that the gradient is from"


def test_page_shows_whole_models_and_batch_norms(results: Path) -> None:
    norm = {"size": "8x4x2x2", "mode": "bf16", "layout": "nhwc", "then": "+ relu", "pass": "both", "mib": 64.0}
    norm |= {"ms": {"fastconv": 0.5, "torch": 1.5}, "floor_ms": 0.4}
    write(results, "batch_norm-h200-20261203T000000Z.json", rows=[norm])
    page = performance.page(results)
    found = cells(page)
    line = ["lost", "8", "tf32", "step", "fastconv, fused", "11.00", "1%", "0.91x", "727", "8.7", "100.0", "6.2500"]
    assert line in found and page.count("## Whole models") == 1
    assert ["won", "8", "tf32", "step", "fastconv", "10.00", "1%", "2.00x", "800", "-", "-", "-"] in found
    assert ["8x4x2x2", "bf16", "nhwc", "+ relu", "both", "64", "0.5000", "1.5000", "3.00", "80%"] in found


def test_page_shows_fused_layers_as_they_were_last_measured(results: Path) -> None:
    def row(layer: str, speed_up: float) -> dict[str, Any]:
        case = {"layer": layer, "shape": f"N32 {layer}", "setting": "tf32", "what": "eval"}
        return {**case, "ms": {"separate": speed_up, "fused": 1.0}, "speed_up": speed_up}

    write(results, "fused_layers-h200-20261203T000000Z.json", rows=[row("kept", 2.0), row("again", 0.5)])
    write(results, "fused_layers-h200-20261204T000000Z.json", rows=[row("again", 4.0), row("slow", 0.96)])
    page = performance.page(results)
    assert page.count("## Fused layers, H200") == 1
    assert ["eval", "tf32", "3", "1.97x", "0.96x", "4.00x", "1"] in cells(page)
    assert "Below 0.97x: 1.\n\n- N32 slow, tf32, eval: 0.960x (separate 0.9600 ms, fused 1.000 ms)" in page
    assert "- N32 again" not in page


def test_page_compares_compiled_models(results: Path) -> None:
    def both(eager: dict[str, Any], compiled: dict[str, Any]) -> dict[str, Any]:
        return eager | {models.COMPILED.format(name): time for name, time in compiled.items()}

    old = model("old", both(times(9, 9), times(8, 2)), both(times(9, 9), times(8, 4)))  # before fused ones were timed
    slow = both(times(9, 9, 3), times(8, 8, 4))
    new = model("new", slow, slow)
    failed = {"model": "failed", "batch": 8, "setting": "tf32", "failure": "out of memory"}
    write(results, "compiled-h200-20261203T000000Z.json", rows=[old, new, failed])
    page = performance.page(results)
    assert "- fastconv, compiled, 2 cases: step 2.00x, inference 1.41x" in page
    assert "- fastconv, fused, compiled, 1 cases: step 2.00x, inference 2.00x" in page
    lines = page.partition("Compiled and slower:\n\n")[2].partition("\n\n")[0].splitlines()
    text = "4.000 ms (fastconv, fused, compiled), 3.000 ms (fastconv, fused)"
    assert lines == [f"- new, TF32, NCHW, {what}: {text}" for what in models.WHAT]


def test_chart_is_drawn_from_the_last_runs(results: Path) -> None:
    pytest.importorskip("matplotlib")
    path = results / "chart.svg"
    performance.draw(results, path)
    picture = path.read_text()
    assert "won, TF32, NCHW" in picture and "failed" not in picture
    assert re.findall(r">(\d+)</text>", picture) == ["800", "400", "777", "800", "727"], "by contender"
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
