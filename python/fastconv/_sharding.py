"""How DTensor may split the convolutions: torch.distributed.tensor's rules for fastconv's ops."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from . import ops

# One way to split an op: the placement of its result, and of each of its arguments, None if that is no tensor.
Splits = list[tuple[list[Any], list[Any]]]
_WHOLE = Replicate()


def _splits(result: list[Any], *arguments: Any) -> tuple[list[Any], list[Any]]:
    return result, list(arguments)


def _channels(image: Any) -> Shard:
    return Shard(image.ndim - 3)


def _conv2d(input: Any, weight: Any, bias: Any = None, *args: Any, groups: int = 1, **kwargs: Any) -> Splits:
    groups = args[3] if len(args) > 3 else groups
    rest = [None] * len(args)
    given = lambda placement: [] if bias is None and not args else [None if bias is None else placement]  # noqa: E731
    splits = [_splits([_WHOLE], _WHOLE, _WHOLE, *given(_WHOLE), *rest)]
    if input.ndim == 4:
        splits.append(_splits([Shard(0)], Shard(0), _WHOLE, *given(_WHOLE), *rest))
    if groups == 1:
        splits.append(_splits([_channels(input)], _WHOLE, Shard(0), *given(Shard(0)), *rest))
        if bias is None:
            splits.append(_splits([Partial()], _channels(input), Shard(1), *given(None), *rest))
    return splits


def _conv2d_input(input_size: Any, weight: Any, grad_output: Any, *args: Any, **kwargs: Any) -> Splits:
    rest = [None] * len(args)
    splits = [_splits([_WHOLE], None, _WHOLE, _WHOLE, *rest)]
    if grad_output.ndim == 4:
        splits.append(_splits([Shard(0)], None, _WHOLE, Shard(0), *rest))
    if len(args) < 4 or args[3] == 1:
        splits.append(_splits([_channels(grad_output)], None, Shard(1), _WHOLE, *rest))
        splits.append(_splits([Partial()], None, Shard(0), _channels(grad_output), *rest))
    return splits


def _conv2d_weight(input: Any, weight_size: Any, grad_output: Any, *args: Any, **kwargs: Any) -> Splits:
    rest = [None] * len(args)
    splits = [_splits([_WHOLE], _WHOLE, None, _WHOLE, *rest)]
    if input.ndim == 4:
        splits.append(_splits([Partial()], Shard(0), None, Shard(0), *rest))
    if len(args) < 4 or args[3] == 1:
        splits.append(_splits([Shard(0)], _WHOLE, None, _channels(grad_output), *rest))
        splits.append(_splits([Shard(1)], _channels(input), None, _WHOLE, *rest))
    return splits


def _conv2d_bias(grad_output: Any) -> Splits:
    splits = [_splits([_WHOLE], _WHOLE), _splits([Shard(0)], _channels(grad_output))]
    if grad_output.ndim == 4:
        splits.append(_splits([Partial()], Shard(0)))
    return splits


register_sharding(ops.conv2d)(_conv2d)
register_sharding(ops.conv2d_input)(_conv2d_input)
register_sharding(ops.conv2d_weight)(_conv2d_weight)
register_sharding(ops.conv2d_bias)(_conv2d_bias)
# The gradients take the size of their result: each process that of its own part.
_sizes = DTensor._op_dispatcher.sharding_propagator.op_to_shape_and_stride_idx
_sizes[ops.conv2d_input] = 0
_sizes[ops.conv2d_weight] = 1
