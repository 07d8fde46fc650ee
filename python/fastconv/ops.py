"""The rules of the ops: shapes, gradients, tangents, batching, casting, FLOPs. The kernels are in the libraries.

Each of the three convolutions is linear in each of its two tensors, and its gradients are the other two. So three
ops and the sum that is the bias gradient are closed under differentiation of any order.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._C import _AutoDispatchBelowAutograd, _ExcludeDispatchKeyGuard
from torch._functorch.utils import enable_single_level_autograd_function
from torch._guards import TracingContext
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _library
from .precision import OP_PRECISIONS

Ints: TypeAlias = int | Sequence[int]
Arguments: TypeAlias = tuple[Ints, Ints, Ints, int, str | None]  # stride, padding, dilation, groups, precision
Call: TypeAlias = tuple[Arguments, int | None]  # and what pack makes of them

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex32,
    torch.complex64,
    torch.complex128,
)

conv2d = torch.ops.fastconv.conv2d.default
conv2d_input = torch.ops.fastconv.conv2d_input.default
conv2d_weight = torch.ops.fastconv.conv2d_weight.default
conv2d_bias = torch.ops.fastconv.conv2d_bias.default
conv2d_backward = torch.ops.fastconv._conv2d_backward.default

# Ops of eager calls: below autograd, and with the arguments that are not tensors in one integer. An op's `_op` is its
# call without the Python around it. The last is aten's, of which this package has the kernels: see docs/autograd.md.
_PACKED_OPS = ("_conv2d", "_conv2d_backward")
packed_conv2d = torch.ops.fastconv._conv2d.default._op
aten_conv2d = torch.ops.aten.convolution_overrideable.default._op

_is_compiling, _is_exporting = torch.compiler.is_compiling, torch.compiler.is_exporting
_functorch_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state

_rules = torch.library.Library("fastconv", "IMPL")

PLAIN = frozenset((Tensor, torch.nn.Parameter, torch.nn.Buffer))  # no subclass, which may want to see each op


def _is_traced() -> bool:
    """By torch.compile. Before torch 2.13 is_compiling() is of Dynamo alone, and not of AOTAutograd that follows."""
    return _is_compiling() or TracingContext.try_get() is not None


def is_transformed() -> bool:
    """By torch.func, a dispatch mode or a tracer, which all want to see the public ops."""
    return bool(_functorch_active() or _dispatch_modes() or _tracing())


def is_channels_last(tensor: Tensor) -> bool:
    return _is_channels_last(tensor.shape, tensor.stride())


def is_batched(grad: Tensor) -> bool:
    """By torch.autograd's is_grads_batched, which has a vmap of its own, or by torch.func."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(grad) or _functorch_active())


def in_layout(tensor: Tensor, channels_last: bool) -> Tensor:
    dense = tensor.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    if is_channels_last(dense) != channels_last:  # with one channel or pixel both look alike to torch
        dense = dense.as_strided(dense.shape, _dense_strides(dense.shape, channels_last))
    return dense


def as_cast_of(parameter: Tensor, cast: Tensor) -> Tensor:
    """A cast that was made before, with its values, as a function of the parameter."""
    return cast.detach() + (parameter - parameter.detach()).to(cast.dtype)


def _is_channels_last(size: Sequence[int], strides: Sequence[int]) -> bool:
    """Torch's rule (c10/core/MemoryFormat.h, is_channels_last_strides_2d), ambiguous sizes included."""
    c_stride, h_stride, w_stride = strides[-3:]
    if w_stride < c_stride or c_stride == 0:
        return False  # the common case, decided without a look at sizes that torch.compile may not know
    c, h, w = size[-3:]
    n, n_stride = (size[0], strides[0]) if len(size) == 4 else (1, c * c_stride)
    nested = w_stride >= c * c_stride and h_stride >= w * w_stride and n_stride >= h * h_stride
    return nested and h * h_stride != c_stride and not any(map(_is_zero, (n, c, h, w)))


def _is_zero(extent: int) -> bool:
    """Not of an extent that only the data will tell."""
    if isinstance(extent, int):
        return extent == 0
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # imported by whoever made the symbol

    return guard_or_false(extent == 0)


# ---- shapes ----


def check_kind(name: str, tensor: Tensor | None) -> None:
    """NotImplementedError for a dtype or layout that no kernel computes."""
    if tensor is None:
        return
    if tensor.dtype not in DTYPES:
        raise NotImplementedError(f"fastconv: {name} must be {dtype_names()}, but got {tensor.dtype}")
    if tensor.layout != torch.strided:
        raise NotImplementedError(f"fastconv: {name} must be a dense tensor, but got layout {tensor.layout}")


def check_tensors(first: str, reference: Tensor, second: str, tensor: Tensor | None) -> None:
    check_kind(first, reference)
    check_kind(second, tensor)
    if tensor is None:
        return
    _check_same(f"{first} and {second} must have the same dtype", dtype_name(reference.dtype), dtype_name(tensor.dtype))
    _check_same(f"{first} and {second} must be on the same device", str(reference.device), str(tensor.device))


