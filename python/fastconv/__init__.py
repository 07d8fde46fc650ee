"""fastconv: 2-D and 1-D convolution for PyTorch, computed by its own kernels on NVIDIA GPUs and on the CPU."""

from . import grad, onnx
from ._version import version as __version__
from .batch_norm import batch_norm_act
from .conv1d import conv1d
from .conv_bn_act import conv_bn_act
from .conv_transpose2d import conv_transpose2d
from .convert import convert, revert, unconverted
from .explain import cuda_error, explain, force_kernel, info
from .functional import conv2d
from .fuse import fuse, unfuse
from .nn import BatchNormAct2d, Conv1d, Conv2d, ConvBnAct2d, ConvTranspose2d
from .precision import precision
from .replace import replace_conv2d

__all__ = [
    "BatchNormAct2d",
    "Conv1d",
    "Conv2d",
    "ConvBnAct2d",
    "ConvTranspose2d",
    "__version__",
    "batch_norm_act",
    "conv1d",
    "conv2d",
    "conv_bn_act",
    "conv_transpose2d",
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
