"""A mode: the dtype of the tensors and, for float32, how products are formed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:  # fastconv may be missing
    from fastconv.precision import Precision

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
LONG = {short: dtype for dtype, short in SHORT.items()}
PRECISIONS: tuple[Precision, ...] = ("ieee", "bf16x3", "tf32")


@dataclass(frozen=True)
class Mode:
    dtype: str
    precision: Precision | None = None  # of float32 only

    @property
    def label(self) -> str:
        return SHORT[self.dtype] + (f" {self.precision}" if self.precision else "")

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def itemsize(self) -> int:
        return self.torch_dtype.itemsize

    @property
    def opponent_tf32(self) -> bool:
        """Whether PyTorch may use TF32 when compared in this mode; bf16x3 competes with strict fp32."""
        return self.precision == "tf32"


def modes_of(dtypes: Sequence[str], precisions: Sequence[Precision]) -> list[Mode]:
    modes = []
    for dtype in dtypes:
        modes += [Mode(dtype, precision) for precision in precisions] if dtype == "float32" else [Mode(dtype)]
    return modes
