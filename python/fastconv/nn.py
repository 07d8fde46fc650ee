"""fastconv.Conv2d."""

from __future__ import annotations

from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from torch.fx import Proxy, Tracer
from torch.nn.common_types import _size_2_t
from torch.types import Device

from .functional import conv2d
from .precision import Precision, check


class Conv2d(torch.nn.Conv2d):
    """:class:`torch.nn.Conv2d`, computed by :func:`fastconv.conv2d`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype:
            those of :class:`torch.nn.Conv2d`. The same seed gives the same initial weights, and the ``state_dict`` has
            the same keys.
        precision: how float32 products are formed; see :class:`fastconv.precision`. None: as set there at each call.

    Raises:
        ValueError: unknown ``precision``, or what :class:`torch.nn.Conv2d` refuses.

    Shapes, dtypes, errors of a call and its numerical contract are those of :func:`fastconv.conv2d`.

    ``torch.fx.symbolic_trace`` keeps the layer whole, as it does torch's, unless hooks are registered on it.

    >>> layer = fastconv.Conv2d(3, 16, kernel_size=(5, 7), padding="same")
    >>> layer(torch.randn(8, 3, 32, 32)).shape
    torch.Size([8, 16, 32, 32])
    """

    # On the class, so that a module converted from or pickled as nn.Conv2d has it too.
    precision: Precision | None = None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _size_2_t,
        stride: _size_2_t = 1,
        padding: Literal["same", "valid"] | _size_2_t = 0,
        dilation: _size_2_t = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        precision: Precision | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self.precision = check(precision)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy) and isinstance(tracer := input.tracer, Tracer):
            # torch.fx makes leaves of torch.nn's modules alone. Hooks have run by now and would run again in a leaf;
            # and a graph cannot call its own root.
            if not (self._forward_pre_hooks or self._forward_hooks or tracer.root is self):
                whole: Any = tracer.create_proxy("call_module", tracer.path_of_module(self), (input,), {})
                return whole
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0, 0)
        return conv2d(input, weight, bias, self.stride, padding, self.dilation, self.groups, precision=self.precision)

    def __prepare_scriptable__(self) -> NoReturn:
        """Asked for by ``torch.jit.script``, which would fail with words about type annotations."""
        raise RuntimeError("torch.jit.script cannot compile fastconv.Conv2d; call fastconv.revert(model) first")

    def _get_name(self) -> str:
        return f"fastconv.{super()._get_name()}"

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.precision is None else f"{text}, precision={self.precision!r}"
