"""Batch normalisation with what follows it, the addition of a residual and an activation, as one op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import gcd, prod
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from . import ops
from .activation import CUT_OFF, Activation, activated, check_activation, gradient, passes

Options: TypeAlias = tuple[bool, float, int]  # training, eps, the activation's number

# Without the Python around them, as calls of the dispatcher.
_batch_norm_act = torch.ops.fastconv._batch_norm_act.default._op
_batch_norm_act_backward = torch.ops.fastconv._batch_norm_act_backward.default._op
_public = torch.ops.fastconv.batch_norm_act.default


def batch_norm_act(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    """``activation(torch.nn.functional.batch_norm(input, ...) + residual)``, as one op forward and one backward.

    Args:
        input: (N, C, H, W), float32, float64, float16 or bfloat16, NCHW or channels_last.
        running_mean, running_var: (C,), or None; as for :func:`torch.nn.functional.batch_norm`. In training they are
            changed in place.
        weight, bias: (C,), or None. These four are of the input's dtype, or float32 where that is of 16 bits.
        training: normalise by the mean and variance of the batch instead of the running ones.
        momentum: share of the batch in the running statistics. None: all batches count alike; then
            ``num_batches_tracked`` says how many there were.
        eps: is added to the variance. Positive in training, else at least 0.
        activation: ``"relu"``, ``"relu6"``, ``"silu"``, ``"gelu"``, ``"gelu_tanh"``, ``"hardswish"`` or None.
        residual: of the size, dtype and device of ``input``; is added before the activation. Autocast casts it.
        num_batches_tracked: int64 of one element; in training it is increased by one.

    Returns:
        Of the size, dtype and memory format of ``input``. It is rounded once, whereas torch rounds after each step.

    Raises:
        ValueError: in training, if a channel has a single value; unknown ``activation``; an ``eps`` that is too small.
        RuntimeError: sizes, dtypes or devices that do not fit each other.
        NotImplementedError: an input of another dtype.
        TypeError: an argument that should be a tensor and is none.

    Sums are formed in float32 (float64 of float64), of the mean and the squared distances from it, in a fixed order:
    the same input gives the same bits. The gradients of all arguments come from one call; they can be differentiated.

    >>> x = torch.randn(8, 16, 32, 32)
    >>> fastconv.batch_norm_act(x, None, None, training=True, activation="relu").shape
    torch.Size([8, 16, 32, 32])
    """
    index = check_activation(activation)
    check_eps(training, eps)
    try:
        check_batch(training, "input", input)
        if residual is not None:
            residual = ops.autocast_residual(residual, input.dtype)
        if ops._is_compiling():
            return _public(
                input,
                running_mean,
                running_var,
                weight,
                bias,
                training,
                momentum,
                eps,
                activation=activation,
                residual=residual,
                num_batches_tracked=num_batches_tracked,
            )
        arguments = (running_mean, running_var, num_batches_tracked, training, momentum, eps, index)
        return _call(_BatchNormAct.apply, input, residual, weight, bias, *arguments)  # type: ignore[attr-defined]
    except (RuntimeError, TypeError, AttributeError):
        # Checked only now, so that good calls do not pay for it. Where these checks pass, the first error stands.
        parameters = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
        others = {"residual": residual, **parameters, "num_batches_tracked": num_batches_tracked}
        check_kinds("batch_norm_act", {"input": input}, others)
        check_arguments(input, residual, parameters, training, momentum, num_batches_tracked)
        raise


def check_eps(training: bool, eps: float) -> None:
    """As torch.nn.functional.batch_norm does: with 0 a channel of equal values gives NaN."""
    if eps < 0 or (training and eps == 0):
        raise ValueError(f"fastconv: eps must be {'positive in training' if training else 'at least 0'}, but got {eps}")


def check_batch(training: bool, name: str, input: Tensor) -> None:
    if training and input.dim() == 4 and _of_channel(input.shape) == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got {name} size {input.shape}")


def check_kinds(function: str, tensors: dict[str, object], optional: dict[str, Any]) -> None:
    for name, value in (tensors | optional).items():
        if not isinstance(value, Tensor) and (value is not None or name in tensors):
            raise TypeError(f"{function}(): {name} must be a Tensor, but got {type(value).__name__}")


def _of_channel(size: Any) -> int:
    return prod(size) // size[1] if size[1] else 0


def _call(
    apply: Callable[..., Tensor],
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *arguments: Any,
) -> Tensor:
    if ops._functorch_active() or forward_ad._current_level >= 0 or input.numel() == 0:
        return _composite(input, residual, weight, bias, *arguments)
    differentiable = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (input, residual, weight, bias)
    )
    if not differentiable:
        output: Tensor = _batch_norm_act(input, residual, weight, bias, *arguments, False)[0]
        return output
    return apply(input, residual, weight, bias, *arguments)


def _composite(
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    num_batches_tracked: Tensor | None,
    training: bool,
    momentum: float | None,
    eps: float,
    activation: int,
) -> Tensor:
    """By torch's ops, which can be differentiated and batched in every way. Not by cuDNN's."""
    parameters = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    check_arguments(input, residual, parameters, training, momentum, num_batches_tracked)
    if training and num_batches_tracked is not None:
        num_batches_tracked.add_(1)
    if input.numel() == 0:
        z = F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum or 0.0, eps)
        return activated(activation, z, residual)
    if momentum is None:
        momentum = 1.0 / float(num_batches_tracked) if training and num_batches_tracked is not None else 0.0
    z = torch.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[0]
    return activated(activation, z, residual)


class _BatchNormAct(ops._Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        num_batches_tracked: Tensor | None,
        training: bool,
        momentum: float | None,
        eps: float,
        activation: int,
    ) -> Tensor:
        arguments = (running_mean, running_var, num_batches_tracked, training, momentum, eps, activation)
        output: Tensor
        # Inductor may choose another layout than that of the traced input, but a mask has the input's.
        masks = not ops._is_traced()
        output, statistics, mask = _batch_norm_act(input, residual, weight, bias, *arguments, masks)
        ctx.options = training, eps, activation
        ctx.has_residual, ctx.channels_last = residual is not None, ops.is_channels_last(input)
        kept = residual if keeps_residual(activation, masks) else None
        ctx.save_for_backward(input, kept, weight, bias, statistics, mask)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, residual, weight, bias, statistics, mask = ctx.saved_tensors
        training, eps, activation = ctx.options
        needs = ctx.needs_input_grad
        as_it_is = ctx.has_residual and activation == 0
        if mask.numel() and ops.is_channels_last(input) != ctx.channels_last:  # by a hook that saved it
            input = ops.in_layout(input, ctx.channels_last)
        gradients: Any
        if torch.is_grad_enabled() or forward_ad._current_level >= 0:
            gradients = differentiable_gradients(
                ctx.options, needs[:4], grad, input, residual, weight, bias, statistics, mask
            )
        else:
            wanted = needs[0] | needs[2] << 1 | needs[3] << 2 | (needs[1] and not as_it_is) << 3
            found = _batch_norm_act_backward(
                grad, input, residual, weight, bias, statistics, mask, training, activation, wanted
            )
            gradients = [gradient if wanted >> i & 1 else None for i, gradient in enumerate(found)]
        grad_input, grad_weight, grad_bias, grad_residual = gradients
        if as_it_is:
            grad_residual = grad
        return grad_input, grad_residual, grad_weight, grad_bias, *[None] * 7


def keeps_residual(activation: int, masks: bool) -> bool:
    """For the backward pass, where no bits tell what the activation got."""
    return activation > 0 and not (masks and activation in CUT_OFF)


def differentiable_gradients(
    options: Options,
    needs: Sequence[bool],
    grad: Tensor,
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    mask: Tensor,
) -> tuple[Tensor | None, ...]:
    """Of input, weight, bias and residual, the second of `needs`. By torch's ops once more, of which there are
    derivatives."""
    training, eps, activation = options
    channels_last = ops.is_channels_last(input)
    with torch.enable_grad():
        # Apart from each other, as one may be computed of another.
        input, weight, bias = (None if t is None else t.view_as(t) for t in (input, weight, bias))  # type: ignore[assignment]
        if training:
            # Torch's gradient is wrong on the CPU if strides are of neither layout (2.13).
            image = input.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
            z = torch.native_batch_norm(image, weight, bias, None, None, True, 0.0, eps)[0]
        else:
            mean, invstd = (_of_channels(values) for values in statistics)
            z = (input - mean) * invstd
            z = z if weight is None else z * _of_channels(weight)
            z = (z if bias is None else z + _of_channels(bias)).to(input.dtype)
        before = z if residual is None else z + residual
        grad_z = _before_activation_gradient(grad, before, mask, channels_last, activation)
        needed = zip((input, weight, bias), (needs[0], *needs[2:4]), strict=True)
        wanted = [tensor for tensor, need in needed if need and tensor is not None]
        found = iter(torch.autograd.grad(z, wanted, grad_z, create_graph=True) if wanted else ())
    grads = [next(found) if need else None for need in (needs[0], *needs[2:4])]
    return *grads, grad_z if needs[1] else None


def _before_activation_gradient(grad: Tensor, z: Tensor, mask: Tensor, channels_last: bool, activation: int) -> Tensor:
    if activation in CUT_OFF and mask.numel():
        return torch.where(_unpacked(mask, z, channels_last), grad, 0)
    return gradient(activation, grad, z)


def _of_channels(values: Tensor) -> Tensor:
    return values[:, None, None]


# ---- the op's rules ----


def _batch_norm_act_autograd(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    activation: Activation | None = None,
    residual: Tensor | None = None,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    index = check_activation(activation)
    check_eps(training, eps)
    arguments = (running_mean, running_var, num_batches_tracked, training, momentum, eps, index)
    return _call(functools.partial(ops._apply, _BatchNormAct), input, residual, weight, bias, *arguments)


ops._rules.impl("batch_norm_act", _batch_norm_act_autograd, "Autograd")
ops._rules.impl("batch_norm_act", _batch_norm_act_autograd, "CompositeExplicitAutograd")
for _name in ("_batch_norm_act", "_batch_norm_act_backward"):
    ops._rules.impl(_name, torch.library.fallthrough_kernel, "Autograd")


def check_arguments(
    input: Tensor,
    residual: Tensor | None,
    parameters: dict[str, Tensor | None],
    training: bool,
    momentum: float | None,
    num_batches_tracked: Tensor | None,
    of: str = "input",
) -> None:
    """of: what the caller calls the input, which may be the output of a convolution of its own input."""
    torch._check(input.dim() == 4, lambda: f"fastconv: input must be 4-D (N, C, H, W), but is {input.dim()}-D")
    torch._check_not_implemented(
        input.is_floating_point() and input.dtype in ops.DTYPES,
        lambda: f"fastconv: input must be float32, float64, float16 or bfloat16, but got {input.dtype}",
    )
    if residual is not None:
        ops.check_tensors(of, input, "residual", residual)
        torch._check(
            residual.shape == input.shape,
            lambda: (
                f"fastconv: residual must have the size of the {of}, {list(input.shape)}, "
                f"but got {list(residual.shape)}"
            ),
        )
    for name, tensor in parameters.items():
        if tensor is not None:
            _check_parameter(name, tensor, input, of)
        elif name.startswith("running") and not training:
            raise RuntimeError(f"fastconv: {name} is needed outside training")
    torch._check(
        momentum is not None or num_batches_tracked is not None,
        lambda: "fastconv: momentum=None needs num_batches_tracked",
    )
    if num_batches_tracked is not None:
        count = num_batches_tracked
        torch._check(
            count.dtype == torch.int64 and count.numel() == 1 and count.device == input.device,
            lambda: (
                f"fastconv: num_batches_tracked must be one int64 on the {of}'s device, {input.device}, "
                f"but got size {list(count.shape)} of {count.dtype} on {count.device}"
            ),
        )


def _check_several(input: Tensor, training: bool) -> None:
    torch._check(
        not training or input.numel() != input.shape[1],
        lambda: "fastconv: more than one value a channel is needed in training",
    )


def _check_parameter(name: str, tensor: Tensor, input: Tensor, of: str) -> None:
    allowed = dict.fromkeys((input.dtype, _sum_dtype(input.dtype)))
    torch._check(
        tensor.dim() == 1 and tensor.shape[0] == input.shape[1],
        lambda: (
            f"fastconv: {name} must be 1-D with as many elements as the {of} has channels, {input.shape[1]}, "
            f"but got size {list(tensor.shape)}"
        ),
    )
    torch._check(
        tensor.dtype in allowed,
        lambda: (
            f"fastconv: {name} must be {' or '.join(map(ops.dtype_name, allowed))} where the {of} is "
            f"{ops.dtype_name(input.dtype)}, but got {ops.dtype_name(tensor.dtype)}"
        ),
    )
    torch._check(
        tensor.device == input.device,
        lambda: f"fastconv: {name} must be on the {of}'s device, {input.device}, but is on {tensor.device}",
    )


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def mask_vector(size: Any, itemsize: int, channels_last: bool) -> int:
    """Elements of a byte of a GPU's mask: norm_vector() of src/norm/walk.cpp, for sizes that are traced."""
    _, channels, height, width = size
    vector, pixels = 16 // itemsize, height * width
    if prod(size) % vector:
        return 1
    whole = vector // gcd(vector, int(pixels)) * pixels <= 256 * vector  # channels in a tile
    fits = channels_last or pixels % vector == 0 or (channels * pixels % vector == 0 and whole)
    return vector if fits else 1


