"""fastconv: 2-D convolution for PyTorch, computed by its own kernels on NVIDIA GPUs and on the CPU."""

__version__ = "0.1.0"

from . import grad, onnx
from .convert import convert, revert, unconverted
from .explain import explain, force_kernel, info
from .functional import conv2d
from .nn import Conv2d
from .precision import precision
from .replace import replace_conv2d

__all__ = [
    "Conv2d",
    "__version__",
    "conv2d",
    "convert",
    "explain",
    "force_kernel",
    "grad",
    "info",
    "onnx",
    "precision",
    "replace_conv2d",
    "revert",
    "unconverted",
]
