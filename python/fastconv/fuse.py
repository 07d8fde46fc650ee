"""Turns batch norms of a model, with the residual and the activation that follow, into one op each, and back."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules import module as _module

from ._classes import derive, give
from .batch_norm import FUNCTIONS, Activation
from .nn import norm_module

_Module = TypeVar("_Module", bound=nn.Module)
_log = logging.getLogger("fastconv")

_MODULES: dict[type, Activation] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
}
_FUNCTIONS: dict[Any, Activation] = {
    F.relu: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    F.relu_: "relu",
    F.relu6: "relu6",
    F.silu: "silu",
    F.hardswish: "hardswish",
    F.gelu: "gelu",
    "relu": "relu",
    "relu_": "relu",
}
_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_IN_PLACE = (operator.iadd, "add_")


def fuse(model: _Module) -> _Module:
    """Makes every ``nn.BatchNorm2d`` of a model one op with the residual and the activation behind it, in place.

    Args:
        model: any module.

    Returns:
        ``model``.

    Raises:
        TypeError: ``model`` is no module.

    A batch norm is served where the module that calls it calls the next ones too, in any of the ways that torchvision
    and timm write it: one after the other in an ``nn.Sequential``, or ``relu(bn(x) + shortcut)`` in a ``forward``. Also
    timm's ``BatchNormAct2d``. It is computed by :func:`fastconv.batch_norm_act` in training and in eval mode, on NVIDIA
    GPUs; on the CPU by torch's modules as before.

    Only the classes of the modules that call batch norms change, to one derived from theirs: parameters, buffers, hooks
    and ``state_dict`` keys stay, and so do copies and pickles. Each of their ``forward`` methods is traced once, with
    attributes and conditions as they are then: fuse last. A batch norm or activation with hooks of its own, or of
    another class by then, is called as before.

    What is left, and why, is logged (``logging.getLogger("fastconv")``, INFO). :func:`fastconv.unfuse` undoes it.

    >>> model = torch.nn.Sequential(fastconv.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    >>> fastconv.fuse(model)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 8, 6, 6])
    """
    _check("fuse", model)
    served: Counter[str] = Counter()
    left: Counter[str] = Counter()
    classes: dict[nn.Module, type] = {}
    for module in model.modules():
        cls: Any = type(module)
        reason = ""
        if isinstance(module, torch.jit.ScriptModule) or hasattr(cls, _BEFORE):
            continue
        if _is_timm(module):
            classes[module] = _fused_norm(cls)
        elif any(map(_is_norm, module.children())):
            forwards = _Forwards(module)
            if forwards.fuses:
                classes[module] = _fused(cls)
                vars(module)[_FORWARDS] = forwards
            else:
                reason = next(iter(forwards.reasons), "its forward calls no batch norm")
        elif isinstance(module, nn.SyncBatchNorm):
            reason = "its statistics are those of several processes"
        elif isinstance(module, nn.BatchNorm2d) and not _is_norm(module):
            reason = "another class than nn.BatchNorm2d"
        if reason:
            left[f"{cls.__name__} ({reason})"] += 1
        elif module in classes:
            served[cls.__name__] += 1
    give(classes)
    texts = (", ".join(f"{count} {what}" for what, count in counts.items()) or "nothing" for counts in (served, left))
    _log.info("fused: %s; left: %s", *texts)
    return model


def unfuse(model: _Module) -> _Module:
    """Undoes :func:`fuse`, in place.

    Args:
        model: any module.

    Returns:
        ``model``.

    Raises:
        TypeError: ``model`` is no module.
    """
    _check("unfuse", model)
    fused = [module for module in model.modules() if _BEFORE in vars(type(module))]
    give({module: vars(type(module))[_BEFORE] for module in fused})
    for module in fused:
        module.__dict__.pop(_FORWARDS, None)
    return model


def _check(what: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{what}(): model must be a torch.nn.Module, but got {type(model).__name__}")


# ---- classes ----

_BEFORE = "_fastconv_unfused"  # of a derived class: the one that unfuse gives back
_ORIGINAL = "_fastconv_forward"  # and its forward
_FORWARDS = "_fastconv_forwards"


def _is_norm(module: nn.Module) -> bool:
    return type(module) is nn.BatchNorm2d


def _is_timm(module: nn.Module) -> bool:
    """timm's own batch norm with an activation, where nothing lies between them."""
    cls = type(module)
    return (
        cls.__name__ == "BatchNormAct2d"
        and cls.__module__.startswith("timm.")
        and isinstance(module, nn.BatchNorm2d)
        and isinstance(getattr(module, "drop", None), nn.Identity)
        and isinstance(getattr(module, "act", None), (nn.Identity, nn.GELU, *_MODULES))
    )


