"""A convolution and the batch normalisation behind it, with residual and activation, as one autograd node."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import ops
from .activation import Activation, check_activation
from .batch_norm import (
    batch_norm_act,
    check_arguments,
    check_batch,
    check_eps,
    check_kinds,
    differentiable_gradients,
    keeps_residual,
)
from .conv2d_act import autocast, is_eager, wants_gradient
from .functional import call_or_none, conv2d
from .precision import Precision, check, effective

# Without the Python around them.
_conv_bn_act = torch.ops.fastconv._conv_bn_act.default._op
_conv_bn_act_backward = torch.ops.fastconv._conv_bn_act_backward.default._op
_batch_norm_act = torch.ops.fastconv._batch_norm_act.default._op
_batch_norm_act_backward = torch.ops.fastconv._batch_norm_act_backward.default._op


def conv_bn_act(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    stride: ops.Ints = 1,
    padding: Literal["same", "valid"] | ops.Ints = 0,
    dilation: ops.Ints = 1,
    groups: int = 1,
    *,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    num_batches_tracked: Tensor | None = None,
    precision: Precision | None = None,
) -> Tensor:
    """:func:`fastconv.batch_norm_act` of :func:`fastconv.conv2d`, as one call forward and one backward.

    Args:
        input, weight, bias, stride, padding, dilation, groups, precision: those of :func:`fastconv.conv2d`.
        running_mean, running_var, training, momentum, eps, activation, num_batches_tracked: those of
            :func:`fastconv.batch_norm_act`, of the convolution's output; ``norm_weight`` and ``norm_bias`` are its
            ``weight`` and ``bias``.
        residual: of the size, dtype and device of the convolution's output; is added before the activation. Autocast
            casts it.

    Returns:
        (N, K, P, Q).

    Raises:
        ValueError, RuntimeError, NotImplementedError, TypeError: as these do.

    Dtypes, layouts and the numerical contract are those of the two; the convolution's output, of 16 bits, is rounded
    before it is normalised. In eval mode without gradients the norm may become part of the filters, of which
    docs/fusion.md has the conditions.

    >>> x, w = torch.randn(8, 16, 32, 32), torch.randn(32, 16, 3, 3)
    >>> fastconv.conv_bn_act(x, w, None, None, None, training=True, activation="relu").shape
    torch.Size([8, 32, 30, 30])
    """
    index = check_activation(activation)
    check_eps(training, eps)
    tensors = input, weight, bias, residual, norm_weight, norm_bias
    try:
        # One image may have one pixel, which is an error in training.
        if is_eager(*tensors) and input.shape[0] > training:
            mode = effective() if precision is None else check(precision)
            if (call := call_or_none(stride, padding, dilation, groups, mode)) is not None:
                running = running_mean, running_var, num_batches_tracked
                return _one_call(*tensors, running, call, (training, momentum, eps, index))
        output = conv2d(input, weight, bias, stride, padding, dilation, groups, precision=precision)
        check_batch(training, "output", output)
        return batch_norm_act(
            output,
            running_mean,
            running_var,
            norm_weight,
            norm_bias,
            training,
            momentum,
            eps,
            activation=activation,
            residual=residual,
            num_batches_tracked=num_batches_tracked,
        )
    except (RuntimeError, TypeError, AttributeError):
        # Checked only now, so that good calls do not pay for it. Where these checks pass, the first error stands.
        parameters = {"norm_weight": norm_weight, "norm_bias": norm_bias}
        parameters |= {"running_mean": running_mean, "running_var": running_var}
        others = {"bias": bias, "residual": residual, **parameters, "num_batches_tracked": num_batches_tracked}
        check_kinds("conv_bn_act", {"input": input, "weight": weight}, others)
        like = _like_output(input, weight, bias, stride, padding, dilation, groups)
        residual = None if residual is None else ops.autocast_residual(residual, like.dtype)
        check_arguments(like, residual, parameters, training, momentum, num_batches_tracked, "output")
        raise


def _like_output(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    """Of the convolution's size, dtype and device, but of one element. Errors are the convolution's own."""
    input, weight, bias = ops.autocast(input, weight, bias)
    sizes = (torch.empty(tensor.shape, dtype=input.dtype, device="meta") for tensor in (input, weight))
    convolve: Any = conv2d
    with torch.no_grad():
        return input.new_empty(1).expand(convolve(*sizes, None, *geometry).shape)


def _one_call(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    running: tuple[Tensor | None, Tensor | None, Tensor | None],
    call: ops.Call,
    options: tuple[bool, float | None, float, int],
) -> Tensor:
    """running: mean, variance, number of batches. options: training, momentum, eps, the activation's number."""
    input = autocast(input, weight, bias)
    if residual is not None:
        residual = ops.autocast_residual(residual, input.dtype)
    tensors = input, weight, bias, residual, norm_weight, norm_bias
    output: Tensor
    if wants_gradient(tensors):
        output = _apply(*tensors, running, call, options)
        return output
    output = _conv_bn_act(*tensors, *running, call[1], *options, False)[0]
    return output