def _check_same(rule: str, one: str, other: str) -> None:
    torch._check(one == other, lambda: f"fastconv: {rule}, but got {one} and {other}")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_names() -> str:
    return ", ".join(map(dtype_name, DTYPES))


def output_size(
    input_size: Sequence[int],
    weight_size: Sequence[int],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> Sequence[int]:
    """Of the output, with as many dimensions as the input; an error where there is no convolution.

    What the library says of sizes that are numbers. Of torch's symbols, which only Python knows, the same rules: one
    check each, because a symbol may stand for a number that only the data will tell.
    """
    if all(isinstance(extent, int) for extent in (*input_size, *weight_size)):
        with torch._C._DisableTorchDispatch():
            return torch.ops.fastconv._output_size(
                list(input_size), list(weight_size), stride, padding, dilation, groups
            )
    # Errors in the library's words, for the sizes that are traced. Where only the data will tell one, of the ranks and
    # the other arguments at least, by sizes that break no rule.
    extents, rank = (*input_size, *weight_size), len(input_size)
    hints = [hint for extent in extents if (hint := _hint(extent)) is not None]
    if len(hints) < len(extents):
        output_size([1] * rank, [1] * len(weight_size), stride, padding, dilation, 1)
    else:
        output_size(hints[:rank], hints[rank:], stride, padding, dilation, groups)
    torch._check(groups >= 1, lambda: f"fastconv: groups must be at least 1, but got {groups}")
    *batch, channels, height, width = input_size
    filters, group_channels, rows, columns = weight_size
    torch._check(filters >= groups, lambda: f"fastconv: weight must have at least groups={groups} filters")
    torch._check(
        filters % groups == 0,
        lambda: f"fastconv: weight must have a positive multiple of groups={groups} filters, but got {filters}",
    )
    torch._check(
        channels == group_channels * groups,
        lambda: (
            f"fastconv: input must have weight.size(1) * groups = {group_channels} * {groups} channels, "
            f"but got {channels}"
        ),
    )
    steps = zip(*map(_pair, (stride, padding, dilation)), strict=True)
    axes = zip(((height, rows), (width, columns)), steps, strict=True)
    outputs = [_output_extent(*extents, *step) for extents, step in axes]
    return [*batch, filters, *outputs]


def _hint(extent: int | torch.SymInt) -> int | None:
    if isinstance(extent, torch.SymInt):
        return extent.node.hint if extent.node.has_hint() else None
    return extent


def _pair(value: Ints) -> Sequence[int]:
    if isinstance(value, int):
        return value, value
    return (*value, *value) if len(value) == 1 else value


def _output_extent(size: int, taps: int, stride: int, padding: int, dilation: int) -> int:
    torch._check(size >= 1, lambda: f"fastconv: input must have at least one row and column, but got {size}")
    torch._check(taps >= 1, lambda: f"fastconv: weight must have at least one row and column, but got {taps}")
    room = size + 2 * padding - (dilation * (taps - 1) + 1)
    torch._check(
        room >= 0,
        lambda: (
            f"fastconv: weight must not be larger than the padded input, but got {taps} taps, dilation {dilation}, "
            f"and {size} pixels, padding {padding}"
        ),
    )
    return room // stride + 1


def _check_bias(bias: Sequence[int], filters: int) -> None:
    filters_shown, *shown = (extent if (hint := _hint(extent)) is None else hint for extent in (filters, *bias))
    rule = f"fastconv: bias must be 1-D with weight.size(0) = {filters_shown} elements, but got size {shown}"
    torch._check(len(bias) == 1, lambda: rule)
    torch._check(bias[0] == filters, lambda: rule)


def _check_grad_output(grad_output: Sequence[int], expected: Sequence[int]) -> None:
    rule = f"fastconv: grad_output must have the size of the output, {list(expected)}, but got {list(grad_output)}"
    torch._check(len(grad_output) == len(expected), lambda: rule)
    for extent, wanted in zip(grad_output, expected, strict=True):
        torch._check(extent == wanted, lambda: rule)


def _empty(size: Sequence[int], channels_last: bool, like: Tensor) -> Tensor:
    if not channels_last:
        return like.new_empty(size)
    return like.new_empty_strided(size, _dense_strides(size, channels_last))


def _dense_strides(size: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    batched_size = size if len(size) == 4 else (1, *size)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(batched_size, device="meta", memory_format=layout).stride()[-len(size) :]


@torch.library.register_fake("fastconv::conv2d")
def _conv2d_fake(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    *,
    precision: str | None = None,
) -> Tensor:
    check_tensors("input", input, "weight", weight)
    check_tensors("input", input, "bias", bias)
    size = output_size(input.shape, weight.shape, stride, padding, dilation, groups)
    if bias is not None:
        _check_bias(bias.shape, weight.shape[0])
    # A batch of none is contiguous, as torch's is.
    channels_last = (is_channels_last(input) or is_channels_last(weight)) and not _is_zero(size[0])
    return _empty(size, channels_last, input)


# For Inductor alone, which asks what its calls return.
@torch.library.register_fake("fastconv::_conv2d")
def _packed_conv2d_fake(input: Tensor, weight: Tensor, bias: Tensor | None, arguments: int) -> Tensor:
    return _conv2d_fake(input, weight, bias, *unpack(arguments)[:4])


@torch.library.register_fake("fastconv::conv2d_input")
def _conv2d_input_fake(
    input_size: Sequence[int],
    weight: Tensor,
    grad_output: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    *,
    precision: str | None = None,
    channels_last: bool | None = None,
) -> Tensor:
    check_tensors("grad_output", grad_output, "weight", weight)
    _check_grad_output(grad_output.shape, output_size(input_size, weight.shape, stride, padding, dilation, groups))
    if channels_last is None:
        channels_last = is_channels_last(weight) or is_channels_last(grad_output)
    return _empty(input_size, channels_last, grad_output)


@torch.library.register_fake("fastconv::conv2d_weight")
def _conv2d_weight_fake(
    input: Tensor,
    weight_size: Sequence[int],
    grad_output: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    *,
    precision: str | None = None,
    channels_last: bool | None = None,
) -> Tensor:
    check_tensors("grad_output", grad_output, "input", input)
    _check_grad_output(grad_output.shape, output_size(input.shape, weight_size, stride, padding, dilation, groups))
    if channels_last is None:
        channels_last = is_channels_last(input) or is_channels_last(grad_output)
    return _empty(weight_size, channels_last, grad_output)


@torch.library.register_fake("fastconv::conv2d_bias")
def _conv2d_bias_fake(grad_output: Tensor) -> Tensor:
    check_kind("grad_output", grad_output)
    torch._check(
        grad_output.dim() in (3, 4), lambda: f"fastconv: grad_output must be 3-D or 4-D, but is {grad_output.dim()}-D"
    )
    return grad_output.new_empty(grad_output.shape[-3:-2])


@torch.library.register_fake("fastconv::_conv2d_backward")
def _conv2d_backward_fake(
    input: Tensor, weight: Tensor, grad_output: Tensor, arguments: int, needs: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    stride, padding, dilation, groups, _ = unpack(arguments)
    size = output_size(input.shape, weight.shape, stride, padding, dilation, groups)
    _check_grad_output(grad_output.shape, size)
    channels_last = is_channels_last(weight)
    return (
        _empty(input.shape, channels_last or is_channels_last(input), grad_output) if needs & 1 else None,
        _empty(weight.shape, channels_last, grad_output) if needs & 2 else None,
        grad_output.new_empty(grad_output.shape[-3:-2]) if needs & 4 else None,
    )


# ---- gradients and tangents ----
#
# A forward of torch's older form, with ctx, because a setup_context costs 20 us a call. A single-level function,
# because the dispatcher reaches these below functorch, one level at a time, as it reaches torch's own derivatives.


def _conj(tensor: Any) -> Any:
    """What a gradient multiplies with: torch's convention for complex numbers."""
    return tensor.conj() if tensor.is_complex() else tensor


def _forward_ad() -> bool:
    return forward_ad._current_level >= 0


@contextmanager
def _below_level() -> Iterator[None]:
    """Below this level's autograd; functorch's next level gets back the modes that Function.apply turned off."""
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), _AutoDispatchBelowAutograd():
        yield


def _below_autograd() -> AbstractContextManager[None]:
    return _below_level() if _functorch_active() else _AutoDispatchBelowAutograd()


def below_autograd(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Of a kernel in Python: it has torch's ops, and what calls it sees to its gradients."""

    @functools.wraps(kernel)
    def below(*args: Any) -> Any:
        with _AutoDispatchBelowAutograd():
            return kernel(*args)

    return below


def _sum(terms: list[Tensor]) -> Tensor | None:
    total: Tensor | None = None
    for term in terms:
        total = term if total is None else total + term
    return total


class _Function(_SingleLevelFunction):
    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[Any, ...]:
        """What torch's own Function tells compiled autograd, which torch.compile's backward passes ask for."""
        return (ctx._autograd_function_id,)


class _Conv2d(_Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> Tensor:
        arguments, packed = call
        # First, because it checks the arguments.
        if packed is not None and not _is_traced():  # graphs have the public op
            output = packed_conv2d(input, weight, bias, packed)
        else:
            with _below_autograd():
                output = conv2d(input, weight, bias, *arguments[:4], precision=arguments[4])
        ctx.call = call
        if weight.requires_grad:
            ctx.save_for_backward(input, weight)
        else:
            # Only the weight is read, and the input may be large.
            ctx.save_for_backward(None, weight)
            ctx.input_layout = input.shape, is_channels_last(input)
        if forward_ad._current_level >= 0 or _is_traced():
            ctx.save_for_forward(input, weight)
            ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 4
        saved = ctx.saved_tensors  # before the guard: a hook may recompute them, and needs autograd for that
        if torch.is_grad_enabled() or _forward_ad() or _is_traced():
            return _conv2d_backward(ctx, grad, *saved)
        with _AutoDispatchBelowAutograd():
            return _conv2d_backward(ctx, grad, *saved)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        input, weight = ctx.saved_tensors
        (*geometry, precision), _ = ctx.call
        input_tangent, weight_tangent, bias_tangent = tangents[:3]
        terms = []
        if input_tangent is not None:
            terms.append(conv2d(input_tangent, weight, None, *geometry, precision=precision))
        if weight_tangent is not None:
            terms.append(conv2d(input, weight_tangent, None, *geometry, precision=precision))
        if bias_tangent is not None:
            terms.append(bias_tangent[:, None, None].expand(output_size(input.shape, weight.shape, *geometry)))
        return _sum(terms)


def _conv2d_backward(ctx: Any, grad: Tensor, input: Tensor | None, weight: Tensor) -> tuple[Tensor | None, ...]:
    needs, packed = ctx.needs_input_grad[:3], ctx.call[1]
    # Where gradients shall be differentiated, grad mode is on.
    one_call = packed is not None and not torch.is_grad_enabled()
    if one_call and input is not None and _traces_one_backward(input, weight, grad):
        grad_input, grad_weight, _ = conv2d_backward(input, weight, grad, packed, needs[0] | needs[1] << 1)
        return grad_input, grad_weight, conv2d_bias(grad) if needs[2] else None, None
    layout = ctx.input_layout if input is None else (input.shape, is_channels_last(input))
    return *gradients(ctx.call[0], needs, layout, input, weight, grad), None


def gradients(
    arguments: Arguments,
    needs: Sequence[bool],
    input_layout: tuple[Sequence[int], bool],
    input: Tensor | None,
    weight: Tensor,
    grad: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Of input, weight and bias, by ops that can be differentiated themselves."""
    *geometry, precision = arguments
    grad_input = grad_weight = None
    # The input's gradient in the layout that torch gives it; the weight's in that of the weight, as DDP wants it.
    channels_last = is_channels_last(weight)
    if needs[0]:
        size, input_channels_last = input_layout
        grad_input = conv2d_input(
            size,
            _conj(weight),
            grad,
            *geometry,
            precision=precision,
            channels_last=channels_last or input_channels_last,
        )
    if needs[1]:
        grad_weight = conv2d_weight(
            _conj(input), weight.shape, grad, *geometry, precision=precision, channels_last=channels_last
        )
    return grad_input, grad_weight, conv2d_bias(grad) if needs[2] else None


def _traces_one_backward(*tensors: Tensor) -> bool:
    """Whether torch.compile may make all gradients by one call: not of complex numbers, and not of subclasses, such as
    DTensor, whose rules are those of the public ops."""
    return (
        _is_traced()
        and not (_is_exporting() or _functorch_active())
        and not any(tensor.is_complex() or is_traceable_wrapper_subclass(tensor) for tensor in tensors)
    )


apply_conv2d = _Conv2d.apply  # type: ignore[attr-defined]


def pack(geometry: Sequence[int], groups: int, precision: str | None) -> int:
    """What core/packed_arguments.h wants for stride, padding and dilation of rows and columns, groups and precision.

    ValueError if one needs more bits than it has there.
    """
    if groups not in range(1 << 13):
        raise ValueError(f"groups={groups} needs more than 13 bits")
    return int.from_bytes(bytes(geometry), "little") | OP_PRECISIONS.index(precision) << 48 | groups << 50


def pack_or_none(arguments: Arguments) -> int | None:
    """What pack() makes of these, or None if they do not fit."""
    stride, padding, dilation, groups, precision = arguments
    try:
        return pack((*_pair(stride), *_pair(padding), *_pair(dilation)), groups, precision)
    except ValueError:
        return None


def unpack(packed: int) -> Arguments:
    """What pack() was given."""
    sh, sw, ph, pw, dh, dw = (packed & (1 << 48) - 1).to_bytes(6, "little")
    return (sh, sw), (ph, pw), (dh, dw), packed >> 50, OP_PRECISIONS[packed >> 48 & 3]


def _conv2d_backward_graph(
    input: Tensor, weight: Tensor, grad: Tensor, packed: int, needs: int
) -> tuple[Tensor | None, ...]:
    """What the C++ node calls where gradients of gradients, or tangents, are wanted."""
    wanted = [bool(needs >> i & 1) for i in range(3)]
    return gradients(unpack(packed), wanted, (input.shape, is_channels_last(input)), input, weight, grad)


class _Conv2dInput(_Function):
    @staticmethod
    def forward(
        ctx: Any,
        input_size: Sequence[int],
        weight: Tensor,
        grad_output: Tensor,
        geometry: tuple[Any, ...],
        precision: str | None,
        channels_last: bool | None,
    ) -> Tensor:
        ctx.save_for_backward(weight, grad_output)
        ctx.save_for_forward(weight, grad_output)
        ctx.set_materialize_grads(False)
        ctx.input_size, ctx.geometry = input_size, geometry
        ctx.options = {"precision": precision, "channels_last": channels_last}
        with _below_autograd():
            return conv2d_input(input_size, weight, grad_output, *geometry, **ctx.options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        weight, grad_output = ctx.saved_tensors
        precision = ctx.options["precision"]
        grad_weight = grad_grad_output = None
        if grad is not None and ctx.needs_input_grad[1]:
            grad_weight = conv2d_weight(
                grad,
                weight.shape,
                _conj(grad_output),
                *ctx.geometry,
                precision=precision,
                channels_last=is_channels_last(weight),
            )
        if grad is not None and ctx.needs_input_grad[2]:
            grad_grad_output = conv2d_of_gradient(grad, _conj(weight), None, *ctx.geometry, precision=precision)
        return None, grad_weight, grad_grad_output, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        weight, grad_output = ctx.saved_tensors
        terms = []
        if tangents[1] is not None:
            terms.append(conv2d_input(ctx.input_size, tangents[1], grad_output, *ctx.geometry, **ctx.options))
        if tangents[2] is not None:
            terms.append(conv2d_input(ctx.input_size, weight, tangents[2], *ctx.geometry, **ctx.options))
        return _sum(terms)


class _Conv2dWeight(_Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight_size: Sequence[int],
        grad_output: Tensor,
        geometry: tuple[Any, ...],
        precision: str | None,
        channels_last: bool | None,
    ) -> Tensor:
        ctx.save_for_backward(input, grad_output)
        ctx.save_for_forward(input, grad_output)
        ctx.set_materialize_grads(False)
        ctx.weight_size, ctx.geometry = weight_size, geometry
        ctx.options = {"precision": precision, "channels_last": channels_last}
        with _below_autograd():
            return conv2d_weight(input, weight_size, grad_output, *geometry, **ctx.options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        input, grad_output = ctx.saved_tensors
        precision = ctx.options["precision"]
        grad_input = grad_grad_output = None
        if grad is not None and ctx.needs_input_grad[0]:
            grad_input = conv2d_input(
                input.shape,
                grad,
                _conj(grad_output),
                *ctx.geometry,
                precision=precision,
                channels_last=is_channels_last(input),
            )
        if grad is not None and ctx.needs_input_grad[2]:
            grad_grad_output = conv2d_of_gradient(_conj(input), grad, None, *ctx.geometry, precision=precision)
        return grad_input, None, grad_grad_output, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        input, grad_output = ctx.saved_tensors
        terms = []
        if tangents[0] is not None:
            terms.append(conv2d_weight(tangents[0], ctx.weight_size, grad_output, *ctx.geometry, **ctx.options))
        if tangents[2] is not None:
            terms.append(conv2d_weight(input, ctx.weight_size, tangents[2], *ctx.geometry, **ctx.options))
        return _sum(terms)


class _Conv2dBias(_Function):
    @staticmethod
    def forward(ctx: Any, grad_output: Tensor) -> Tensor:
        ctx.size = grad_output.shape
        with _below_autograd():
            return conv2d_bias(grad_output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad[:, None, None].expand(ctx.size)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return conv2d_bias(tangent)


def _apply(function: type[_SingleLevelFunction], *args: Any) -> Tensor:
    with enable_single_level_autograd_function():
        return function.apply(*args)  # type: ignore[attr-defined]


# The kernels of torch's Autograd key, for whoever reaches the ops through the dispatcher: torch.ops callers, functorch,
# torch.compile. The dispatcher leaves out arguments that have their default value.


def _conv2d_autograd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    *,
    precision: str | None = None,
) -> Tensor:
    arguments = stride, padding, dilation, groups, precision
    return _apply(
        _Conv2d,
        input,
        weight,
        bias,
        (arguments, pack_or_none(arguments) if _traces_one_backward(input, weight) else None),
    )


def _conv2d_input_autograd(
    input_size: Sequence[int],
    weight: Tensor,
    grad_output: Tensor,
    stride: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    *,
    precision: str | None = None,
    channels_last: bool | None = None,
) -> Tensor:
    geometry = stride, padding, dilation, groups
    return _apply(_Conv2dInput, input_size, weight, grad_output, geometry, precision, channels_last)


def _conv2d_weight_autograd(
    input: Tensor,
    weight_size: Sequence[int],
    grad_output: Tensor,
    stride: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    *,
    precision: str | None = None,
    channels_last: bool | None = None,
) -> Tensor:
    geometry = stride, padding, dilation, groups
    return _apply(_Conv2dWeight, input, weight_size, grad_output, geometry, precision, channels_last)


_rules.impl("conv2d", _conv2d_autograd, "Autograd")
_rules.impl("conv2d_input", _conv2d_input_autograd, "Autograd")
_rules.impl("conv2d_weight", _conv2d_weight_autograd, "Autograd")
_rules.impl("conv2d_bias", lambda grad_output: _apply(_Conv2dBias, grad_output), "Autograd")
_rules.impl("_conv2d_backward_graph", _conv2d_backward_graph, "Autograd")
for _name in _PACKED_OPS:
    _rules.impl(_name, torch.library.fallthrough_kernel, "Autograd")


# ---- vmap ----
#
# The batch goes into N where the weight is shared, otherwise into the channels: the samples become groups where both
# tensors are batched (per-sample weight gradients: one grouped convolution), else more channels of each group.
# Channels are then in the order (group, sample, channel of the group).


def _merge_channels(image: Tensor, groups: int) -> Tensor:
    """[B, N, groups * C, H, W] -> [N, groups * B * C, H, W]."""
    return image.unflatten(2, (groups, image.shape[2] // groups)).movedim(0, 2).flatten(1, 3)


def _split_channels(image: Tensor, batch: int, groups: int) -> Tensor:
    """Undoes _merge_channels."""
    return image.unflatten(1, (groups, batch, image.shape[1] // (groups * batch))).movedim(2, 0).flatten(2, 3)


def _merge_filters(weight: Tensor, groups: int) -> Tensor:
    """[B, groups * K, C, R, S] -> [groups * B * K, C, R, S]."""
    return weight.unflatten(1, (groups, weight.shape[1] // groups)).movedim(0, 1).flatten(0, 2)


def _split_filters(weight: Tensor, batch: int, groups: int) -> Tensor:
    """Undoes _merge_filters."""
    return weight.unflatten(0, (groups, batch, weight.shape[0] // (groups * batch))).movedim(1, 0).flatten(1, 2)


def _sample(tensor: Tensor, dim: int | None) -> list[int]:
    """The size of one sample."""
    size = list(tensor.shape)
    if dim is not None:
        del size[dim]
    return size


def _front(tensor: Tensor, dim: int | None) -> Tensor:
    return tensor if dim is None else tensor.movedim(dim, 0)


def _batched_image(image: Tensor, dim: int | None, unbatched: bool) -> Tensor:
    """vmap's dimension in front where there is one, and N after it even if the samples have none."""
    image = _front(image, dim)
    return image.unsqueeze(-4) if unbatched else image


@torch.library.register_vmap("fastconv::conv2d")
def _conv2d_vmap(
    info: Any,
    in_dims: tuple[Any, ...],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    *,
    precision: str | None = None,
) -> tuple[Tensor, int]:
    batch = info.batch_size
    input_dim, weight_dim, bias_dim = (*in_dims, None)[:3]
    input, weight, bias = autocast(input, weight, bias)  # which comes after this rule
    sample, filters = _sample(input, input_dim), _sample(weight, weight_dim)
    check_tensors("input", input, "weight", weight)
    output_size(sample, filters, stride, padding, dilation, groups)
    if bias is not None:
        check_tensors("input", input, "bias", bias)
        _check_bias(_sample(bias, bias_dim), filters[0])
    unbatched = len(sample) == 3
    input, weight = _batched_image(input, input_dim, unbatched), _front(weight, weight_dim)
    fused_bias = bias if bias_dim is None and weight_dim is None else None
    if weight_dim is None and input_dim is None:
        output = conv2d(input, weight, fused_bias, stride, padding, dilation, groups, precision=precision)
        output = output.expand(batch, *output.shape)
    elif weight_dim is None:
        images = input.flatten(0, 1)
        output = conv2d(images, weight, fused_bias, stride, padding, dilation, groups, precision=precision)
        output = output.unflatten(0, (batch, input.shape[1]))
    else:
        all_filters = _merge_filters(weight, groups)
        all_groups = groups
        if input_dim is not None:
            input = _merge_channels(input, groups)
            all_groups = groups * batch
        output = conv2d(input, all_filters, None, stride, padding, dilation, all_groups, precision=precision)
        output = _split_channels(output, batch, groups)
    if bias is not None and fused_bias is None:
        bias = _front(bias, bias_dim)
        output = output + (bias[:, None, :, None, None] if bias_dim is not None else bias[:, None, None])
    return output.squeeze(1) if unbatched else output, 0


@torch.library.register_vmap("fastconv::conv2d_input")
def _conv2d_input_vmap(
    info: Any,
    in_dims: tuple[Any, ...],
    input_size: Sequence[int],
    weight: Tensor,
    grad_output: Tensor,
    stride: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    *,
    precision: str | None = None,
    channels_last: bool | None = None,
) -> tuple[Tensor, int]:
    batch = info.batch_size
    weight_dim, grad_dim = in_dims[1:3]
    size = output_size(input_size, _sample(weight, weight_dim), stride, padding, dilation, groups)
    _check_grad_output(_sample(grad_output, grad_dim), size)
    unbatched = len(input_size) == 3
    count, channels, height, width = (1, *input_size) if unbatched else input_size
    grad_output, weight = _batched_image(grad_output, grad_dim, unbatched), _front(weight, weight_dim)
    if weight_dim is None:
        size, all_groups = (batch * count, channels, height, width), groups
        grad_output = grad_output.flatten(0, 1)
    else:
        size, all_groups = (count, batch * channels, height, width), groups
        if grad_dim is None:
            weight = weight.movedim(0, 1).flatten(1, 2)
        else:
            weight, grad_output = _merge_filters(weight, groups), _merge_channels(grad_output, groups)
            all_groups = groups * batch
    grad_input = conv2d_input(
        size,
        weight,
        grad_output,
        stride,
        padding,
        dilation,
        all_groups,
        precision=precision,
        channels_last=channels_last,
    )
    if weight_dim is None:
        grad_input = grad_input.unflatten(0, (batch, count))
    else:
        grad_input = _split_channels(grad_input, batch, groups)
    return grad_input.squeeze(1) if unbatched else grad_input, 0


@torch.library.register_vmap("fastconv::conv2d_weight")
def _conv2d_weight_vmap(
    info: Any,
    in_dims: tuple[Any, ...],
    input: Tensor,
    weight_size: Sequence[int],
    grad_output: Tensor,
    stride: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    groups: int = 1,
    *,
    precision: str | None = None,
    channels_last: bool | None = None,
) -> tuple[Tensor, int]:
    batch = info.batch_size
    input_dim, grad_dim = in_dims[0], in_dims[2]
    sample = _sample(input, input_dim)
    size = output_size(sample, weight_size, stride, padding, dilation, groups)
    _check_grad_output(_sample(grad_output, grad_dim), size)
    filters, channels, rows, columns = weight_size
    unbatched = len(sample) == 3
    input = _batched_image(input, input_dim, unbatched)
    grad_output = _batched_image(grad_output, grad_dim, unbatched)
    all_groups = groups
    if input_dim is None:
        size = (batch * filters, channels, rows, columns)
        grad_output = _merge_channels(grad_output, groups)
    elif grad_dim is None:
        size = (filters, batch * channels, rows, columns)
        input = _merge_channels(input, groups)
    else:
        size, all_groups = (batch * filters, channels, rows, columns), groups * batch
        input, grad_output = _merge_channels(input, groups), _merge_channels(grad_output, groups)
    grad_weight = conv2d_weight(
        input,
        size,
        grad_output,
        stride,
        padding,
        dilation,
        all_groups,
        precision=precision,
        channels_last=channels_last,
    )
    if grad_dim is None:
        return grad_weight.unflatten(1, (batch, channels)).movedim(1, 0), 0
    return _split_filters(grad_weight, batch, groups), 0


@torch.library.register_vmap("fastconv::conv2d_bias")
def _conv2d_bias_vmap(info: Any, in_dims: tuple[Any, ...], grad_output: Tensor) -> tuple[Tensor, int]:
    grad_output = _front(grad_output, in_dims[0])
    if grad_output.dim() == 4:
        grad_output = grad_output.unsqueeze(1)
    batch, filters = grad_output.shape[0], grad_output.shape[2]
    return conv2d_bias(_merge_channels(grad_output, 1)).unflatten(0, (batch, filters)), 0


# ---- autocast ----

_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def autocast(
    input: Tensor, weight: Tensor, bias: Tensor | None, *, once: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The tensors in the dtype that autocast wants, where it is enabled for the input's device.

    once: parameters are cast once as long as that is alive. Not of tensors that are wrapped or traced.
    """
    dtype = autocast_dtype(input)
    if dtype is None:
        return input, weight, bias
    device_type, cast_ = input.device.type, cast_once if once else cast
    if bias is not None:
        bias = cast_(bias, device_type, dtype)
    return cast_(input, device_type, dtype), cast_(weight, device_type, dtype), bias


def autocast_dtype(input: Tensor) -> torch.dtype | None:
    """None where autocast is off for the input's device."""
    device_type = input.device.type
    if device_type in ("cpu", "cuda") and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return None


def cast(tensor: Tensor, device_type: str, dtype: torch.dtype) -> Tensor:
    # Torch's rule for lower-precision ops (aten/src/ATen/autocast_mode.h, is_eligible): float64 is left alone.
    if tensor.device.type != device_type or tensor.dtype == torch.float64 or not tensor.is_floating_point():
        return tensor
    return tensor.to(dtype)


def autocast_residual(residual: Tensor, dtype: torch.dtype) -> Tensor:
    """In the dtype of what it is added to, where autocast is on: torch's addition takes both."""
    if residual.dtype is dtype or autocast_dtype(residual) is None:
        return residual
    return residual if residual.is_complex() or dtype.is_complex else residual.to(dtype)


# By a parameter's id: what it was, its version and memory; its cast, which whoever uses it keeps alive.
_casts: dict[int, tuple[weakref.ref[Tensor], int, int, weakref.ref[Tensor]]] = {}


def cast_once(tensor: Tensor, device_type: str, dtype: torch.dtype) -> Tensor:
    if tensor.dtype is dtype:
        return tensor
    # What torch's own cache has (autocast_mode.cpp, cached_cast).
    if not (tensor.requires_grad and tensor.is_leaf and tensor.dtype is torch.float32):
        return cast(tensor, device_type, dtype)
    if known := _casts.get(id(tensor)):
        parameter, version, address, weak = known
        found = weak()
        if (
            found is not None
            and parameter() is tensor
            and (version, address) == (tensor._version, tensor.data_ptr())
            and (found.dtype, found.requires_grad) == (dtype, torch.is_grad_enabled())
            and torch.is_autocast_cache_enabled()
        ):
            return found
    found = cast(tensor, device_type, dtype)
    if len(_casts) >= 4096:
        _casts.clear()
    _casts[id(tensor)] = weakref.ref(tensor), tensor._version, tensor.data_ptr(), weakref.ref(found)
    return found


def _register_autocast(device_type: str, key: str) -> None:
    def kernel(input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(device_type)
        input, weight = cast(input, device_type, dtype), cast(weight, device_type, dtype)
        bias = None if bias is None else cast(bias, device_type, dtype)
        with _ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return conv2d(input, weight, bias, *args, **kwargs)

    _rules.impl("conv2d", kernel, key)


def conv2d_of_gradient(*args: Any, **kwargs: Any) -> Tensor:
    """In the dtype that the forward pass had: autocast may be on where gradients are taken, in torch too."""
    with _ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
        return conv2d(*args, **kwargs)


_register_autocast("cpu", "AutocastCPU")
_register_autocast("cuda", "AutocastCUDA")


# ---- FLOPs ----


def _register_flop_formulas(flop_counter: ModuleType) -> None:
    """2 per product, as torch counts its own convolution; every product of the forward pass recurs in each gradient."""

    def forward(input_shape: Any, weight_shape: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return 2 * prod(out_shape) * prod(weight_shape[1:])

    def grad_input(_size: Any, weight_shape: Any, grad_shape: Any, *args: Any, **kwargs: Any) -> int:
        return 2 * prod(grad_shape) * prod(weight_shape[1:])

    def grad_weight(_input: Any, weight_size: Any, grad_shape: Any, *args: Any, **kwargs: Any) -> int:
        return 2 * prod(grad_shape) * prod(weight_size[1:])

    def backward(_input: Any, weight_shape: Any, grad_shape: Any, _packed: int, needs: int, **kwargs: Any) -> int:
        return 2 * prod(grad_shape) * prod(weight_shape[1:]) * (needs & 3).bit_count()

    namespace = torch.ops.fastconv
    flop_counter.register_flop_formula(namespace.conv2d)(forward)
    flop_counter.register_flop_formula(namespace.conv2d_input)(grad_input)
    flop_counter.register_flop_formula(namespace.conv2d_weight)(grad_weight)
    flop_counter.register_flop_formula(namespace._conv2d_backward)(backward)


# ---- what is registered with modules that cost much to import ----


def _register_sharding(_module: ModuleType) -> None:
    from . import _sharding  # noqa: F401


def _register_lowerings(_module: ModuleType) -> None:
    from . import _inductor  # noqa: F401


class _WhenImported:
    """Calls functions when their modules have been imported, by whoever needs those: torch.utils.flop_counter imports
    triton, torch.distributed.tensor takes a second."""

    def __init__(self, functions: dict[str, Callable[[ModuleType], None]]) -> None:
        self.functions = functions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.functions:
            return None
        function = self.functions.pop(name)  # the finders behind this one find the module
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.functions[name] = function  # who asks where a module is may not import it
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            if self.functions.pop(name, None):
                function(module)

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


_when_imported = {
    "torch.utils.flop_counter": _register_flop_formulas,
    "torch.distributed.tensor": _register_sharding,
    "torch._inductor.lowering": _register_lowerings,
}
for _module_name in [name for name in _when_imported if name in sys.modules]:
    _when_imported.pop(_module_name)(sys.modules[_module_name])
sys.meta_path.insert(0, _WhenImported(_when_imported))


# ---- no CUDA library ----


def _refuse_cuda(*args: Any, **kwargs: Any) -> Tensor:
    raise RuntimeError(f"fastconv cannot compute on CUDA tensors: {_library.cuda_error}")


if _library.cuda_error is not None:
    for _name in (
        "conv2d",
        "conv2d_input",
        "conv2d_weight",
        "conv2d_bias",
        "_conv2d",
        "_conv2d_backward",
        "_batch_norm_act",
        "_batch_norm_act_backward",
        "_conv2d_act",
        "_conv2d_act_backward",
        "_conv_bn_act",
        "_conv_bn_act_backward",
    ):
        _rules.impl(_name, _refuse_cuda, "CUDA")
