"""The benchmark's own arithmetic; what it measures is not tested."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import itertools
import json
import math
import os
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fastconv
from bench import (
    accuracy,
    alternatives,
    batch_norm,
    bias_grad,
    builds,
    environment,
    fused_layers,
    hindsight,
    limits,
    models,
    opponents,
    overlap,
    regret,
    report,
    table_run,
    targets,
    timing,
)
from bench.__main__ import QUICK_FLOPS, parse, quick
from bench.errors import Reference, random_tensors, reference, verdict
from bench.floors import H200, H200_BY_WARPS, Ceilings, floor_of
from bench.models import CONTENDERS, DEFAULT_SETTINGS, FUSED, WHAT
from bench.modes import DTYPES, PRECISIONS, Mode, modes_of
from bench.report import Report, Result, Row, losses, markdown, table_of_rows, totals
from bench.suites import LAYOUTS, PASSES, Problem, load_suite, sample, select, suite_names

FP32 = Mode("float32", "ieee")
ALL_PROBLEMS = [problem for name in suite_names() for problem in load_suite(name).problems]


@pytest.mark.parametrize("problem", ALL_PROBLEMS, ids=lambda problem: problem.name)
def test_suite_problems_are_convolutions_to_torch(problem: Problem) -> None:
    x, w = torch.empty(problem.input, device="meta"), torch.empty(problem.weight, device="meta")
    assert F.conv2d(x, w, None, *problem.conv_args).shape == problem.output


@pytest.mark.parametrize(
    ("suite", "layers", "parameters"),
    [
        # torchvision's counts less the classifier's: every filter, and a scale and a shift per batch-normed channel.
        ("resnet50", 53, 25_557_032 - 2_049_000),
        ("efficientnet_b0", 81, 5_288_548 - 1_281_000),
        ("mobilenet_v2", 52, 3_504_872 - 1_281_000),
    ],
)
def test_network_suites_have_the_published_number_of_parameters(suite: str, layers: int, parameters: int) -> None:
    problems = load_suite(suite).problems
    assert sum(problem.count for problem in problems) == layers
    # Squeeze-and-excitation layers, on 1x1 images, have a bias instead of a batch norm.
    per_channel = {problem.name: 1 if problem.input[2] == 1 else 2 for problem in problems}
    assert parameters == sum(
        problem.count * (math.prod(problem.weight) + per_channel[problem.name] * problem.weight[0])
        for problem in problems
    )


def test_unet_suite_ends_at_the_published_size() -> None:
    assert load_suite("unet").problems[-1].output == (1, 2, 388, 388)


@pytest.mark.parametrize(
    "change",
    [{"groups": 3}, {"stride": (0, 1)}, {"padding": (-1, 0)}, {"input": (1, 8, 2, 9)}, {"count": 0}],
)
def test_illegal_problem_is_refused(change: dict[str, object]) -> None:
    legal = Problem("legal", input=(1, 8, 9, 9), weight=(4, 8, 3, 3))
    with pytest.raises(ValueError, match="problem 'legal'"):
        dataclasses.replace(legal, **change)  # type: ignore[arg-type]


def test_select_names_the_pattern_that_matches_nothing() -> None:
    problems = load_suite("public").problems
    assert [problem.name for problem in select(problems, ["seed_*"])] == ["seed_5x7", "seed_3x3", "seed_5x9d"]
    with pytest.raises(ValueError, match="'absent'"):
        select(problems, ["seed_3x3", "absent"])


def test_the_torchvision_suite_has_every_convolution_of_its_models() -> None:
    problems = load_suite("torchvision").problems
    assert (len(problems), sum(problem.count for problem in problems)) == (485, 1213)
    resnet = [problem for problem in problems if "resnet50" in problem.source.split(", ")]
    assert resnet and all(problem.input[0] == 32 for problem in problems)


def test_a_sample_of_problems_is_that_of_its_seed() -> None:
    problems = load_suite("torchvision").problems
    drawn = sample(problems, 40, 7)
    assert len(drawn) == 40 and drawn == sample(problems, 40, 7) != sample(problems, 40, 8)
    assert list(drawn) == [problem for problem in problems if problem in drawn]
    assert sample(problems, None, 7) == problems == sample(problems, 1000, 7)


@pytest.mark.parametrize(
    ("kind", "input_", "weight", "groups"),
    [
        ("pointwise", (1, 8, 9, 9), (4, 8, 1, 1), 1),
        ("dense 3x3", (1, 8, 9, 9), (4, 8, 3, 3), 1),
        ("dense", (1, 8, 9, 9), (4, 8, 1, 3), 1),
        ("first", (1, 3, 9, 9), (4, 3, 1, 1), 1),
        ("depthwise", (1, 8, 9, 9), (8, 1, 3, 3), 8),
        ("grouped", (1, 8, 9, 9), (8, 4, 1, 1), 2),
    ],
)
def test_kinds_of_layers(
    kind: str, input_: tuple[int, int, int, int], weight: tuple[int, int, int, int], groups: int
) -> None:
    assert Problem("some", input=input_, weight=weight, groups=groups).kind == kind


def test_quick_problems_are_small() -> None:
    for problem in ALL_PROBLEMS:
        small = quick(problem)
        assert small.flops <= QUICK_FLOPS or small.input[0] == 1
        assert small.weight == problem.weight


@pytest.mark.parametrize(
    "problem",
    [
        Problem("padded", (2, 4, 7, 5), (6, 4, 3, 3), padding=(2, 1)),
        Problem("dilated", (1, 4, 9, 9), (4, 2, 3, 3), dilation=(3, 2), padding=(3, 4), groups=2),
        Problem("skipping", (1, 3, 8, 9), (5, 3, 1, 2), stride=(2, 3)),
    ],
    ids=lambda problem: problem.name,
)
def test_floor_counts_products_with_pixels_and_pixels_read(problem: Problem) -> None:
    # A convolution of ones counts products; its input gradient is nonzero at the pixels that are read.
    x = torch.ones(problem.input, dtype=torch.float64, requires_grad=True)
    y = F.conv2d(x, torch.ones(problem.weight, dtype=torch.float64), None, *problem.conv_args)
    y.sum().backward()
    assert x.grad is not None
    read = int((x.grad != 0).sum())

    for pass_ in PASSES:
        floor = floor_of(problem, pass_, FP32, H200)
        assert floor.flops == 2 * int(y.sum())
        pixels = x.numel() if pass_ == "dgrad" else read
        assert floor.bytes == 4 * (pixels + math.prod(problem.weight) + y.numel())


def test_floor_is_the_larger_of_arithmetic_and_traffic() -> None:
    problem = Problem("p", (1, 10, 1, 1), (10, 10, 1, 1))  # 200 FLOP, 120 elements
    ceilings = Ceilings(copy_gbs=1e-6, tflops={"fp32 ieee": 1e-9}, source="")  # 1000 bytes/s, 1000 FLOP/s
    floor = floor_of(problem, "fprop", FP32, ceilings)
    assert (floor.flops_ms, floor.bytes_ms) == pytest.approx((200, 480))
    assert (floor.ms, floor.bound) == (floor.bytes_ms, "bytes")


def test_every_mode_has_a_rate() -> None:
    modes = modes_of(["float32", "float16", "bfloat16", "float64"], PRECISIONS)
    assert {mode.label for mode in modes} == set(H200.tflops)


def test_summary_of_samples_is_median_and_interquartile_range() -> None:
    found = timing.summarize([4.0, 1.0, 2.0, 100.0, 3.0], "test")
    assert (found.ms, found.least_ms, found.samples) == (3.0, 1.0, 5)
    assert found.spread == pytest.approx((4.0 - 2.0) / 3.0)
    assert timing.summarize([2.0], "test").spread == 0.0


def test_input_sets_exceed_three_caches() -> None:
    cache = 60 << 20
    for size in (2 << 20, 50 << 20, 179 << 20):
        assert timing.set_count(size, cache) * size >= 3 * cache
    assert timing.set_count(1 << 30, cache) == 1


def test_cpu_time_is_of_one_call() -> None:
    calls = []
    found = timing.time_calls([lambda: calls.append(0), lambda: calls.append(1)], torch.device("cpu"), 0.001)
    assert found.samples + 1 == len(calls)
    assert set(calls) == {0, 1}


def test_contenders_take_turns() -> None:
    calls: list[str] = []
    contenders = {name: timing.prepare([functools.partial(calls.append, name)], torch.device("cpu")) for name in "ab"}
    assert calls == ["a", "b"]
    found = timing.time_in_turns(contenders, torch.device("cpu"), 0.001)
    assert calls[:12] == ["a", "b"] * 6
    assert all(found[name].samples + 1 == calls.count(name) for name in "ab")


class Replays:
    """Stands for a graph: a replay takes so many milliseconds a call, and some to start."""

    def __init__(self, calls: int, ms: float) -> None:
        self.calls, self.ms = calls, ms

    def replay(self) -> float:
        return 0.005 + self.calls * self.ms


@pytest.mark.parametrize(
    ("sets", "ms", "cycles"), [(20, 0.006, 16), (1, 0.1, 16), (2, 0.1, 10), (2, 0.4, 2), (2, 2.9, 1)]
)
def test_replays_are_long_whatever_a_call_costs_the_host(
    monkeypatch: pytest.MonkeyPatch, sets: int, ms: float, cycles: int
) -> None:
    monkeypatch.setattr(timing, "_capture", lambda calls, cycles: Replays(len(calls) * cycles, ms))
    monkeypatch.setattr(timing, "_event_ms", lambda call: call() or max(ms, 0.05))  # a call by itself: its launch
    timed = timing._prepare_cuda([lambda: None] * sets)
    assert timed.calls == cycles * sets and timed.sample_ms == pytest.approx(0.005 + cycles * sets * ms)
    assert timed.method == f"graph of {cycles} x {sets}"


def test_host_times_compare_all_contenders() -> None:
    found = timing.host_times({"a": lambda: None, "b": lambda: sum(range(2000))}, torch.device("cpu"), burst=10)
    assert 0 < found["a"] < found["b"]


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("groups", [1, 4])
def test_reference_of_a_slice_equals_that_part_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, pass_: str, groups: int
) -> None:
    problem = Problem("p", (5, 8, 9, 8), (16, 8 // groups, 3, 2), (2, 1), (1, 2), (1, 2), groups)
    data = random_tensors(problem, torch.float32, torch.Generator().manual_seed(0))
    whole = reference(problem, pass_, data)
    monkeypatch.setattr("bench.errors.FULL_CHECK_FLOPS", 0)
    monkeypatch.setattr("bench.errors.WGRAD_CHECK_CHANNELS", 1)
    part = reference(problem, pass_, data)
    assert {0, whole.value.shape[0] - 1} <= set(part.rows.tolist())
    assert part.rows.numel() < whole.rows.numel()
    torch.testing.assert_close(part.value, whole.value[part.rows])
    assert part.error(whole.value) < 1e-14


def test_error_is_normwise_and_sees_nan() -> None:
    expected = Reference(torch.arange(2), torch.tensor([[3.0], [4.0]], dtype=torch.float64))
    assert expected.error(torch.tensor([[3.0], [4.5]])) == pytest.approx(0.1)
    assert math.isnan(expected.error(torch.tensor([[3.0], [math.nan]])))


def test_verdict_follows_the_promised_precision() -> None:
    assert verdict(FP32, 1.1e-6, 1e-6) == "ok"
    assert verdict(FP32, 1.3e-6, 1e-6) == "loose"
    assert verdict(FP32, 1e-2, 1.0) == "WRONG"
    assert verdict(FP32, math.nan, 1e-6) == "WRONG"
    assert verdict(Mode("float32", "bf16x3"), 3e-5, 1e-6) == "loose"
    assert verdict(Mode("float32", "tf32"), 3.2e-4, 3e-4) == "ok"
    assert verdict(Mode("float32", "tf32"), 3.4e-4, 3e-4) == "loose"
    assert verdict(Mode("float32", "tf32"), 3e-4, 2e-7) == "ok"  # cuDNN did not use TF32
    assert verdict(Mode("float32", "tf32"), 6e-4, 2e-7) == "loose"


def made_up_report() -> Report:
    def time(ms: float) -> timing.Measurement:
        return timing.Measurement(ms, 0.01, ms, 9, "events")

    rows = []
    for index, (layout, pass_) in enumerate(itertools.product(("nchw", "nhwc"), PASSES)):
        ours, status = Result(time(0.5 + 0.25 * index), 1e-6), "ok"
        if pass_ == "wgrad" and layout == "nhwc":
            ours, status = Result(failure="no such luck"), "FAILED"
        rows.append(
            Row(
                problem="made_up",
                shape="N1 C1 1x1 K1 1x1",
                count=2,
                source="",
                mode="fp32 ieee",
                layout=layout,
                pass_=pass_,
                flops=2e9,
                floor_ms=0.25,
                floor_flops=2e9,
                floor_bytes=1e9,
                bound="bytes",
                status=status,
                plan="im2col_fprop workspace_bytes 0",
                results={"fastconv": ours, "torch": Result(time(1.0), 2e-6)},
            )
        )
    return Report(
        suite="made_up",
        about="for this test",
        date="2026-01-01 00:00 UTC",
        command="python -m bench",
        settings={"seconds": 0.1},
        machine={"device": "none"},
        versions={"torch": torch.__version__},
        build={"commit": ""},
        names={"fastconv": "fastconv", "torch": "cuDNN"},
        ceilings=H200,
        measured=Ceilings(1.0, {"fp32 ieee": 1.0}, "this run"),
        rows=rows,
        host=[timing.HostTime("tiny", "no grad", {"F.conv2d": 10.0, "fastconv.conv2d": 9.0})],
    )


def test_report_survives_json() -> None:
    report = made_up_report()
    assert Report.from_json(report.to_json()) == report


def test_report_of_another_schema_is_refused() -> None:
    text = made_up_report().to_json().replace('"schema": 1', '"schema": 99')
    with pytest.raises(ValueError, match="99"):
        Report.from_json(text)


def test_report_shows_losses_and_failures() -> None:
    report = made_up_report()
    assert report.failed
    text = losses(report)
    assert "made_up, fp32 ieee, nhwc, wgrad: FAILED no such luck" in text
    assert "made_up, fp32 ieee, nhwc, dgrad: 1.50 times the time of cuDNN" in text
    assert "nchw, fprop" not in text  # faster
    assert len(table_of_rows(report).splitlines()) == 2 + len(report.rows)


def test_totals_weigh_layers_by_their_count() -> None:
    cells = [[cell.strip() for cell in line.split("|")] for line in totals(made_up_report()).splitlines()]
    assert ["", "fp32 ieee", "nchw", "fprop", "1.000", "2.000", ""] in cells


def test_report_is_written_as_json_table_and_picture(tmp_path: Path) -> None:
    report = made_up_report()
    json_path, markdown_path, picture_path = report.write(tmp_path / "new" / "made_up")
    assert Report.from_json(json_path.read_text()) == report
    assert markdown_path.read_text() == markdown(report)
    assert picture_path.read_bytes().startswith(b"\x89PNG")


def test_command_line_lists_and_aliases() -> None:
    args = parse(["--device", "cpu", "--pass", "fwd,wgrad", "--dtype", "fp16,float32", "--opponent", "none"])
    assert args.pass_ == ["fprop", "wgrad"]
    assert args.dtype == ["float16", "float32"]
    assert (args.suite, args.opponent) == (["public"], [])
    assert parse(["--device", "cpu", "--host"]).suite == []
    with pytest.raises(SystemExit):
        parse(["--layout", "nhcw"])


def test_cpu_ceilings_are_measured_in_the_run() -> None:
    device = torch.device("cpu")
    measured = environment.measure_ceilings(device, [FP32], seconds=0.001)
    assert measured.copy_gbs > 0 and measured.tflops[FP32.label] > 0
    assert environment.ceilings_for(device, measured) is measured


def test_ceilings_are_those_of_the_products_that_a_gpu_acts_with(monkeypatch: pytest.MonkeyPatch) -> None:
    device, measured = torch.device("cuda"), Ceilings(1.0, {}, "")
    for name, expected in (("H200", H200), ("H200 as 80", H200_BY_WARPS), ("A100", measured)):
        monkeypatch.setattr(environment, "device_name", lambda device, name=name: f"NVIDIA {name}")
        assert environment.ceilings_for(device, measured) is expected
    assert set(H200_BY_WARPS.tflops) == set(H200.tflops)


def test_counters_are_read_by_kernel_and_name() -> None:
    """Lines of the program itself stand between those of Nsight Compute."""
    output = """==PROF== Connected
