"""A convolution, a residual and an activation as one autograd node: what conv2d calls for these."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import ops
from .activation import CUT_OFF, activated, gradient

# Without the Python around them.
_conv2d_act = torch.ops.fastconv._conv2d_act.default._op
_conv2d_act_backward = torch.ops.fastconv._conv2d_act_backward.default._op

_PLAIN = ops.PLAIN | {type(None)}
_REAL = frozenset(dtype for dtype in ops.DTYPES if not dtype.is_complex)
_REAL_NAMES = ", ".join(ops.dtype_name(dtype) for dtype in ops.DTYPES if dtype in _REAL)
_any_autocast = torch._C._is_any_autocast_enabled


def is_eager(input: Tensor, weight: Tensor, *others: Tensor | None) -> bool:
    """Whether one op will do, and no torch.func, mode or tracer wants to see more: of plain tensors with elements."""
    if input is None or weight is None:
        return False  # and an error
    if ops._is_compiling() or not _PLAIN.issuperset(map(type, (input, weight, *others))) or ops.is_transformed():
        return False
    size = input.shape
    return (
        forward_ad._current_level < 0
        and len(size) == 4
        and 0 not in size
        and input.dtype in _REAL
        and weight.dtype in _REAL
        and not input.is_meta
    )


def autocast(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The input as autocast wants it. The ops cast parameters: RuntimeError for those that nobody asked to be cast."""
    dtype = ops.autocast_dtype(input) if _any_autocast() else None
    if dtype is not None and input.dtype is not dtype:
        input = ops.cast(input, input.device.type, dtype)
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None or tensor.dtype is input.dtype:
            continue
        if input.dtype is not dtype or tensor.dtype is torch.float64:
            ops.check_tensors("input", input, name, tensor)
    return input


def wants_gradient(tensors: tuple[Tensor | None, ...]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors if tensor is not None)


def composed(output: Tensor, residual: Tensor | None, activation: int) -> Tensor:
    """Of a convolution's output, by torch's ops."""
    if activation and output.is_complex():
        name = ops.dtype_name(output.dtype)
        raise NotImplementedError(f"fastconv: input must be {_REAL_NAMES} where an activation follows, but got {name}")
    if residual is not None:
        if not isinstance(residual, Tensor):
            raise TypeError(f"conv2d(): residual must be a Tensor, but got {type(residual).__name__}")
        residual = ops.autocast_residual(residual, output.dtype)
        _check_residual(output, residual)
    return activated(activation, output, residual)


def _check_residual(output: Tensor, residual: Tensor) -> None:
    """RuntimeError unless it has the output's dtype, device and size."""
    for what in ("dtype", "device"):
        one, other = getattr(output, what), getattr(residual, what)
        if one != other:
            raise RuntimeError(f"fastconv: output and residual must have the same {what}, but got {one} and {other}")
    if output.shape != residual.shape:
        sizes = f"{list(output.shape)}, but got {list(residual.shape)}"
        raise RuntimeError(f"fastconv: residual must have the size of the output, {sizes}")


def one_call(
    input: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, call: ops.Call, activation: int
) -> Tensor:
    input = autocast(input, weight, bias)
    if residual is not None:
        residual = ops.autocast_residual(residual, input.dtype)
    output: Tensor
    if wants_gradient((input, weight, bias, residual)):
        output = _apply(input, weight, bias, residual, call, activation)
        return output
    output = _conv2d_act(input, weight, bias, residual, call[1], activation, False)[0]
    return output


