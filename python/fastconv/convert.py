"""Turns the nn.Conv2d layers of a model into fastconv.Conv2d and back."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch.nn.utils import parametrize

from .nn import Conv2d
from .precision import check

_Module = TypeVar("_Module", bound=torch.nn.Module)


def convert(model: _Module, *, precision: str | None = None) -> _Module:
    """Makes every ``nn.Conv2d`` of a model a :class:`fastconv.Conv2d`, in place.

    Args:
        model: any module; it may be an ``nn.Conv2d`` itself.
        precision: of the converted layers; see :class:`fastconv.precision`.

    Returns:
        ``model``.

    Raises:
        ValueError: unknown ``precision``; nothing is converted then.

    Only the class of a layer changes, so parameters (the same objects: an optimizer keeps working), buffers, hooks,
    parametrizations, ``requires_grad``, mode and ``state_dict`` keys stay. Subclasses of ``nn.Conv2d`` are left alone,
    because their forward pass may be another.

    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> fastconv.convert(model)[0]
    Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
    """
    check(precision)
    for module in model.modules():
        if _swap_class(module, torch.nn.Conv2d, Conv2d):
            module.precision = precision  # type: ignore[assignment]
    return model


def revert(model: _Module) -> _Module:
    """Undoes :func:`convert`: every :class:`fastconv.Conv2d` becomes an ``nn.Conv2d``, in place.

    Args:
        model: any module.

    Returns:
        ``model``.

    Subclasses of :class:`fastconv.Conv2d` are left alone.

    >>> model = fastconv.convert(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)))
    >>> type(fastconv.revert(model)[0]) is torch.nn.Conv2d
    True
    """
    for module in model.modules():
        if _swap_class(module, Conv2d, torch.nn.Conv2d):
            module.__dict__.pop("precision", None)
    return model


def _swap_class(module: torch.nn.Module, old: type, new: type) -> bool:
    cls = type(module)
    if cls is old:
        module.__class__ = new
        return True
    if parametrize.is_parametrized(module) and cls.__bases__ == (old,):
        # register_parametrization derived a class from the layer's and put its properties there. Copies of the layer
        # may share that class, so it is rebuilt, not changed.
        members = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
        module.__class__ = type(cls.__name__, (new,), members)
        return True
    return False
