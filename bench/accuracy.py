"""How errors grow with the length of sums and with the range of the numbers: fastconv in each mode beside cuDNN.

    python -m bench.accuracy                                                    # on the GPU: JSON, table and picture
    python -m bench.accuracy --draw bench/results/NAME.json --picture docs/accuracy.svg         # the picture, anywhere

Each point is the normwise error against float64 of one problem, as the root mean square over a few draws of its data.
cuDNN runs as PyTorch calls it by default, without its benchmark mode, so that one and the same kernel is compared in
every run.
"""

from __future__ import annotations

import argparse
import itertools
import math
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bench import environment, opponents, report
from bench.errors import Tensors, promised, random_tensors, reference
from bench.modes import PRECISIONS, Mode, modes_of
from bench.suites import PASSES, Problem
from bench.timing import tf32_allowed

LAYOUT = "nchw"
MODES = modes_of(["float32"], PRECISIONS)

SWEEPS = {
    "length": "products of a sum",
    "range": "sigma of numbers that are normal times exp(sigma * normal)",
    "scale": "exponent of 2 by which one operand is multiplied and the other divided",
}
CHANNELS = [2**i for i in range(1, 12)]  # of the reduction: sums of 18 to 18,432 products
SIDES = [2**i for i in range(3, 11)]  # of a weight gradient's image: 64 to 1,048,576
SIGMAS = list(range(7))
EXPONENTS = [-144, -138, -132, -126, -120, -114, -96, -64, -32, 0, 32, 64, 96, 120]  # denormal below -126
MOST_DIVIDED = 100  # beyond, what divides would leave float32's range

# What a pass multiplies.
FACTORS = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("x", "dy")}


@dataclass(frozen=True)
class Case:
    sweep: str
    at: float  # on the axis that SWEEPS names
    pass_: str
    problem: Problem
    sigma: float = 0
    exponent: int = 0


def cases(quick: bool) -> list[Case]:
    """Large enough for tensor cores to pay. `quick`: the first few of each sweep, and small."""
    few, images, side, wide = (2, 1, 8, 16) if quick else (None, 8, 32, 128)

    def problem(c: int, k: int, n: int, side: int) -> Problem:
        return Problem("accuracy", (n, c, side, side), (k, c, 3, 3), padding=(1, 1))

    found = []
    for channels in CHANNELS[:few]:
        found.append(Case("length", 9 * channels, "fprop", problem(channels, wide, images, side)))
        found.append(Case("length", 9 * channels, "dgrad", problem(wide, channels, images, side)))
    found += [Case("length", each * each, "wgrad", problem(wide, wide, 1, each)) for each in SIDES[:few]]
    for pass_ in PASSES:
        middle = problem(wide, wide, images, side)
        found += [Case("range", sigma, pass_, middle, sigma=sigma) for sigma in SIGMAS[:few]]
        found += [Case("scale", exponent, pass_, middle, exponent=exponent) for exponent in EXPONENTS[:few]]
    return found


def draw_tensors(case: Case, generator: torch.Generator) -> Tensors:
    data = random_tensors(case.problem, torch.float32, generator)
    first, second = FACTORS[case.pass_]
    divided = max(-MOST_DIVIDED, min(MOST_DIVIDED, case.exponent))

    def changed(name: str, exponent: int) -> torch.Tensor:
        normal: torch.Tensor = getattr(data, name)
        range_ = torch.randn(normal.shape, dtype=torch.float64, device=normal.device, generator=generator)
        return (normal * torch.exp(case.sigma * range_) * 2.0**exponent).float()

    return replace(data, **{first: changed(first, case.exponent), second: changed(second, -divided)})


@dataclass(frozen=True)
class Point:
    sweep: str
    at: float
    pass_: str
    shape: str
    mode: str
    kernel: str
    error: float | None  # None: the result holds NaN
    opponent_error: float | None  # in strict float32, for "tf32" in TF32
    promised: float

    @property
    def share(self) -> float:
        """Of what is promised; above 1 it is broken."""
        return math.inf if self.error is None else self.error / self.promised


def measure(case: Case, device: torch.device, draws: int) -> list[Point]:
    """Of one case in every mode. The seeds are always the same."""
    data = [draw_tensors(case, torch.Generator(device).manual_seed(seed)) for seed in range(draws)]
    expected = [reference(case.problem, case.pass_, one) for one in data]

    def error(contender: str, mode: Mode) -> float | None:
        run = opponents.CONTENDERS[contender](case.problem, case.pass_, mode, LAYOUT)
        with tf32_allowed(mode.opponent_tf32):
            squares = [one.error(run(tensors)) ** 2 for tensors, one in zip(data, expected, strict=True)]
        mean = statistics.fmean(squares)
        return math.sqrt(mean) if math.isfinite(mean) else None

    def point(mode: Mode) -> Point:
        opponent_error = error("torch", mode)
        return Point(
            sweep=case.sweep,
            at=case.at,
            pass_=case.pass_,
            shape=case.problem.describe(),
            mode=mode.label,
            kernel=opponents.explain(case.problem, case.pass_, mode, LAYOUT, device).partition(" ")[0],
            error=error("fastconv", mode),
            opponent_error=opponent_error,
            promised=promised(mode, opponent_error),
        )

    return [point(mode) for mode in MODES]


