"""Turns the convolutions of a model into fastconv's and back."""

from __future__ import annotations

import contextlib
import dis
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from .nn import Conv2d
from .precision import Precision, check
from .replace import replace_conv2d

_Module = TypeVar("_Module", bound=torch.nn.Module)
_log = logging.getLogger("fastconv")


class Unconverted(NamedTuple):
    """A module that convolves, but not with fastconv."""

    name: str  # as in model.named_modules()
    type: type
    reason: str


_PLAIN = "fastconv.convert makes it a fastconv.Conv2d"
_OWN = "it may compute otherwise than nn.Conv2d: fastconv.convert(functional=True) serves it"
_CALLS = "it calls torch.nn.functional.conv2d: fastconv.convert(functional=True) serves it"
_OTHER = "fastconv computes 2-D convolutions that are not transposed"
_SCRIPT = "fastconv cannot look into TorchScript"
_UNREAD = "fastconv cannot look into it"


def convert(model: _Module, *, functional: bool = False, precision: Precision | None = None) -> _Module:
    """Makes every ``nn.Conv2d`` of a model a :class:`fastconv.Conv2d`, in place.

    Args:
        model: any module; it may be an ``nn.Conv2d`` itself.
        functional: also serve the modules whose forward pass calls ``torch.nn.functional.conv2d`` itself, as layers
            with standardised weights, "same" padding or filters by condition do: it is then run in a
            :class:`fastconv.replace_conv2d`.
        precision: of what is converted; see :class:`fastconv.precision`.

    Returns:
        ``model``.

    Raises:
        ValueError: unknown ``precision``; nothing is converted then.

    Subclasses that inherit the forward pass of ``nn.Conv2d`` are converted too, and lazy layers. What is left, and why,
    is logged (``logging.getLogger("fastconv")``, INFO); :func:`fastconv.unconverted` returns it.

    Only the class of a module changes, to one derived from it, so parameters (the same objects: an optimizer keeps
    working), buffers, hooks, parametrizations, ``requires_grad``, mode and ``state_dict`` keys stay. Copies and pickles
    are converted as well.

    Convert last: after what rebuilds layers, such as timm's ``reparameterize_model``. Tools that know ``nn.Conv2d``
    alone (quantisation, ``fuse_modules``, ``torch.jit.script``) need :func:`fastconv.revert` first; see
    docs/models.md, also for ``torch.onnx.export``.

    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> fastconv.convert(model)[0]
    fastconv.Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
    """
    check(precision)
    reasons = {module: _reason(module) for module in model.modules()}
    plain = [module for module, reason in reasons.items() if reason == _PLAIN]
    served = [module for module, reason in reasons.items() if functional and reason in (_OWN, _CALLS)]
    converted = Counter(type(module).__name__ for module in [*plain, *served])
    # All classes are made before any is given, so that a failure leaves the model as it was.
    classes = {module: _changed(module, _converted) for module in plain}
    classes |= {module: _changed(module, lambda cls: _served(cls, precision)) for module in served}
    _give(classes)
    for module in plain:
        module.precision = precision  # type: ignore[assignment]
    left = Counter(f"{item.type.__name__} ({item.reason})" for item in unconverted(model))
    _log.info("converted: %s; left: %s", _text(converted), _text(left))
    return model


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items()) or "nothing"


def revert(model: _Module) -> _Module:
    """Undoes :func:`convert`: every module gets the class back that it had, in place.

    Args:
        model: any module.

    Returns:
        ``model``.

    A :class:`fastconv.Conv2d` made as such becomes an ``nn.Conv2d``. Its subclasses are left alone.

    Tools that know ``nn.Conv2d`` alone need it: quantisation, ``fuse_modules``,
    ``torch.fx.experimental.optimization.fuse``, ``torch.jit.script``, ``torch.onnx.export(dynamo=False)``. See
    docs/models.md.

    >>> model = fastconv.convert(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)))
    >>> type(fastconv.revert(model)[0]) is torch.nn.Conv2d
    True
    """
    ours = [module for module in model.modules() if isinstance(module, Conv2d)]
    _give({module: _changed(module, _original) for module in model.modules()})
    for module in ours:
        if not isinstance(module, Conv2d):
            module.__dict__.pop("precision", None)
    return model


def unconverted(model: torch.nn.Module) -> list[Unconverted]:
    """The modules of a model whose convolutions fastconv does not compute, and why.

    Args:
        model: any module.

    Returns:
        Tuples of name, type and reason: layers with a convolution of any kind, modules whose methods, or functions
        that these call by name, call ``torch.nn.functional.conv2d``, and modules that cannot be looked into, such as
        TorchScript. Calls by other ways are not seen.

    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ConvTranspose2d(8, 3, 3))
    >>> fastconv.unconverted(fastconv.convert(model))[0].name
    '1'
    """
    found = ((name, type(module), _reason(module)) for name, module in model.named_modules())
    return [Unconverted(name, kind, reason) for name, kind, reason in found if reason is not None]


def _reason(module: torch.nn.Module) -> str | None:
    """None if fastconv computes a module's convolutions, or if it has none."""
    try:
        return _SCRIPT if isinstance(module, torch.jit.ScriptModule) else _reason_in_python(module)
    except Exception as error:  # of the module's own attributes, or of what its code names
        return f"{_UNREAD}: {error}"


def _reason_in_python(module: torch.nn.Module) -> str | None:
    cls: Any = type(module)
    if hasattr(cls, _BEFORE) or cls.forward is Conv2d.forward:
        return None
    if isinstance(module, _ConvNd) and not isinstance(module, Conv2d):
        if not isinstance(module, torch.nn.Conv2d):
            return _OTHER
        plain = _is_plain(cls) and _is_plain(getattr(cls, _BECOMES, None) or cls) and not hasattr(module, "precision")
        return _PLAIN if plain else _OWN
    return _CALLS if _calls_conv2d(cls) else None