CASE seed_5x7 nchw fprop
"ID","Kernel Name","Metric Name","Metric Value"
"0","conv","time","1,234.5"
"0","conv","share","7"
CASE seed_5x7 nchw dgrad
"1","conv","time","2"
"""
    assert limits.parse(output) == [{"time": 1234.5, "share": 7.0}, {"time": 2.0}]


def test_expected_times_begin_with_the_planners_kernel() -> None:
    text = fastconv.explain((64, 64, 56, 56), (64, 64, 3, 3), padding=1, dtype=torch.float16, device="cuda", arch=90)
    lines = text.splitlines()[2:]
    expected = alternatives.expected_us(lines)
    chosen, *others = expected
    assert f"plan: {chosen} " in text and len(others) > 3
    assert all(f"  {name}: cost_us " in text for name in others)
    assert expected[chosen] == min(expected.values())
    assert [expected[name] for name in others] == sorted(expected[name] for name in others)


def test_hindsight_lists_what_was_measured_to_be_faster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = (problem for problem in load_suite("public").problems if problem.name == "unet_512")
    mode = Mode("float16")
    case = hindsight.Case(problem.describe(), mode.label, "nhwc", "fprop")
    choice = hindsight.chosen(problem, case, mode, gpu="h200")
    assert "cost_us" not in choice and "workspace" not in choice
    other = "halo_fprop_128x128_c64_tma tile 128x128x64 grid 7"

    def listed(*plans: tuple[str, float, str]) -> list[list[str]]:
        """Of plans as they were measured, one after the other."""
        for path in tmp_path.glob("*.json"):
            path.unlink()
        for hour, (plan, ms, status) in enumerate(plans):
            row = {**case._asdict(), "status": status, "plan": plan, "results": {"fastconv": {"time": {"ms": ms}}}}
            (tmp_path / f"public-h200-20261123T{hour:02}0000Z.json").write_text(json.dumps({"rows": [row]}))
        arguments = ["--problem", "unet_512", "--pass", "fprop", "--layout", "nhwc", "--dtype", "fp16"]
        assert hindsight.main([*arguments, "--results", str(tmp_path)]) == 0
        return [[cell.strip() for cell in line.split("|")[5:-1]] for line in capsys.readouterr().out.splitlines()[2:]]

    as_explained = f"{choice} workspace_bytes 0 cost_us 200.5"
    times = ["0.3000", "20261123T000000Z", "1.50"]
    faster = ["0.2000", "20261123T010000Z", other]
    assert listed((as_explained, 0.3, "ok"), (other, 0.2, "ok")) == [[*times, choice, *faster]]
    unmeasured = ["-", "-", "-", choice, "0.2000", "20261123T000000Z", other]
    assert listed((other, 0.2, "ok")) == [unmeasured]
    assert listed((as_explained, 0.3, "ok"), (other, 0.2, "ok"), (as_explained, 0.205, "ok")) == []
    assert listed((as_explained, 0.3, "ok"), (other, 0.2, "WRONG"), ("no_such_kernel tile", 0.1, "ok")) == []
    assert listed() == []


def test_targets_list_what_falls_short_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = [
        {"problems": ["a"], "modes": ["fp16"], "layouts": ["nhwc"], "speed_up": [1, None, None]},
        {"problems": ["a", "b*"], "modes": ["fp16"], "speed_up": [2, 2, None], "share_of_floor": [None, 0.5, 0.8]},
    ]
    (tmp_path / "targets.json").write_text(json.dumps({"rules": rules}))

    def row(problem: str, pass_: str, ms: float, layout: str = "nchw", status: str = "ok") -> dict[str, Any]:
        """Of two opponents the faster takes 1 ms; the floor is .3."""
        times = {"fastconv": ms, "torch": 3.0, "compile": 1.0}
        results = {name: {"time": {"ms": time}} for name, time in times.items()}
        case = {"problem": problem, "mode": "fp16", "layout": layout, "pass_": pass_, "status": status}
        return {**case, "floor_ms": 0.3, "plan": "kernel tile 1", "results": results}

    def listed(*files: list[dict[str, Any]], kernel: str | None = None) -> list[list[str]]:
        """Problem, layout, pass, ms, asked, reached, floor; of files that were written one after the other."""
        for path in tmp_path.glob("public*.json"):
            path.unlink()
        for hour, rows in enumerate(files):
            text = json.dumps({"settings": {"kernel": kernel}, "rows": rows})
            (tmp_path / f"public-h200-20261123T{hour:02}0000Z.json").write_text(text)
        arguments = ["--results", str(tmp_path), "--targets", str(tmp_path / "targets.json"), "--problem", "a,b*"]
        assert targets.main(arguments) == 0
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
        return [[line[0], *line[2:4], *line[5:9]] for line in cells]

    short = ["a", "nchw", "fprop", "0.6000", "0.5000", "0.83", "60%"]
    assert listed([row("a", "fprop", 0.6)]) == [short]
    assert listed([row("a", "fprop", 0.5)]) == []
    assert listed([row("a", "fprop", 0.4, status="loose")]) == [
        ["a", "nchw", "fprop", "0.4000", "0.5000", "1.25", "60%"]
    ]
    assert listed([row("a", "fprop", 0.6, "nhwc")]) == [], "the first rule asks for less"
    assert listed([row("b1", "wgrad", 0.5)]) == [["b1", "nchw", "wgrad", "0.5000", "0.3750", "0.75", "80%"]]
    assert listed([row("b1", "dgrad", 0.55)]) == [["b1", "nchw", "dgrad", "0.5500", "0.5000", "0.91", "60%"]]
    assert listed([row("c", "fprop", 9)]) == []
    assert listed([row("a", "fprop", 0.6)], [row("a", "fprop", 0.4)]) == [], "the last one counts"
    assert listed([row("a", "fprop", 0.6)], kernel="kernel") == [], "not the planner's choice"
    further = ["b1", "nchw", "fprop", "1.0000", "0.5000", "0.50", "60%"]
    assert listed([row("a", "fprop", 0.6), row("b1", "fprop", 1)]) == [further, short]


def test_targets_name_problems_and_modes_that_there_are() -> None:
    problems = [problem.name for problem in ALL_PROBLEMS]
    modes = {mode.label for mode in modes_of(list(DTYPES), PRECISIONS)}
    for rule in targets.rules_of(targets.TARGETS.read_text()):
        assert all(fnmatch.filter(problems, pattern) for pattern in rule.problems), rule
        assert set(rule.modes) <= modes and set(rule.layouts) <= set(LAYOUTS), rule
        assert len(rule.speed_up) == len(rule.share_of_floor) == len(PASSES), rule


def run_alternatives(out: Path, problem: str, *options: str) -> tuple[dict[str, Any], str]:
    """The forward pass of a problem of the suite `host`, in NCHW on the CPU: what the JSON holds, and the table."""
    command = ["--suite", "host", "--problem", problem, "--device", "cpu", "--layout", "nchw", "--pass", "fprop"]
    assert alternatives.main([*command, "--seconds", "0.001", "--out", str(out), *options]) == 0
    return json.loads(next(out.glob("*.json")).read_text()), next(out.glob("*.md")).read_text()


def test_alternatives_are_timed_beside_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTCONV_KERNEL", raising=False)
    monkeypatch.setenv("FASTCONV_COMMIT", "0123abcd")
    found, table = run_alternatives(tmp_path / "new", "tiny_dw3x3", "--dtype", "fp32", "--within", "1000")
    (row,) = found["rows"]
    assert row["torch_us"] > 0
    assert [kernel["name"] for kernel in row["kernels"]] == ["cpu_depthwise_fprop", "cpu_gemm_fprop"]
    assert all(kernel["us"] > 0 and f" {kernel['name']} " in table for kernel in row["kernels"])
    assert found["build"]["commit"] == "0123abcd" and "commit 0123abcd" in table
    assert "FASTCONV_KERNEL" not in os.environ


@pytest.mark.parametrize(
    ("names", "beside"),
    # A depthwise kernel is the planner's; the other is expected to take 1.15 times as long. None on the CPU is direct.
    [("cpu_depthwise_fprop", []), ("direct_fprop_*,cpu_gemm_?prop", ["cpu_gemm_fprop"]), ("direct_*", [])],
)
def test_named_kernels_are_timed_where_they_take_the_problem(tmp_path: Path, names: str, beside: list[str]) -> None:
    found, _ = run_alternatives(tmp_path, "tiny_dw3x3", "--kernel", names)
    (row,) = found["rows"]
    assert [kernel["name"] for kernel in row["kernels"]] == ["cpu_depthwise_fprop", *beside]


def test_names_of_no_kernel_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_alternatives(tmp_path, "tiny_dw3x3", "--kernel", "cpu_gemm_fprop,cpu_gem_*")
    assert "no kernel matches 'cpu_gem_*'" in capsys.readouterr().err


def test_alternatives_meet_the_opponent_of_their_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met: dict[str, set[bool]] = {}

    def opponent(problem: Problem, pass_: str, mode: Mode, layout: str) -> opponents.Run:
        met.setdefault(mode.label, set()).add(torch.backends.cudnn.allow_tf32)
        return opponents.torch_run(problem, pass_, mode, layout)

    monkeypatch.setitem(opponents.CONTENDERS, "torch", opponent)
    before = torch.backends.cudnn.allow_tf32
    modes = ["--dtype", "fp32,float64", "--precision", "ieee,tf32,bf16x3"]
    found, table = run_alternatives(tmp_path, "tiny_1x1", *modes)
    assert met == {"fp32 ieee": {False}, "fp32 tf32": {True}, "fp32 bf16x3": {False}, "fp64": {False}}
    assert [row["mode"] for row in found["rows"]] == list(met) and all(f" {mode} " in table for mode in met)
    assert torch.backends.cudnn.allow_tf32 == before


def test_builds_are_timed_in_turns(tmp_path: Path) -> None:
    site = Path(fastconv.__file__).parents[1]
    case = ["--suite", "host", "--problem", "tiny_1x1", "--device", "cpu", "--layout", "nchw"]
    assert builds.main([str(site), str(site), *case, "--repeats", "1", "--out", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("builds-*.json")
    found = json.loads(written.read_text())
    assert [row["pass"] for row in found["rows"]] == list(PASSES) and list(found["builds"]) == ["A", "B"]
    assert found["builds"]["A"] == found["builds"]["B"] and "libfastconv_cpu.so" in found["builds"]["A"]
    for row in found["rows"]:
        assert row["kernels"][0].startswith("cpu_") and len(set(row["kernels"])) == 1 and min(row["us"]) > 0
    assert "geometric mean" in written.with_suffix(".md").read_text()


def test_results_of_builds_are_compared_bit_for_bit(tmp_path: Path) -> None:
    site = Path(fastconv.__file__).parents[1]
    case = ["--suite", "host", "--problem", "tiny_1x1", "--device", "cpu"]
    assert builds.main([str(site), str(site), *case, "--results", "--out", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("builds-*.json")
    rows = json.loads(written.read_text())["rows"]
    digests = [row["digests"] for row in rows]
    assert len(rows) >= 6 and all(row["same"] and len(set(row["digests"])) == 1 for row in rows)
    assert len({digest for digest, _ in digests}) == len(rows), "each case has tensors of its own"
    assert "same, bit for bit" in written.with_suffix(".md").read_text()
    other = {**rows[0], "kernels": ["cpu_gemm_fprop", "cpu_depthwise_fprop"], "same": False}
    assert builds.compared([other, *rows]).startswith(f"{len(rows)} of {len(rows) + 1} results")
    assert "cpu_gemm_fprop -> cpu_depthwise_fprop" in builds.compared([other, *rows])


def test_a_build_that_fails_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "fastconv").mkdir()
    (tmp_path / "fastconv/__init__.py").write_text("raise ImportError('no such build')")
    case = ["--suite", "host", "--problem", "tiny_1x1", "--device", "cpu"]
    with pytest.raises(RuntimeError, match="exit status 1"):
        builds.main([str(tmp_path), str(tmp_path), *case, "--out", str(tmp_path)])


def test_batch_norms_are_timed_in_both_layouts(tmp_path: Path) -> None:
    assert batch_norm.main(["--device", "cpu", "--quick", "--seconds", "0.001", "--out", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("batch_norm-*.json")
    rows = json.loads(written.read_text())["rows"]
    cases = set(itertools.product(("bf16", "fp32"), LAYOUTS, ("relu", "+ relu", "silu"), ("forward", "both")))
    assert {(row["mode"], row["layout"], row["then"], row["pass"]) for row in rows} == cases
    assert all(row["ms"]["fastconv"] > 0 and row["ms"]["torch"] > 0 and row["floor_ms"] > 0 for row in rows)


def test_gradient_of_the_bias_is_timed_in_both_layouts(tmp_path: Path) -> None:
    assert bias_grad.main(["--device", "cpu", "--quick", "--seconds", "0.001", "--out", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("bias_grad-*.json")
    rows = json.loads(written.read_text())["rows"]
    assert {(row["mode"], row["layout"]) for row in rows} == set(itertools.product(("fp16", "fp32"), LAYOUTS))
    assert all(row["ms"]["fastconv"] > 0 and row["ms"]["torch"] > 0 and row["floor_ms"] > 0 for row in rows)
    assert len(written.with_suffix(".md").read_text().splitlines()) == 2 + 2 + 2 + len(rows)


def test_fused_layers_are_timed_beside_separate_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "cache_bytes", lambda device: 1)  # one set of tensors: to draw hundreds takes seconds
    options = ["--device", "cpu", "--quick", "--sample", "1", "--seed", "5", "--seconds", "0.001"]
    assert fused_layers.main([*options, "--out", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("fused_layers-cpu-*.json")
    data = json.loads(written.read_text())
    assert (data["settings"]["sample"], data["settings"]["seed"]) == (1, 5)
    (problem,) = sample(load_suite("torchvision").problems, 1, 5)
    cases = list(itertools.product(fused_layers.SETTINGS, fused_layers.WHAT))
    assert [(row["setting"], row["what"]) for row in data["rows"]] == cases
    for row in data["rows"]:
        assert row["layer"] == problem.name and row["shape"].startswith("N2 ")
        assert list(row["ms"]) == list(row["spread"]) == ["separate", "fused"]
        assert row["speed_up"] == row["ms"]["separate"] / row["ms"]["fused"] > 0
    assert "Geometric mean of 10 rows: " in written.with_suffix(".md").read_text()


@pytest.mark.parametrize("what", fused_layers.WHAT)
def test_fused_layers_compute_what_separate_calls_do(what: str) -> None:
    problem = Problem("p", (3, 4, 6, 5), (8, 2, 3, 3), (2, 1), (1, 1), groups=2)
    layer = fused_layers.layers_of(problem, *fused_layers.SETTINGS["tf32"], torch.device("cpu"))[0]
    separate, fused = (fused_layers.call_of(function, layer, what)() for function in fused_layers.CONTENDERS.values())
    assert len(separate) == {"train": 5, "train residual": 6}.get(what, 1), "the output, and gradients in training"
    for one, other in zip(separate, fused, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_fused_layers_that_are_slower_are_listed() -> None:
    def row(layer: int, speed_up: float) -> dict[str, Any]:
        case = {"layer": f"l{layer}", "shape": f"N{layer}", "setting": "bf16", "what": "silu"}
        return {**case, "ms": {"separate": speed_up, "fused": 1.0}, "speed_up": speed_up}

    rows = [row(1, 0.96), row(2, 4.0), row(3, 0.5), row(4, 0.98)]
    first, _, *listed = fused_layers.summary(rows).splitlines()
    assert first == "Geometric mean of 4 rows: 1.17x. Below 0.97x: 2."
    assert [line.partition(" (")[0] for line in listed] == ["- N3, bf16, silu: 0.500x", "- N1, bf16, silu: 0.960x"]
    assert fused_layers.summary(rows[1:2]).splitlines() == ["Geometric mean of 1 rows: 4.00x. Below 0.97x: none."]
    assert "| silu | bf16    |      4 |    1.17x | 0.50x | 4.00x |           2 |" in fused_layers.means(rows)


def test_a_table_of_a_run_that_is_ended_has_the_rows_so_far(tmp_path: Path) -> None:
    def measure(device: torch.device) -> Iterator[dict[str, Any]]:
        yield {"device": str(device)}
        os.kill(os.getpid(), signal.SIGTERM)
        yield {"device": "never"}

    before = signal.getsignal(signal.SIGTERM)
    options = table_run.parser("name", "About.").parse_args(["--device", "cpu", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        table_run.run("name", "Title", measure, lambda rows: f"{len(rows)} rows", options, seed=3)
    assert ended.value.code == 128 + signal.SIGTERM and signal.getsignal(signal.SIGTERM) is before
    (written,) = tmp_path.glob("name-cpu-*.json")
    data = json.loads(written.read_text())
    assert data["seed"] == 3 and data["rows"] == [{"device": "cpu"}]
    assert written.with_suffix(".md").read_text().endswith("\n1 rows\n")


def test_limits_are_of_kernels_for_tensor_cores() -> None:
    cases = limits.cases("public", ["seed_5x7", "dw_*", "resnext_g32", "rn50_stem"])
    assert {name for name, *_ in cases} == {"seed_5x7", "rn50_stem"}
    assert [case for case in cases if case[2] == "wgrad"] == [("seed_5x7", "nhwc", "wgrad")]


def test_sums_of_the_sweep_are_as_long_as_it_says() -> None:
    for case in accuracy.cases(quick=True):
        x, w = (torch.ones(size, requires_grad=True) for size in (case.problem.input, case.problem.weight))
        y = F.conv2d(x, w, None, *case.problem.conv_args)
        dx, dw = torch.autograd.grad(y.sum(), (x, w))
        if case.sweep == "length":
            assert case.at == {"fprop": y, "dgrad": dx, "wgrad": dw}[case.pass_].max()


@pytest.mark.parametrize("pass_", PASSES)
def test_numbers_of_the_sweep_have_the_range_that_it_says(pass_: str) -> None:
    problem = Problem("p", (2, 16, 32, 32), (32, 16, 3, 3))

    def drawn(sigma: float, exponent: int) -> list[torch.Tensor]:
        case = accuracy.Case("", 0, pass_, problem, sigma, exponent)
        data = accuracy.draw_tensors(case, torch.Generator().manual_seed(0))
        return [getattr(data, name) for name in accuracy.FACTORS[pass_]]

    for tensor in drawn(sigma=3, exponent=0):  # the logarithm of a normal number's magnitude has variance pi^2 / 8
        assert float(tensor.abs().log().var()) == pytest.approx(9 + math.pi**2 / 8, rel=0.1)
    first, second = drawn(sigma=0, exponent=0)
    assert float(first.var()) == pytest.approx(1, rel=0.1)
    for exponent in (96, -96):
        times, divided = drawn(0, exponent)
        assert torch.equal(times, first * 2.0**exponent) and torch.equal(divided, second * 2.0**-exponent)
    for exponent in (min(accuracy.EXPONENTS), max(accuracy.EXPONENTS)):
        times, divided = drawn(0, exponent)
        assert 0 < times.norm(torch.inf) < math.inf and 0 < divided.norm(torch.inf) < math.inf
        assert exponent > 0 or times.norm(torch.inf) < torch.finfo(torch.float32).smallest_normal


def test_accuracy_is_measured_and_drawn_again(tmp_path: Path) -> None:
    assert accuracy.main(["--device", "cpu", "--quick", "--draws", "1", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.json")
    found = accuracy.Accuracy.from_json(path.read_text())
    assert found.to_json() == path.read_text()
    modes = [f"fp32 {precision}" for precision in PRECISIONS]
    curves = {(point.sweep, point.pass_, point.mode) for point in found.points}
    assert curves == set(itertools.product(accuracy.SWEEPS, PASSES, modes))
    for point in found.points:
        assert point.kernel.startswith("cpu_")
        assert point.error is not None and point.opponent_error is not None
        assert 0 < point.error < 1e-6 and 0 < point.opponent_error < 1e-6
    table = path.with_suffix(".md").read_text()
    assert all(f"| {sweep}" in table for sweep in accuracy.SWEEPS)
    picture, again = path.with_suffix(".png").read_bytes(), tmp_path / "again.png"
    assert accuracy.main(["--draw", str(path), "--picture", str(again)]) == 0
    assert picture.startswith(b"\x89PNG") and again.read_bytes() == picture


@pytest.mark.parametrize(("factor", "error"), [(1 + 1e-3, pytest.approx(1e-3, rel=0.01)), (math.nan, None)])
def test_accuracy_shows_what_is_wrong(factor: float, error: object, monkeypatch: pytest.MonkeyPatch) -> None:
    right = opponents.fastconv_run

    def wrong(*args: Any) -> opponents.Run:
        run = right(*args)
        return lambda data: run(data) * factor

    monkeypatch.setitem(opponents.CONTENDERS, "fastconv", wrong)
    points = accuracy.measure(accuracy.cases(quick=True)[0], torch.device("cpu"), draws=2)
    assert [point.error for point in points] == [error] * 3
    assert all(point.share > 1 for point in points)
    assert all(point.opponent_error is not None and point.opponent_error < 1e-6 for point in points)
    found = accuracy.Accuracy("", "", {}, {}, {}, {}, {"torch": "oneDNN"}, points)
    assert accuracy.Accuracy.from_json(found.to_json()) == found
    assert "Beyond it: 3 of 3" in accuracy.markdown(found)


def time_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, workloads: list[models.Workload], *options: str
) -> tuple[list[dict[str, Any]], str]:
    """The rows and the text of `python -m bench.models` on the CPU."""
    monkeypatch.setattr(models, "WORKLOADS", {workload.name: workload for workload in workloads})
    common = ["--device", "cpu", "--seconds", "0.001", "--out", str(tmp_path)]
    assert models.main([*common, *options]) == 0
    (written,) = tmp_path.glob("*.json")
    assert written.name.startswith(f"{kind}-cpu-")
    return json.loads(written.read_text())["rows"], written.with_suffix(".md").read_text()


LAYER = dataclasses.replace(models.WORKLOADS["kb_3x3"], size=(16, 8, 8))
UNET = models.Workload("unet", 8, (3, 8, 8), functools.partial(models.UNet, 4, 2))


def block() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())


BLOCK = models.Workload("block", 8, (3, 8, 8), block)


def test_whole_models_are_timed_with_every_contender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, text = time_models(monkeypatch, tmp_path, "models", [LAYER, UNET], "--quick")
    assert [(row["model"], row["setting"]) for row in rows] == list(
        itertools.product((LAYER.name, "unet"), DEFAULT_SETTINGS)
    )
    for row in rows:
        names = CONTENDERS[:2] if row["model"] == LAYER.name else CONTENDERS  # nothing follows the one layer
        assert row["input"][0] == row["batch"] == 2
        assert 0 <= row["difference"] < (1e-4 if row["setting"] == "tf32" else models.MAX_DIFFERENCE)
        for what in WHAT:
            assert tuple(row[what]) == names and all(time["ms"] > 0 for time in row[what].values())
        assert row["busy_ms"] == row["peak_mib"] == dict.fromkeys(names), "what a GPU alone has"
        assert tuple(row["losses"]) == names and all(len(losses) == models.STEPS for losses in row["losses"].values())
        if row["setting"] == "tf32":
            for name in names:
                assert row["losses"][name] == pytest.approx(row["losses"]["torch"], rel=1e-3)
    assert f"{rows[-1]['losses'][FUSED][-1]:.4f} |" in text and FUSED in text


def test_contenders_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--quick", "--setting", "tf32", "--contender", "fused,torc?"]
    (row,), _ = time_models(monkeypatch, tmp_path, "models", [BLOCK], *options)
    assert list(row["step"]) == list(row["inference"]) == list(row["losses"]) == ["torch", FUSED]


def test_compiled_models_are_timed_beside_eager_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--compile", "--batch", "3", "--setting", "tf32"]
    (row,), _ = time_models(monkeypatch, tmp_path, "compiled3", [BLOCK], *options)
    assert row["input"] == [3, 3, 8, 8]
    assert 0 <= row["difference"] < 1e-4
    for what in WHAT:
        assert list(row[what]) == [*CONTENDERS, *(f"{name}, compiled" for name in CONTENDERS)]
        assert all(time["ms"] > 0 for time in row[what].values())


def test_compiled_models_are_compared_with_compiled_ones() -> None:
    ms = {"torch": 8.0, "fastconv": 4.0, "torch, compiled": 6.0, f"{FUSED}, compiled": 2.0}
    times = {name: {"ms": of, "spread": 0.01} for name, of in ms.items()}
    row = {"model": "unet", "batch": 4, "setting": "bf16", "step": times, "inference": times}  # as older files have it
    text = models.table([row], torch.device("cuda"))
    lines = [[cell.strip() for cell in line[1:-1].split("|")][3:] for line in text.splitlines()[2:]]
    assert lines[:3] == [
        ["step", "cuDNN", "8.000", "1%", "1.00x", "500", "-", "-", "-"],
        ["step", "fastconv", "4.000", "1%", "2.00x", "1000", "-", "-", "-"],
        ["step", "cuDNN, compiled", "6.000", "1%", "1.00x", "667", "-", "-", "-"],
    ]
    assert lines[7] == ["inference", "fastconv, fused, compiled", "2.000", "1%", "3.00x", "2000", "-", "-", "-"]


def test_a_model_whose_contenders_disagree_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fastconv.convert

    def wrong(model: torch.nn.Module) -> torch.nn.Module:
        for parameter in model.parameters():
            parameter.data.neg_()
        return right(model)

    monkeypatch.setattr(fastconv, "convert", wrong)
    options = ["--device", "cpu", "--quick", "--seconds", "0.001", "--model", "kb_3x3", "--setting", "tf32"]
    assert models.main([*options, "--out", str(tmp_path)]) == 1
    (row,) = json.loads(next(tmp_path.glob("*.json")).read_text())["rows"]
    assert row["failure"] == "the outputs of the contenders are 2.0e+00 apart"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "kb_*,resnet5"], "no model matches 'resnet5'; there are: kb_5x7; kb_3x3; kb_5x9d; resnet50"),
        (["--contender", "torch,fast"], "no contender matches 'fast'; there are: torch; fastconv; fastconv, fused"),
        (["--contender", "fastconv,fused"], "torch must be among the contenders"),
    ],
)
def test_models_and_contenders_are_named_as_they_are(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        models.main(options)
    assert message in capsys.readouterr().err


def test_the_unet_has_its_convolutions() -> None:
    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in models.UNet().modules()) == 19


def test_models_of_timm_are_built_by_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=lambda name: name))
    found: list[Any] = [workload.build() for name, workload in models.WORKLOADS.items() if name.startswith("timm_")]
    assert found == ["resnetv2_50", "regnety_040", "mobilenetv4_conv_medium"]


def test_the_planner_chooses_what_was_measured_to_be_fast() -> None:
    """Not kernels' names: how much slower they are than the best that was timed beside them."""
    found = regret.choices(report.RESULTS, "h200")
    known = [choice for choice in found if choice.us]
    assert len(found) > 400 and len(known) >= 0.95 * len(found)
    drawn = {problem.name for problem in load_suite("torchvision").problems}
    # Of layers drawn at random, whose kernels are young, 1 % is not reached yet.
    for most, of_drawn in ((1.01, False), (1.04, True)):
        some = [choice for choice in known if (choice.problem in drawn) == of_drawn]
        assert len(some) > 200 and regret.mean(some) <= most, "python -m bench.regret lists the worst"
    assert max(regret.by_problem(known).values()) <= 1.1


