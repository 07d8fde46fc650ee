"""Fits the planner's cost constants to what was measured. Needs no GPU, but the tests' module (docs/add-a-kernel.md).

    PYTHONPATH=python:build/cmake python -m bench.fit
    PYTHONPATH=python:build/cmake python -m bench.fit --constants 'halo.kOneTap*' --write

What is made small is the regret: the time of the kernel that the planner takes over that of the best which was measured
(`bench.regret`), of all cases of `bench.alternatives` on each GPU. A little of it is how far expectations are from
measurements, so that kernels that were not measured keep their place. A constant changes where that gains more than
`--least`. Half of the problems are left out in turn, to see whether what is gained holds for those that were not seen.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import random
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import _fastconv_native as native
from bench import report
from bench.hindsight import GPUS
from bench.regret import MODES, measured, named_problems

COSTS = Path(__file__).parents[1] / "include/fastconv"
STEPS = (2.0, 0.5, 1.25, 0.8, 1.08, 0.93, 1.02, 0.98)
SHARPNESS = 0.02  # how near expectations are, of which the loss sees no difference
CALIBRATION = 0.02  # share in the loss of how far expectations are from measurements
Question = tuple[native.Kernel, native.ConvProblem, native.DeviceSpec]


class Case(NamedTuple):
    """Of a problem on a GPU: kernels, by their places among all questions, and what they took."""

    problem: str
    first: int
    us: list[float]

    @property
    def places(self) -> slice:
        return slice(self.first, self.first + len(self.us))


class Data(NamedTuple):
    cases: list[Case]
    questions: list[Question]


def device_of(gpu: str) -> native.DeviceSpec:
    known = GPUS[gpu]
    device = native.DeviceSpec.cuda(known.arch, known.sm_count, known.smem_optin_bytes)
    device.clock_mhz, device.memory_gbps, device.l2_bytes = known.clock_mhz, known.memory_gbps, known.l2_bytes
    return device


def load(results: Path, gpus: Iterable[str]) -> Data:
    problems = named_problems()
    kernels = {kernel.name: kernel for kernel in native.kernel_table()}
    data = Data([], [])
    for gpu in gpus:
        device = device_of(gpu)
        for (name, label, layout, pass_), times in measured(results, gpu).items():
            known = {kernel: us for kernel, us in times.items() if kernel in kernels}
            if name not in problems or len(known) < 2:
                continue
            problem, mode = problems[name], MODES[label]
            asked = native.ConvProblem(
                problem.input,
                problem.weight,
                *problem.conv_args,
                pass_=pass_,
                dtype=str(mode.torch_dtype).removeprefix("torch."),
                precision=mode.precision or "ieee",
                channels_last=layout == "nhwc",
            )
            questions = [(kernels[kernel], asked, device) for kernel in known]
            expected = native.expected_us(questions)
            runs = [i for i, us in enumerate(expected) if math.isfinite(us)]
            if len(runs) < 2:
                continue
            data.cases.append(Case(name, len(data.questions), [list(known.values())[i] for i in runs]))
            data.questions.extend(questions[i] for i in runs)
    return data


def regrets(data: Data) -> list[float]:
    expected = native.expected_us(data.questions)
    found = []
    for case in data.cases:
        here = expected[case.places]
        found.append(case.us[here.index(min(here))] / min(case.us))
    return found


def loss(data: Data) -> float:
    """The regret of a choice that is the less certain, the closer expectations are; and their distance from times."""
    expected = native.expected_us(data.questions)
    total = 0.0
    for case in data.cases:
        here = expected[case.places]
        least, best = min(here), min(case.us)
        weights = [math.exp(-math.log(us / least) / SHARPNESS) for us in here]
        regret = sum(w * (us / best - 1) for w, us in zip(weights, case.us, strict=True)) / sum(weights)
        apart = [math.log(us / took) for us, took in zip(here, case.us, strict=True)]
        mean = sum(apart) / len(apart)
        total += regret + 2 * regret**2 + CALIBRATION * sum((value - mean) ** 2 for value in apart) / len(apart)
    return total / len(data.cases)


def fit(data: Data, names: Sequence[str], rounds: int, least: float, prior: float) -> None:
    """Changes native.costs(). `prior`: what a change by a factor of e has to gain; constants rest on more than this."""
    before_all = native.costs()
    now = loss(data)
    order = [(name, index) for name in names for index in range(len(native.costs()[name]))]
    draw = random.Random(1)
    for _ in range(rounds):
        draw.shuffle(order)
        before = now
        for name, index in order:
            value = native.costs()[name][index]
            best, gain = value, 0.0
            for step in STEPS:
                native.set_cost(name, index, value * step)
                first = before_all[name][index]
                farther = abs(math.log(value * step / first)) - abs(math.log(value / first)) if first else 0
                gained = now - loss(data) - prior * farther
                if gained > max(least, gain):
                    best, gain = value * step, gained
            native.set_cost(name, index, best)
            if best != value:
                now = loss(data)
        if before - now < least:
            return


def reset(costs: dict[str, list[float]]) -> None:
    for name, values in costs.items():
        for index, value in enumerate(values):
            native.set_cost(name, index, value)


def halves(data: Data) -> list[tuple[Data, Data]]:
    names = sorted({case.problem for case in data.cases})
    random.Random(1).shuffle(names)
    one = set(names[::2])
    parts = [Data([case for case in data.cases if (case.problem in one) == side], data.questions) for side in (0, 1)]
    return [(parts[0], parts[1]), (parts[1], parts[0])]


def summary(found: Sequence[float]) -> str:
    above = sum(regret > 1.1 for regret in found)
    return f"geometric mean {statistics.geometric_mean(found):.4f}, worst {max(found):.3f}, {above} above 1.1"


def write(old: dict[str, list[float]], new: dict[str, list[float]]) -> None:
    """Into the lines of costs.def."""
    for path in sorted(COSTS.rglob("costs.def")):
        text = path.read_text()
        for name, values in new.items():
            if values != old[name]:
                group, _, constant = name.partition(".")
                words = ", ".join(f"{value:.4g}".removeprefix("0") or "0" for value in values)
                text = re.sub(rf"(FASTCONV_COSTS?\({group}, {constant}, )[^)]*\)", rf"\g<1>{words})", text)
        path.write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fit", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--gpus", nargs="+", default=list(GPUS), choices=GPUS, help="whose measurements")
    add("--constants", nargs="+", default=["*"], help="of costs.def, group.name, as glob patterns")
    add("--rounds", type=int, default=3)
    add("--least", type=float, default=5e-5, help="gain for which a constant changes")
    add("--prior", type=float, default=1e-3, help="gain for which it changes by a factor of e")
    add("--held-out", action="store_true", help="also what is gained on problems that were left out")
    add("--write", action="store_true", help="the constants into the costs.def files")
    add("--results", type=Path, default=report.RESULTS)
    options = parser.parse_args(arguments)
    data = load(options.results, options.gpus)
    before = native.costs()
    names = [name for name in before if any(fnmatch.fnmatch(name, pattern) for pattern in options.constants)]
    print(
        f"{len(data.cases)} cases, {len(data.questions)} times, {len(names)} constants\nnow: {summary(regrets(data))}"
    )
    if options.held_out:
        for seen, left_out in halves(data):
            fit(seen, names, options.rounds, options.least, options.prior)
            fitted = summary(regrets(left_out))
            reset(before)
            print(f"left out: {summary(regrets(left_out))} -> {fitted}", flush=True)
    fit(data, names, options.rounds, options.least, options.prior)
    after = native.costs()
    rows = [
        [name, ", ".join(f"{value:.4g}" for value in before[name]), ", ".join(f"{value:.4g}" for value in after[name])]
        for name in names
        if after[name] != before[name]
    ]
    print(report.table(["constant", "before", "after"], rows, left=1))
    print(f"\nfitted: {summary(regrets(data))}")
    if options.write:
        write(before, after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