def _is_plain(cls: Any) -> bool:
    torchs = torch.nn.Conv2d
    return issubclass(cls, torchs) and (cls.forward, cls._conv_forward) == (torchs.forward, torchs._conv_forward)


# ---- classes ----

_BEFORE = "_fastconv_before"  # of a derived class: the one that revert gives back
_BECOMES = "cls_to_become"  # of a lazy layer's class: the one that it has once it knows its size


def _changed(module: torch.nn.Module, change: Callable[[type], type | None]) -> type:
    """The class of a module, changed."""
    cls = type(module)
    if not (parametrize.is_parametrized(module) and len(cls.__bases__) == 1):
        return change(cls) or cls
    if not (new := change(cls.__bases__[0])):
        return cls
    # register_parametrization derived a class from the layer's and put its properties there. Copies of the layer
    # may share that class, so it is rebuilt, not changed.
    members = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    return _subclass(cls.__name__, (new,), members)


def _give(classes: dict[torch.nn.Module, type]) -> None:
    for module, cls in classes.items():
        if cls is not type(module):  # ScriptModules refuse even their own
            module.__class__ = cls


class _Unregistered(torch.nn.Module):
    def __init_subclass__(cls) -> None:
        pass


def _subclass(name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
    """A class that its bases' ``__init_subclass__`` is not told of: it may want arguments, or the name only once."""
    cls = type(name, (_Unregistered, *bases), members)
    cls.__bases__ = bases
    return cls


@functools.cache
def _converted(base: type) -> type:
    if base is torch.nn.Conv2d:
        return Conv2d
    return _derive({}, (base, Conv2d), _converted, base)


@functools.cache
def _served(base: Any, precision: Precision | None) -> type:
    mode = replace_conv2d(precision=precision)

    @functools.wraps(base.forward)
    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return base.forward(self, *args, **kwargs)

    members = {"forward": forward, "_get_name": lambda self: f"fastconv.{base._get_name(self)}"}
    return _derive(members, (base,), _served, base, precision)


def _derive(members: dict[str, Any], bases: tuple[type, ...], make: Callable[..., type], *key: Any) -> type:
    """A class of the name of its first base, the first of `key`; its pickles have `make` and `key` in its place."""

    def reduce(self: torch.nn.Module, protocol: int) -> Any:
        function, args, *state = super(derived, self).__reduce_ex__(max(protocol, 2))
        if args[:1] == (derived,):  # not a class derived from it
            return _new, (make, key, *args[1:]), *state
        return function, args, *state

    base = bases[0]
    members |= {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    members |= {_BEFORE: base, "__reduce_ex__": reduce}
    if become := getattr(base, _BECOMES, None):
        members[_BECOMES] = make(become, *key[1:])
    derived: Any = _subclass(base.__name__, bases, members)
    return derived


def _new(make: Callable[..., type], key: tuple[Any, ...], *args: Any) -> Any:
    cls = make(*key)
    return cls.__new__(cls, *args)


def _original(cls: type) -> type | None:
    return torch.nn.Conv2d if cls is Conv2d else vars(cls).get(_BEFORE)


# ---- calls of F.conv2d ----


class _Unread(Exception):
    """What code names, but cannot be had."""


@functools.cache
def _calls_conv2d(cls: Any) -> bool:
    """Whether a method of a module's class, or a function within a few calls of one, names torch's conv2d.

    Raises:
        _Unread: none does that could be read.
    """
    level = {method for base in cls.__mro__ for method in _functions(vars(base).values()) if not _is_ours(base)}
    unread: list[_Unread] = []
    for _ in range(4):
        named = {id(value): value for function in level for value in _named(function, function.__code__)}
        if id(torch.conv2d) in named or id(torch.convolution) in named:  # F.conv2d is torch.conv2d
            return True
        unread += [value for value in named.values() if isinstance(value, _Unread)]
        level = {function for function in _functions(named.values()) if not _is_ours(function)}
    if unread:
        raise unread[0]
    return False


def _is_ours(thing: Any) -> bool:
    return (thing.__module__ or "").partition(".")[0] in ("torch", "fastconv")


def _functions(values: Iterable[Any]) -> Iterator[FunctionType]:
    """Those among values, and what they wrap."""
    for value in values:
        function, seen = value, set()
        if isinstance(function, (staticmethod, classmethod)):
            function = function.__func__
        while isinstance(function, FunctionType) and function not in seen:
            yield function
            seen.add(function)
            function = vars(function).get("__wrapped__")


def _named(function: FunctionType, code: CodeType) -> Iterator[object]:
    """The global and enclosing variables that code reads, and of modules their attributes."""
    enclosing = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    value: Any = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname == "LOAD_GLOBAL":
            value = function.__globals__.get(name)
        elif instruction.opname == "LOAD_DEREF":
            value = None
            with contextlib.suppress(KeyError, ValueError):  # a variable of `code` itself, or not yet assigned
                value = enclosing[name].cell_contents
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            value = _attribute(value, name) if isinstance(value, ModuleType) else None
        elif instruction.opname != "EXTENDED_ARG":
            value = None
        yield value
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(function, constant)


def _attribute(module: ModuleType, name: str) -> object:
    try:
        return getattr(module, name, None)
    except Exception as error:  # a module may import what is missing when it is asked
        return _Unread(f"{module.__name__}.{name}: {error}")