@functools.cache
def _fused(base: Any) -> type:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        forwards = self.__dict__.get(_FORWARDS)
        if forwards is None or forwards.children != tuple(self._modules):  # read from a pickle, or changed since
            if torch.compiler.is_compiling():  # which cannot trace while it is traced
                return base.forward(self, *args, **kwargs)
            forwards = self.__dict__[_FORWARDS] = _Forwards(self)
        function = forwards.function(self, args, kwargs)
        return base.forward(self, *args, **kwargs) if function is None else function(self, *args)

    def set_attribute(self: nn.Module, name: str, value: Any) -> None:
        known = hasattr(self, name)  # others, such as torch.compile's own, had no part in what was traced
        super(derived, self).__setattr__(name, value)
        if known and name != "training":  # of which both cases are traced
            self.__dict__.pop(_FORWARDS, None)

    def delete_attribute(self: nn.Module, name: str) -> None:
        super(derived, self).__delattr__(name)
        self.__dict__.pop(_FORWARDS, None)

    members: dict[str, Any] = {"forward": functools.wraps(base.forward)(forward)}
    members |= {"__setattr__": set_attribute, "__delattr__": delete_attribute}
    members |= {_BEFORE: base, _ORIGINAL: base.forward}
    derived: Any = derive(members, (base,), _fused, base)
    return derived


@functools.cache
def _fused_norm(base: Any) -> type:
    def forward(self: Any, x: Tensor) -> Any:
        if isinstance(self.drop, nn.Identity) and _untouched(self.drop, self.act) and _takes(x, None):
            name = _name_of(self.act)
            if name is not None or type(self.act) is nn.Identity:
                return norm_module(self, x, name, None)
        return base.forward(self, x)

    return derive({"forward": functools.wraps(base.forward)(forward), _BEFORE: base}, (base,), _fused_norm, base)


# ---- calls ----


def _norm_act(
    norm: nn.BatchNorm2d, x: Tensor, activation: nn.Module | Activation | None, residual: Tensor | None
) -> Tensor:
    if _takes(x, residual) and type(norm) is nn.BatchNorm2d and _untouched(norm):
        name = _name_of(activation)
        if name is not None or activation is None:
            return norm_module(norm, x, name, residual)
    y: Tensor = norm(x)
    if residual is not None:
        y = y + residual
    if not isinstance(activation, nn.Module):
        return FUNCTIONS[activation](y)
    result: Tensor = activation(y)
    return result


def _name_of(activation: nn.Module | Activation | None) -> Activation | None:
    if not isinstance(activation, nn.Module):
        return activation
    if not _untouched(activation):
        return None
    if type(activation) is nn.GELU:
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    return _MODULES.get(type(activation))


def _takes(x: Tensor, residual: Tensor | None, everywhere: bool = False) -> bool:
    """Whether there are kernels for it; everywhere: on the CPU too, where torch's are as fast."""
    plain = (Tensor, nn.Parameter, nn.Buffer)
    return (
        type(x) in plain
        and (x.is_cuda or everywhere)
        and x.dim() == 4
        and x.is_floating_point()
        and (residual is None or (type(residual) in plain and residual.shape == x.shape and residual.dtype == x.dtype))
    )


def _untouched(*modules: nn.Module) -> bool:
    """By hooks, of its own or of all modules."""
    if _module._global_forward_hooks or _module._global_forward_pre_hooks or _module._global_backward_hooks:
        return False
    return not any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks or "forward" in vars(m)
        for m in modules
    )


# ---- a module's forward, traced ----


class _Left(Exception):
    """Why a module stays as it is."""


