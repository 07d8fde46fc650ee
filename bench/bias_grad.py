"""The gradient of the bias, which a training step takes beside the passes of the suites, against torch's sum.

    python -m bench.bias_grad

Both read grad_output once, with a cold L2. The floor: its bytes at the bandwidth of a large copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from bench import environment, report, table_run, timing
from bench.modes import Mode
from bench.runner import MEMORY_FORMATS
from bench.suites import LAYOUTS
from bench.table_run import Row

SIZES = [
    (64, 64, 112, 112),
    (32, 64, 224, 224),
    (64, 256, 56, 56),
    (8, 128, 256, 256),
    (64, 512, 7, 7),
    (1, 256, 14, 14),
]
QUICK_SIZES = [(1, 8, 14, 14)]
MODES = [Mode("float16"), Mode("float32")]


def torch_sum(grad_output: Tensor) -> Tensor:
    return grad_output.sum((0, 2, 3))


def measure(device: torch.device, sizes: Sequence[tuple[int, ...]], seconds: float) -> Iterator[Row]:
    import fastconv  # noqa: F401  (registers the ops)

    contenders: dict[str, Callable[[Tensor], Tensor]] = {"fastconv": torch.ops.fastconv.conv2d_bias, "torch": torch_sum}
    ceilings = environment.ceilings_for(device, environment.measure_ceilings(device, []))
    for size, mode, layout in product(sizes, MODES, LAYOUTS):
        nbytes = torch.Size(size).numel() * mode.itemsize
        sets = [
            torch.randn(size, device=device, dtype=mode.torch_dtype).to(memory_format=MEMORY_FORMATS[layout])
            for _ in range(timing.set_count(nbytes, timing.cache_bytes(device)))
        ]
        calls = {name: timing.prepare([partial(call, dy) for dy in sets], device) for name, call in contenders.items()}
        times = {name: time.ms for name, time in timing.time_in_turns(calls, device, seconds).items()}
        yield {
            "grad_output": "x".join(map(str, size)),
            "mode": mode.label,
            "layout": layout,
            "ms": times,
            "floor_ms": nbytes / ceilings.copy_gbs / 1e6,
        }


def markdown(rows: Sequence[Row]) -> str:
    header = ["grad_output", "mode", "layout", "fastconv ms", "torch ms", "speedup", "floor ms"]
    lines = []
    for row in rows:
        ms, floor = row["ms"], row["floor_ms"]
        numbers = [f"{ms['fastconv']:.4f}", f"{ms['torch']:.4f}", f"{ms['torch'] / ms['fastconv']:.2f}", f"{floor:.4f}"]
        lines.append([str(row[key]) for key in header[:3]] + numbers)
    return report.table(header, lines, left=3)


def main(arguments: Sequence[str] | None = None) -> int:
    options = table_run.parser("bias_grad", __doc__).parse_args(arguments)
    sizes = QUICK_SIZES if options.quick else SIZES
    timed = partial(measure, sizes=sizes, seconds=options.seconds)
    return table_run.run("bias_grad", "Gradient of the bias", timed, markdown, options)


if __name__ == "__main__":
    sys.exit(main())
