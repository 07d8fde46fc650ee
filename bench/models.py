"""Whole models: training steps and inference with torch's convolutions and with fastconv's, in turns in one process.

    python -m bench.models --model 'resnet50,timm_*' --setting bf16
    python -m bench.models --contender torch,fused    one of them left out
    python -m bench.models --batch 32                 small ones, whose time is mostly the host's
    python -m bench.models --compile                  the same models under torch.compile beside the eager ones
    python -m bench.models --compile reduce-overhead  the same with CUDA graphs: what the GPU takes, whatever the host

Contenders: `torch`; `fastconv`, whose convolutions are converted; `fastconv, fused`, after `fastconv.fuse` too. Each
has a copy of the model. Settings: `tf32`, float32 tensors in NCHW with torch's defaults, in which cuDNN rounds products
to TF32; `bf16`, torch.autocast and channels_last. A step is forward, loss, backward and SGD with momentum; inference is
the forward pass in eval mode without grad. The `kb_*` are one convolution each, as it lies within a network: its input
needs a gradient, and its output's is given. Nothing can be fused there.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import environment, opponents, report, timing
from bench.__main__ import choices
from bench.suites import load_suite

BURST = 4  # calls that are timed as one
FUSED = "fastconv, fused"
CONTENDERS = ("torch", "fastconv", FUSED)
STEPS = 3  # whose losses are kept
COMPILED = "{}, compiled"
COMPILE_MODES = {"default": "compiled", "reduce-overhead": "cuda-graphs"}  # and what their files are called
WHAT = ("step", "inference")
# Normwise, of the outputs. Rounding adds up over a network's layers; where one is wrong they have nothing in common.
MAX_DIFFERENCE = 0.5


@dataclass(frozen=True)
class Setting:
    name: str
    memory_format: torch.memory_format
    autocast: torch.dtype | None


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("tf32", torch.contiguous_format, None),
        Setting("bf16", torch.channels_last, torch.bfloat16),
        Setting("fp16", torch.contiguous_format, torch.float16),
    )
}
DEFAULT_SETTINGS = ["tf32", "bf16"]


@dataclass(frozen=True)
class Workload:
    name: str
    batch: int
    size: tuple[int, int, int]  # C H W
    build: Callable[[], nn.Module]
    one_layer: bool = False

    def shrunk(self) -> Workload:
        channels, height, width = self.size
        # Of smaller ones the last batch norms see two values a channel, and rounding decides which is the larger.
        return replace(self, batch=2, size=(channels, min(height, 64), min(width, 64)))


class UNet(nn.Module):
    """Of Ronneberger et al. 2015, padded, with batch norm and nearest-neighbour upsampling: 19 convolutions."""

    def __init__(self, width: int = 64, levels: int = 4, classes: int = 2) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList([_pair(c, k) for c, k in zip([3, *widths], widths, strict=False)])
        self.up = nn.ModuleList([_pair(c + k, k) for c, k in zip(widths[:0:-1], widths[-2::-1], strict=True)])
        self.classes = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for i, down in enumerate(self.down):
            x = down(x if i == 0 else F.max_pool2d(x, 2))
            skipped.append(x)
        skipped.pop()
        for up in self.up:
            x = up(torch.cat([skipped.pop(), F.interpolate(x, scale_factor=2.0)], 1))
        y: Tensor = self.classes(x)
        return y


def _pair(channels: int, width: int) -> nn.Sequential:
    def layer(c: int) -> list[nn.Module]:
        return [nn.Conv2d(c, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]

    return nn.Sequential(*layer(channels), *layer(width))


def _torchvision(name: str) -> nn.Module:
    model: nn.Module = getattr(importlib.import_module("torchvision.models"), name)(weights=None)
    return model


def _timm(name: str) -> nn.Module:
    model: nn.Module = importlib.import_module("timm").create_model(name)
    return model


def _kernelbench() -> list[Workload]:
    found = []
    for problem in load_suite("public").problems:
        if problem.name.startswith("seed_"):
            n, c, h, w = problem.input
            k, _, r, s = problem.weight
            build = functools.partial(nn.Conv2d, c, k, (r, s), *problem.conv_args, bias=False)
            found.append(Workload(problem.name.replace("seed", "kb"), n, (c, h, w), build, one_layer=True))
    return found


WORKLOADS = {
    workload.name: workload
    for workload in (
        *_kernelbench(),
        *(
            Workload(name, batch, (3, 224, 224), functools.partial(_torchvision, name))
            for name, batch in (
                ("resnet50", 128),
                ("convnext_tiny", 64),
                ("efficientnet_b0", 128),
                ("mobilenet_v2", 128),
                ("mobilenet_v3_large", 128),
                ("densenet121", 64),
            )
        ),
        Workload("unet", 8, (3, 512, 512), UNet),
        *(
            Workload(f"timm_{name}", batch, (3, 224, 224), functools.partial(_timm, name))
            for name, batch in (("resnetv2_50", 128), ("regnety_040", 64), ("mobilenetv4_conv_medium", 128))
        ),
    )
}


class Trainer:
    """A contender's model, and what a step of it needs."""

    def __init__(
        self, model: nn.Module, x: Tensor, setting: Setting, one_layer: bool, compiled: str | None = None
    ) -> None:
        self.model = model
        self.function = torch.compile(model, fullgraph=True, mode=compiled) if compiled else model
        self.x = x.detach().requires_grad_(one_layer)
        self.autocast = functools.partial(
            torch.autocast, x.device.type, setting.autocast, enabled=setting.autocast is not None
        )
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        y = self.infer()
        self.output_grad = self.labels = None
        torch.manual_seed(0)  # the same of all contenders
        if one_layer:
            self.output_grad = torch.randn_like(y)
        else:
            self.labels = torch.randint(y.shape[1], (len(y), *y.shape[2:]), device=y.device)

    def forward(self) -> Tensor:
        with self.autocast():
            y: Tensor = self.function(self.x)
            return y

    def infer(self) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            return self.forward()

    def step(self) -> Tensor:
        """The loss."""
        self.model.train()
        y = self.forward()
        loss = y if self.labels is None else F.cross_entropy(y.float(), self.labels)
        loss.backward(self.output_grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.x.grad = None
        return loss.detach()


def built(contender: str, model: nn.Module) -> nn.Module:
    """A copy of the model, as the contender has it."""
    import fastconv

    model = copy.deepcopy(model)
    if contender != "torch":
        model = fastconv.convert(model)
    return fastconv.fuse(model) if contender == FUSED else model


def measure(
    workload: Workload,
    setting: Setting,
    device: torch.device,
    seconds: float,
    burst: int = BURST,
    contenders: Sequence[str] = CONTENDERS,
    compiled: str | None = None,
) -> dict[str, Any]:
    """Of each contender the first losses, the MiB that a step takes beside model and optimizer, how long it keeps the
    GPU busy, and times, in milliseconds; and how far apart their outputs are before the first step.

    contenders: torch first. compiled: of as many more, the same under torch.compile in this mode.
    """
    torch.manual_seed(0)
    model = workload.build().to(device)
    model.to(memory_format=setting.memory_format)  # type: ignore[call-overload]  # which torch documents
    x = torch.randn(workload.batch, *workload.size, device=device).to(memory_format=setting.memory_format)
    names = [name for name in contenders if not (workload.one_layer and name == FUSED)]
    if compiled:
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 64  # of one class: all contenders, each for training and for inference
    trainers, difference = {}, 0.0
    for kind, mode in (("{}", None), (COMPILED, compiled))[: 2 if compiled else 1]:
        alike = {kind.format(name): Trainer(built(name, model), x, setting, workload.one_layer, mode) for name in names}
        difference = max(difference, apart(*alike.values()))  # of one kind: they draw the same random numbers
        trainers.update(alike)
    if not difference < MAX_DIFFERENCE:
        raise RuntimeError(f"the outputs of the contenders are {difference:.1e} apart")
    row: dict[str, Any] = {
        "model": workload.name,
        "batch": workload.batch,
        "input": [workload.batch, *workload.size],
        "setting": setting.name,
        "difference": difference,
        "losses": {name: _losses(trainer) for name, trainer in trainers.items()},
        "peak_mib": {name: _peak_mib(trainer, device) for name, trainer in trainers.items()},
        "busy_ms": {name: _busy_ms(trainer, device) for name, trainer in trainers.items()},
    }
    for what in WHAT:
        calls = {
            name: timing.prepare_bursts(_discard(trainer.step if what == "step" else trainer.infer), device, burst)
            for name, trainer in trainers.items()
        }
        times = timing.time_in_turns(calls, device, seconds)
        row[what] = {name: {"ms": time.ms, "spread": time.spread} for name, time in times.items()}
    # Numbers that are not finite take other paths through some kernels, and less power through all.
    for name, trainer in trainers.items():
        if not math.isfinite(float(trainer.infer().float().sum())):
            raise RuntimeError(f"after its steps the output of {name} is not finite")
    return row


def _losses(trainer: Trainer) -> list[float]:
    """Of one layer, which has no loss, the means of its output."""
    torch.manual_seed(2)  # of dropout and stochastic depth
    return [float(trainer.step().float().mean()) for _ in range(STEPS)]


def _peak_mib(trainer: Trainer, device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    trainer.step()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    trainer.step()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def _busy_ms(trainer: Trainer, device: torch.device) -> float | None:
    """Of a step, how long some kernel runs or waits for the one before it."""
    if device.type != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        trainer.step()
        torch.cuda.synchronize(device)
    ranges = [event.time_range for event in profile.events() if event.device_type.name == "CUDA"]
    busy = end = 0.0
    for kernel in sorted(ranges, key=lambda kernel: float(kernel.start)):
        busy += max(kernel.end - max(kernel.start, end), 0.0)
        end = max(end, kernel.end)
    return busy / 1e3


def apart(*trainers: Trainer) -> float:
    """How far the first outputs are from those of the first, normwise; in training mode, whose norms let nothing
    vanish."""
    outputs = []
    for trainer in trainers:
        torch.manual_seed(1)  # of dropout and stochastic depth
        trainer.model.train()
        outputs.append(trainer.forward()[:4].detach().double())
    first, *others = outputs
    return max((float((first - other).norm() / first.norm()) for other in others), default=0.0)


def _discard(call: Callable[[], Tensor]) -> Callable[[], None]:
    """Holds no output while another contender runs."""

    def run() -> None:
        call()

    return run


def display_name(contender: str, device: torch.device) -> str:
    library, comma, how = contender.partition(", ")
    return opponents.display_name(library, device) + comma + how


def opponent(contender: str) -> str:
    """torch, compiled if the contender is."""
    return COMPILED.format("torch") if contender.endswith(COMPILED.format("")) else "torch"


def table(rows: Sequence[dict[str, Any]], device: torch.device) -> str:
    """A line for each contender's step and inference; of older files, which may lack losses, busy times and memory,
    too."""
    header = ["model", "batch", "setting", "", "contender", "ms", "spread", "speed-up", "images/s"]
    header += ["busy ms", "peak MiB", f"loss after {STEPS} steps"]
    lines = []
    for row in rows:
        first = [row["model"], str(row["batch"]), row["setting"]]
        if "failure" in row:
            lines.append([*first, row["failure"], *["-"] * 8])
            continue
        for what in WHAT:
            for name, time in row[what].items():
                line = [*first, what, display_name(name, device), report.number(time["ms"]), f"{time['spread']:.0%}"]
                line.append(f"{row[what][opponent(name)]['ms'] / time['ms']:.2f}x")
                line.append(f"{1e3 * row['batch'] / time['ms']:.0f}")
                busy, peak, losses = (
                    row.get(key, {}).get(name) if what == "step" else None for key in ("busy_ms", "peak_mib", "losses")
                )
                line += ["-" if value is None else f"{value:.1f}" for value in (busy, peak)]
                lines.append([*line, f"{losses[-1]:.4f}" if losses else "-"])
    return report.table(header, lines, left=5)


def matching(parser: argparse.ArgumentParser, what: str, names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that some pattern matches; one that matches none is an error."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            parser.error(f"no {what} matches {pattern!r}; there are: {'; '.join(names)}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.models", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--model", type=choices(), default=["*"], help=f"names or shell patterns, of {', '.join(WORKLOADS)}")
    add("--contender", type=choices(aliases={"fused": FUSED}), default=list(CONTENDERS), help="torch,fastconv,fused")
    add("--setting", type=choices(list(SETTINGS)), default=DEFAULT_SETTINGS, help="tf32,bf16,fp16")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--batch", type=int, help="images; default: as many as keep a large GPU busy")
    add("--compile", nargs="?", const="default", choices=COMPILE_MODES, help="beside the eager models compiled ones")
    add("--seconds", type=float, default=1.0, help="per measurement after warm-up")
    add("--quick", action="store_true", help="two small images: to see that everything runs")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="default: bench/results")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    workloads = [WORKLOADS[name] for name in matching(parser, "model", list(WORKLOADS), options.model)]
    contenders = matching(parser, "contender", CONTENDERS, options.contender)
    if "torch" not in contenders:
        parser.error("torch must be among the contenders: speed-ups are over its times")
    timing.use_device(device)
    kind = COMPILE_MODES[options.compile] if options.compile else "models"
    run = functools.partial(
        measure,
        device=device,
        seconds=options.seconds,
        burst=1 if options.quick else BURST,
        contenders=contenders,
        compiled=options.compile,
    )
    rows: list[dict[str, Any]] = []
    try:
        with report.sigterm_exits():
            for workload in workloads:
                for name in options.setting:
                    workload = replace(workload, batch=options.batch) if options.batch else workload
                    workload = workload.shrunk() if options.quick else workload
                    rows.append(_row(run, workload, SETTINGS[name]))
                    print(table(rows[-1:], device), flush=True)
                    gc.collect()
                    if device.type == "cuda":
                        torch.cuda.empty_cache()
    finally:
        if rows:
            title = f"Whole models, {environment.device_name(device)}"
            text = table(rows, device)
            settings = {"cudnn.benchmark": torch.backends.cudnn.benchmark, "quick": options.quick}
            name = f"{kind}{options.batch or ''}"
            path = environment.write_table(options.out, name, device, title, text, settings=settings, rows=rows)
            print(f"\n{text}\n\nwrote {path}.json, {path}.md")
    return int(any("failure" in row for row in rows))


def _row(run: Callable[[Workload, Setting], dict[str, Any]], workload: Workload, setting: Setting) -> dict[str, Any]:
    try:
        return run(workload, setting)
    except torch.AcceleratorError:
        raise  # the CUDA context is lost: whatever follows would fail too
    except RuntimeError as failure:
        text = " ".join(str(failure).split())[:300]
        return {"model": workload.name, "batch": workload.batch, "setting": setting.name, "failure": text}


if __name__ == "__main__":
    sys.exit(main())
