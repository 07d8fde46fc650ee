"""The layers of networks on the CPU, against torch's own convolution.

    python -m bench.cpu

Every distinct layer of each network, with a batch of 4, all passes, in turns on the same data, which is fresh for every
cell. Row: model, layer, dtype, layout, pass, microseconds a call of both (median) and their spread.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import environment, report, timing
from bench.errors import Tensors
from bench.modes import LONG, Mode
from bench.opponents import Run, torch_run
from bench.runner import MEMORY_FORMATS
from bench.suites import LAYOUTS, PASSES, Problem, load_suite

MODELS = ("resnet50", "mobilenet_v2", "convnext_tiny", "efficientnet_b0")
CPU = torch.device("cpu")
SLOW = 0.7  # of torch's speed: such rows are listed


def distinct_layers(model: str, batch: int) -> list[Problem]:
    """Layers of one geometry count once, under the name of the first."""
    found: dict[Problem, Problem] = {}
    for layer in load_suite(model).problems:
        layer = layer.with_input((batch, *layer.input[1:]))
        found.setdefault(replace(layer, name="", count=1, source=""), layer)
    return list(found.values())


def fastconv_run(layer: Problem, pass_: str, mode: Mode) -> Run:
    """What users call forward, and what autograd calls backward: so is its opponent (`bench.opponents.torch_run`)."""
    from fastconv import conv2d, ops

    if pass_ == "fprop":
        return lambda t: conv2d(t.x, t.w, None, *layer.conv_args)
    (a, b, c), groups = layer.conv_args[:3], layer.groups
    arguments = ops.pack((*a, *b, *c), groups, mode.precision or "ieee")
    if pass_ == "dgrad":
        return lambda t: torch.ops.fastconv._conv2d_input(t.x, t.w, t.dy, arguments)
    return lambda t: torch.ops.fastconv._conv2d_weight(t.x, t.w, t.dy, arguments)


def measure(layer: Problem, mode: Mode, layout: str, pass_: str, seconds: float) -> dict[str, Any]:
    def random(size: tuple[int, ...]) -> torch.Tensor:
        values = torch.randn(size, dtype=torch.float32).to(mode.torch_dtype)
        return values.contiguous(memory_format=MEMORY_FORMATS[layout])

    tensors = Tensors(random(layer.input), random(layer.weight), random(layer.output))
    runs = {"fastconv": fastconv_run(layer, pass_, mode), "torch": torch_run(layer, pass_, mode, layout)}
    calls = {name: timing.prepare([partial(run, tensors)], CPU) for name, run in runs.items()}
    measured = timing.time_in_turns(calls, CPU, seconds)
    ours, theirs = measured["fastconv"], measured["torch"]
    return {
        "ours_us": ours.ms * 1e3,
        "torch_us": theirs.ms * 1e3,
        "ours_spread": ours.spread,
        "torch_spread": theirs.spread,
    }


def speed(row: dict[str, Any]) -> float:
    return float(row["torch_us"] / row["ours_us"])


def geometric_mean(rows: Sequence[dict[str, Any]]) -> float:
    return math.exp(sum(math.log(speed(row)) for row in rows) / len(rows))


def markdown(rows: list[dict[str, Any]]) -> str:
    keys = ("model", "dtype", "layout", "pass")
    groups = {key: list(group) for key, group in itertools.groupby(rows, lambda row: tuple(row[k] for k in keys))}
    lines = []
    for key, group in groups.items():
        least = min(group, key=speed)
        lines.append([*key, f"{geometric_mean(group):.2f}", f"{speed(least):.2f}", least["layer"], str(len(group))])
    return report.table([*keys, "torch's time / ours, geometric mean", "least", "layer", "layers"], lines, left=4)


def summary(rows: list[dict[str, Any]]) -> str:
    slow = sorted((row for row in rows if speed(row) < SLOW), key=speed)
    lines = [f"{len(rows)} rows, geometric mean {geometric_mean(rows):.2f}, least {min(map(speed, rows)):.2f}"]
    lines += [f"Below {SLOW}: {len(slow)}"]
    for row in slow:
        names = " ".join(str(row[key]) for key in ("model", "layer", "dtype", "layout", "pass", "size"))
        lines.append(f"- {speed(row):.2f} {names}: {row['ours_us']:.0f} us, torch {row['torch_us']:.0f} us")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", nargs="+", choices=MODELS, default=MODELS)
    add("--layer", default="*", help="names to measure, as a shell pattern")
    add("--dtype", nargs="+", choices=tuple(LONG), default=("fp32", "bf16"))
    add("--layout", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    add("--pass", dest="passes", nargs="+", choices=PASSES, default=PASSES)
    add("--batch", type=int, default=4)
    add("--threads", type=int, help="torch's; its own choice if not given")
    add("--seconds", type=float, default=0.1, help="per measurement, of at least five calls")
    add("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args(arguments)
    import fastconv  # noqa: F401  (registers the ops)

    if options.threads:
        torch.set_num_threads(options.threads)
    rows = []
    for model in options.model:
        layers = [p for p in distinct_layers(model, options.batch) if fnmatchcase(p.name, options.layer)]
        for dtype, layout, pass_ in itertools.product(options.dtype, options.layout, options.passes):
            mode = Mode(LONG[dtype], "ieee" if dtype == "fp32" else None)
            for layer in layers:
                row = {"model": model, "layer": layer.name, "dtype": dtype, "layout": layout, "pass": pass_}
                rows.append({**row, "size": layer.describe(), **measure(layer, mode, layout, pass_, options.seconds)})
    if not rows:
        parser.error(f"no layer matches {options.layer!r}")
    title = f"Layers of networks, batch {options.batch}, {environment.device_name(CPU)}"
    text = f"{markdown(rows)}\n\n{summary(rows)}"
    path = environment.write_table(options.out, "cpu", CPU, title, text, batch=options.batch, rows=rows)
    print(f"{text}\n\nwrote {path}.json, {path}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
