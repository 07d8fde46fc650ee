"""fastconv.replace_conv2d."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import ops
from .functional import conv2d
from .ops import Ints
from .precision import Precision, check


class replace_conv2d(TorchFunctionMode):
    """Within the block ``torch.nn.functional.conv2d`` is computed by :func:`fastconv.conv2d`, whoever calls it.

    Args:
        precision: how float32 products are formed; see :class:`fastconv.precision`. None: as set there at each call.

    Raises:
        ValueError: unknown ``precision``.

    So are ``torch.convolution`` where it is not transposed and has two dimensions, and ``nn.Conv2d`` layers. What
    fastconv does not compute (other dtypes, layouts and devices) torch computes as before.

    The block is that of the calling thread. It may lie around or within a function given to ``torch.compile``, and be
    nested: the innermost decides. ``torch.utils.checkpoint`` computes once more in the backward pass, outside of the
    block, unless it is told ``context_fn=lambda: (contextlib.nullcontext(), fastconv.replace_conv2d())``.
    ``fastconv.convert(model, functional=True)`` knows neither limit, as long as what is checkpointed is a module or a
    method of one, not a function that a ``forward`` defines or names.

    >>> x, w = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    >>> with fastconv.replace_conv2d():
    ...     y = torch.nn.functional.conv2d(x, w)
    >>> torch.equal(y, fastconv.conv2d(x, w))
    True
    """

    def __init__(self, *, precision: Precision | None = None) -> None:
        super().__init__()
        self.precision = check(precision)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d:  # F.conv2d, too
            return self._conv2d(*args, **kwargs)
        if func is torch.convolution:
            return self._convolution(*args, **kwargs)
        return func(*args, **kwargs)

    def _conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Ints = 1,
        padding: Any = 0,
        dilation: Ints = 1,
        groups: int = 1,
    ) -> Tensor:
        if not _computes(input, weight, bias):
            return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
        return conv2d(input, weight, bias, stride, padding, dilation, groups, precision=self.precision)

    def _convolution(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Any,
        padding: Any,
        dilation: Any,
        transposed: bool,
        output_padding: Any,
        groups: int,
    ) -> Tensor:
        if transposed or weight.dim() != 4 or not _computes(input, weight, bias):
            return torch.convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
        return conv2d(input, weight, bias, stride, padding, dilation, groups, precision=self.precision)


def _computes(*operands: Tensor | None) -> bool:
    try:
        for operand in operands:
            if isinstance(operand, Tensor):
                ops.check_kind("operand", operand)
                if operand.device.type not in ("cpu", "cuda", "meta"):
                    return False
    except NotImplementedError:
        return False
    return True
