"""Builds of fastconv side by side: each case in turns, every build in a process of its own.

    python -m bench.builds old.whl new.whl --problem 'rn50_*' --dtype fp16
    python -m bench.builds old.whl new.whl --results

Two runs of the benchmark differ by the machine, its clocks and where tensors lie in memory, by several per cent. Here
the processes keep what a case needs on the same GPU, and one of them works at a time, a few samples each; then the
tensors are allocated anew, `--repeats` times. A build is a wheel, or a folder that holds the package.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bench import environment, opponents, report, timing
from bench.__main__ import add_case_options, cases
from bench.errors import random_tensors
from bench.modes import Mode
from bench.runner import MEMORY_FORMATS, input_sets, poison
from bench.suites import load_suite, select

ROUNDS, SAMPLES = 5, 4  # turns of each build, and what it measures in one


class Build:
    """A process that measures with one build."""

    def __init__(self, site: Path, device: str) -> None:
        path = os.pathsep.join([str(site), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "bench.builds", "--worker", "--device", device]
        self.process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a build's process ended with exit status {self.process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def work(device: torch.device) -> None:
    """Answers requests, a line of JSON each, until there are no more."""
    import fastconv  # noqa: F401  (the build that this process is for)

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes elsewhere
    timing.use_device(device)
    timed: timing.Timed | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] != "sample":
            (problem,) = select(load_suite(request["suite"]).problems, [request["problem"]])
            mode, layout, pass_ = Mode(*request["mode"]), request["layout"], request["pass"]
            timed = None  # frees the memory of the case before
        if request["do"] == "digest":
            generator = torch.Generator(device).manual_seed(request["seed"])
            data = random_tensors(problem, mode.torch_dtype, generator).to(MEMORY_FORMATS[layout])
            poison(problem, pass_, data)
            result = opponents.fastconv_run(problem, pass_, mode, layout)(data)
            kernel = opponents.explain(problem, pass_, mode, layout, device).partition(" ")[0]
            answer: Any = [
                kernel,
                hashlib.sha256(result.flatten().view(torch.uint8).cpu().numpy().tobytes()).hexdigest(),
            ]
        elif request["do"] == "prepare":
            sets = [data.to(MEMORY_FORMATS[layout]) for data in input_sets(problem, mode.torch_dtype, device)]
            run = opponents.fastconv_run(problem, pass_, mode, layout)
            timed = timing.prepare([functools.partial(run, data) for data in sets], device)
            answer = opponents.explain(problem, pass_, mode, layout, device).partition(" ")[0]
        else:
            assert timed is not None
            ends = [timed.start() for _ in range(request["samples"])]
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            answer = [end() / timed.calls for end in ends]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def site_of(build: Path, room: Path) -> Path:
    """Where Python finds the package."""
    if build.is_dir():
        return build
    site = room / f"{len(list(room.iterdir()))}"
    with zipfile.ZipFile(build) as wheel:
        wheel.extractall(site)
    return site


def measure(builds: Sequence[Build], repeats: int, **case: Any) -> dict[str, Any]:
    samples: list[list[float]] = [[] for _ in builds]
    kernels: list[str] = []
    for _ in range(repeats):
        kernels = [build.ask(do="prepare", **case) for build in builds]
        for round_ in range(1 + ROUNDS):
            for build, found in zip(builds, samples, strict=True):
                times = build.ask(do="sample", samples=SAMPLES)
                found += times if round_ > 0 else []  # the first warms up
    return {**case, "kernels": kernels, "us": [1e3 * statistics.median(found) for found in samples]}


def compare(builds: Sequence[Build], seed: int, **case: Any) -> dict[str, Any]:
    answers = [build.ask(do="digest", seed=seed, **case) for build in builds]
    kernels, digests = zip(*answers, strict=True)
    return {**case, "seed": seed, "kernels": kernels, "digests": digests, "same": len(set(digests)) == 1}


def compared(rows: Sequence[dict[str, Any]]) -> str:
    others = [row for row in rows if not row["same"]]
    text = f"{len(rows) - len(others)} of {len(rows)} results are the same, bit for bit"
    if not others:
        return text
    lines = [[*_case(row), " -> ".join(dict.fromkeys(row["kernels"]))] for row in others]
    return f"{text}; others:\n\n" + report.table(["problem", "mode", "layout", "pass", "kernel"], lines, left=5)


def _case(row: dict[str, Any]) -> list[str]:
    return [row["problem"], Mode(*row["mode"]).label, row["layout"], row["pass"]]


def markdown(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    lines = []
    for row in rows:
        first, *others = row["us"]
        ratios = [f"{us / first:.3f}" for us in others]
        kernels = list(dict.fromkeys(row["kernels"]))
        what = [*_case(row), " -> ".join(kernels)]
        lines.append([*what, *(f"{us:.2f}" for us in row["us"]), *ratios])
    means = [
        math.exp(statistics.fmean(math.log(row["us"][i] / row["us"][0]) for row in rows)) for i in range(1, len(names))
    ]
    lines.append(["geometric mean", *[""] * (4 + len(names)), *(f"{mean:.3f}" for mean in means)])
    header = ["problem", "mode", "layout", "pass", "kernel", *(f"{name} us" for name in names)]
    return report.table([*header, *(f"{name} / {names[0]}" for name in names[1:])], lines, left=5)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.builds", description=__doc__.partition("\n")[0])
    add_case_options(parser)
    add = parser.add_argument
    add("builds", type=Path, nargs="*", help="wheels, or folders that hold the package; the first is compared with")
    add("--repeats", type=int, default=2, help="how often tensors are allocated anew")
    add("--results", action="store_true", help="compare results in place of times")
    add("--out", type=Path, default=Path(__file__).parent / "results")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if options.worker:
        work(device)
        return 0
    if len(options.builds) < 2:
        parser.error("name at least two builds")
    names = [chr(ord("A") + i) for i in range(len(options.builds))]
    with tempfile.TemporaryDirectory() as room, contextlib.ExitStack() as stack:
        sites = [site_of(path, Path(room)) for path in options.builds]
        sys.path.append(str(sites[0]))  # where there is no other fastconv for write_table() to name
        builds = [Build(site, options.device) for site in sites]
        for build in builds:
            stack.callback(build.end)
        asked, rows = list(cases(options)), list[dict[str, Any]]()
        try:
            with report.sigterm_exits():
                for problem, layout, mode, pass_ in tqdm(asked, disable=None):
                    case = {"suite": options.suite, "problem": problem.name, "layout": layout, "pass": pass_}
                    case |= {"mode": [mode.dtype, mode.precision]}
                    if options.results:
                        rows.append(compare(builds, seed=len(rows), **case))
                    else:
                        rows.append(measure(builds, options.repeats, **case))
        finally:
            if rows:
                write(rows, len(asked), options, names, sites, device)
    return 0


def write(
    rows: Sequence[dict[str, Any]],
    asked: int,
    options: argparse.Namespace,
    names: Sequence[str],
    sites: Sequence[Path],
    device: torch.device,
) -> None:
    title = (
        f"{'Results of builds' if options.results else 'Builds in turns'}, {environment.device_name(device)}: "
        + ", ".join(f"{name} {path}" for name, path in zip(names, options.builds, strict=True))
    )
    if len(rows) < asked:
        title += f"; ended after {len(rows)} of {asked} cases"
    table = compared(rows) if options.results else markdown(rows, names)
    hashes = {name: environment.libraries(site / "fastconv") for name, site in zip(names, sites, strict=True)}
    written = environment.write_table(options.out, "builds", device, title, table, builds=hashes, rows=rows)
    print(f"{table}\n\nwrote {written}.json, {written}.md")


if __name__ == "__main__":
    sys.exit(main())
