"""Batch norm, residual and activation: one call against torch's two or three, as shares of what a copy moves.

    python -m bench.batch_norm

The forward pass in training mode, and both passes, with a cold L2. Of a copy: the bytes that have to be moved where
statistics and results take a pass each, at the bandwidth of a large copy, over the time. torch: F.batch_norm, an
addition and an activation in place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import environment, report, table_run, timing
from bench.modes import Mode
from bench.runner import MEMORY_FORMATS
from bench.suites import LAYOUTS
from bench.table_run import Row

# Of ResNet-50 at batch 128, MobileNetV2, DenseNet-121, a U-Net.
SIZES = [
    (128, 64, 112, 112),
    (128, 64, 56, 56),
    (128, 256, 56, 56),
    (128, 128, 28, 28),
    (128, 1024, 14, 14),
    (128, 2048, 7, 7),
    (128, 144, 56, 56),
    (64, 1000, 14, 14),
    (8, 64, 512, 512),
    (8, 1024, 32, 32),
]
QUICK_SIZES = [(2, 8, 6, 6)]
MODES = [Mode("bfloat16"), Mode("float32")]
ACTS: list[tuple[str | None, bool]] = [("relu", False), ("relu", True), ("silu", False)]  # and whether one is added

Function = Callable[..., Tensor]


def by_torch(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, activation: str | None) -> Tensor:
    y = F.batch_norm(x, None, None, weight, bias, training=True)
    if residual is not None:
        y += residual
    return F.silu(y, inplace=True) if activation == "silu" else F.relu(y, inplace=True)


def by_fastconv(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, activation: Any) -> Tensor:
    import fastconv

    return fastconv.batch_norm_act(x, None, None, weight, bias, training=True, activation=activation, residual=residual)


def measure(
    device: torch.device, sizes: Sequence[tuple[int, ...]], seconds: float, acts: Sequence[tuple[str | None, bool]]
) -> Iterator[Row]:
    contenders: dict[str, Function] = {"fastconv": by_fastconv, "torch": by_torch}
    ceilings = environment.ceilings_for(device, environment.measure_ceilings(device, []))
    for size, mode, layout, (activation, adds) in product(sizes, MODES, LAYOUTS, acts):
        nbytes = torch.Size(size).numel() * mode.itemsize
        sets = [
            [
                torch.randn(size, device=device, dtype=mode.torch_dtype).to(memory_format=MEMORY_FORMATS[layout])
                for _ in range(2 + adds)
            ]
            for _ in range(timing.set_count(2 * nbytes, timing.cache_bytes(device)))
        ]
        if device.type == "cuda":
            torch.cuda.empty_cache()  # of other sizes
        parameters = [torch.randn(size[1], device=device, requires_grad=True) for _ in range(2)]
        for what, moved in {"forward": 3 + adds, "both": 8 + 2 * adds}.items():
            calls = {
                name: timing.prepare([_call(function, what, images, parameters, activation) for images in sets], device)
                for name, function in contenders.items()
            }
            times = timing.time_in_turns(calls, device, seconds)
            yield {
                "size": "x".join(map(str, size)),
                "mode": mode.label,
                "layout": layout,
                "then": f"{'+ ' if adds else ''}{activation}",
                "pass": what,
                "ms": {name: time.ms for name, time in times.items()},
                "mib": nbytes / 2**20,
                "floor_ms": moved * nbytes / ceilings.copy_gbs / 1e6,
            }


def _call(
    function: Function, what: str, images: Sequence[Tensor], parameters: Sequence[Tensor], activation: str | None
) -> Callable[[], None]:
    x, grad, *residual = images

    def forward() -> None:
        with torch.no_grad():
            function(x, *parameters, residual[0] if residual else None, activation)

    def both() -> None:
        leaves = [image.detach().requires_grad_() for image in (x, *residual)]
        output = function(leaves[0], *parameters, leaves[1] if residual else None, activation)
        torch.autograd.grad(output, [*leaves, *parameters], grad)

    return forward if what == "forward" else both


def markdown(rows: Sequence[Row]) -> str:
    header = ["size", "mode", "layout", "then", "pass", "MiB", "fastconv ms", "torch ms", "speedup", "of copy"]
    lines = []
    for row in rows:
        ms = row["ms"]
        numbers = [f"{row['mib']:.0f}", f"{ms['fastconv']:.4f}", f"{ms['torch']:.4f}"]
        numbers += [f"{ms['torch'] / ms['fastconv']:.2f}", f"{row['floor_ms'] / ms['fastconv']:.0%}"]
        lines.append([str(row[key]) for key in header[:5]] + numbers)
    return report.table(header, lines, left=5)


def main(arguments: Sequence[str] | None = None) -> int:
    options = table_run.parser("batch_norm", __doc__).parse_args(arguments)
    sizes = QUICK_SIZES if options.quick else SIZES
    timed = partial(measure, sizes=sizes, seconds=options.seconds, acts=ACTS)
    return table_run.run("batch_norm", "Batch norm, residual and activation", timed, markdown, options)


if __name__ == "__main__":
    sys.exit(main())
