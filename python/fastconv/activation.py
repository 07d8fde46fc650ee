"""The functions that may follow a convolution or a normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

Activation: TypeAlias = Literal["relu", "relu6", "silu", "gelu", "gelu_tanh", "hardswish"]
ACTIVATIONS: tuple[Activation | None, ...] = (None, *get_args(Activation))  # as core/activation.h counts them
FUNCTIONS: dict[Activation | None, Callable[[Tensor], Tensor]] = {
    None: lambda z: z,
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "hardswish": F.hardswish,
}
CUT_OFF = {ACTIVATIONS.index("relu"): float("nan"), ACTIVATIONS.index("relu6"): 6.0}  # at zero, and there

_aten = torch.ops.aten
_GRADIENTS: dict[int, Callable[[Tensor, Tensor], Tensor]] = {  # of y, and what y is of
    ACTIVATIONS.index("silu"): lambda grad, z: grad * torch.sigmoid(z) * (1 + z * torch.sigmoid(-z)),
    ACTIVATIONS.index("gelu"): _aten.gelu_backward,
    ACTIVATIONS.index("gelu_tanh"): lambda grad, z: _aten.gelu_backward(grad, z, approximate="tanh"),
    ACTIVATIONS.index("hardswish"): _aten.hardswish_backward,
}
_INDEX = {name: i for i, name in enumerate(ACTIVATIONS)}


def check_activation(activation: str | None) -> int:
    """The kernels' number for it; ValueError for one that there is not."""
    try:
        return _INDEX[activation]  # type: ignore[index]
    except (KeyError, TypeError):
        names = ", ".join(map(repr, ACTIVATIONS[1:]))
        raise ValueError(f"fastconv: activation must be {names} or None, but got {activation!r}") from None


def activated(activation: int, z: Tensor, residual: Tensor | None) -> Tensor:
    """By torch's ops."""
    return FUNCTIONS[ACTIVATIONS[activation]](z if residual is None else z + residual)


def passes(z: Tensor, activation: int) -> Tensor:
    """Whether the gradient does, of an activation that cuts off."""
    return ~((z <= 0) | (z >= CUT_OFF[activation]))


def gradient(activation: int, grad: Tensor, z: Tensor) -> Tensor:
    """Of what the activation got, by torch's ops. Of one that cuts off `z` may be its output as well."""
    if activation in CUT_OFF:
        return torch.where(passes(z, activation), grad, 0)
    return _GRADIENTS[activation](grad, z) if activation else grad