class _Forwards:
    """What a module's forward becomes, by its mode and by which of its arguments are tensors."""

    def __init__(self, module: nn.Module) -> None:
        self.functions: dict[tuple[bool, tuple[bool, ...]], Callable[..., Any] | None] = {}
        self.reasons: list[str] = []
        self.children = tuple(module._modules)  # nn.Sequential changes them without setting attributes
        training = module.training
        try:
            for module.training in (training, not training):
                self._trace(module)
        except _Left as reason:
            self.reasons.append(str(reason))
        finally:
            module.training = training
        self.fuses = any(self.functions.values())

    def _trace(self, module: nn.Module) -> None:
        names = _arguments(module)
        asked: set[str] = set()  # whether they are tensors
        for kinds in itertools.product((True, False), repeat=len(names)):
            of_names = dict(zip(names, kinds, strict=True))
            if all(is_tensor or name in asked for name, is_tensor in of_names.items()):
                self.functions[module.training, kinds] = self._traced(module, of_names, asked)

    def _traced(self, module: nn.Module, kinds: dict[str, bool], asked: set[str]) -> Callable[..., Any] | None:
        try:
            with _unchanged(module):
                return _traced(module, kinds, asked)
        except Exception as error:  # of any kind, as it is the model's own code that runs
            self.reasons.append(" ".join(str(error).split())[:100] or type(error).__name__)
            return None

    def function(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        if kwargs:
            return None
        function = self.functions.get((module.training, tuple(isinstance(arg, Tensor) for arg in args)))
        if function is None and args:  # of one whose forward did not ask
            function = self.functions.get((module.training, (True,) * len(args)))
        return function

    def __deepcopy__(self, memo: Any) -> _Forwards:
        return self  # they take the module as an argument

    def __reduce__(self) -> Any:
        return _nothing, ()


def _nothing() -> None:
    """In pickles, which cannot have functions that were made."""


def _arguments(module: nn.Module) -> list[str]:
    """Of forward, those that a call has to give."""
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
        raise _Left("its forward takes any arguments")
    return [p.name for p in parameters if p.default is p.empty]


@contextlib.contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Refuses a forward that does more than compute, which would be done once, now, and never again."""
    places: list[dict[str, Any]] = [vars(module), module._modules, module._parameters, module._buffers]
    before = [dict(place) for place in places]
    numbers = torch.get_rng_state(), random.getstate()
    try:
        yield
    finally:
        changed = any(
            place.keys() != old.keys() or any(place[name] is not value for name, value in old.items())
            for place, old in zip(places, before, strict=True)
        )
        for place, old in zip(places, before, strict=True):
            place.clear()
            place.update(old)
        drawn = not torch.equal(numbers[0], torch.get_rng_state()) or numbers[1] != random.getstate()
        torch.set_rng_state(numbers[0])
        random.setstate(numbers[1])
    if changed:
        raise _Left("its forward sets attributes")
    if drawn:
        raise _Left("its forward draws random numbers")


class _Proxy(fx.Proxy):
    """An argument or what is computed of one, which may be asked whether it is a tensor."""

    def _in_place(self, function: Callable[[Any, Any], Any], other: Any) -> fx.Proxy:
        """Not as fx has it, which makes a value of its own: others may see the change."""
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    __iadd__ = functools.partialmethod(_in_place, operator.iadd)
    __isub__ = functools.partialmethod(_in_place, operator.isub)
    __imul__ = functools.partialmethod(_in_place, operator.imul)
    __itruediv__ = functools.partialmethod(_in_place, operator.itruediv)
    __class__: Any = property(lambda self: self.tracer.class_of(self.node))


class _Tracer(fx.Tracer):
    def __init__(self, kinds: dict[str, bool], asked: set[str], forward: str) -> None:
        super().__init__()
        self.kinds, self.asked, self.traced_func_name = kinds, asked, forward

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_arg(self, a: Any) -> Any:
        return a.node if type(a) is _Proxy else super().create_arg(a)

    def class_of(self, node: fx.Node) -> type:
        name = str(node.target)
        if node.op == "placeholder" and name in self.kinds:
            self.asked.add(name)
            return Tensor if self.kinds[name] else _Proxy
        raise fx.proxy.TraceError("its forward asks for the type of a value")


def _traced(module: nn.Module, kinds: dict[str, bool], asked: set[str]) -> Callable[..., Any] | None:
    """A function of the module and its arguments; None if there is nothing to fuse."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(type(module).forward).parameters.items()
        if parameter.default is not parameter.empty
    }
    graph = _Tracer(kinds, asked, _ORIGINAL if hasattr(type(module), _ORIGINAL) else "forward").trace(
        module, concrete_args=defaults or None
    )
    if any(node.op == "get_attr" and str(node.target).startswith("_tensor_constant") for node in graph.nodes):
        raise _Left("its forward makes tensors")
    norms = [node for node in graph.nodes if node.op == "call_module" and _is_norm(module.get_submodule(node.target))]
    if not norms:
        return None
    for node in norms:
        _replace(graph, module, node)
    code = graph.python_code("self")
    scope = dict(code.globals)
    exec(compile(code.src, f"<fastconv.fuse of {type(module).__name__}>", "exec"), scope)
    function: Callable[..., Any] = scope["forward"]
    return function


def _replace(graph: fx.Graph, module: nn.Module, norm: fx.Node) -> None:
    """A batch norm, and what follows it, by one call in the place of the last."""
    last, residual, activation = norm, None, None
    if (addition := _only_user(norm)) is not None and (other := _added(addition, norm)) is not None:
        last, residual = addition, other
    if (user := _only_user(last)) is not None and (found := _activation(user, module)) is not None:
        last, activation = user, found
    with graph.inserting_before(last):
        if isinstance(activation, fx.Node):  # a module
            activation = graph.get_attr(str(activation.target))
        of_norm = graph.get_attr(str(norm.target))
        call = graph.call_function(_norm_act, (of_norm, norm.args[0], activation, residual))
    last.replace_all_uses_with(call)
    for node in (last, addition, norm):
        if node is not None and not node.users and node in graph.nodes and node.op != "output":
            with contextlib.suppress(RuntimeError):
                graph.erase_node(node)


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _added(node: fx.Node, norm: fx.Node) -> fx.Node | None:
    """What is added to the batch norm's output."""
    if node.target not in _ADDITIONS or len(node.args) != 2 or node.kwargs:
        return None
    first, second = node.args
    if node.target in _IN_PLACE and first is not norm:
        return None  # that changes the other one
    other = second if first is norm else first
    return other if isinstance(other, fx.Node) and other is not norm else None


def _activation(node: fx.Node, module: nn.Module) -> Any:
    """The node of a module, or a function's name."""
    if node.op == "call_module":
        found = module.get_submodule(str(node.target))
        return node if type(found) in (*_MODULES, nn.GELU) and len(node.args) == 1 else None
    options = {name: value for name, value in node.kwargs.items() if name != "inplace"}
    return _FUNCTIONS.get(node.target) if len(node.args) == 1 and not options else None
