"""Fused layers beside the separate calls that they replace: a fused one should never be slower.

    python -m bench.fused_layers --sample 24 --seed 1

Layers are drawn at random from the suite torchvision. `train`: forward and backward of convolution, batch norm and
relu, with the gradients of input, filter and the norm's parameters. `eval`: forward by running statistics, without
grad. `residual`: one is added before relu. `silu`: forward of convolution with bias and silu, without grad.
separate: fastconv.conv2d, then torch's functions, in place where torch has that. fused: one call of fastconv.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import report, table_run, timing
from bench.__main__ import add_sample_options
from bench.modes import Mode
from bench.runner import MEMORY_FORMATS, input_sets
from bench.suites import Problem, load_suite, sample
from bench.table_run import Row

SETTINGS = {"tf32": (Mode("float32", "tf32"), "nchw"), "bf16": (Mode("bfloat16"), "nhwc")}
WHAT = ("train", "train residual", "eval", "eval residual", "silu")
MAX_BYTES = 8 << 30
LEAST = 0.97  # times the speed of the separate calls


@dataclass(frozen=True)
class Layer:
    """What one call reads."""

    problem: Problem
    mode: Mode
    x: Tensor
    w: Tensor
    bias: Tensor
    residual: Tensor
    dy: Tensor
    norm: tuple[Tensor, Tensor, Tensor, Tensor]  # running mean and variance, weight, bias: of float32


Function = Callable[[Layer, str], Tensor]


def separate(layer: Layer, what: str) -> Tensor:
    import fastconv

    bias = layer.bias if what == "silu" else None
    y = fastconv.conv2d(layer.x, layer.w, bias, *layer.problem.conv_args, precision=layer.mode.precision)
    if what == "silu":
        return F.silu(y, inplace=True)
    y = F.batch_norm(y, *layer.norm, training="train" in what)
    if "residual" in what:
        y += layer.residual
    return F.relu(y, inplace=True)


def fused(layer: Layer, what: str) -> Tensor:
    import fastconv

    geometry, precision = layer.problem.conv_args, layer.mode.precision
    if what == "silu":
        return fastconv.conv2d(layer.x, layer.w, layer.bias, *geometry, precision=precision, activation="silu")
    return fastconv.conv_bn_act(
        layer.x,
        layer.w,
        None,
        *layer.norm,
        *geometry,
        training="train" in what,
        activation="relu",
        residual=layer.residual if "residual" in what else None,
        precision=precision,
    )


CONTENDERS: dict[str, Function] = {"separate": separate, "fused": fused}


def call_of(function: Function, layer: Layer, what: str) -> Callable[[], tuple[Tensor, ...]]:
    """The call returns output and gradients: who times it keeps them, so that no two calls write to one memory."""

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (function(layer, what),)

    def step() -> tuple[Tensor, ...]:
        leaves = {name: getattr(layer, name).detach().requires_grad_() for name in ("x", "w", "residual")}
        y = function(replace(layer, **leaves), what)
        if "residual" not in what:
            del leaves["residual"]
        return y, *torch.autograd.grad(y, [*leaves.values(), *layer.norm[2:]], layer.dy)

    return step if "train" in what else forward


def layers_of(problem: Problem, mode: Mode, layout: str, device: torch.device) -> list[Layer]:
    """The same layer with so many sets of tensors that a call finds none of its own in the cache."""
    channels = problem.weight[0]
    running = torch.zeros(channels, device=device), torch.ones(channels, device=device)
    weight, bias = (torch.randn(channels, device=device, requires_grad=True) for _ in range(2))
    shift = bias.detach().to(mode.torch_dtype)
    sets = (data.to(MEMORY_FORMATS[layout]) for data in input_sets(problem, mode.torch_dtype, device))
    norm = *running, weight, bias
    return [Layer(problem, mode, data.x, data.w, shift, torch.randn_like(data.dy), data.dy, norm) for data in sets]


def measure(device: torch.device, problems: Sequence[Problem], seconds: float) -> Iterator[Row]:
    for problem, (setting, (mode, layout)) in product(problems, SETTINGS.items()):
        if device.type == "cuda":
            torch.cuda.empty_cache()  # of other layers
        layers = layers_of(problem, mode, layout, device)
        for what in WHAT:
            calls = {
                name: timing.prepare([call_of(function, layer, what) for layer in layers], device)
                for name, function in CONTENDERS.items()
            }
            times = timing.time_in_turns(calls, device, seconds)
            yield {
                "layer": problem.name,
                "shape": problem.describe(),
                "setting": setting,
                "what": what,
                "ms": {name: time.ms for name, time in times.items()},
                "spread": {name: time.spread for name, time in times.items()},
                "method": {name: time.method for name, time in times.items()},
                "speed_up": times["separate"].ms / times["fused"].ms,
            }


def fits(problem: Problem) -> bool:
    """Whether a training step's tensors, of float32, do: input, filter, output, residual and the gradient of each."""
    output = torch.Size(problem.output).numel()
    return 2 * (problem.elements + output) * torch.float32.itemsize <= MAX_BYTES