class _ConvBnAct(ops._Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        running: tuple[Tensor | None, Tensor | None, Tensor | None],
        call: ops.Call,
        options: tuple[bool, float | None, float, int],
    ) -> Tensor:
        """The op casts filters and bias, if autocast is on."""
        output: Tensor
        output, filters, convolved, statistics, mask = _conv_bn_act(
            input, weight, bias, residual, norm_weight, norm_bias, *running, call[1], *options, True
        )
        training, _, eps, activation = options
        ctx.call, ctx.options = call, (training, eps, activation)
        ctx.channels_last = ops.is_channels_last(convolved)
        ctx.has_residual = residual is not None
        # Filters that were cast may change before the backward pass, as they may under torch's autocast.
        ctx.is_cast, ctx.weight = filters is not None, weight
        kept = residual if keeps_residual(activation, masks=True) else None
        ctx.save_for_backward(
            input,
            weight if filters is None else filters,
            bias,
            convolved,
            kept,
            norm_weight,
            norm_bias,
            statistics,
            mask,
        )
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, filters, bias, convolved, residual, norm_weight, norm_bias, statistics, mask = ctx.saved_tensors
        weight = ctx.weight
        needs = ctx.needs_input_grad[:6]
        training, _, activation = ctx.options
        as_it_is = ctx.has_residual and activation == 0
        if mask is not None and ops.is_channels_last(convolved) != ctx.channels_last:  # by a hook that saved it
            convolved = ops.in_layout(convolved, ctx.channels_last)
        if torch.is_grad_enabled() or forward_ad._current_level >= 0 or ops.is_batched(grad):
            found = _differentiable(ctx, grad, input, filters, bias, residual, norm_weight, norm_bias, statistics, mask)
        else:
            wanted = sum(need << i for i, need in enumerate(needs)) & ~(as_it_is << 3)
            both = (weight, filters) if ctx.is_cast else (filters, None)
            tensors = convolved, residual, norm_weight, norm_bias, statistics, mask
            found = _conv_bn_act_backward(grad, input, *both, *tensors, ctx.call[1], training, activation, wanted)
        grad_input, grad_weight, grad_bias, grad_residual, grad_norm_weight, grad_norm_bias = found
        if grad_bias is not None and grad_bias.dtype != bias.dtype:
            grad_bias = grad_bias.to(bias.dtype)
        if as_it_is:
            grad_residual = grad
        return grad_input, grad_weight, grad_bias, grad_residual, grad_norm_weight, grad_norm_bias, *[None] * 3


def _differentiable(
    ctx: Any,
    grad: Tensor,
    input: Tensor,
    filters: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    statistics: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """By ops of which there are derivatives."""
    of_input, of_weight, of_bias, of_residual, of_norm_weight, of_norm_bias = ctx.needs_input_grad[:6]
    weight = ctx.weight
    arguments = ctx.call[0]
    with torch.enable_grad():
        filters = ops.as_cast_of(weight, filters) if ctx.is_cast else filters
        bias = None if bias is None else bias.to(filters.dtype)
        convolved = ops.conv2d_of_gradient(input, filters, bias, *arguments[:4], precision=arguments[4])
        convolved = ops.in_layout(convolved, ctx.channels_last)  # as the mask is
    of_convolution = of_input or of_weight or of_bias
    needs = of_convolution, of_residual, of_norm_weight, of_norm_bias
    bits = input.new_empty(0, dtype=torch.uint8) if mask is None else mask
    tensors = grad, convolved, residual, norm_weight, norm_bias, statistics, bits
    grad_convolved, grad_norm_weight, grad_norm_bias, grad_residual = differentiable_gradients(
        ctx.options, needs, *tensors
    )
    grads: tuple[Tensor | None, ...] = (None, None, None)
    if grad_convolved is not None:
        layout = input.shape, ops.is_channels_last(input)
        wanted = of_input, of_weight, of_bias
        grads = ops.gradients(arguments, wanted, layout, input, filters, grad_convolved)
    grad_input, grad_weight, grad_bias = grads
    if grad_weight is not None:
        grad_weight = grad_weight.to(weight.dtype)
    return grad_input, grad_weight, grad_bias, grad_residual, grad_norm_weight, grad_norm_bias


_apply = _ConvBnAct.apply  # type: ignore[attr-defined]


# ---- the CPU ----


@ops.below_autograd
def _conv_bn_act_cpu(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    num_batches_tracked: Tensor | None,
    arguments: int,
    *options: Any,
) -> tuple[Tensor | None, ...]:
    filters = weight.to(input.dtype) if weight.dtype != input.dtype else None
    bias = None if bias is None else bias.to(input.dtype)
    convolved = ops.packed_conv2d(input, weight if filters is None else filters, bias, arguments)
    running = running_mean, running_var, num_batches_tracked
    output, statistics, mask = _batch_norm_act(convolved, residual, norm_weight, norm_bias, *running, *options)
    return output, filters, convolved, statistics, mask


@ops.below_autograd
def _conv_bn_act_backward_cpu(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    filters: Tensor | None,
    convolved: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    statistics: Tensor,
    mask: Tensor | None,
    arguments: int,
    training: bool,
    activation: int,
    needs: int,
) -> tuple[Tensor | None, ...]:
    of_norm = bool(needs & 7) | needs >> 3 & 6 | needs & 8
    bits = input.new_empty(0, dtype=torch.uint8) if mask is None else mask
    tensors = grad_output, convolved, residual, norm_weight, norm_bias, statistics, bits
    found = _batch_norm_act_backward(*tensors, training, activation, of_norm)
    grad_convolved, *of_others = (grad if of_norm >> i & 1 else None for i, grad in enumerate(found))
    grad_input = grad_weight = grad_bias = None
    if needs & 7:
        grads = ops.conv2d_backward(input, weight if filters is None else filters, grad_convolved, arguments, needs & 7)
        grad_input, grad_weight, grad_bias = grads
    grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
    grad_norm_weight, grad_norm_bias, grad_residual = of_others
    return grad_input, grad_weight, grad_bias, grad_residual, grad_norm_weight, grad_norm_bias


ops._rules.impl("_conv_bn_act", _conv_bn_act_cpu, "CPU")
ops._rules.impl("_conv_bn_act_backward", _conv_bn_act_backward_cpu, "CPU")
for _name in ("_conv_bn_act", "_conv_bn_act_backward"):
    ops._rules.impl(_name, torch.library.fallthrough_kernel, "Autograd")
