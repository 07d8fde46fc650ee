"""docs/performance.md, the README's table and its chart, from what is committed under bench/results. Needs no GPU.

    python -m bench.performance

Whole models first, then layers as each case was last measured, the CPU, the host and errors; all that is slower is
listed. Tests hold the page and the table against what this makes of the files.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench import batch_norm, fused_layers, models, report, targets
from bench.accuracy import Accuracy
from bench.accuracy import nearest as nearest_errors
from bench.kernelbench import tables as kernelbench
from bench.suites import load_suite, suite_names

ROOT = Path(__file__).parents[1]
PAGE, README, CHART = ROOT / "docs" / "performance.md", ROOT / "README.md", ROOT / "docs" / "models.svg"
TABLE = "<!-- python -m bench.performance writes this table -->"
CPU = "<!-- python -m bench.performance writes the CPU's table -->"
TIMES = "<!-- python -m bench.performance writes how long -->"
END = "<!-- its end -->"
SETTINGS = {"tf32": "TF32, NCHW", "bf16": "bf16, channels_last", "fp16": "fp16, NCHW"}
CUDNN = "cuDNN"
WAITS = 0.8  # of a step: where the GPU has kernels for less, the host limits it
MODELS = ("models", "fused", "steps")  # the kinds of files that whole models are in; the last two are of older runs
CUDA = torch.device("cuda")


@dataclass(frozen=True)
class Measured:
    """A row, as a file has it."""

    path: Path
    data: dict[str, Any]  # all of the file
    row: dict[str, Any]


def newest(results: Path, pattern: str) -> Path | None:
    return max(results.glob(pattern), key=stamp_of, default=None)


def gpus(results: Path) -> list[str]:
    """As names of files have them, those with the most files first."""
    names = "|".join((*suite_names(), *MODELS, "fused_layers"))
    found = [re.fullmatch(rf"(?:{names})-(.+)-\w+", path.stem) for path in results.glob("*.json")]
    of = [match[1] for match in found if match and match[1] != "cpu"]
    return sorted(set(of), key=lambda gpu: (-of.count(gpu), gpu))


def slower(ours: float, theirs: float) -> bool:
    return theirs / ours < 1 - report.TIE


def link(path: Path, root: str = "../") -> str:
    return f"[{path.stem}]({root}bench/results/{path.name})"


def links(paths: set[Path], root: str = "../") -> str:
    return ", ".join(link(path, root) for path in sorted(paths, key=stamp_of))


def device_of(data: dict[str, Any]) -> str:
    return str(data["machine"]["device"]).removeprefix("NVIDIA ")


def last_measured(
    results: Path, gpu: str, kinds: Sequence[str], keys: Sequence[str]
) -> dict[tuple[str, ...], Measured]:
    """Each case, which these fields name, from the last file of these kinds that has it."""
    found: dict[tuple[str, ...], Measured] = {}
    paths = [path for kind in kinds for path in results.glob(f"{kind}-{gpu}-[0-9]*.json")]
    for path in sorted(paths, key=stamp_of):
        data = json.loads(path.read_text())
        found |= {tuple(row[key] for key in keys): Measured(path, data, row) for row in data["rows"]}
    return found


def last_rows(results: Path, gpu: str, *kinds: str) -> list[Measured]:
    """Each model in each setting from the last file of these kinds that has it."""
    found = last_measured(results, gpu, kinds, ("model", "setting"))
    place = {name: at for at, name in enumerate((*models.WORKLOADS, *models.SETTINGS))}
    order = sorted(found, key=lambda key: [(place.get(name, len(place)), name) for name in key])
    return [found[key] for key in order]


def last_gpu(results: Path) -> list[Measured]:
    """The whole models of the GPU that was measured last, and as what it is."""
    own = [gpu for gpu in gpus(results) if "-as-" not in gpu]
    each = [rows for gpu in own if (rows := last_rows(results, gpu, *MODELS))]
    return max(each, key=lambda rows: max(stamp_of(measured.path) for measured in rows), default=[])


def succeeded(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    return [found.row for found in measured if "failure" not in found.row]


def readme_table(results: Path) -> str:
    found = last_gpu(results)
    if not found:
        return "`python -m bench.models` has not been run yet."
    header = ["model", "batch", "setting"]
    for what in models.WHAT:
        header += [f"{what} ms: {CUDNN}", "fastconv", "fused"]
    header += [f"images/s: {CUDNN}", "fused"]
    lines = []
    for row in (measured.row for measured in found):
        line = [row["model"], str(row["batch"]), SETTINGS[row["setting"]]]
        if "failure" in row:
            lines.append([*line, row["failure"], *["-"] * (len(header) - len(line) - 1)])
            continue
        for what in models.WHAT:
            waiting = [what == "step" and waits(row, name) for name in models.CONTENDERS]
            line += [figure(row[what], name) + "°" * at for name, at in zip(models.CONTENDERS, waiting, strict=True)]
        line += [figure(row["step"], name, row["batch"]) for name in ("torch", models.FUSED)]
        lines.append(line)
    versions = [measured.data["versions"] for measured in found]
    libraries = dict.fromkeys(f"torch {version['torch']}, {CUDNN} {version.get('cuDNN', '')}" for version in versions)
    return (
        f"{report.table(header, lines, left=3)}\n\n"
        f"{device_of(found[0].data)}, {' or '.join(libraries)}, `cudnn.benchmark` on "
        f"({links({measured.path for measured in found}, root='')}). Images/s: in training. "
        f"Bold: slower than {CUDNN} by more than {report.TIE:.0%}. °: the host is the limit, as the GPU has kernels "
        f"for less than {WAITS:.0%} of the step; how long stands in [docs/performance.md](docs/performance.md). Of "
        "inference that was not measured.\n\n"
        f"![Images a second in training](docs/{CHART.name})"
    )


def figure(times: dict[str, Any], contender: str, images: int = 0) -> str:
    """Milliseconds, or so many images a second."""
    if contender not in times:
        return "-"
    ms = times[contender]["ms"]
    return marked(f"{1e3 * images / ms:.0f}" if images else report.number(ms), slower(ms, times["torch"]["ms"]))


def waits(row: dict[str, Any], contender: str) -> bool:
    """Whether the GPU waits for the host in a step, as far as is known."""
    busy = row.get("busy_ms", {}).get(contender)
    return busy is not None and contender in row["step"] and busy < WAITS * row["step"][contender]["ms"]


def marked(text: str, loses: bool) -> str:
    return f"**{text}**" if loses else text


def readme_cpu(results: Path) -> str:
    path = newest(results, "cpu-*.json")
    if not path:
        return ""
    data = json.loads(path.read_text())
    groups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in data["rows"]:
        groups[row["model"]][f"{row['dtype']}, {row['layout']}"].append(row["torch_us"] / row["ours_us"])
    header = list(dict.fromkeys(key for by in groups.values() for key in by))
    lines = [
        [model, *(f"{report.geomean(by[key]):.2f} ({min(by[key]):.2f})" if by[key] else "-" for key in header)]
        for model, by in groups.items()
    ]
    return (
        "On the CPU, torch's time over fastconv's, of all layers and passes: geometric mean (least). "
        f"{data['machine']['device']}, {data['machine']['CPU threads']} threads, batch {data['batch']} "
        f"([file](bench/results/{path.name})).\n\n{report.table(['model', *header], lines, left=1)}"
    )


def readme_commands(results: Path) -> str:
    path = newest(results, "commands-*.json")
    if not path:
        return ""
    data = json.loads(path.read_text())
    minutes = {row["command"]: max(1, round(row["seconds"] / 60)) for row in data["rows"]}
    took = {command: f"{number} minute{'s' * (number > 1)}" for command, number in minutes.items()}
    return (
        f"From a fresh clone, on {data['cores']} cores without a GPU, `./dev train` took {took['./dev train']} with "
        f"downloads and build, `./dev test` after it {took['./dev test']} ([file](bench/results/{path.name}))."
    )


def readme(text: str, results: Path) -> str:
    """The README with what is between each two marks made anew."""
    blocks = {TABLE: readme_table(results), TIMES: readme_commands(results), CPU: readme_cpu(results)}
    for begin, made in blocks.items():
        before, found, rest = text.partition(begin)
        _, end, after = rest.partition(END)
        if not found or not end:
            raise ValueError(f"the README must hold {begin} and {END} after it")
        text = before + "\n\n".join(part for part in (begin, made, END) if part) + after
    return text


def page(results: Path) -> str:
    parts = [
        "# Performance",
        "Generated by `python -m bench.performance` from files that it links. [bench/README.md](../bench/README.md) "
        "says how they were measured, [perf-log.md](perf-log.md) what was gained. A speed-up is the other library's "
        f"time over fastconv's; slower is what takes more than {report.TIE:.0%} longer: bold, or in a list behind "
        "the table.",
        *models_section(results),
        *compiled_section(results),
        *itertools.chain.from_iterable(layers_section(results, gpu) for gpu in gpus(results)),
        *cpu_section(results),
        *fused_layers_section(results),
        *batch_norm_section(results),
        *bias_section(results),
        *kernelbench_section(results),
        *host_section(results),
        *accuracy_section(results),
    ]
    return "\n\n".join(parts) + "\n"


def models_section(results: Path) -> Iterator[str]:
    for gpu in gpus(results):
        found = last_rows(results, gpu, *MODELS)
        if not found:
            continue
        yield f"## Whole models, {device_of(found[0].data)}"
        yield (
            "Each as it was last measured: `python -m bench.models`. A step is forward, loss, backward and SGD; "
            "inference is the forward pass without grad. `tf32`: float32 tensors in NCHW with torch's defaults; "
            "`bf16`: autocast and channels_last. Fused: after `fastconv.fuse`. The `kb_*` are one convolution each, "
            "with the gradient of its input; nothing can be fused there. Busy is how long the GPU has kernels in a "
            "step; where the step takes longer, the host limits it. Memory is what a step takes beside model and "
            f"optimizer. {links({measured.path for measured in found})}."
        )
        yield models.table([measured.row for measured in found], CUDA)
        yield slower_list("Slower", found, [(name, "torch") for name in models.CONTENDERS[1:]])


def slower_list(title: str, found: Sequence[Measured], pairs: Sequence[tuple[str, str]]) -> str:
    """Where the first of a pair of contenders is slower than the second."""
    lines = []
    for row in succeeded(found):
        for what in models.WHAT:
            ms = {name: time["ms"] for name, time in row[what].items()}
            for pair in pairs:
                if ms.keys() >= {*pair} and slower(ms[pair[0]], ms[pair[1]]):
                    times = (f"{report.number(ms[name])} ms ({models.display_name(name, CUDA)})" for name in pair)
                    lines.append(f"- {row['model']}, {SETTINGS[row['setting']]}, {what}: {', '.join(times)}")
    return f"{title}:\n\n" + "\n".join(lines) if lines else f"{title}: none."


def compiled_section(results: Path) -> Iterator[str]:
    for gpu in gpus(results):
        found = last_rows(results, gpu, "compiled")
        if not found:
            continue
        yield f"## Under torch.compile, {device_of(found[0].data)}"
        yield (
            "Of the same models those that were measured so far, compiled with `fullgraph=True` and defaults, beside "
            "the eager ones: `python -m bench.models --compile`. Compiled ones are compared with compiled ones. "
            f"{links({measured.path for measured in found})}."
        )
        yield models.table([measured.row for measured in found], CUDA)
        means, pairs = [], []
        for eager in models.CONTENDERS[1:]:
            name = models.COMPILED.format(eager)
            pairs += [(name, models.opponent(name)), (name, eager)]
            if rows := [row for row in succeeded(found) if name in row["step"]]:
                line = f"- {models.display_name(name, CUDA)}, {len(rows)} cases: "
                means.append(line + ", ".join(f"{what} {mean_speed_up(rows, what, name):.2f}x" for what in models.WHAT))
        if means:
            yield "Speed-ups in geometric mean:\n\n" + "\n".join(means)
        yield slower_list("Compiled and slower", found, pairs)


def mean_speed_up(rows: Sequence[dict[str, Any]], what: str, contender: str) -> float:
    return report.geomean(row[what][models.opponent(contender)]["ms"] / row[what][contender]["ms"] for row in rows)


def layers_section(results: Path, gpu: str) -> Iterator[str]:
    suites = {problem.name: suite for suite in suite_names() for problem in load_suite(suite).problems}
    groups: dict[tuple[str, str, str, str], list[report.Row]] = defaultdict(list)
    files = set[Path]()
    lost = []
    for file, data in targets.last_rows(results, gpu).values():
        row = report.Row.of(data)
        ratio = row.speedup("torch")
        if ratio is None and row.status == "ok":
            continue  # measured without an opponent
        suite = suites[row.problem] + (f", {row.kind}" if suites[row.problem] == "torchvision" else "")
        groups[suite, row.mode, row.layout, row.pass_].append(row)
        files.add(results / f"{file}.json")
        if ratio is None or slower(1, ratio) or row.status != "ok":
            what = [suite, row.problem, row.shape, row.mode, row.layout, row.pass_]
            times = [report.number(row.ms(name) or 0) for name in ("fastconv", "torch")]
            kernel, date = row.plan.partition(" ")[0], file.rpartition("-")[2]
            lost.append((ratio or 0, [*what, *times, f"{ratio:.2f}x" if ratio else "-", row.status, date, kernel]))
    if not groups:
        return
    yield f"## Layers, {device_of(json.loads(max(files, key=stamp_of).read_text()))}"
    yield (
        "GPU time of each case as it was last measured, by the planner's own choice of kernels, with a cold L2. "
        f"The opponent is {CUDNN} in the same precision, with `cudnn.benchmark`. Geometric means. Of floor: what the "
        "products at their best rate, or memory, would take, over what fastconv takes ([rates](../bench/README.md))."
    )
    header = ["suite", "mode", "layout", "pass", "cases", "speed-up", "least", "most", "slower", "of floor"]
    yield report.table(header, [[*key, *spread_of(rows)] for key, rows in sorted(groups.items())], left=4)
    header = ["suite", "problem", "shape", "mode", "layout", "pass", "fastconv ms", f"{CUDNN} ms", "speed-up"]
    yield f"Slower, or less exact than promised (`loose`): {len(lost)} of {sum(map(len, groups.values()))}."
    yield report.table([*header, "status", "measured", "kernel"], [line for _, line in sorted(lost)], left=6)
    yield f"From {links(files)}."


def stamp_of(path: Path) -> tuple[str, Path]:
    """When a file was written, which its name ends in."""
    return path.stem.rpartition("-")[2], path


def spread_of(rows: Sequence[report.Row]) -> list[str]:
    ratios = [ratio for row in rows if (ratio := row.speedup("torch"))]
    if not ratios:
        return [str(len(rows)), "-", "-", "-", "-", "-"]
    times = [f"{value:.2f}x" for value in (report.geomean(ratios), min(ratios), max(ratios))]
    fractions = [row.floor_fraction for row in rows if row.floor_fraction]
    of_floor = f"{report.geomean(fractions):.0%}" if fractions else "-"
    return [str(len(rows)), *times, str(sum(slower(1, ratio) for ratio in ratios)), of_floor]


def cpu_section(results: Path) -> Iterator[str]:
    path = newest(results, "cpu-*.json")
    if not path:
        return
    data = json.loads(path.read_text())
    yield f"## CPU, {data['machine']['device']}, {data['machine']['CPU threads']} threads"
    yield f"Against torch's convolution, batch {data['batch']}; geometric means. {link(path)}."
    keys = ("model", "dtype", "layout", "pass")
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in data["rows"]:
        groups[tuple(row[key] for key in keys)].append(row)
    lines = []
    for key, rows in groups.items():
        ratios = [row["torch_us"] / row["ours_us"] for row in rows]
        times = [f"{value:.2f}x" for value in (report.geomean(ratios), min(ratios), max(ratios))]
        lines.append([*key, str(len(rows)), *times, str(sum(slower(1, ratio) for ratio in ratios))])
    yield report.table([*keys, "layers", "speed-up", "least", "most", "slower"], lines, left=4)
    lost = []
    for row in data["rows"]:
        if slower(row["ours_us"], row["torch_us"]):
            ratio = row["torch_us"] / row["ours_us"]
            names = [str(row[key]) for key in ("model", "layer", "dtype", "layout", "pass")]
            lost.append((ratio, [*names, f"{row['ours_us']:.0f}", f"{row['torch_us']:.0f}", f"{ratio:.2f}x"]))
    yield f"Slower: {len(lost)} of {len(data['rows'])}."
    header = ["model", "layer", "dtype", "layout", "pass", "fastconv us", "torch us", "speed-up"]
    yield report.table(header, [line for _, line in sorted(lost)], left=5)


def fused_layers_section(results: Path) -> Iterator[str]:
    for gpu in gpus(results):
        found = list(last_measured(results, gpu, ["fused_layers"], ("layer", "setting", "what")).values())
        if not found:
            continue
        rows = [measured.row for measured in found]
        yield f"## Fused layers, {device_of(found[0].data)}"
        yield (
            "Random layers of the suite `torchvision`, each as it was last measured: `python -m bench.fused_layers`. A "
            "speed-up is the time of `fastconv.conv2d` and torch's functions behind it over that of one fused call. "
            "`train` is forward and backward, the others are the forward pass without grad. Geometric means. "
            f"{links({measured.path for measured in found})}."
        )
        yield fused_layers.means(rows)
        yield fused_layers.summary(rows)


def batch_norm_section(results: Path) -> Iterator[str]:
    path = newest(results, "batch_norm-*.json")
    if not path:
        return
    data = json.loads(path.read_text())
    yield f"## Batch norm, residual and activation, {device_of(data)}"
    yield (
        "The forward pass in training, and both passes, against torch's two or three calls. Of a copy: the bytes that "
        "passes for statistics and for results have to move, at the bandwidth of a large copy, over the time. "
        f"{link(path)}."
    )
    yield batch_norm.markdown(data["rows"])


def bias_section(results: Path) -> Iterator[str]:
    path = newest(results, "bias_grad-*.json")
    if not path:
        return
    data = json.loads(path.read_text())
    yield f"## Gradient of the bias, {device_of(data)}"
    yield f"Against torch's sum. {link(path)}."
    lines = []
    for row in data["rows"]:
        ours, theirs = row["ms"]["fastconv"], row["ms"]["torch"]
        names = [row["grad_output"], row["mode"], row["layout"]]
        lines.append([*names, f"{ours:.4f}", f"{theirs:.4f}", marked(f"{theirs / ours:.2f}x", slower(ours, theirs))])
    yield report.table(["grad_output", "mode", "layout", "fastconv ms", "torch ms", "speed-up"], lines, left=3)


def kernelbench_rows(results: Path) -> tuple[str, set[Path], list[dict[str, Any]]]:
    """Of the GPU that ran it last: its name, the files, and each problem as it was last measured."""
    path = newest(results, "kernelbench-*.json")
    if not path:
        return "", set(), []
    gpu = path.stem.removeprefix("kernelbench-").rpartition("-")[0]
    found: dict[tuple[int, str, str], tuple[Path, dict[str, Any]]] = {}
    for each in sorted(results.glob(f"kernelbench-{gpu}-*.json"), key=stamp_of):
        for row in json.loads(each.read_text())["rows"]:
            found[row["level"], row["problem"], row["precision"]] = each, row
    return (
        device_of(json.loads(path.read_text())),
        {each for each, _ in found.values()},
        [found[key][1] for key in sorted(found)],
    )


def kernelbench_section(results: Path) -> Iterator[str]:
    device, paths, rows = kernelbench_rows(results)
    if not rows:
        return
    yield f"## KernelBench, {device}"
    yield (
        "Its problems that begin with a 2-D or 1-D convolution, by its rules: forward passes in float32. In "
        "`default` both may use TF32, in `strict` neither. Its check wants results within 1e-4 of torch's: less than "
        "TF32 rounds by, in torch's results or in both. `WRONG` is what does not pass it; the errors of both against "
        "float64 are below. Mean, least and most are of all problems; `fast_1` takes only what passes for fast. "
        f"[bench/README.md](../bench/README.md#kernelbench) has the command. {links(paths)}."
    )
    yield "![Speed-ups](kernelbench.svg)"
    yield kernelbench.markdown(rows)


def host_section(results: Path) -> Iterator[str]:
    path = newest(results, "host-*.json")
    if not path:
        return
    measured = report.Report.from_json(path.read_text())
    yield f"## Host, {device_of(json.loads(path.read_text()))}"
    yield f"Microseconds that a call keeps the calling thread, of problems that the GPU does in no time. {link(path)}."
    compared = [time for time in measured.host if "F.conv2d" in time.microseconds]
    lines = []
    for time in compared:
        ours, theirs = time.microseconds["fastconv.conv2d"], time.microseconds["F.conv2d"]
        lines.append([time.problem, time.what, marked(f"{ours:.1f}", slower(ours, theirs)), f"{theirs:.1f}"])
    yield report.table(["problem", "", "fastconv.conv2d", "F.conv2d"], lines, left=2)
    if pieces := [time for time in measured.host if "F.conv2d" not in time.microseconds]:
        yield "What a call is made of; from the op on, each line has what the one before it has:"
        yield report.table(
            ["", "microseconds"],
            [[time.what, f"{time.microseconds['fastconv.conv2d']:.1f}"] for time in pieces],
            left=1,
        )


def accuracy_section(results: Path) -> Iterator[str]:
    path = newest(results, "accuracy-*.json")
    if not path:
        return
    found = Accuracy.from_json(path.read_text())
    beyond = sum(point.share > 1 for point in found.points)
    yield f"## Errors of float32, {device_of(json.loads(path.read_text()))}"
    yield (
        "Normwise, against float64, of 3x3 convolutions: over the length of sums, the range and the scale of numbers. "
        "Of each curve the point that comes nearest to what is promised, or furthest beyond. "
        f"{len(found.points)} points, {beyond} of them beyond; [precision.md](precision.md) says why. {link(path)}."
    )
    yield nearest_errors(found)


def draw(results: Path, path: Path) -> None:
    """Images a second in training, a bar for each contender of a model, over the fastest."""
    from matplotlib.figure import Figure

    found = last_gpu(results)
    rows = succeeded(found)
    fastest = [min(time["ms"] for time in row["step"].values()) for row in rows]
    figure = Figure(figsize=(7.2, 0.5 * len(rows) + 0.8), layout="constrained")
    axes = figure.subplots()
    bars = zip(models.CONTENDERS, (CUDNN, "fastconv", "fused"), ("#b0b0b0", "#56b4e9", "#0072b2"), strict=True)
    for shift, (name, label, colour) in enumerate(bars, -1):
        places = [place for place, row in enumerate(rows) if name in row["step"]]
        ms = {place: rows[place]["step"][name]["ms"] for place in places}
        lengths, heights = [fastest[place] / ms[place] for place in places], [place + 0.28 * shift for place in places]
        drawn = axes.barh(heights, lengths, 0.28, color=colour, label=label)
        rates = [f"{1e3 * rows[place]['batch'] / ms[place]:.0f}" for place in places]
        axes.bar_label(drawn, rates, padding=2, fontsize="x-small")
    axes.set_yticks(range(len(rows)), [f"{row['model']}, {SETTINGS[row['setting']]}" for row in rows], fontsize="small")
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1.1), xticks=[])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    figure.suptitle(f"Training, images a second, {device_of(found[0].data)}", fontsize="medium")
    figure.legend(loc="outside lower right", ncols=3, frameon=False, fontsize="small")
    report.save(figure, path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.performance", description=__doc__.partition("\n")[0])
    parser.parse_args(arguments)
    PAGE.write_text(page(report.RESULTS))
    README.write_text(readme(README.read_text(), report.RESULTS))
    if last_gpu(report.RESULTS):
        draw(report.RESULTS, CHART)
    device, _, rows = kernelbench_rows(report.RESULTS)
    if rows:
        kernelbench.draw(rows, f"KernelBench's convolutions, {device}", PAGE.parent / "kernelbench.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
