"""What was measured of KernelBench's problems: as tables to read, as a picture."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.kernelbench.measure import ALL_OPPONENTS, COMPILED, FASTCONV, OPPONENTS

Row = dict[str, Any]


def own(opponent: str) -> str:
    """Which of fastconv's contenders it is compared with: compiled models with compiled ones."""
    return COMPILED if opponent in OPPONENTS["compile"] else FASTCONV


def pairs(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Contenders and opponents that were measured; eager fastconv beside compiled models, too."""
    found = [
        (name, opponent)
        for opponent in ALL_OPPONENTS
        for name in dict.fromkeys((FASTCONV, own(opponent)))
        if any(speed_up(row, name, opponent) for row in rows)
    ]
    return sorted(found, key=lambda pair: pair[0] == COMPILED)


def speed_up(row: Row, name: str, opponent: str) -> float | None:
    """Of mean times, as KernelBench has it."""
    ms = row.get("ms", {})
    return ms[opponent] / ms[name] if name in ms and opponent in ms else None


def title(row: Row) -> str:
    """Level, number and as much of the name as a table has room for."""
    return f"{row['level']}/{row['problem']}"[:48].rstrip("_")


def markdown(rows: Sequence[Row]) -> str:
    return "\n\n".join(text for text in (summary(rows), losses(rows), times(rows), errors(rows)) if text)


def summary(rows: Sequence[Row]) -> str:
    """fast_1 is KernelBench's: how many are right and faster."""
    lines = []
    levels = sorted({row["level"] for row in rows})
    precisions = dict.fromkeys(row["precision"] for row in rows)
    for precision, level, (name, opponent) in itertools.product(precisions, levels, pairs(rows)):
        chosen = [row for row in rows if (row["precision"], row["level"]) == (precision, level)]
        ratios = {i: ratio for i, row in enumerate(chosen) if (ratio := speed_up(row, name, opponent))}
        if not ratios:
            continue
        fast = sum(chosen[i]["status"] == "ok" and ratio > 1 for i, ratio in ratios.items())
        right = sum(row["status"] == "ok" for row in chosen)
        numbers = [report.geomean(ratios.values()), min(ratios.values()), max(ratios.values())]
        line = [precision, str(level), name, opponent, str(len(chosen)), str(right), f"{fast / len(chosen):.0%}"]
        lines.append(line + [f"{number:.2f}x" for number in numbers])
    header = ["precision", "level", "contender", "over", "problems", "right", "fast_1", "mean", "least", "most"]
    return report.table(header, lines, left=4)


def losses(rows: Sequence[Row]) -> str:
    """What is not right; and what is slower than the fastest opponent, the slowest first."""
    lines, slow = [], []
    for row in rows:
        case = f"{title(row)}, {row['precision']}"
        if row["status"] == "FAILED":
            lines.append(f"- {case}: FAILED, {row['failure']}")
        elif row["status"] == "WRONG":
            check, of = row["check"], row["errors"]
            against = ", ".join(f"{name} {error['distance']:.2g}" for name, error in of.items())
            passed = f"{check['passed']} of {check['of']} trials pass"
            lines.append(f"- {case}: {passed}; {check['distance']:.2g} x tolerance apart, from float64 {against}")
        lines += [f"- {case}: {name} FAILED, {why}" for name, why in row.get("failures", {}).items()]
        found = pairs([row])
        for name in dict.fromkeys(name for name, _ in found):
            ratio, opponent = min((speed_up(row, *pair) or math.inf, pair[1]) for pair in found if pair[0] == name)
            if ratio < 1 - report.TIE:
                slow.append((ratio, f"- {case}: {name} {ratio:.2f}x of {opponent}"))
    return "\n".join(lines + [line for _, line in sorted(slow)])


def times(rows: Sequence[Row]) -> str:
    """Milliseconds, means; in brackets speed-ups."""
    names = [name for name in (FASTCONV, COMPILED, *ALL_OPPONENTS) if any(name in row.get("ms", {}) for row in rows)]
    found = pairs(rows)
    lines = []
    for row in rows:
        ms = [report.number(row.get("ms", {}).get(name, math.nan)) for name in names]
        ratios = [speed_up(row, *pair) for pair in found]
        cells = [f"{ratio:.2f}x" if ratio else "-" for ratio in ratios]
        lines.append([title(row), row["precision"], row["status"], *ms, *cells])
    header = ["problem", "precision", "status", *(f"{name} ms" for name in names)]
    return report.table([*header, *(f"{name} over {opponent}" for name, opponent in found)], lines, left=3)


def errors(rows: Sequence[Row]) -> str:
    """Against each other, and against float64."""
    lines = []
    for row in rows:
        if "check" in row:
            check, of = row["check"], row["errors"]
            line = [title(row), row["precision"], f"{check['passed']}/{check['of']}", f"{check['distance']:.2g}"]
            line += [f"{error['distance']:.2g}" for error in of.values()]
            lines.append(line + [f"{error['normwise']:.1e}" for error in of.values()])
    header = ["problem", "precision", "pass", "apart", "fastconv", "torch", "fastconv, normwise", "torch, normwise"]
    words = (
        "KernelBench's check: how far apart the two results are, in tolerances of 1e-4, at most over all trials; how "
        "far each is from float64 in the first trial, likewise, and normwise."
    )
    return f"{words}\n\n{report.table(header, lines, left=2)}" if lines else ""


def draw(rows: Sequence[Row], heading: str, path: Path) -> None:
    """Speed-up over each opponent, a panel per precision; hatched where KernelBench's check does not pass."""
    from matplotlib.figure import Figure

    series = [pair for pair in pairs(rows) if pair[0] == own(pair[1])]
    names = list(dict.fromkeys(map(title, rows)))
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    figure = Figure(figsize=(4.0 + 4.5 * len(precisions), 1.8 + len(names) * 0.34), layout="constrained")
    thickness = 0.85 / max(1, len(series))
    panels = figure.subplots(1, len(precisions), sharex=True, sharey=True, squeeze=False)[0]
    for axes, precision in zip(panels, precisions, strict=True):
        chosen = {title(row): row for row in rows if row["precision"] == precision}
        for index, ((name, opponent), colour) in enumerate(zip(series, itertools.cycle(report.COLOURS), strict=False)):
            ratios = [speed_up(chosen.get(problem, {}), name, opponent) or math.nan for problem in names]
            positions = [place + (index - (len(series) - 1) / 2) * thickness for place in range(len(names))]
            # Bars start at 1, so that a loss points the other way.
            bars = axes.barh(
                positions, [r - 1 for r in ratios], thickness, left=1, color=colour, label=f"{name} over {opponent}"
            )
            for problem, bar in zip(names, bars, strict=True):
                if chosen.get(problem, {}).get("status") == "WRONG":
                    bar.set_hatch("////")
                    bar.set_edgecolor("white")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(report.plain_ticks())
        axes.xaxis.set_minor_formatter(report.plain_ticks(only_leading=(2, 5)))
        axes.set_yticks(range(len(names)), names, fontsize="small")
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_title(f"speed-up, {precision} precision", fontsize="medium")
        axes.grid(axis="x", which="both", linewidth=0.3)
        axes.set_axisbelow(True)
    figure.suptitle(f"{heading}; hatched: KernelBench's check does not pass", fontsize="medium")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False, fontsize="small")
    report.save(figure, path, dpi=100)
