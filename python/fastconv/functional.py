"""fastconv.conv2d, and how it and its siblings read their arguments."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function_variadic

from . import conv2d_act, ops
from .activation import Activation, check_activation
from .ops import Ints
from .precision import Precision, check, effective, resolve

Padding: TypeAlias = Ints | Literal["same", "valid"]

_is_transformed = ops.is_transformed
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_apply_conv2d, _packed_conv2d, _aten_conv2d = ops.apply_conv2d, ops.packed_conv2d, ops.aten_conv2d
_calls: dict[ops.Arguments, ops.Call] = {}
_PLAIN = ops.PLAIN


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    precision: Precision | None = None,
    activation: Activation | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """2-D convolution: :func:`torch.nn.functional.conv2d`, computed by fastconv.

    Args:
        input: (N, C, H, W) or (C, H, W); float32, float64, float16, bfloat16 or a complex dtype (as one real
            convolution of twice the channels), any strides, CPU or CUDA.
        weight: (K, C / groups, R, S), same dtype and device.
        bias: (K), or None.
        stride, padding, dilation: pixels; one value, or one for rows and one for columns. Padding may be "valid" (none)
            or "same" (output as large as the input, stride 1 only; where the padding is odd, the last row or column
            gets one more).
        groups: C and K are divided into this many independent convolutions.
        precision: how float32 products are formed; see :class:`fastconv.precision`. None: as set there.
        activation: of the output: ``"relu"``, ``"relu6"``, ``"silu"``, ``"gelu"``, ``"gelu_tanh"``, ``"hardswish"`` or
            None. The first two are part of the kernel on a GPU. Not of complex numbers.
        residual: of the output's size, dtype and device; is added before the activation. Autocast casts it.

    Returns:
        (N, K, P, Q) or (K, P, Q), where P = (H + 2 * padding - dilation * (R - 1) - 1) // stride + 1 and Q likewise. In
        channels_last memory format if input or weight is, else contiguous. Gradients to any order, forward-mode
        derivatives, ``torch.func``, ``torch.compile``, ``torch.export`` and autocast work as for torch's function.

    Raises:
        RuntimeError: sizes, strides, dtypes or devices that make no convolution.
        ValueError: unknown ``precision`` or ``activation``.
        NotImplementedError: a dtype or layout other than the above. (Torch convolves integers on the CPU; fastconv does
            not.)
        TypeError: an argument of another type; like torch, True and False are no integers here.

    Images without channels, (N, 0, H, W), give what the sum over none says: zeros, or the bias, of size (N, K, P, Q).
    Torch returns (N, 0, P, Q) for them and leaves the filters out.

    Results are the same bit for bit from run to run. float16 and bfloat16 are accumulated in float32. Infinities and
    NaNs propagate as in IEEE arithmetic. The operation is the cross-correlation of Dumoulin and Visin, "A guide to
    convolution arithmetic for deep learning", 2016.

    >>> x, w = torch.randn(8, 3, 32, 32), torch.randn(16, 3, 5, 7)
    >>> fastconv.conv2d(x, w, stride=2, padding=(2, 3)).shape
    torch.Size([8, 16, 16, 16])
    """
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(
            conv2d,
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
    if activation is not None or residual is not None:
        return _activated(input, weight, bias, stride, padding, dilation, groups, precision, activation, residual)
    if _is_compiling():
        return _conv2d(input, weight, bias, stride, padding, dilation, groups, resolve(precision))
    mode = effective() if precision is None else check(precision)
    try:
        # Eager calls of plain tensors: the dispatcher's detours through Python cost more than the rest of a call.
        if (
            type(input) in _PLAIN
            and type(weight) in _PLAIN
            and (bias is None or type(bias) in _PLAIN)
            and not _is_transformed()
        ):
            if _any_autocast():
                input, weight, bias = ops.autocast(input, weight, bias, once=True)
            call = eager_call(stride, padding, dilation, groups, mode)
            if forward_ad._current_level < 0:
                if not _is_grad_enabled() or not (
                    weight.requires_grad or input.requires_grad or (bias is not None and bias.requires_grad)
                ):
                    return _packed_conv2d(input, weight, bias, call[1])
                if weight.requires_grad and not weight.is_complex():
                    return _aten_conv2d(input, weight, bias, (), (), (), False, (), call[1])
            return _apply_conv2d(input, weight, bias, call)
    except (NotImplementedError, TypeError, ValueError):
        pass  # meta tensors, for which the eager ops have no kernel; strings; arguments that cannot be packed
    except (RuntimeError, AttributeError):
        # Checked only now, so that good calls do not pay for it. Where these checks pass, the first error stands.
        check_tensors(input, weight, bias)
        raise
    try:
        return _conv2d(input, weight, bias, stride, padding, dilation, groups, mode)
    except (RuntimeError, AttributeError):
        check_tensors(input, weight, bias)
        raise


def _activated(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Padding,
    dilation: Ints,
    groups: int,
    precision: Precision | None,
    activation: Activation | None,
    residual: Tensor | None,
) -> Tensor:
    index = check_activation(activation)
    if conv2d_act.is_eager(input, weight, bias, residual):
        mode = effective() if precision is None else check(precision)
        if (call := call_or_none(stride, padding, dilation, groups, mode)) is not None:
            return conv2d_act.one_call(input, weight, bias, residual, call, index)
    output = conv2d(input, weight, bias, stride, padding, dilation, groups, precision=precision)
    return conv2d_act.composed(output, residual, index)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: str | Ints,
    dilation: Ints,
    groups: int,
    precision: str | None,
) -> Tensor:
    """By the public op, for all that is not an eager call of plain tensors."""
    if isinstance(padding, str):
        input, padding = _pad(input, weight, pair("stride", stride), padding, pair("dilation", dilation))
    return ops.conv2d(input, weight, bias, *integers(stride, padding, dilation, groups), precision=precision)


def eager_call(stride: Any, padding: Any, dilation: Any, groups: Any, mode: str | None) -> ops.Call:
    """What eager ops take of these. TypeError or ValueError for what they do not, such as strings."""
    sh, sw = (stride, stride) if stride.__class__ is int else stride
    ph, pw = (padding, padding) if padding.__class__ is int else padding
    dh, dw = (dilation, dilation) if dilation.__class__ is int else dilation
    # Python's integers alone: 1.0 == 1, and a tensor would be remembered by its identity.
    if not (
        sh.__class__
        is sw.__class__
        is ph.__class__
        is pw.__class__
        is dh.__class__
        is dw.__class__
        is groups.__class__
        is int
    ):
        raise TypeError
    arguments = (stride, padding, dilation, groups, mode)
    return _calls.get(arguments) or _pack(arguments, (sh, sw, ph, pw, dh, dw))


def call_or_none(stride: Any, padding: Any, dilation: Any, groups: Any, mode: str | None) -> ops.Call | None:
    """The same; None for what eager ops do not take."""
    try:
        return eager_call(stride, padding, dilation, groups, mode)
    except (TypeError, ValueError):
        return None


def _pack(arguments: ops.Arguments, geometry: tuple[int, ...]) -> ops.Call:
    if not all(isinstance(argument, int | tuple) for argument in arguments[:3]):
        raise TypeError  # bytes and sets have two elements too
    if len(_calls) > 4096:
        _calls.clear()
    return _calls.setdefault(arguments, (arguments, ops.pack(geometry, *arguments[3:])))


def check_tensors(input: object, weight: object, bias: object, function: str = "conv2d") -> None:
    for name, operand in (("input", input), ("weight", weight), ("bias", bias)):
        if not isinstance(operand, Tensor) and not (name == "bias" and operand is None):
            raise TypeError(f"{function}(): {name} must be a Tensor, but got {type(operand).__name__}")
        ops.check_kind(name, operand)


def check_residual(residual: object, function: str) -> None:
    if residual is not None and not isinstance(residual, Tensor):
        raise TypeError(f"{function}(): residual must be a Tensor, but got {type(residual).__name__}")


def integers(
    stride: Ints, padding: Ints, dilation: Ints, groups: int, function: str = "conv2d"
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """The arguments that are neither tensors nor strings, as the ops take them."""
    pairs = pair("stride", stride, function), pair("padding", padding, function), pair("dilation", dilation, function)
    return *pairs, integer("groups", groups, function)


def pair(name: str, value: Ints, function: str = "conv2d") -> tuple[int, ...]:
    """A pair of Python's integers for whatever counts as one, such as NumPy's, or a symbol: a traced function is
    specialised for these, not for sizes."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else (value,)
    if len(values) not in (1, 2):
        raise RuntimeError(f"fastconv: {name} must have 1 or 2 values (rows, columns), but got {len(values)}")
    numbers = tuple(integer(name, item, function) for item in values)
    return numbers if len(numbers) == 2 else numbers * 2


