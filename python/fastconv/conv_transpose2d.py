"""fastconv.conv_transpose2d: the input gradient of a convolution, as a function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function_variadic

from . import ops
from .activation import Activation, check_activation
from .conv2d_act import composed
from .functional import check_residual, check_tensors, integers, pair
from .ops import Ints
from .precision import Precision, resolve


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    precision: Precision | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """2-D transposed convolution: :func:`torch.nn.functional.conv_transpose2d`, computed by fastconv.

    Args:
        input: (N, C, H, W) or (C, H, W); dtypes, strides and devices as for :func:`fastconv.conv2d`.
        weight: (C, K / groups, R, S), same dtype and device.
        bias: (K), or None.
        stride, padding, output_padding, dilation: pixels; one value, or one for rows and one for columns.
            output_padding is what the output gets more at its end, less than stride or dilation: of several inputs
            that a convolution makes one output of, it says which.
        groups: C and K are divided into this many independent convolutions.
        precision, activation, residual: as for :func:`fastconv.conv2d`; the last two by torch's functions behind it.

    Returns:
        (N, K, P, Q) or (K, P, Q), where P = (H - 1) * stride - 2 * padding + dilation * (R - 1) + output_padding + 1
        and Q likewise. In channels_last memory format if input or weight is, else contiguous.

    Raises:
        RuntimeError, ValueError, NotImplementedError, TypeError: as :func:`fastconv.conv2d`.

    It is the input gradient of :func:`fastconv.conv2d`, whose kernels, derivatives, transforms, autocast and numerical
    contract it has; but the bias is added to what was rounded to the dtype. The operation is the transposed convolution
    of Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016.

    >>> x, w = torch.randn(8, 64, 16, 16), torch.randn(64, 32, 2, 2)
    >>> fastconv.conv_transpose2d(x, w, stride=2).shape
    torch.Size([8, 32, 32, 32])
    """
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            conv_transpose2d,
            (input, weight, bias),
            input,
            weight,
            bias,
            stride,
            padding,
            output_padding,
            groups,
            dilation,
            precision=precision,
            activation=activation,
            residual=residual,
        )
    check_tensors(input, weight, bias, "conv_transpose2d")
    check_residual(residual, "conv_transpose2d")
    index = check_activation(activation)
    strides, paddings, dilations, groups = integers(stride, padding, dilation, groups, "conv_transpose2d")
    more = pair("output_padding", output_padding, "conv_transpose2d")
    input, weight, bias = ops.autocast(input, weight, bias)
    _check(input, weight, bias, strides, dilations, more, groups)
    # A convolution of the output skips what is less than a stride; whole strides are pixels of zeros.
    whole = [extra // step for extra, step in zip(more, strides, strict=True)]
    if any(whole):
        input = torch.nn.functional.pad(input, (0, whole[1], 0, whole[0]))
    size = [
        (extent - 1) * step - 2 * skipped + gap * (taps - 1) + extra % step + 1
        for extent, taps, step, skipped, gap, extra in zip(
            input.shape[-2:], weight.shape[2:], strides, paddings, dilations, more, strict=True
        )
    ]
    output_size = [*input.shape[:-3], weight.shape[1] * groups, *size]
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # which has tensors for sizes, and whose graph has numbers
        output_size = [int(extent) for extent in output_size]
    for extent in output_size[-2:]:
        torch._check(extent >= 1, lambda: "conv_transpose2d(): padding must leave an output of a row and a column")
    output = ops.conv2d_input(
        output_size,
        weight,
        input,
        strides,
        paddings,
        dilations,
        groups,
        precision=resolve(precision),
    )
    if bias is not None:
        shift = bias[:, None, None]
        output = output.add_(shift) if _is_ours_alone(output) else output + shift
    return composed(output, residual, index)


def _is_ours_alone(output: Tensor) -> bool:
    """Whether nobody sees that it is written twice."""
    if torch.compiler.is_compiling() or ops.is_transformed():
        return False
    return type(output) is Tensor and forward_ad._current_level < 0


def _check(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> None:
    """What a convolution's gradient would say in words that nobody used here."""
    ops.check_tensors("input", input, "weight", weight)
    ops.check_tensors("input", input, "bias", bias)
    if input.dim() not in (3, 4):
        sizes = f"3-D (C, H, W) or 4-D (N, C, H, W), but got size {list(input.shape)}"
        raise RuntimeError(f"conv_transpose2d(): input must be {sizes}")
    if weight.dim() != 4:
        sizes = f"4-D (C, K/groups, R, S), but got size {list(weight.shape)}"
        raise RuntimeError(f"conv_transpose2d(): weight must be {sizes}")
    for name, values in (("stride", stride), ("dilation", dilation)):
        if min(values) < 1:
            raise RuntimeError(f"conv_transpose2d(): {name} must be at least 1, but got {list(values)}")
    for extra, step, gap in zip(output_padding, stride, dilation, strict=True):
        if not 0 <= extra < max(step, gap):
            raise RuntimeError(
                f"conv_transpose2d(): output_padding must be at least 0 and less than stride or dilation, but got "
                f"{extra}, stride {step} and dilation {gap}"
            )
    if groups < 1 or weight.shape[0] % groups:
        raise RuntimeError(
            f"conv_transpose2d(): groups must be at least 1 and divide weight.size(0) = {weight.shape[0]}, "
            f"but got {groups}"
        )
    channels, filters = input.shape[-3], weight.shape[1] * groups
    if channels != weight.shape[0]:
        raise RuntimeError(
            f"conv_transpose2d(): input must have weight.size(0) = {weight.shape[0]} channels, but got {channels}"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != filters):
        raise RuntimeError(
            f"conv_transpose2d(): bias must be 1-D with weight.size(1) * groups = {filters} elements, but got size "
            f"{list(bias.shape)}"
        )
