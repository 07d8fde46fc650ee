"""Layers: fastconv.Conv2d and its siblings, and those that normalise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from torch.fx import Proxy, Tracer
from torch.nn.common_types import _size_1_t, _size_2_t
from torch.nn.modules import module as _module
from torch.types import Device

from .activation import Activation, check_activation
from .batch_norm import batch_norm_act
from .conv1d import conv1d
from .conv2d_act import composed
from .conv_bn_act import conv_bn_act
from .conv_transpose2d import conv_transpose2d
from .functional import conv2d
from .precision import Precision, check


class _Conv(torch.nn.Module):
    """What the layers that convolve have beside torch's, which they are too."""

    # On the class, so that a module converted from or pickled as torch's has it too.
    precision: Precision | None = None
    activation: Activation | None = None

    def __prepare_scriptable__(self) -> NoReturn:
        """Asked for by ``torch.jit.script``, which would fail with words about type annotations."""
        raise RuntimeError(f"torch.jit.script cannot compile {self._get_name()}; call fastconv.revert(model) first")

    def _get_name(self) -> str:
        return f"fastconv.{super()._get_name()}"

    def extra_repr(self) -> str:
        text = super().extra_repr()
        text = text if self.precision is None else f"{text}, precision={self.precision!r}"
        return text if self.activation is None else f"{text}, activation={self.activation!r}"


class _Forward(_Conv):
    """The forward pass of layers that are not transposed."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        if (whole := _traced_whole(self, input, residual)) is not None:
            return whole
        layer: Any = self
        if residual is None and self.activation is None:
            return layer._conv_forward(input, layer.weight, layer.bias)
        if type(self)._conv_forward is not _Forward._conv_forward:  # a subclass's own
            output = layer._conv_forward(input, layer.weight, layer.bias)
            return composed(output, residual, check_activation(self.activation))
        return _convolve(self, input, layer.weight, layer.bias, activation=self.activation, residual=residual)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _convolve(self, input, weight, bias)


# Functions, as a subclass may have methods of any name.


def _set(layer: _Conv, precision: Precision | None, activation: Activation | None) -> None:
    check_activation(activation)
    layer.precision = check(precision)
    if activation is not None:
        layer.activation = activation


def _convolve(layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    function: Callable[..., Tensor] = conv1d if isinstance(layer, torch.nn.Conv1d) else conv2d
    padding = layer.padding
    if layer.padding_mode != "zeros":
        input = torch.nn.functional.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    arguments = layer.stride, padding, layer.dilation, layer.groups
    return function(input, weight, bias, *arguments, precision=layer.precision, **options)


class Conv2d(_Forward, torch.nn.Conv2d):
    """:class:`torch.nn.Conv2d`, computed by :func:`fastconv.conv2d`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype:
            those of :class:`torch.nn.Conv2d`. The same seed gives the same initial weights, and the ``state_dict`` has
            the same keys.
        precision: how float32 products are formed; see :class:`fastconv.precision`. None: as set there at each call.
        activation: of the output; see :func:`fastconv.conv2d`. A call takes a ``residual``, too.

    Raises:
        ValueError: unknown ``precision`` or ``activation``, or what :class:`torch.nn.Conv2d` refuses.

    Shapes, dtypes, errors of a call and its numerical contract are those of :func:`fastconv.conv2d`.

    ``torch.fx.symbolic_trace`` keeps the layer whole, as it does torch's, unless hooks are registered on it.

    >>> layer = fastconv.Conv2d(3, 16, kernel_size=(5, 7), padding="same")
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
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        precision: Precision | None = None,
        activation: Activation | None = None,
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
        _set(self, precision, activation)


