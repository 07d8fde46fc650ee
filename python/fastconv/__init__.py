"""fastconv: 2-D convolution for PyTorch, computed by its own kernels on NVIDIA GPUs and on the CPU."""

from . import grad
from ._version import version as __version__
from .convert import convert, revert
from .explain import cuda_error, explain, force_kernel, info
from .functional import conv2d
from .nn import Conv2d
from .precision import precision

__all__ = [
    "Conv2d",
    "__version__",
    "conv2d",
    "convert",
    "cuda_error",
    "explain",
    "force_kernel",
    "grad",
    "info",
    "precision",
    "revert",
]
