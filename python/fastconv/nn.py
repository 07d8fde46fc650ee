"""fastconv.Conv2d, and layers that normalise."""

from __future__ import annotations

from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from torch.fx import Proxy, Tracer
from torch.nn.common_types import _size_2_t
from torch.types import Device

from .batch_norm import Activation, batch_norm_act, check_activation
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


class BatchNormAct2d(torch.nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d`, the addition of a residual and an activation, computed by
    :func:`fastconv.batch_norm_act`.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype: those of
            :class:`torch.nn.BatchNorm2d`. The ``state_dict`` has the same keys.
        activation: ``"relu"``, ``"relu6"``, ``"silu"``, ``"gelu"``, ``"gelu_tanh"``, ``"hardswish"`` or None.

    Raises:
        ValueError: unknown ``activation``.

    Shapes, dtypes, errors of a call and its numerical contract are those of :func:`fastconv.batch_norm_act`.

    >>> norm = fastconv.BatchNormAct2d(16, activation="relu")
    >>> x = torch.randn(8, 16, 32, 32)
    >>> norm(x, residual=x).shape
    torch.Size([8, 16, 32, 32])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Activation | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        check_activation(activation)
        self.activation = activation

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        return norm_module(self, input, self.activation, residual)

    def _get_name(self) -> str:
        return f"fastconv.{super()._get_name()}"

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.activation is None else f"{text}, activation={self.activation!r}"


def norm_module(
    norm: torch.nn.BatchNorm2d, input: Tensor, activation: Activation | None, residual: Tensor | None
) -> Tensor:
    """:func:`fastconv.batch_norm_act` as nn.BatchNorm2d.forward calls torch's."""
    tracks = norm.training and norm.track_running_stats and norm.num_batches_tracked is not None
    running = not norm.training or norm.track_running_stats
    momentum = norm.momentum
    if residual is not None and residual.dtype != input.dtype and torch.is_autocast_enabled(input.device.type):
        residual = residual.to(input.dtype)
    return batch_norm_act(
        input,
        norm.running_mean if running else None,
        norm.running_var if running else None,
        norm.weight,
        norm.bias,
        norm.training or (norm.running_mean is None and norm.running_var is None),
        0.0 if momentum is None and not tracks else momentum,
        norm.eps,
        activation=activation,
        residual=residual,
        num_batches_tracked=norm.num_batches_tracked if tracks else None,
    )


class ConvBnAct2d(torch.nn.Module):
    """A convolution without bias, batch normalisation, the addition of a residual, and an activation.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode, precision, device,
            dtype: those of :class:`fastconv.Conv2d`, which is the submodule ``conv``.
        eps, momentum, affine, track_running_stats, activation: those of :class:`fastconv.BatchNormAct2d`, which is the
            submodule ``bn``.

    Raises:
        ValueError: unknown ``activation`` or ``precision``, or what :class:`torch.nn.Conv2d` refuses.

    >>> layer = fastconv.ConvBnAct2d(3, 16, 3, padding=1, activation="relu")
    >>> layer(torch.randn(8, 3, 32, 32)).shape
    torch.Size([8, 16, 32, 32])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _size_2_t,
        stride: _size_2_t = 1,
        padding: Literal["same", "valid"] | _size_2_t = 0,
        dilation: _size_2_t = 1,
        groups: int = 1,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Activation | None = None,
        precision: Precision | None = None,
    ) -> None:
        super().__init__()
        self.conv = Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            False,
            padding_mode,
            device,
            dtype,
            precision=precision,
        )
        self.bn = BatchNormAct2d(
            out_channels, eps, momentum, affine, track_running_stats, device, dtype, activation=activation
        )

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        result: Tensor = self.bn(self.conv(input), residual)
        return result