class Conv1d(_Forward, torch.nn.Conv1d):
    """:class:`torch.nn.Conv1d`, computed by :func:`fastconv.conv1d`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype:
            those of :class:`torch.nn.Conv1d`. The same seed gives the same initial weights, and the ``state_dict`` has
            the same keys.
        precision, activation: as for :class:`fastconv.Conv2d`. A call takes a ``residual``, too.

    Raises:
        ValueError: unknown ``precision`` or ``activation``, or what :class:`torch.nn.Conv1d` refuses.

    Shapes, dtypes, errors of a call and its numerical contract are those of :func:`fastconv.conv1d`.

    >>> layer = fastconv.Conv1d(80, 384, kernel_size=3, padding=1, activation="gelu")
    >>> layer(torch.randn(8, 80, 300)).shape
    torch.Size([8, 384, 300])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _size_1_t,
        stride: _size_1_t = 1,
        padding: Literal["same", "valid"] | _size_1_t = 0,
        dilation: _size_1_t = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        precision: Precision | None = None,
        activation: Activation | None = None,
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
        _set(self, precision, activation)


class ConvTranspose2d(_Conv, torch.nn.ConvTranspose2d):
    """:class:`torch.nn.ConvTranspose2d`, computed by :func:`fastconv.conv_transpose2d`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation, padding_mode,
            device, dtype: those of :class:`torch.nn.ConvTranspose2d`. The same seed gives the same initial weights, and
            the ``state_dict`` has the same keys.
        precision, activation: as for :class:`fastconv.Conv2d`. A call takes torch's ``output_size`` (rows and columns
            in pixels, in place of ``output_padding``) and a ``residual``.

    Raises:
        ValueError: unknown ``precision`` or ``activation``, or what :class:`torch.nn.ConvTranspose2d` refuses, in a
            call an ``output_size`` that cannot be.

    Shapes, dtypes, errors of a call and its numerical contract are those of :func:`fastconv.conv_transpose2d`.

    >>> layer = fastconv.ConvTranspose2d(64, 32, kernel_size=3, stride=2, padding=1)
    >>> layer(torch.randn(8, 64, 16, 16), output_size=(32, 32)).shape
    torch.Size([8, 32, 32, 32])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _size_2_t,
        stride: _size_2_t = 1,
        padding: _size_2_t = 0,
        output_padding: _size_2_t = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: _size_2_t = 1,
        padding_mode: Literal["zeros"] = "zeros",
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        precision: Precision | None = None,
        activation: Activation | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            bias,
            dilation,
            padding_mode,
            device,
            dtype,
        )
        _set(self, precision, activation)

    def forward(
        self, input: Tensor, output_size: Sequence[int] | None = None, residual: Tensor | None = None
    ) -> Tensor:
        if (whole := _traced_whole(self, input, output_size, residual)) is not None:
            return whole
        output_padding: Any = self.output_padding
        if output_size is not None:
            geometry = self.stride, self.padding, self.kernel_size, 2, self.dilation
            output_padding = self._output_padding(input, list(output_size), *geometry)  # type: ignore[arg-type]
        return conv_transpose2d(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,  # type: ignore[arg-type]
            output_padding,
            self.groups,
            self.dilation,
            precision=self.precision,
            activation=self.activation,
            residual=residual,
        )


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

    ``nn.SyncBatchNorm.convert_sync_batchnorm`` makes a plain ``nn.SyncBatchNorm`` of this layer, as it is an
    ``nn.BatchNorm2d``: the activation is lost, without a word, and a ``residual`` is refused. It asks no layer, so none
    can object. Use ``nn.BatchNorm2d`` with an activation behind it where statistics are to be those of several
    processes, or :class:`fastconv.ConvBnAct2d`, which keeps its activation.

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
        if (whole := _traced_whole(self, input, residual)) is not None:
            return whole
        return norm_module(self, input, self.activation, residual)

    def _get_name(self) -> str:
        return f"fastconv.{super()._get_name()}"

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.activation is None else f"{text}, activation={self.activation!r}"


