"""Which family has kernels for what, as docs/architecture.md shows it.

    python tests/matrix.py      writes the table anew; needs the native module

A family is said to have a kernel where one of its kernels takes one of the problems below.
"""

from __future__ import annotations

import re
from pathlib import Path

import _fastconv_native as native

ARCHITECTURE = Path(__file__).parents[1] / "docs/architecture.md"
BLOCK = re.compile(r"(?<=<!-- matrix -->\n).*?(?=<!-- end -->)", re.DOTALL)
# Input, weight, stride, padding, groups: what the families are for.
PROBLEMS = [
    ((2, 64, 32, 32), (64, 64, 3, 3), 1, 1, 1),
    ((2, 64, 32, 32), (64, 64, 1, 1), 1, 0, 1),
    ((2, 64, 32, 32), (64, 1, 3, 3), 1, 1, 64),
    ((2, 64, 32, 32), (64, 8, 3, 3), 1, 1, 8),
    ((2, 3, 64, 64), (64, 3, 7, 7), 2, 3, 1),
    ((2, 4, 64, 64), (64, 4, 3, 3), 1, 1, 1),
    ((2, 3, 64, 64), (64, 3, 4, 4), 4, 0, 1),
    ((2, 64, 32, 32), (64, 64, 2, 2), 2, 0, 1),
    ((2, 64, 64, 64), (3, 64, 3, 3), 1, 1, 1),
]
MODES = {
    "float32 ieee": ("float32", "ieee"),
    "bf16x3": ("float32", "bf16x3"),
    "tf32": ("float32", "tf32"),
    "16 bits": ("float16", "ieee"),
    "float64": ("float64", "ieee"),
}
DEVICES = {
    "CPU": native.DeviceSpec.cpu(),
    "sm_70": native.DeviceSpec.gpu("v100"),
    "sm_80": native.DeviceSpec.cuda(80, 108, 163 << 10),
    "sm_90a": native.DeviceSpec.cuda(90, 132, 227 << 10),
}
PASSES = {"fprop": "f", "dgrad": "d", "wgrad": "w"}


def cell(kernels: list[native.Kernel], mode: tuple[str, str], device: native.DeviceSpec) -> str:
    """Letters of the passes that NHWC and NCHW have, and of those that one layout alone has."""
    found = {False: "", True: ""}
    for pass_, letter in PASSES.items():
        for channels_last in found:
            takes = any(
                kernel.why_not(problem, device) is None
                for problem in problems(pass_, mode, channels_last)
                for kernel in kernels
                if kernel.pass_ == pass_
            )
            found[channels_last] += letter if takes else ""
    both = "".join(letter for letter in PASSES.values() if all(letter in have for have in found.values()))
    alone = {
        layout: "".join(letter for letter in found[channels_last] if letter not in both)
        for layout, channels_last in (("NHWC", True), ("NCHW", False))
    }
    parts = [both, *(f"{layout}: {letters}" for layout, letters in alone.items() if letters)]
    return ", ".join(part for part in parts if part)


def problems(pass_: str, mode: tuple[str, str], channels_last: bool) -> list[native.ConvProblem]:
    dtype, precision = mode
    return [
        native.ConvProblem(
            size,
            weight,
            (stride, stride),
            (padding, padding),
            (1, 1),
            groups,
            pass_=pass_,
            dtype=dtype,
            precision=precision,
            channels_last=channels_last,
        )
        for size, weight, stride, padding, groups in PROBLEMS
    ]


def matrix() -> str:
    families: dict[str, list[native.Kernel]] = {}
    for kernel in native.kernel_table():
        families.setdefault(kernel.family, []).append(kernel)
    lines = ["| family | on | " + " | ".join(MODES) + " |", "|---|---|" + "---|" * len(MODES)]
    for family, kernels in families.items():
        before: list[str] = []
        for name, device in DEVICES.items():
            cells = [cell(kernels, mode, device) for mode in MODES.values()]
            if any(cells) and cells != before:  # newer GPUs have what older ones have
                lines.append("| " + " | ".join([f"`{family}`", name, *cells]) + " |")
                before = cells
    notes = "f: forward, d: input gradient, w: weight gradient; in both layouts where none is named."
    return "\n".join([*lines, "", notes, ""])


if __name__ == "__main__":
    text = ARCHITECTURE.read_text()
    ARCHITECTURE.write_text(BLOCK.sub(lambda _: matrix(), text))