@dataclass
class Accuracy:
    """A run: the facts of a benchmark's report, and the points."""

    date: str
    command: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    build: dict[str, Any]
    names: dict[str, str]  # contender -> how to print it
    points: list[Point] = field(default_factory=list)

    def to_json(self) -> str:
        return report.dump(self)

    @staticmethod
    def from_json(text: str) -> Accuracy:
        data = report.load(text)
        data["points"] = [Point(**point) for point in data["points"]]
        return Accuracy(**data)

    def write(self, stem: Path) -> list[Path]:
        return report.write(stem, self.to_json(), markdown(self), partial(draw, self))

    def of(self, sweep: str, pass_: str, mode: str) -> list[Point]:
        return [point for point in self.points if (point.sweep, point.pass_, point.mode) == (sweep, pass_, mode)]


def nearest(found: Accuracy) -> str:
    """Of each curve the point that comes closest to what is promised, or furthest beyond."""
    header = ["sweep", "pass", "mode", "at", "error", f"{found.names['torch']} error", "of promised"]
    lines = []
    for sweep, pass_, mode in itertools.product(SWEEPS, PASSES, MODES):
        if points := found.of(sweep, pass_, mode.label):
            worst = max(points, key=lambda point: point.share)
            errors = [_text(worst.error), _text(worst.opponent_error), f"{worst.share:.3g}"]
            lines.append([sweep, pass_, mode.label, f"{worst.at:g}", *errors])
    return report.table(header, lines, left=3)


def markdown(found: Accuracy) -> str:
    """The nearest to what is promised; then all points that are beyond."""
    facts = [found.settings, found.machine, found.versions, found.build]
    beyond = [
        f"- {point.sweep} {point.at:g}, {point.pass_}, {point.mode}: {_text(point.error)} of {_text(point.promised)}"
        for point in found.points
        if point.share > 1
    ]
    return "\n".join(
        [
            f"# Accuracy\n\n- {found.date}, `{found.command}`",
            *(f"- {', '.join(f'{key} {value}' for key, value in fact.items() if value != '')}" for fact in facts),
            *(f"- {sweep}: {axis}" for sweep, axis in SWEEPS.items()),
            f"\n## Nearest to what is promised\n\n{nearest(found)}",
            f"\n## Beyond it: {len(beyond)} of {len(found.points)}\n",
            *beyond,
            "",
        ]
    )


def _text(error: float | None) -> str:
    return "NaN" if error is None else f"{error:.2e}"


def draw(found: Accuracy, path: Path) -> None:
    """A row of panels per pass, a column per sweep. Of each mode: both contenders, and what is promised."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 13), layout="constrained")
    figure.suptitle(f"Normwise error against float64 on {found.machine['device']}, {found.date}")
    panels = figure.subplots(len(PASSES), len(SWEEPS), sharex="col", sharey=True)
    for row, pass_ in zip(panels, PASSES, strict=True):
        for axes, sweep in zip(row, SWEEPS, strict=True):
            for mode, colour in zip(MODES, report.COLOURS, strict=False):
                _draw_mode(axes, found.of(sweep, pass_, mode.label), mode, colour, found.names["torch"])
            axes.set_yscale("log")
            if sweep == "length":
                axes.set_xscale("log")
            axes.set_title(f"{pass_}: {sweep}")
            axes.grid(linewidth=0.3)
        row[0].set_ylabel("error")
    for axes, axis in zip(panels[-1], SWEEPS.values(), strict=True):
        axes.set_xlabel(axis, fontsize="small")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(MODES))
    report.save(figure, path, dpi=80)


def _draw_mode(axes: Any, points: Sequence[Point], mode: Mode, colour: str, opponent: str) -> None:
    at = [point.at for point in points]

    def line(errors: Sequence[float | None], label: str, **style: Any) -> None:
        axes.plot(at, [math.nan if error is None else error for error in errors], color=colour, label=label, **style)

    line([p.error for p in points], f"fastconv, {mode.precision}", marker="o", markersize=4)
    line([p.promised for p in points], f"promised, {mode.precision}", linestyle=":", linewidth=1)
    if mode.precision != "bf16x3":  # whose opponent is that of "ieee", and whose bound is not relative to it
        name = f"{opponent}, {'TF32' if mode.opponent_tf32 else 'strict float32'}"
        line([p.opponent_error for p in points], name, linestyle="--", marker="s", markersize=4, markerfacecolor="none")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__)
    cuda = torch.cuda.is_available()
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")
    add("--draws", type=int, default=4, help="of the data of each point; default: 4")
    add("--quick", action="store_true", help="few and small problems: to see that everything runs")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="default: bench/results")
    add("--draw", type=Path, metavar="JSON", help="only the picture, of an earlier run")
    add("--picture", type=Path, metavar="PATH", help="where --draw puts it; default: beside the JSON")
    options = parser.parse_args(arguments)
    if options.draw:
        draw(Accuracy.from_json(options.draw.read_text()), options.picture or options.draw.with_suffix(".png"))
        return 0
    import fastconv  # noqa: F401  (registers the ops)

    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = False
    found = Accuracy(
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        command=shlex.join(["python", "-m", "bench.accuracy", *(sys.argv[1:] if arguments is None else arguments)]),
        settings={"layout": LAYOUT, "draws": options.draws, "quick": options.quick, "cudnn.benchmark": False},
        machine=environment.machine(device),
        versions=environment.versions(device),
        build=environment.build(),
        names={name: opponents.display_name(name, device) for name in ("fastconv", "torch")},
    )
    try:
        with report.sigterm_exits():
            for case in tqdm(cases(options.quick), unit="case"):
                found.points += measure(case, device, options.draws)
    finally:  # a run that is cut short leaves what it had
        stem = options.out / f"accuracy-{environment.slug(device)}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        paths = found.write(stem)
        print(f"{markdown(found)}wrote {', '.join(map(str, paths))}")
    return int(any(point.error is None for point in found.points))


if __name__ == "__main__":
    sys.exit(main())