def norm_module(
    norm: torch.nn.BatchNorm2d,
    input: Tensor,
    activation: Activation | None,
    residual: Tensor | None,
    conv: Conv2d | None = None,
) -> Tensor:
    """:func:`fastconv.batch_norm_act` as nn.BatchNorm2d.forward calls torch's, maybe of a convolution of the input."""
    training, momentum, tracks = norm.training, norm.momentum, norm.track_running_stats
    mean, var = _own(norm, norm._buffers, "running_mean"), _own(norm, norm._buffers, "running_var")
    count = _own(norm, norm._buffers, "num_batches_tracked") if training and tracks else None
    weight, bias = _own(norm, norm._parameters, "weight"), _own(norm, norm._parameters, "bias")
    if momentum is None and count is None:
        momentum = 0.0
    by_batch = training or (mean is None and var is None)
    if training and not tracks:
        mean = var = None
    if conv is not None:
        return conv_bn_act(
            input,
            _own(conv, conv._parameters, "weight"),
            _own(conv, conv._parameters, "bias"),
            mean,
            var,
            weight,
            bias,
            conv.stride,
            conv.padding,  # type: ignore[arg-type]
            conv.dilation,
            conv.groups,
            training=by_batch,
            momentum=momentum,
            eps=norm.eps,
            activation=activation,
            residual=residual,
            num_batches_tracked=count,
            precision=conv.precision,
        )
    return batch_norm_act(
        input,
        mean,
        var,
        weight,
        bias,
        by_batch,
        momentum,
        norm.eps,
        activation=activation,
        residual=residual,
        num_batches_tracked=count,
    )


def _traced_whole(module: torch.nn.Module, input: Tensor, *others: Any) -> Any:
    """torch.fx makes leaves of torch.nn's modules alone: a call of this one, if it is traced. Hooks have run by now and
    would run again in a leaf; and a graph cannot call its own root."""
    if not (isinstance(input, Proxy) and isinstance(tracer := input.tracer, Tracer)):
        return None
    if module._forward_pre_hooks or module._forward_hooks or tracer.root is module:
        return None
    args = (input,) if all(other is None for other in others) else (input, *others)
    return tracer.create_proxy("call_module", tracer.path_of_module(module), args, {})


def convolves_alone(conv: torch.nn.Module) -> bool:
    """Whether it is a fastconv.Conv2d that does nothing else."""
    return type(conv) is Conv2d and conv.padding_mode == "zeros" and conv.activation is None


def _own(module: torch.nn.Module, place: dict[str, Any], name: str) -> Any:
    """An attribute, from where it lies: modules look there last, and it may have been set otherwise."""
    return place[name] if name in place else getattr(module, name)


def untouched(*modules: torch.nn.Module) -> bool:
    """By hooks, of its own or of all modules."""
    of_all = _module._global_forward_hooks or _module._global_forward_pre_hooks
    if of_all or _module._global_backward_hooks or _module._global_backward_pre_hooks:
        return False
    for m in modules:
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            return False
        if "forward" in m.__dict__:
            return False
    return True


class ConvBnAct2d(torch.nn.Module):
    """A convolution without bias, batch normalisation, the addition of a residual, and an activation.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups: those of :class:`fastconv.Conv2d`,
            which is the submodule ``conv``.
        padding_mode, precision, device, dtype: likewise.
        eps, momentum, affine, track_running_stats, activation: those of :class:`fastconv.BatchNormAct2d`, which is the
            submodule ``bn``. Where ``bn`` is replaced by another module, as ``nn.SyncBatchNorm``, residual and
            activation follow it as calls of their own.

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
        self.activation = activation  # for what may take the place of bn

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        if (whole := _traced_whole(self, input, residual)) is not None:
            return whole
        conv, bn = self.conv, self.bn
        traced = isinstance(input, Proxy)
        if not traced and convolves_alone(conv) and type(bn) is BatchNormAct2d and untouched(conv, bn):
            return norm_module(bn, input, bn.activation, residual, conv)
        if not isinstance(bn, BatchNormAct2d):
            return _followed(bn(conv(input)), residual, self.activation)
        result: Tensor = bn(conv(input), residual)
        return result


@torch.fx.wrap
def _followed(output: Tensor, residual: Tensor | None, activation: Activation | None) -> Tensor:
    """A graph has it whole, as it does not know whether there is a residual."""
    return composed(output, residual, check_activation(activation))
