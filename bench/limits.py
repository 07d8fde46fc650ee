"""What limits each convolution kernel, by the hardware's counters: Nsight Compute over a suite.

    python -m bench.limits --suite public --dtype float16 --out bench/results

runs itself under `ncu`, which has to be on the PATH, and writes a table. Counters are shares of what the unit can do,
over the whole kernel; ncu repeats each kernel with cold caches and runs it alone, so times differ from the benchmark's.
It ends at a cooperative launch with clusters (Nsight Compute 2025.3.1), or returns no numbers, so weight gradients that
write their input anew are left out: those in NCHW, and of a folded stem.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from bench import environment, report
from bench.errors import random_tensors
from bench.modes import DTYPES, Mode
from bench.opponents import explain, fastconv_run
from bench.suites import LAYOUTS, PASSES, load_suite, select

TIME = "gpu__time_duration.sum"
COUNTERS = {
    "tensor cores": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "shared memory": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "instructions": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "device memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
KERNELS = "regex:halo_sm90|wgrad_sm90"


def cases(suite: str, patterns: Sequence[str]) -> list[tuple[str, str, str]]:
    problems = select(load_suite(suite).problems, patterns)
    wide = [p for p in problems if p.weight[1] > 1 and max(p.weight[0] // p.groups, p.weight[1]) >= 16]
    mode, device = Mode("float16"), torch.device("cuda")
    return [
        (p.name, layout, pass_)
        for p in wide
        for layout in LAYOUTS
        for pass_ in PASSES
        if pass_ != "wgrad" or (layout == "nhwc" and "folds input" not in explain(p, pass_, mode, layout, device))
    ]


def run_kernels(suite: str, dtype: str, patterns: Sequence[str]) -> None:
    """Each case once, between marks of the profiler; its name goes to stdout."""
    problems = {p.name: p for p in load_suite(suite).problems}
    for name, layout, pass_ in cases(suite, patterns):
        data = random_tensors(problems[name], DTYPES[dtype], torch.Generator("cuda").manual_seed(1))
        data = data.to(torch.channels_last if layout == "nhwc" else torch.contiguous_format)
        run = fastconv_run(problems[name], pass_, Mode(dtype), layout)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        run(data)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        print("CASE", name, layout, pass_, flush=True)


def counters(arguments: Sequence[str]) -> list[dict[str, float]]:
    """Of each kernel that ran."""
    command = ["ncu", "--csv", "--clock-control", "none", "--profile-from-start", "off", "--kernel-name", KERNELS]
    command += ["--metrics", ",".join([TIME, *COUNTERS.values()]), "--print-units", "base"]
    command += [sys.executable, "-m", "bench.limits", "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    output = done.stdout
    if done.returncode != 0:
        sys.exit(f"{output[-2000:]}\n{done.stderr[-2000:]}")
    return parse(output)


def parse(output: str) -> list[dict[str, float]]:
    """Of ncu's CSV, between whose lines the program's own output may stand: each kernel's metrics, in order."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    kernels: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines):
        kernels.setdefault(row["ID"], {})[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return list(kernels.values())


def markdown(rows: Sequence[dict[str, object]]) -> str:
    header = ["problem", "layout", "pass", "us", *COUNTERS]
    lines = [[str(row[key]) for key in header[:3]] + [f"{row[key]:.0f}" for key in header[3:]] for row in rows]
    return report.table(header, lines, left=3)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("--suite", default="public")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    parser.add_argument("--problem", default="*", help="shell patterns of names, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    patterns = options.problem.split(",")
    if options.child:
        run_kernels(options.suite, options.dtype, patterns)
        return 0
    names = cases(options.suite, patterns)
    measured = counters(["--suite", options.suite, "--dtype", options.dtype, "--problem", options.problem])
    if len(measured) != len(names):
        sys.exit(f"{len(names)} cases, but {len(measured)} kernels of tensor cores: some case took another kernel")
    rows: list[dict[str, object]] = []
    for (name, layout, pass_), kernel in zip(names, measured, strict=True):
        shares = {what: kernel[metric] for what, metric in COUNTERS.items()}
        rows.append({"problem": name, "layout": layout, "pass": pass_, "us": kernel[TIME] / 1000, **shares})
    device = torch.device("cuda")
    title = f"Share of each unit's peak, per cent, {options.dtype}, {environment.device_name(device)}; times of ncu"
    path = environment.write_table(options.out, "limits", device, title, markdown(rows), metrics=COUNTERS, rows=rows)
    print(f"wrote {path}.json, {path}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
