"""What convert and fuse share: classes derived from a module's own, which it is given in place, as the same object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch


def check_module(what: str, model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        name = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"{what}(): model must be a torch.nn.Module, but got {name}")


def counted(what: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in what.items()) or "nothing"


class _Unregistered(torch.nn.Module):
    def __init_subclass__(cls) -> None:
        pass


def subclass(name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
    """A class that its bases' ``__init_subclass__`` is not told of: it may want arguments, or the name only once."""
    cls = type(name, (_Unregistered, *bases), members)
    cls.__bases__ = bases
    return cls


def derive(members: dict[str, Any], bases: tuple[type, ...], make: Callable[..., type], *key: Any) -> type:
    """A class of the name of its first base, the first of `key`; its pickles have `make` and `key` in its place."""

    def reduce(self: torch.nn.Module, protocol: int) -> Any:
        function, args, *state = super(derived, self).__reduce_ex__(max(protocol, 2))
        if args[:1] == (derived,):  # not a class derived from it
            return _new, (make, key, *args[1:]), *state
        return function, args, *state

    base = bases[0]
    members |= {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    members["__reduce_ex__"] = reduce
    derived: Any = subclass(base.__name__, bases, members)
    return derived


def _new(make: Callable[..., type], key: tuple[Any, ...], *args: Any) -> Any:
    cls = make(*key)
    return cls.__new__(cls, *args)


def give(classes: dict[torch.nn.Module, type]) -> None:
    for module, cls in classes.items():
        if cls is not type(module):  # ScriptModules refuse even their own
            module.__class__ = cls