_WANTED = {"groups": "an integer", "input": "a tensor or integers", "weight": "a tensor or integers"}


def integer(name: str, value: Any, function: str = "conv2d", wanted: str = "an integer or a pair of integers") -> int:
    try:
        number = None if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{function}(): {name} must be {_WANTED.get(name, wanted)}, but got {value!r}")
    if not -(2**63) <= number < 2**63:
        raise RuntimeError(f"fastconv: {name} must be less than 2^31, but got {value}")
    return number


def _pad(
    input: Tensor, weight: Tensor, stride: Sequence[int], padding: str, dilation: Sequence[int]
) -> tuple[Tensor, tuple[int, int]]:
    """Padding given as a string, as numbers; the input padded where the two sides differ."""
    if padding == "valid":
        return input, (0, 0)
    if padding != "same":
        raise RuntimeError(f"conv2d(): padding must be 'same', 'valid' or numbers, but got {padding!r}")
    if any(value != 1 for value in stride):
        raise RuntimeError(f"conv2d(): padding='same' needs stride 1, but got stride {list(stride)}")
    if input.dim() not in (3, 4):
        raise RuntimeError(
            f"conv2d(): input must be 3-D (C, H, W) or 4-D (N, C, H, W), but got size {list(input.shape)}"
        )
    if weight.dim() != 4:
        raise RuntimeError(f"conv2d(): weight must be 4-D (K, C/groups, R, S), but got size {list(weight.shape)}")
    if min(dilation) < 1:
        return input, (0, 0)  # refused by whoever checks it
    total_h, total_w = dilation[0] * (weight.shape[2] - 1), dilation[-1] * (weight.shape[3] - 1)
    if total_h % 2 or total_w % 2:
        input = torch.nn.functional.pad(input, (0, total_w % 2, 0, total_h % 2))
    return input, (total_h // 2, total_w // 2)


def _conv2d_act(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    *,
    precision: Any = None,
    activation: Any = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Of the public op, which who traces it sees as a convolution and torch's ops."""
    index = check_activation(activation)
    geometry = tuple(stride), tuple(padding), tuple(dilation)
    if conv2d_act.is_eager(input, weight, bias, residual):
        mode = "ieee" if precision is None else precision  # as ops.conv2d has it
        if (call := call_or_none(*geometry, groups, mode)) is not None:
            return conv2d_act.one_call(input, weight, bias, residual, call, index)
    output = ops.conv2d(input, weight, bias, *geometry, groups, precision=precision)
    return conv2d_act.composed(output, residual, index)


ops._rules.impl("conv2d_act", _conv2d_act, "CompositeImplicitAutograd")
