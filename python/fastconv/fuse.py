"""Turns batch norms of a model, with the residual and the activation that follow, into one op each, and back."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import itertools
import logging
import operator
import random
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from . import _library, ops
from ._classes import check_module, counted, derive, give
from .activation import FUNCTIONS, Activation
from .functional import conv2d
from .nn import BatchNormAct2d, Conv2d, ConvBnAct2d, convolves_alone, norm_module, untouched
from .precision import effective

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
    """Makes convolutions and batch norms of a model one call each with what follows them, in place.

    Args:
        model: any module.

    Returns:
        ``model``.

    Raises:
        TypeError: ``model`` is no module.

    Found are ``fastconv.Conv2d``, ``nn.BatchNorm2d``, the addition of a residual and an activation, or some of these,
    where one module calls them, in any of the ways that torchvision and timm write it: one after the other in an
    ``nn.Sequential``, or ``relu(bn(x) + shortcut)`` in a ``forward``. Also timm's ``BatchNormAct2d``. They are computed
    by :func:`fastconv.conv_bn_act`, :func:`fastconv.batch_norm_act` or :func:`fastconv.conv2d` in training and in eval
    mode, on NVIDIA GPUs; on the CPU by the modules as before. Shapes and dtypes are those of the modules, and the
    numerical contract that of these functions: 16 bits are rounded less often than by separate modules.

    Only the classes of the modules that call these change, to one derived from theirs: parameters, buffers, hooks
    and ``state_dict`` keys stay, and so do copies and pickles. Each of their ``forward`` methods is traced once, with
    attributes and conditions as they are then: fuse last, or once more after changes, before which a changed module
    computes as it did unfused. A layer with hooks of its own is called as before, too.

    What is left, and why, is logged (``logging.getLogger("fastconv")``, INFO). :func:`fastconv.unfuse` undoes it.

    >>> model = torch.nn.Sequential(fastconv.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    >>> fastconv.fuse(model)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 8, 6, 6])
    """
    check_module("fuse", model)
    served: Counter[str] = Counter()
    left: Counter[str] = Counter()
    classes: dict[nn.Module, type] = {}
    for module in model.modules():
        cls: Any = type(module)
        reason = ""
        if hasattr(cls, _ORIGINAL) and _FORWARDS not in vars(module):  # changed since
            vars(module)[_FORWARDS] = _Forwards(module)
        if isinstance(module, torch.jit.ScriptModule) or hasattr(cls, _BEFORE) or cls in (BatchNormAct2d, ConvBnAct2d):
            continue  # fused already, those too
        if _is_timm(module):
            classes[module] = _fused_norm(cls)
        elif any(isinstance(m, nn.LazyConv2d | nn.LazyBatchNorm2d) for m in (module, *module.children())):
            reason = "parameters come with the first batch: fuse after that"
        elif any(_is_norm(child) or type(child) is Conv2d for child in module.children()):
            forwards = _Forwards(module)
            if forwards.fuses:
                classes[module] = _fused(cls)
                vars(module)[_FORWARDS] = forwards
            else:
                reason = next(iter(forwards.reasons), "") or "its forward calls nothing that is fused"
        elif isinstance(module, nn.SyncBatchNorm):
            reason = "its statistics are those of several processes"
        elif isinstance(module, nn.BatchNorm2d) and not _is_norm(module):
            reason = "another class than nn.BatchNorm2d"
        if reason:
            left[f"{cls.__name__} ({reason})"] += 1
        elif module in classes:
            served[cls.__name__] += 1
    give(classes)
    _log.info("fused: %s; left: %s", counted(served), counted(left))
    return model


def unfuse(model: _Module) -> _Module:
    """Undoes :func:`fuse`, in place.

    Args:
        model: any module.

    Returns:
        ``model``.

    Raises:
        TypeError: ``model`` is no module.

    >>> model = torch.nn.Sequential(fastconv.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    >>> type(fastconv.unfuse(fastconv.fuse(model))) is torch.nn.Sequential
    True
    """
    check_module("unfuse", model)
    fused = [module for module in model.modules() if _BEFORE in vars(type(module))]
    give({module: vars(type(module))[_BEFORE] for module in fused})
    for module in fused:
        module.__dict__.pop(_FORWARDS, None)
    return model


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
        function = None if forwards is None or kwargs else forwards.function(self, args)
        return base.forward(self, *args, **kwargs) if function is None else function(self, *args)

    def set_attribute(self: nn.Module, name: str, value: Any) -> None:
        # Both modes are traced, tensors are not looked at, and what tools add for themselves was not there.
        same = name in ("training", "__class__") or isinstance(value, Tensor)
        same |= name.startswith("_") and not hasattr(self, name)
        super(derived, self).__setattr__(name, value)
        if not same:  # and not traced again, as fx changes what all threads see
            self.__dict__.pop(_FORWARDS, None)

    def delete_attribute(self: nn.Module, name: str) -> None:
        super(derived, self).__delattr__(name)
        self.__dict__.pop(_FORWARDS, None)

    def set_state(self: nn.Module, state: dict[str, Any]) -> None:
        super(derived, self).__setstate__(state)
        if self.__dict__.get(_FORWARDS, self) is None:  # read from a pickle
            self.__dict__[_FORWARDS] = _Forwards(self)

    members: dict[str, Any] = {"forward": functools.wraps(base.forward)(forward), "__setstate__": set_state}
    members |= {"__setattr__": set_attribute, "__delattr__": delete_attribute}
    members |= {_BEFORE: base, _ORIGINAL: base.forward}
    derived: Any = derive(members, (base,), _fused, base)
    return derived


@functools.cache
def _fused_norm(base: Any) -> type:
    def forward(self: Any, x: Tensor) -> Any:
        if isinstance(self.drop, nn.Identity) and untouched(self.drop, self.act) and _takes(x, None):
            name = _name_of(self.act)
            if name is not None or type(self.act) is nn.Identity:
                return norm_module(self, x, name, None)
        return base.forward(self, x)

    return derive({"forward": functools.wraps(base.forward)(forward), _BEFORE: base}, (base,), _fused_norm, base)


# ---- calls ----


def _norm_act(
    norm: nn.BatchNorm2d,
    x: Tensor,
    activation: nn.Module | Activation | None,
    residual: Tensor | None,
    in_place: bool,
) -> Tensor:
    """in_place: the residual is added so, which keeps the type and the size."""
    if _takes(x, residual) and type(norm) is nn.BatchNorm2d and untouched(norm):
        name = _name_of(activation)
        if name is not None or activation is None:
            return norm_module(norm, x, name, residual)
    y: Tensor = norm(x)
    if residual is not None:
        y = operator.iadd(y, residual) if in_place else y + residual
    if not isinstance(activation, nn.Module):
        return FUNCTIONS[activation](y)
    result: Tensor = activation(y)
    return result


def _conv_norm_act(
    conv: nn.Module,
    norm: nn.BatchNorm2d,
    x: Tensor,
    activation: nn.Module | Activation | None,
    residual: Tensor | None,
    in_place: bool,
) -> Tensor:
    if type(norm) is nn.BatchNorm2d and untouched(conv, norm) and _convolves(conv, x, residual):
        name = _name_of(activation)
        if name is not None or activation is None:
            return norm_module(norm, x, name, residual, conv)  # type: ignore[arg-type]  # a fastconv.Conv2d
    return _norm_act(norm, conv(x), activation, residual, in_place)


def _conv_act(conv: Any, x: Tensor, activation: nn.Module | Activation) -> Tensor:
    name = _name_of(activation)
    if name is not None and untouched(conv) and _convolves(conv, x, None):
        geometry = conv.stride, conv.padding, conv.dilation, conv.groups
        return conv2d(x, conv.weight, conv.bias, *geometry, precision=conv.precision, activation=name)
    y: Tensor = conv(x)
    result: Tensor = activation(y) if isinstance(activation, nn.Module) else FUNCTIONS[activation](y)
    return result


def _convolves(conv: Any, x: Tensor, residual: Tensor | None) -> bool:
    """Whether one call makes what a residual can be added to."""
    if not convolves_alone(conv) or isinstance(conv.padding, str) or not _takes(x, None):
        return False
    if residual is None:
        return True
    weight = conv.weight
    dtype = ops.autocast_dtype(x) or x.dtype
    arguments = x.shape, weight.shape, conv.stride, conv.padding, conv.dilation, conv.groups
    # torch.compile looks through a cache, but warns of it.
    size = torch.Size(ops.output_size(*arguments)) if torch.compiler.is_compiling() else _output_size(*arguments)
    return _is_like(residual, size, dtype)


@functools.lru_cache(4096)
def _output_size(*arguments: Any) -> torch.Size:
    return torch.Size(ops.output_size(*arguments))


def _name_of(activation: nn.Module | Activation | None) -> Activation | None:
    if not isinstance(activation, nn.Module):
        return activation
    if not untouched(activation):
        return None
    if type(activation) is nn.GELU:
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    return _MODULES.get(type(activation))


def _takes(x: Tensor, residual: Tensor | None, everywhere: bool = False) -> bool:
    """Whether there are kernels for it; everywhere: on the CPU too, which tests ask for."""
    return (
        type(x) in ops.PLAIN
        and ((x.is_cuda and _library.cuda_error is None) or everywhere)
        and x.dim() == 4
        and x.is_floating_point()
        and (residual is None or _is_like(residual, x.shape, x.dtype))
    )


def _is_like(residual: Tensor, size: torch.Size, dtype: torch.dtype) -> bool:
    return type(residual) in ops.PLAIN and residual.shape == size and residual.dtype == dtype


# ---- a module's forward, traced ----


class _Left(Exception):
    """Why a module stays as it is."""


class _Forwards:
    """What a module's forward becomes, by its mode and by which of its arguments are tensors."""

    def __init__(self, module: nn.Module) -> None:
        self.functions: dict[tuple[bool, tuple[bool, ...]], Callable[..., Any] | None] = {}
        self.reasons: list[str] = []
        self.children = _names(module)
        training = module.training
        try:
            names = _arguments(module)
            for module.training in (training, not training):
                self._trace(module, names)
        except _Left as reason:
            self.reasons.append(str(reason))
        finally:
            module.training = training
        self.fuses = any(self.functions.values())

    def _trace(self, module: nn.Module, names: list[str]) -> None:
        asked: set[str] = set()  # whether they are tensors
        for kinds in itertools.product((True, False), repeat=len(names)):
            of_names = dict(zip(names, kinds, strict=True))
            if all(is_tensor or name in asked for name, is_tensor in of_names.items()):
                try:
                    function = _traced(module, of_names, asked)
                except Exception as error:  # of any kind, as it is the model's own code that runs
                    self.reasons.append(" ".join(str(error).split())[:100] or type(error).__name__)
                    function = None
                self.functions[module.training, kinds] = function

    def function(self, module: nn.Module, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """None for arguments that were not thought of: they may be what forward asks for."""
        if not all(isinstance(arg, Tensor) or type(arg) in (list, tuple) for arg in args):
            return None
        kinds = tuple(isinstance(arg, Tensor) for arg in args)
        return self.functions.get((module.training, kinds)) if self.children == _names(module) else None

    def __deepcopy__(self, memo: Any) -> _Forwards:
        return self  # they take the module as an argument

    def __reduce__(self) -> Any:
        return _nothing, ()


def _nothing() -> None:
    """In pickles, which cannot have functions that were made."""


def _names(module: nn.Module) -> tuple[Any, ...]:
    """Of what its forward may go through: nn.Sequential and lists change without an attribute that is set."""
    lists: list[Any] = [child for child in module._modules.values() if type(child) in (nn.ModuleList, nn.ModuleDict)]
    return (*module._modules, *map(_names, lists)) if lists else tuple(module._modules)


def _arguments(module: nn.Module) -> list[str]:
    """Of forward, those that a call has to give."""
    if isinstance(module, fx.GraphModule):
        raise _Left("torch.fx makes its class anew")
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
        raise _Left("its forward takes any arguments")
    return [p.name for p in parameters if p.default is p.empty]


# One at a time: fx changes nn.Module itself while it traces.
_tracing = threading.RLock()


@contextlib.contextmanager
def _watched(module: nn.Module, tracer: _Tracer) -> Iterator[None]:
    """Refuses a forward that does more than compute, which would be done once, now, and never again; and one that asks
    for what may be otherwise when it is called."""
    places: list[dict[str, Any]] = [vars(module), module._modules, module._parameters, module._buffers]
    before = [dict(place) for place in places]
    held = {name: copy.copy(v) for name, v in vars(module).items() if isinstance(v, list | dict | set)}
    tensors = [v for m in module.modules() for v in (*vars(m).values(), *m.parameters(False), *m.buffers(False))]
    versions = [(v, v._version) for v in tensors if isinstance(v, Tensor) and not is_lazy(v) and not v.is_inference()]
    numbers = _random_states()
    modes = [(m, vars(m).pop("training")) for m in module.modules() if m is not module]  # who reads one gets an error
    thread = threading.get_ident()

    def refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            if threading.get_ident() == thread:
                raise tracer.error(f"its forward calls torch.{name}")
            return function(*args)

        return ask

    asks = ("is_grad_enabled", "is_autocast_enabled", "is_inference_mode_enabled")
    functions = {name: getattr(torch, name) for name in asks}
    scope = getattr(inspect.unwrap(type(module).forward), "__globals__", {})
    shadowed = scope.get("isinstance")
    try:
        for name, function in functions.items():
            setattr(torch, name, refusing(name, function))
        scope["isinstance"] = tracer.isinstance_
        yield
    finally:
        for name, function in functions.items():
            setattr(torch, name, function)
        if shadowed is None:
            scope.pop("isinstance", None)
        else:
            scope["isinstance"] = shadowed
        for m, mode in modes:
            vars(m)["training"] = mode
        changed = any(
            place.keys() != old.keys() or any(place[name] is not value for name, value in old.items())
            for place, old in zip(places, before, strict=True)
        )
        for place, old in zip(places, before, strict=True):
            place.clear()
            place.update(old)
        for name, value in held.items():
            if vars(module)[name] != value:
                changed = True
                vars(module)[name].clear()
                (vars(module)[name].extend if isinstance(value, list) else vars(module)[name].update)(value)
        changed |= any(tensor._version != version for tensor, version in versions)
        drawn = any(map(operator.ne, numbers, _random_states()))
    if changed:
        raise _Left("its forward changes what it has")
    if drawn:
        raise _Left("its forward draws random numbers")
    if tracer.errors:  # which forward may have caught
        raise _Left(tracer.errors[0])


def _random_states() -> list[Any]:
    numpy = sys.modules.get("numpy")
    of_numpy = [repr(numpy.random.get_state()[1:3]), numpy.random.get_state()[1].tobytes()] if numpy else []
    return [torch.get_rng_state().numpy().tobytes(), random.getstate(), *of_numpy]


def _modes() -> tuple[Any, ...]:
    """Which a forward may set for what it calls."""
    autocast = [(torch._C.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else None
    return (
        torch._C.is_grad_enabled(),
        torch._C.is_inference_mode_enabled(),
        *autocast,
        effective(),  # of float32, also by torch's flags
        None if hooks is None else id(hooks[0]),
        stream,
    )


class _Proxy(fx.Proxy):
    """An argument, or what is computed of one."""

    def _in_place(self, function: Callable[[Any, Any], Any], other: Any) -> fx.Proxy:
        """Not as fx has it, which makes a value of its own: others may see the change."""
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    __iadd__ = functools.partialmethod(_in_place, operator.iadd)
    __isub__ = functools.partialmethod(_in_place, operator.isub)
    __imul__ = functools.partialmethod(_in_place, operator.imul)
    __itruediv__ = functools.partialmethod(_in_place, operator.itruediv)
    __ifloordiv__ = functools.partialmethod(_in_place, operator.ifloordiv)
    __imod__ = functools.partialmethod(_in_place, operator.imod)
    __ipow__ = functools.partialmethod(_in_place, operator.ipow)
    __iand__ = functools.partialmethod(_in_place, operator.iand)
    __ior__ = functools.partialmethod(_in_place, operator.ior)
    __ixor__ = functools.partialmethod(_in_place, operator.ixor)
    __ilshift__ = functools.partialmethod(_in_place, operator.ilshift)
    __irshift__ = functools.partialmethod(_in_place, operator.irshift)
    # For who asks otherwise than by the isinstance of forward's own module, among them torch's C++.
    __class__: Any = property(lambda self: self.tracer.class_of(self.node))


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True

    def __init__(self, kinds: dict[str, bool], asked: set[str], forward: str) -> None:
        super().__init__()
        self.kinds, self.asked, self.traced_func_name = kinds, asked, forward
        self.errors: list[str] = []
        self.proxies: list[weakref.ref[_Proxy]] = []
        self.modes = _modes()

    def error(self, reason: str) -> Exception:
        self.errors.append(reason)
        return fx.proxy.TraceError(reason)

    def class_of(self, node: fx.Node) -> type:
        if node.op == "placeholder" and self.kinds.get(str(node.target)) is False:
            return _Proxy  # no tensor, as it is none
        raise self.error("its forward asks for the type of a value")

    def to_bool(self, obj: fx.Proxy) -> bool:
        raise self.error("its forward asks for a value")

    def iter(self, obj: fx.Proxy) -> Any:
        raise self.error("its forward goes through a tensor")

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        proxy = _Proxy(node, self)
        self.proxies.append(weakref.ref(proxy))
        return proxy

    def outlived(self) -> bool:
        """Whether anybody has one of them still, who would have had a tensor of each call."""
        if any(proxy() is not None for proxy in self.proxies):
            gc.collect()  # it may be but in a cycle
        return any(proxy() is not None for proxy in self.proxies)

    def create_arg(self, a: Any) -> Any:
        return a.node if type(a) is _Proxy else super().create_arg(a)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if self.modes != _modes():
            raise self.error("its forward sets a mode, such as no_grad or autocast")
        return super().create_node(*args, **kwargs)

    def isinstance_(self, value: Any, kind: Any) -> bool:
        if type(value) is not _Proxy:
            return isinstance(value, kind)
        name = str(value.node.target)
        if value.node.op != "placeholder" or name not in self.kinds or kind is not Tensor:
            raise self.error("its forward asks for the type of a value")
        self.asked.add(name)
        return self.kinds[name]


def _traced(module: nn.Module, kinds: dict[str, bool], asked: set[str]) -> Callable[..., Any] | None:
    """A function of the module and its arguments; None if there is nothing to fuse."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(type(module).forward).parameters.items()
        if parameter.default is not parameter.empty
    }
    tracer = _Tracer(kinds, asked, _ORIGINAL if hasattr(type(module), _ORIGINAL) else "forward")
    with _tracing, _watched(module, tracer):
        graph = tracer.trace(module, concrete_args=defaults or None)
    if tracer.outlived():
        raise _Left("its forward keeps values in other places")
    if any(node.op == "get_attr" and str(node.target).startswith("_tensor_constant") for node in graph.nodes):
        raise _Left("its forward makes tensors")
    norms = [node for node in graph.nodes if node.op == "call_module" and _is_norm(module.get_submodule(node.target))]
    for node in norms:
        _replace(graph, module, node)
    convolutions = [node for node in graph.nodes if _is_convolution(node, module)]
    activated = [node for node in convolutions if _activate(graph, module, node)]
    if not norms and not activated:
        return None
    code = graph.python_code("self")
    scope = dict(code.globals)
    exec(compile(code.src, f"<fastconv.fuse of {type(module).__name__}>", "exec"), scope)
    function: Callable[..., Any] = scope["forward"]
    return function


def _replace(graph: fx.Graph, module: nn.Module, norm: fx.Node) -> None:
    """A batch norm, and what follows it, by one call in the place of the last."""
    last, residual, activation = norm, None, None
    addition = _only_user(norm)
    if addition is not None and (other := _added(addition, norm)) is not None and _may_wait(norm, addition, module):
        last, residual = addition, other
    user = _only_user(last)
    if user is not None and (found := _activation(user, module)) is not None:
        # The residual is read there, too.
        if _between(last, user) == [] or (last is norm and _may_wait(norm, user, module)):
            last, activation = user, found
    in_place = residual is not None and addition is not None and addition.target in _IN_PLACE
    with graph.inserting_before(last):
        if isinstance(activation, fx.Node):  # a module
            activation = graph.get_attr(str(activation.target))
        of_norm = graph.get_attr(str(norm.target))
        follows = (activation, residual, in_place)
        conv = _convolution(norm, last, addition, module)
        if conv is None:
            call = graph.call_function(_norm_act, (of_norm, norm.args[0], *follows))
        else:
            of_conv = graph.get_attr(str(conv.target))
            call = graph.call_function(_conv_norm_act, (of_conv, of_norm, conv.args[0], *follows))
    last.replace_all_uses_with(call)
    for node in dict.fromkeys((last, addition if residual is not None else norm, norm, conv)):
        if node is not None and not node.users:
            graph.erase_node(node)


def _activate(graph: fx.Graph, module: nn.Module, conv: fx.Node) -> bool:
    """A convolution and the activation that follows it by one call in the place of the second."""
    user = _only_user(conv)
    activation = None if user is None else _activation(user, module)
    if user is None or activation is None:
        return False
    between = _between(conv, user)
    if between and not _is_its_own(conv, between, module):
        return False
    with graph.inserting_before(user):
        if isinstance(activation, fx.Node):  # a module
            activation = graph.get_attr(str(activation.target))
        call = graph.call_function(_conv_act, (graph.get_attr(str(conv.target)), conv.args[0], activation))
    user.replace_all_uses_with(call)
    graph.erase_node(user)
    graph.erase_node(conv)
    return True


def _is_convolution(node: Any, module: nn.Module) -> bool:
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    return type(module.get_submodule(str(node.target))) in (nn.Conv2d, Conv2d)


def _convolution(norm: fx.Node, last: fx.Node, addition: fx.Node | None, module: nn.Module) -> fx.Node | None:
    """The convolution that a batch norm is of, if it may be computed with the last of what follows."""
    conv: Any = norm.args[0]
    if not _is_convolution(conv, module) or len(conv.users) != 1:
        return None
    between = [node for node in _between(conv, last) if node is not norm and node is not addition]
    return conv if not between or _is_its_own(conv, between, module) else None


def _may_wait(norm: fx.Node, until: fx.Node, module: nn.Module) -> bool:
    """Whether a batch norm may be computed there: what it reads is its own, or nothing happens before."""
    between = _between(norm, until)
    return between == [] or _is_its_own(norm, between, module)


def _is_its_own(node: fx.Node, between: list[fx.Node], module: nn.Module) -> bool:
    """What a module's call reads, so that it may be called after those."""
    source = node.args[0]
    of_its_own = isinstance(source, fx.Node) and len(source.users) == 1 and _is_new(source, module)
    return of_its_own and not any(_reaches(other, str(node.target), module) for other in between)


def _reaches(node: fx.Node, target: str, module: nn.Module) -> bool:
    """Whether a node calls a module, or reads what it has."""
    if node.op == "call_module":
        called, own = module.get_submodule(str(node.target)), module.get_submodule(target)
        return any(m is own for m in called.modules())
    read = [node, *node.all_input_nodes] if node.op == "get_attr" else node.all_input_nodes
    return any(it.op == "get_attr" and f"{it.target}.".startswith(f"{target}.") for it in read)


def _between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    found, node = [], first.next
    while node is not last:
        if node.op != "get_attr":
            found.append(node)
        node = node.next
    return found


def _is_new(node: fx.Node, module: nn.Module) -> bool:
    """A tensor that shares its memory with no other."""
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), nn.Conv2d)
    return node.op == "call_function" and node.target in (torch.cat, _norm_act, _conv_norm_act, _conv_act)


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _added(node: fx.Node, norm: fx.Node) -> fx.Node | None:
    """What is added to the batch norm's output."""
    if not _is_one_of(node, _ADDITIONS) or len(node.args) != 2 or node.kwargs:
        return None
    first, second = node.args
    if node.target in _IN_PLACE and first is not norm:
        return None  # that changes the other one
    other = second if first is norm else first
    return other if isinstance(other, fx.Node) and other is not norm else None


def _is_one_of(node: fx.Node, targets: Any) -> bool:
    """Functions, and methods by their names."""
    return node.op == ("call_method" if isinstance(node.target, str) else "call_function") and node.target in targets


def _activation(node: fx.Node, module: nn.Module) -> Any:
    """The node of a module, or a function's name."""
    if node.op == "call_module":
        found = module.get_submodule(str(node.target))
        return node if type(found) in (*_MODULES, nn.GELU) and len(node.args) == 1 else None
    options = {name: value for name, value in node.kwargs.items() if name != "inplace"}
    return _FUNCTIONS.get(node.target) if _is_one_of(node, _FUNCTIONS) and len(node.args) == 1 and not options else None
