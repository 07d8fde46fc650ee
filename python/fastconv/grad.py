"""The gradients of conv2d as functions, those of ``torch.nn.grad``. They are differentiable to any order."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from . import ops
from .functional import integers
from .ops import Ints
from .precision import Precision, resolve


def conv2d_input(
    input_size: Sequence[int],
    weight: Tensor,
    grad_output: Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    precision: Precision | None = None,
) -> Tensor:
    """Gradient of :func:`fastconv.conv2d` with respect to its input: :func:`torch.nn.grad.conv2d_input`.

    Args:
        input_size: (N, C, H, W) or (C, H, W).
        weight: (K, C / groups, R, S).
        grad_output: (N, K, P, Q) or (K, P, Q), the size that the convolution's output has.
        stride, padding, dilation, groups, precision: those of the convolution.

    Returns:
        A tensor of size ``input_size``; channels_last if weight or grad_output is.

    Raises:
        RuntimeError, ValueError, NotImplementedError, TypeError: as :func:`fastconv.conv2d`.

    Dtypes, devices and the numerical contract are those of :func:`fastconv.conv2d`, too.

    >>> x, w = torch.randn(2, 3, 9, 9, requires_grad=True), torch.randn(4, 3, 3, 3)
    >>> g = fastconv.grad.conv2d_input(x.shape, w, torch.ones(2, 4, 7, 7))
    >>> torch.testing.assert_close(g, torch.autograd.grad(fastconv.conv2d(x, w).sum(), x)[0])
    """
    _check_tensors("conv2d_input", weight=weight, grad_output=grad_output)
    geometry = integers(stride, padding, dilation, groups)
    return ops.conv2d_input(input_size, weight, grad_output, *geometry, precision=resolve(precision))


def conv2d_weight(
    input: Tensor,
    weight_size: Sequence[int],
    grad_output: Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    precision: Precision | None = None,
) -> Tensor:
    """Gradient of :func:`fastconv.conv2d` with respect to its weight: :func:`torch.nn.grad.conv2d_weight`.

    Args:
        input: (N, C, H, W) or (C, H, W).
        weight_size: (K, C / groups, R, S).
        grad_output: (N, K, P, Q) or (K, P, Q), the size that the convolution's output has.
        stride, padding, dilation, groups, precision: those of the convolution.

    Returns:
        A tensor of size ``weight_size``; channels_last if input or grad_output is.

    Raises:
        RuntimeError, ValueError, NotImplementedError, TypeError: as :func:`fastconv.conv2d`.

    Dtypes, devices and the numerical contract are those of :func:`fastconv.conv2d`, too.

    >>> x, w = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3, requires_grad=True)
    >>> g = fastconv.grad.conv2d_weight(x, w.shape, torch.ones(2, 4, 7, 7))
    >>> torch.testing.assert_close(g, torch.autograd.grad(fastconv.conv2d(x, w).sum(), w)[0])
    """
    _check_tensors("conv2d_weight", input=input, grad_output=grad_output)
    geometry = integers(stride, padding, dilation, groups)
    return ops.conv2d_weight(input, weight_size, grad_output, *geometry, precision=resolve(precision))


def _check_tensors(function: str, **operands: object) -> None:
    for name, operand in operands.items():
        if not isinstance(operand, Tensor):
            raise TypeError(f"{function}(): {name} must be a Tensor, but got {type(operand).__name__}")
        ops.check_kind(name, operand)
