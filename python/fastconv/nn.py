"""fastconv.Conv2d."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .functional import conv2d
from .precision import check


class Conv2d(torch.nn.Conv2d):
    """:class:`torch.nn.Conv2d`, computed by :func:`fastconv.conv2d`.

    Args:
        *args, **kwargs: those of :class:`torch.nn.Conv2d`. The same seed gives the same initial weights, and the
            ``state_dict`` has the same keys.
        precision: how float32 products are formed; see :class:`fastconv.precision`. None: as set there at each call.

    Raises:
        ValueError: unknown ``precision``, or what :class:`torch.nn.Conv2d` refuses.

    Shapes, dtypes, errors of a call and its numerical contract are those of :func:`fastconv.conv2d`.

    >>> layer = fastconv.Conv2d(3, 16, kernel_size=(5, 7), padding="same")
    >>> layer(torch.randn(8, 3, 32, 32)).shape
    torch.Size([8, 16, 32, 32])
    """

    # On the class, so that a module converted from or pickled as nn.Conv2d has it too.
    precision: str | None = None

    def __init__(self, *args: Any, precision: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.precision = check(precision)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0, 0)
        return conv2d(input, weight, bias, self.stride, padding, self.dilation, self.groups, precision=self.precision)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.precision is None else f"{text}, precision={self.precision!r}"
