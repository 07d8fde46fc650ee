"""fastconv: 2-D convolution for PyTorch, computed by its own kernels on NVIDIA GPUs and on the CPU."""

from . import grad, onnx
from ._version import version as __version__
from .batch_norm import batch_norm_act
from .conv_bn_act import conv_bn_act
from .convert import convert, revert, unconverted
from .explain import cuda_error, explain, force_kernel, info
from .functional import conv2d
from .fuse import fuse, unfuse
from .nn import BatchNormAct2d, Conv2d, ConvBnAct2d
from .precision import precision
from .replace import replace_conv2d

__all__ = [
    "BatchNormAct2d",
    "Conv2d",
    "ConvBnAct2d",
    "__version__",
    "batch_norm_act",
    "conv2d",
    "conv_bn_act",
    "convert",
    "cuda_error",
    "explain",
    "force_kernel",
    "fuse",
    "grad",
    "info",
    "onnx",
    "precision",
    "replace_conv2d",
    "revert",
    "unconverted",
    "unfuse",
]
