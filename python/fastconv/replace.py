"""fastconv.replace_conv2d."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import ops
from .conv1d import conv1d
from .conv_transpose2d import conv_transpose2d
from .functional import conv2d
from .precision import Precision, check


class replace_conv2d(TorchFunctionMode):
    """Within the block ``torch.nn.functional.conv2d`` is computed by :func:`fastconv.conv2d`, whoever calls it.

    So are ``conv1d`` and ``conv_transpose2d`` by fastconv's functions of these names, what ``torch.convolution`` has of
    all three, and ``nn.Conv2d``, ``nn.Conv1d`` and ``nn.ConvTranspose2d`` layers. What fastconv does not compute (other
    dtypes, layouts and devices) torch computes as before.

    Args:
        precision: how float32 products are formed; see :class:`fastconv.precision`. None: as set there at each call.

    Raises:
        ValueError: unknown ``precision``.

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
        if func in REPLACED:  # of torch and of torch.nn.functional
            return self._call(func, *args, **kwargs)
        if func is torch.convolution:
            return self._convolution(*args, **kwargs)
        return func(*args, **kwargs)

    def _call(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        if not _computes(input, weight, bias):
            return func(input, weight, bias, *args, **kwargs)
        return REPLACED[func](input, weight, bias, *args, **kwargs, precision=self.precision)

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
        operands = input, weight, bias
        if weight.dim() == 4 and transposed:
            return self._call(torch.conv_transpose2d, *operands, stride, padding, output_padding, groups, dilation)
        if weight.dim() in (3, 4) and not transposed:
            func = torch.conv1d if weight.dim() == 3 else torch.conv2d
            return self._call(func, *operands, stride, padding, dilation, groups)
        return torch.convolution(*operands, stride, padding, dilation, transposed, output_padding, groups)


REPLACED: dict[Callable[..., Any], Callable[..., Tensor]] = {
    torch.conv1d: conv1d,
    torch.conv2d: conv2d,
    torch.conv_transpose2d: conv_transpose2d,
}


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