def _unpacked(mask: Tensor, like: Tensor, channels_last: bool) -> Tensor:
    """Which gradients pass, of a mask of bytes with a bit an element of a vector, in the order of the input."""
    vector = like.numel() // mask.numel()
    bits = mask[:, None] >> torch.arange(vector, device=mask.device, dtype=torch.uint8) & 1
    n, c, h, w = like.shape
    if channels_last:
        return bits.view(n, h, w, c).permute(0, 3, 1, 2).bool()
    return bits.view(n, c, h, w).bool()


@torch.library.register_fake("fastconv::_batch_norm_act")
def _batch_norm_act_fake(
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    num_batches_tracked: Tensor | None,
    training: bool,
    momentum: float | None,
    eps: float,
    activation: int,
    trains: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    parameters = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    check_arguments(input, residual, parameters, training, momentum, num_batches_tracked)
    _check_several(input, training)
    channels_last = ops.is_channels_last(input)
    masks = trains and residual is not None and activation in CUT_OFF
    vector = mask_vector(input.shape, input.element_size(), channels_last) if masks and input.is_cuda else 1
    return (
        ops._empty(input.shape, channels_last, input),
        input.new_empty((2, input.shape[1]), dtype=_sum_dtype(input.dtype)),
        input.new_empty(input.numel() // vector if masks else 0, dtype=torch.uint8),
    )


@torch.library.register_fake("fastconv::_batch_norm_act_backward")
def _batch_norm_act_backward_fake(
    grad_output: Tensor,
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    mask: Tensor,
    training: bool,
    activation: int,
    needs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def image() -> Tensor:
        return ops._empty(input.shape, ops.is_channels_last(input), input)

    return (
        image() if needs & 1 else input.new_empty(0),
        torch.empty_like(weight) if needs & 2 and weight is not None else input.new_empty(0),
        torch.empty_like(bias) if needs & 4 and bias is not None else input.new_empty(0),
        image() if needs & 8 else input.new_empty(0),
    )


# ---- the CPU ----


def _before_activation(
    input: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, statistics: Tensor
) -> tuple[Tensor, Tensor]:
    """The normalised input, and that with weight, bias and residual."""
    mean, invstd = map(_of_channels, statistics)
    normal = (input.to(statistics.dtype) - mean) * invstd
    z = normal if weight is None else normal * _of_channels(weight)
    z = z if bias is None else z + _of_channels(bias)
    return normal, z if residual is None else z + residual


@ops.below_autograd
def _batch_norm_act_cpu(
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    num_batches_tracked: Tensor | None,
    training: bool,
    momentum: float | None,
    eps: float,
    activation: int,
    trains: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    parameters = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    check_arguments(input, residual, parameters, training, momentum, num_batches_tracked)
    _check_several(input, training)
    wide = input.to(_sum_dtype(input.dtype))
    if training:
        var, mean = torch.var_mean(wide, (0, 2, 3), correction=0)
        if num_batches_tracked is not None:
            num_batches_tracked.add_(1)
        share = momentum if momentum is not None else 1.0 / float(num_batches_tracked)  # type: ignore[arg-type]
        count = _of_channel(input.shape)
        for running, value in ((running_mean, mean), (running_var, var * (count / (count - 1)))):
            if running is None:
                continue
            # As torch's own, which leaves the version as it is.
            with nullcontext() if running.is_inference() else _unsafe_preserve_version_counter(running):
                running.copy_(running.to(value.dtype).mul_(1 - share).add_(value, alpha=share))
    else:
        assert running_mean is not None and running_var is not None
        mean, var = running_mean.to(wide.dtype), running_var.to(wide.dtype)
    statistics = torch.stack((mean, (var + eps).rsqrt()))
    _, z = _before_activation(input, residual, weight, bias, statistics)
    output = _empty_like(input).copy_(activated(activation, z, None))
    masks = trains and residual is not None and activation in CUT_OFF
    if not masks:
        return output, statistics, input.new_empty(0, dtype=torch.uint8)
    bits = passes(z, activation)
    order = bits.permute(0, 2, 3, 1) if ops.is_channels_last(input) else bits
    return output, statistics, order.reshape(-1).to(torch.uint8)


@ops.below_autograd
def _batch_norm_act_backward_cpu(
    grad_output: Tensor,
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    mask: Tensor,
    training: bool,
    activation: int,
    needs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    normal, z = _before_activation(input, residual, weight, bias, statistics)
    grad = _before_activation_gradient(grad_output.to(z.dtype), z, mask, ops.is_channels_last(input), activation)
    plain, times_normal = grad.sum((0, 2, 3)), (grad * normal).sum((0, 2, 3))
    grad_input = input.new_empty(0)
    if needs & 1:
        of_input = grad
        if training:
            count = _of_channel(input.shape)
            of_input = grad - _of_channels(plain / count) - normal * _of_channels(times_normal / count)
        scale = statistics[1] if weight is None else statistics[1] * weight
        grad_input = _empty_like(input).copy_(of_input * _of_channels(scale))
    return (
        grad_input,
        times_normal.to(weight.dtype) if needs & 2 and weight is not None else input.new_empty(0),
        plain.to(bias.dtype) if needs & 4 and bias is not None else input.new_empty(0),
        _empty_like(input).copy_(grad) if needs & 8 else input.new_empty(0),
    )


def _empty_like(input: Tensor) -> Tensor:
    return ops._empty(input.shape, ops.is_channels_last(input), input)


ops._rules.impl("_batch_norm_act", _batch_norm_act_cpu, "CPU")
ops._rules.impl("_batch_norm_act_backward", _batch_norm_act_backward_cpu, "CPU")
