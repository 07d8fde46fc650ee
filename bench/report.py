"""What was measured: as JSON, as a table to read, as a picture."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.floors import Ceilings
from bench.timing import HostTime, Measurement

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SCHEMA = 1
RESULTS = Path(__file__).parent / "results"
# Two results closer than this are called equal: the spread of one version measured twice.
TIE = 0.02


@dataclass(frozen=True)
class Result:
    """Of one contender. Without `error` it was not right, and `failure` says why."""

    time: Measurement | None = None
    error: float | None = None
    failure: str = ""


@dataclass(frozen=True)
class Row:
    problem: str
    shape: str
    count: int
    source: str
    mode: str
    layout: str
    pass_: str
    flops: float
    floor_ms: float
    floor_flops: float
    floor_bytes: float
    bound: str
    status: str  # ok, loose, WRONG, FAILED, refused
    plan: str  # fastconv's: the kernel's name, then its parameters
    results: dict[str, Result]
    kind: str = ""

    @staticmethod
    def of(data: dict[str, Any]) -> Row:
        """As JSON has it."""
        return Row(**{**data, "results": _results(data["results"])})

    def ms(self, contender: str) -> float | None:
        result = self.results.get(contender)
        return result.time.ms if result and result.time else None

    def speedup(self, opponent: str) -> float | None:
        """Opponent's time over fastconv's: above 1 fastconv is faster. None if fastconv is not right."""
        ours, theirs = self.ms("fastconv"), self.ms(opponent)
        return theirs / ours if ours and theirs and self.status in ("ok", "loose") else None

    @property
    def floor_fraction(self) -> float | None:
        ours = self.ms("fastconv")
        return self.floor_ms / ours if ours else None


@dataclass
class Report:
    suite: str
    about: str
    date: str
    command: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    build: dict[str, Any]
    names: dict[str, str]  # contender -> how to print it
    ceilings: Ceilings  # that the floors use
    measured: Ceilings  # in this run
    rows: list[Row] = field(default_factory=list)
    host: list[HostTime] = field(default_factory=list)

    @property
    def opponents(self) -> list[str]:
        return [name for name in self.names if name != "fastconv"]

    @property
    def failed(self) -> bool:
        return any(row.status in ("WRONG", "FAILED") for row in self.rows)

    def to_json(self) -> str:
        return dump(self)

    @staticmethod
    def from_json(text: str) -> Report:
        data = load(text)
        data["ceilings"], data["measured"] = Ceilings(**data["ceilings"]), Ceilings(**data["measured"])
        data["host"] = [HostTime(**entry) for entry in data["host"]]
        data["rows"] = [Row.of(row) for row in data["rows"]]
        return Report(**data)

    def write(self, stem: Path) -> list[Path]:
        compared = any(row.speedup(opponent) for row in self.rows for opponent in self.opponents)
        return write(stem, self.to_json(), markdown(self), partial(draw, self) if compared else None)


@contextlib.contextmanager
def sigterm_exits() -> Iterator[None]:
    """A time limit's signal ends the run as an exception would, so that what was measured is still reported."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def dump(measured: DataclassInstance) -> str:
    return json.dumps({"schema": SCHEMA, **dataclasses.asdict(measured)}, indent=1, allow_nan=False) + "\n"


def load(text: str) -> dict[str, Any]:
    """The fields of what was dumped, as JSON has them."""
    data: dict[str, Any] = json.loads(text)
    if (schema := data.pop("schema")) != SCHEMA:
        raise ValueError(f"schema must be {SCHEMA}, but got {schema}")
    return data