class _Conv2dAct(ops._Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        call: ops.Call,
        activation: int,
    ) -> Tensor:
        """The op casts filters and bias, if autocast is on."""
        output: Tensor
        output, filters, kept = _conv2d_act(input, weight, bias, residual, call[1], activation, True)
        ctx.call, ctx.activation, ctx.has_residual = call, activation, residual is not None
        # Filters that were cast may change before the backward pass, as they may under torch's autocast.
        ctx.is_cast, ctx.weight = filters is not None, weight
        # Of an activation that cuts off the output tells as much, and others keep it anyway.
        cuts = activation in CUT_OFF
        read = residual if activation and not cuts else None
        ctx.save_for_backward(input, weight if filters is None else filters, bias, output if cuts else kept, read)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, filters, bias, kept, residual = ctx.saved_tensors
        needs = ctx.needs_input_grad[:4]
        as_it_is = ctx.has_residual and ctx.activation == 0
        if torch.is_grad_enabled() or forward_ad._current_level >= 0 or ops.is_batched(grad):
            grads = _differentiable(ctx, grad, input, filters, bias, kept, residual)
        else:
            wanted = sum(need << i for i, need in enumerate(needs)) & ~(as_it_is << 3)
            both = (ctx.weight, filters) if ctx.is_cast else (filters, None)
            grads = _conv2d_act_backward(grad, input, *both, kept, residual, ctx.call[1], ctx.activation, wanted)
        grad_input, grad_weight, grad_bias, grad_residual = grads
        if grad_bias is not None:
            grad_bias = grad_bias.to(bias.dtype)
        return grad_input, grad_weight, grad_bias, grad if as_it_is else grad_residual, None, None


def _differentiable(
    ctx: Any,
    grad: Tensor,
    input: Tensor,
    filters: Tensor,
    bias: Tensor | None,
    kept: Tensor | None,
    residual: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """By ops of which there are derivatives."""
    of_input, of_weight, of_bias, of_residual = ctx.needs_input_grad[:4]
    with torch.enable_grad():
        if ctx.is_cast:
            filters = ops.as_cast_of(ctx.weight, filters)
        if kept is None or ctx.activation in CUT_OFF:
            grad_z = grad if kept is None else gradient(ctx.activation, grad, kept.detach())
        else:
            *geometry, precision = ctx.call[0]
            shift = None if bias is None else bias.to(filters.dtype)
            z = ops.conv2d_of_gradient(input, filters, shift, *geometry, precision=precision)
            grad_z = gradient(ctx.activation, grad, z if residual is None else z + residual)
        layout = input.shape, ops.is_channels_last(input)
        wanted = of_input, of_weight, of_bias
        grad_input, grad_weight, grad_bias = ops.gradients(ctx.call[0], wanted, layout, input, filters, grad_z)
        grad_weight = None if grad_weight is None else grad_weight.to(ctx.weight.dtype)
    return grad_input, grad_weight, grad_bias, grad_z if of_residual else None


_apply = _Conv2dAct.apply  # type: ignore[attr-defined]


# ---- the CPU ----


@ops.below_autograd
def _conv2d_act_cpu(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    arguments: int,
    activation: int,
    trains: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    filters = weight.to(input.dtype) if weight.dtype != input.dtype else None
    bias = None if bias is None else bias.to(input.dtype)
    z = ops.packed_conv2d(input, weight if filters is None else filters, bias, arguments)
    if residual is not None:
        _check_residual(z, residual)
    kept = z if trains and activation and activation not in CUT_OFF else None
    # Rounded once, as on a GPU.
    wide = torch.promote_types(z.dtype, torch.float32)
    y = activated(activation, z.to(wide), None if residual is None else residual.to(wide)).to(z.dtype)
    return y.contiguous(memory_format=torch.channels_last) if ops.is_channels_last(z) else y, filters, kept


@ops.below_autograd
def _conv2d_act_backward_cpu(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    filters: Tensor | None,
    kept: Tensor | None,
    residual: Tensor | None,
    arguments: int,
    activation: int,
    needs: int,
) -> tuple[Tensor | None, ...]:
    grad_z = grad_output
    if kept is not None:
        wide = torch.promote_types(kept.dtype, torch.float32)
        z = kept.to(wide) if residual is None else kept.to(wide) + residual
        grad_z = gradient(activation, grad_output.to(wide), z).to(kept.dtype)
    grad_input = grad_weight = grad_bias = None
    if needs & 7:
        of_conv = input, weight if filters is None else filters
        grad_input, grad_weight, grad_bias = ops.conv2d_backward(*of_conv, grad_z, arguments, needs & 7)
    grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
    return grad_input, grad_weight, grad_bias, grad_z if needs & 8 and activation else None


ops._rules.impl("_conv2d_act", _conv2d_act_cpu, "CPU")
ops._rules.impl("_conv2d_act_backward", _conv2d_act_backward_cpu, "CPU")
for _name in ("_conv2d_act", "_conv2d_act_backward"):
    ops._rules.impl(_name, torch.library.fallthrough_kernel, "Autograd")