def test_regret_is_over_the_newest_measurement_of_a_case(tmp_path: Path) -> None:
    def write(date: str, times: dict[str, float | None]) -> None:
        kernels = [{"name": name, "us": us} for name, us in times.items()]
        row = {"problem": "seed_3x3", "mode": "fp16", "layout": "nhwc", "pass": "fprop", "kernels": kernels}
        (tmp_path / f"alternatives-h200-{date}.json").write_text(json.dumps({"rows": [row]}))

    write("20260101T000000Z", {"direct_fprop_128x64": 1.0})
    write("20260102T000000Z", {"direct_fprop_128x64": 2.0, "no_such_kernel": 1.0, "halo_fprop_256x64_c64_tma": None})
    (choice,) = regret.choices(tmp_path, "h200")
    assert (choice.best, choice.best_us, choice.us) == ("no_such_kernel", 1.0, None)
    write("20260103T000000Z", {choice.kernel: 3.0, "no_such_kernel": 2.0})
    (again,) = regret.choices(tmp_path, "h200")
    assert again.regret == 1.5 and regret.mean([again]) == pytest.approx(1.5)


def test_hidden_is_the_share_of_an_all_reduce_that_no_step_waits_for() -> None:
    def times(**ms: float) -> dict[str, dict[str, float]]:
        return {name: {"ms": value, "spread": 0.01} for name, value in ms.items()}

    row: dict[str, Any] = {"model": "resnet50", "batch": 128, "setting": "bf16", "all-reduce": {"ms": 4.0}}
    row |= {"step": times(torch=31.0, fastconv=26.0), "no_sync": times(torch=30.0, fastconv=20.0)}
    assert overlap.hidden(row, "torch") == 0.75 and overlap.hidden(row, "fastconv") == -0.5
    lines = [
        [cell.strip() for cell in line.split("|")] for line in overlap.markdown([row], torch.device("cpu")).splitlines()
    ]
    assert [line[4:6] + line[-4:-1] for line in lines[2:]] == [
        ["oneDNN", "31.00", "1.000", "4.000", "75%"],
        ["fastconv", "26.00", "6.000", "4.000", "-50%"],
    ]