def shrunk(problem: Problem) -> Problem:
    """Two small images: of a single value batch norm has no statistics."""
    _, channels, *sizes = problem.input
    height, width = (min(size, 8 + taps) for size, taps in zip(sizes, problem.weight[2:], strict=True))
    return problem.with_input((2, channels, height, width))


def table(rows: Sequence[Row]) -> str:
    header = ["layer", "setting", "what", "separate ms", "+-", "fused ms", "+-", "speed-up"]
    lines = []
    for row in rows:
        line = [row["shape"], row["setting"], row["what"]]
        for name in CONTENDERS:
            line += [report.number(row["ms"][name]), f"{row['spread'][name]:.0%}"]
        lines.append([*line, f"{row['speed_up']:.2f}x"])
    return report.table(header, lines, left=3)


def means(rows: Sequence[Row]) -> str:
    """A line for each kind of call in each setting."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        groups[row["what"], row["setting"]].append(row["speed_up"])
    lines = []
    for what, setting in sorted(groups, key=lambda key: (WHAT.index(key[0]), list(SETTINGS).index(key[1]))):
        ratios = groups[what, setting]
        numbers = (f"{value:.2f}x" for value in (report.geomean(ratios), min(ratios), max(ratios)))
        lines.append([what, setting, str(len(ratios)), *numbers, str(sum(ratio < LEAST for ratio in ratios))])
    return report.table(["what", "setting", "layers", "speed-up", "least", "most", f"below {LEAST}x"], lines, left=2)


def summary(rows: Sequence[Row]) -> str:
    """One line of them all, and those that are slower, the slowest first."""
    slow = sorted((row for row in rows if row["speed_up"] < LEAST), key=lambda row: float(row["speed_up"]))
    mean = report.geomean(row["speed_up"] for row in rows)
    lines = [f"Geometric mean of {len(rows)} rows: {mean:.2f}x. Below {LEAST}x: {len(slow) or 'none'}."]
    if slow:
        lines.append("")
    for row in slow:
        times = ", ".join(f"{name} {report.number(row['ms'][name])} ms" for name in CONTENDERS)
        lines.append(f"- {row['shape']}, {row['setting']}, {row['what']}: {row['speed_up']:.3f}x ({times})")
    return "\n".join(lines)


def markdown(rows: Sequence[Row]) -> str:
    return "\n\n".join((table(rows), means(rows), summary(rows)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = table_run.parser("fused_layers", __doc__, seconds=0.1)
    add_sample_options(parser)
    parser.set_defaults(sample=24)
    options = parser.parse_args(arguments)
    problems = sample([p for p in load_suite("torchvision").problems if fits(p)], options.sample, options.seed)
    if options.quick:
        problems = tuple(map(shrunk, problems))
    settings = {"sample": options.sample, "seed": options.seed, "quick": options.quick, "seconds": options.seconds}
    timed = partial(measure, problems=problems, seconds=options.seconds)
    return table_run.run("fused_layers", "Fused layers", timed, markdown, options, settings=settings)


if __name__ == "__main__":
    sys.exit(main())