def write(stem: Path, dumped: str, text: str, picture: Callable[[Path], None] | None) -> list[Path]:
    """JSON, Markdown and, if there is something to draw, PNG."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [Path(f"{stem}.json"), Path(f"{stem}.md")]
    paths[0].write_text(dumped)
    paths[1].write_text(text)
    if picture:
        paths.append(Path(f"{stem}.png"))
        picture(paths[2])
    return paths


def _results(data: dict[str, Any]) -> dict[str, Result]:
    return {
        name: Result(**{**entry, "time": Measurement(**entry["time"]) if entry["time"] else None})
        for name, entry in data.items()
    }


def markdown(report: Report) -> str:
    parts = [heading(report), summary(report), losses(report), totals(report), host_table(report)]
    if report.rows:
        parts.append("## Every measurement\n\n" + table_of_rows(report))
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(report: Report) -> str:
    machine = ", ".join(f"{key} {value}" for key, value in report.machine.items())
    settings = ", ".join(f"{key} {value}" for key, value in report.settings.items())
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    build = ", ".join(f"{key} {value}" for key, value in report.build.items() if value)
    measured = ", ".join(f"{mode} {rate:.3g}" for mode, rate in report.measured.tflops.items())
    return "\n".join(
        [
            f"# {report.suite}: {report.about}" if report.about else f"# {report.suite}",
            "",
            f"- {report.date}, `{report.command}`",
            f"- Settings: {settings}",
            f"- Machine: {machine}",
            f"- Versions: {versions}",
            f"- Build: {build}",
            f"- Floors: {report.ceilings.copy_gbs:.0f} GB/s and TFLOP/s per mode from {report.ceilings.source}",
            f"- Measured in this run: copy {report.measured.copy_gbs:.0f} GB/s, PyTorch GEMM TFLOP/s {measured}",
        ]
    )


def summary(report: Report) -> str:
    sections = []
    for opponent in report.opponents:
        by_pass = _ratios(report, opponent, "pass", lambda row: row.pass_)
        if by_pass:
            sections.append(f"## Against {report.names[opponent]} (geometric means)\n\n" + by_pass)
        if len({row.kind for row in report.rows}) > 2:
            sections.append("By kind of layer:\n\n" + _ratios(report, opponent, "kind", lambda row: row.kind))
    return "\n\n".join(sections)


def _ratios(report: Report, opponent: str, name: str, key: Callable[[Row], str]) -> str:
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in report.rows:
        groups[row.mode, row.layout, key(row)].append(row)
    lines = []
    for group, rows in groups.items():
        ratios = [ratio for row in rows if (ratio := row.speedup(opponent))]
        if not ratios:
            lines.append([*group, "-", "-", "-", f"0/{len(rows)}", "-", "-"])
            continue
        fractions = [row.floor_fraction for row in rows if row.floor_fraction]
        lines.append(
            [
                *group,
                f"{geomean(ratios):.2f}x",
                f"{min(ratios):.2f}x",
                f"{max(ratios):.2f}x",
                f"{sum(ratio > 1 for ratio in ratios)}/{len(rows)}",
                f"{sum(ratio < 0.9 for ratio in ratios)}",
                f"{geomean(fractions):.0%}",
            ]
        )
    header = ["mode", "layout", name, "speed-up", "least", "most", "faster in", "below .9x", "of floor"]
    return table(header, lines, left=3) if lines else ""


def losses(report: Report) -> str:
    """Where fastconv is slower, loose, wrong or missing; nothing is left out."""
    lines = []
    for row in report.rows:
        where = f"{row.problem}, {row.mode}, {row.layout}, {row.pass_}"
        if row.status != "ok":
            ours = row.results["fastconv"]
            error = "" if ours.error is None else f" error {ours.error:.1e}"
            lines.append((0.0, f"- {where}: {row.status}{error} {ours.failure}".rstrip()))
        for opponent in report.opponents:
            ratio = row.speedup(opponent)
            if ratio and ratio < 1 - TIE:
                lines.append((ratio, f"- {where}: {1 / ratio:.2f} times the time of {report.names[opponent]}"))
    if not lines:
        return ""
    return "## Slower, loose or wrong\n\n" + "\n".join(text for _, text in sorted(lines))


def totals(report: Report) -> str:
    """Time of all layers of a network, each as often as the network has it."""
    if all(row.count == 1 for row in report.rows):
        return ""
    sums: dict[tuple[str, str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in report.rows:
        for contender in report.names:
            ms = row.ms(contender)
            sums[row.mode, row.layout, row.pass_][contender] += math.nan if ms is None else ms * row.count
    header = ["mode", "layout", "pass", *(f"{name} ms" for name in report.names.values())]
    lines = [[*key, *(number(by[contender]) for contender in report.names)] for key, by in sums.items()]
    return "## All layers together\n\n" + table(header, lines, left=3)


def host_table(report: Report) -> str:
    if not report.host:
        return ""
    names = list(dict.fromkeys(name for time in reversed(report.host) for name in time.microseconds))
    lines = [
        [time.problem, time.what, *(f"{us:.1f}" if (us := time.microseconds.get(name)) else "-" for name in names)]
        for time in report.host
    ]
    return "## Host time per call, microseconds\n\n" + table(["problem", "", *names], lines, left=2)


def table_of_rows(report: Report) -> str:
    header = ["problem", "mode", "layout", "pass", "fastconv ms", "+-"]
    for opponent in report.opponents:
        header += [f"{report.names[opponent]} ms", "+-", "speed-up"]
    header += [
        "of floor",
        "bound",
        "error",
        *(f"{report.names[name]} error" for name in report.opponents),
        "status",
        "kernel",
    ]
    lines = []
    for row in report.rows:
        line = [row.problem, row.mode, row.layout, row.pass_, *_timing(row, "fastconv")]
        for opponent in report.opponents:
            ratio = row.speedup(opponent)
            line += [*_timing(row, opponent), f"{ratio:.2f}x" if ratio else "-"]
        fraction = row.floor_fraction
        line += [f"{fraction:.0%}" if fraction else "-", row.bound]
        for contender in report.names:
            error = row.results[contender].error
            line.append("-" if error is None else f"{error:.1e}")
        lines.append([*line, row.status, row.plan.partition(" ")[0]])
    return table(header, lines, left=4)


def _timing(row: Row, contender: str) -> list[str]:
    time = row.results[contender].time
    return [number(time.ms), f"{time.spread:.0%}"] if time else ["-", "-"]


def number(value: float) -> str:
    """Four significant digits, no exponent."""
    if math.isnan(value) or value <= 0:
        return "-"
    return f"{value:.{max(0, 3 - math.floor(math.log10(value)))}f}"


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def table(header: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> str:
    """A Markdown table that is aligned as plain text too; the first `left` columns hold words."""
    widths = [max(len(line[i]) for line in (header, *lines)) for i in range(len(header))]

    def aligned(line: Sequence[str]) -> str:
        cells = (
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        return "| " + " | ".join(cells) + " |"

    rule = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([aligned(header), aligned(rule), *(aligned(line) for line in lines)])


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6d31", "#555555")
MARKERS = {"fprop": "o", "dgrad": "s", "wgrad": "^"}


def draw(report: Report, path: Path) -> None:
    """Speed-up over the first opponent, a panel per pass; below, achieved rate against the roofline, one per mode."""
    from matplotlib.figure import Figure

    opponent = report.opponents[0]
    passes = list(dict.fromkeys(row.pass_ for row in report.rows))
    modes = list(dict.fromkeys(row.mode for row in report.rows))
    problems = list(dict.fromkeys(row.problem for row in report.rows))
    series = list(dict.fromkeys((row.mode, row.layout) for row in report.rows))

    bars_height = max(3.0, len(problems) * (0.1 + 0.09 * len(series)))
    figure = Figure(figsize=(5.2 * max(len(passes), len(modes), 2), bars_height + 5.5), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[bars_height + 0.8, 4.7])[:, 0]
    figure.suptitle(f"{report.suite} on {report.machine.get('device', '')}, {report.date}")

    speedups = {(row.problem, row.mode, row.layout, row.pass_): row.speedup(opponent) for row in report.rows}
    thickness = 0.85 / len(series)
    panels = above.subplots(1, len(passes), sharex=True, sharey=True, squeeze=False)[0]
    for axes, pass_ in zip(panels, passes, strict=True):
        for index, ((mode, layout), colour) in enumerate(zip(series, itertools.cycle(COLOURS), strict=False)):
            values = [speedups.get((problem, mode, layout, pass_)) or math.nan for problem in problems]
            positions = [place + (index - (len(series) - 1) / 2) * thickness for place in range(len(problems))]
            # Bars start at 1, so that a loss points the other way.
            axes.barh(positions, [v - 1 for v in values], thickness, left=1, color=colour, label=f"{mode}, {layout}")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(plain_ticks())
        axes.xaxis.set_minor_formatter(plain_ticks(only_leading=(2, 5)))
        axes.set_yticks(range(len(problems)), problems)
        axes.set_ylim(len(problems) - 0.5, -0.5)
        axes.set_title(f"{pass_}: speed-up over {report.names[opponent]}")
        axes.grid(axis="x", which="both", linewidth=0.3)
        axes.set_axisbelow(True)
    above.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=len(series), fontsize="small")

    for axes, mode in zip(below.subplots(1, len(modes), squeeze=False)[0], modes, strict=True):
        rows = [row for row in report.rows if row.mode == mode]
        _roofline(axes, report, mode, rows, opponent)
    save(figure, path, dpi=110)


def save(figure: Any, path: Path, dpi: int) -> None:
    """As the suffix says; SVG with text as text, and the same bytes for the same figure."""
    import matplotlib

    svg = path.suffix == ".svg"
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
        figure.savefig(path, dpi=dpi, metadata={"Date": None} if svg else None)


def _roofline(axes: Any, report: Report, mode: str, rows: Sequence[Row], opponent: str) -> None:
    rate, bandwidth = report.ceilings.tflops[mode], report.ceilings.copy_gbs / 1e3
    ridge = rate / bandwidth
    intensities = [row.floor_flops / row.floor_bytes for row in rows]
    ends = min(*intensities, ridge) / 1.5, max(*intensities, ridge) * 1.5
    axes.plot([ends[0], ridge, ends[1]], [ends[0] * bandwidth, rate, rate], color="black", linewidth=1)
    for contender, filled in (("fastconv", True), (opponent, False)):
        for pass_, marker in MARKERS.items():
            points = [
                (row.floor_flops / row.floor_bytes, row.floor_flops / ms / 1e9)
                for row in rows
                if row.pass_ == pass_ and (ms := row.ms(contender))
            ]
            if points:
                axes.scatter(
                    *zip(*points, strict=True),
                    marker=marker,
                    s=22,
                    facecolors="black" if filled else "none",
                    edgecolors="black" if filled else "#777777",
                    linewidths=0.8,
                    label=f"{report.names[contender]} {pass_}",
                    zorder=3 if filled else 2,
                )
    axes.set(xscale="log", yscale="log", xlabel="FLOP per compulsory byte", ylabel="TFLOP/s", title=f"{mode} roofline")
    axes.grid(which="major", linewidth=0.3)
    axes.legend(fontsize="x-small", loc="lower right")


def plain_ticks(only_leading: tuple[int, ...] = ()) -> Callable[[float, int], str]:
    """0.5, 1, 2 instead of powers of ten; of minor ticks only those whose leading digit is given."""

    def text(value: float, _: int) -> str:
        leading = round(value / 10 ** math.floor(math.log10(value)))
        return f"{value:g}" if not only_leading or leading in only_leading else ""

    return text


def files(results: Path, gpu: str) -> list[Path]:
    """Reports of a GPU, not those where it acts as another one; the first that was written first: names end in the
    time."""
    return sorted(results.glob(f"*-{gpu}-[0-9]*.json"), key=lambda path: path.stem.rpartition("-")[2])
