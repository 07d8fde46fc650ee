"""fastconv.conv1d: convolutions of images of one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .activation import Activation
from .functional import check_residual, check_tensors, conv2d, integer
from .precision import Precision

Int: TypeAlias = int | Sequence[int]


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Int = 1,
    padding: Int | Literal["same", "valid"] = 0,
    dilation: Int = 1,
    groups: int = 1,
    *,
    precision: Precision | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """1-D convolution: :func:`torch.nn.functional.conv1d`, computed by fastconv's 2-D kernels as images of one row.

    Args:
        input: (N, C, L) or (C, L); dtypes, strides and devices as for :func:`fastconv.conv2d`.
        weight: (K, C / groups, S), same dtype and device.
        bias: (K), or None.
        stride, padding, dilation: elements. Padding may be "valid" (none) or "same" (output as long as the input,
            stride 1 only; where the padding is odd, the end gets one more).
        groups: C and K are divided into this many independent convolutions.
        precision, activation, residual: as for :func:`fastconv.conv2d`.

    Returns:
        (N, K, P) or (K, P), where P = (L + 2 * padding - dilation * (S - 1) - 1) // stride + 1. Batches lie in memory
        as the input does: where its channels are adjacent, as in ``x.transpose(1, 2)`` of a contiguous (N, L, C), so
        are those of the output, which torch makes contiguous, and of the input's gradient. Neither is copied for it.

    Raises:
        RuntimeError, ValueError, NotImplementedError, TypeError: as :func:`fastconv.conv2d`.

    Derivatives, transforms, autocast and the numerical contract are those of :func:`fastconv.conv2d`.

    >>> x, w = torch.randn(8, 256, 400), torch.randn(256, 1, 31)
    >>> fastconv.conv1d(x, w, padding="same", groups=256).shape
    torch.Size([8, 256, 400])
    """
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            conv1d,
            (input, weight, bias),
            input,
            weight,
            bias,
            stride,
            padding,
            dilation,
            groups,
            precision=precision,
            activation=activation,
            residual=residual,
        )
    check_tensors(input, weight, bias, "conv1d")
    check_residual(residual, "conv1d")
    if input.dim() not in (2, 3):
        raise RuntimeError(f"conv1d(): input must be 2-D (C, L) or 3-D (N, C, L), but got size {list(input.shape)}")
    if weight.dim() != 3:
        raise RuntimeError(f"conv1d(): weight must be 3-D (K, C/groups, S), but got size {list(weight.shape)}")
    steps = one("stride", stride)
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise RuntimeError(f"conv1d(): padding must be 'same', 'valid' or a number, but got {padding!r}")
        if padding == "same" and steps != 1:
            raise RuntimeError(f"conv1d(): padding='same' needs stride 1, but got stride {steps}")
    if residual is not None and residual.dim() != input.dim():
        raise RuntimeError(f"conv1d(): residual must be {input.dim()}-D, as input is, but is {residual.dim()}-D")
    output = conv2d(
        input.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        (1, steps),
        padding if isinstance(padding, str) else (0, one("padding", padding)),
        (1, one("dilation", dilation)),
        integer("groups", groups, "conv1d"),
        precision=precision,
        activation=activation,
        residual=None if residual is None else residual.unsqueeze(-2),
    )
    return output.squeeze(-2)


def one(name: str, value: Int) -> int:
    """An integer, or one in a sequence."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else (value,)
    if len(values) != 1:
        raise RuntimeError(f"conv1d(): {name} must have 1 value, but got {len(values)}")
    return integer(name, values[0], "conv1d", "an integer")
