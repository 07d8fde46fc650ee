"""Loads the two compiled libraries and remembers why one of them could not be."""

from __future__ import annotations

from pathlib import Path

import torch

_HERE = Path(__file__).resolve().parent
CPU_LIBRARY = _HERE / "libfastconv_cpu.so"
CUDA_LIBRARY = _HERE / "libfastconv_cuda.so"


def _load_cpu() -> None:
    if not CPU_LIBRARY.exists():
        raise ImportError(f"{CPU_LIBRARY} is missing: fastconv was not built; run `pip install .` in its source tree")
    if [int(part) for part in torch.__version__.split(".")[:2]] < [2, 10]:
        raise ImportError(f"fastconv needs torch >= 2.10, found {torch.__version__}")
    torch.ops.load_library(CPU_LIBRARY)


def _load_cuda() -> str | None:
    """None if loaded, otherwise why not."""
    if not CUDA_LIBRARY.exists():
        return (
            f"{CUDA_LIBRARY.name} is not in this build of fastconv: it was built without nvcc or with FASTCONV_CUDA=0"
        )
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.ops.load_library(CUDA_LIBRARY)
    except OSError as error:
        # torch >= 2.13 wraps the loader's error in one that says only the path.
        return f"{CUDA_LIBRARY.name} could not be loaded: {error.__cause__ or error}"
    return None


_load_cpu()
cuda_error = _load_cuda()
