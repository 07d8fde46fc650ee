"""How float32 products are formed."""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.utils._contextlib import _DecoratorContextManager

Precision: TypeAlias = Literal["ieee", "bf16x3", "tf32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
# What the ops take besides: "tf32", or "ieee" where the planner expects it to take no more than a few per cent longer.
ALLOW_TF32 = "allow_tf32"
OP_PRECISIONS = (*PRECISIONS, ALLOW_TF32)  # in the order of core/problem.h

_current: ContextVar[Precision | None] = ContextVar("fastconv.precision", default=None)
_torch_setting = torch._C._get_fp32_precision_getter


def check(value: Precision | None) -> Precision | None:
    """Returns `value`; raises ValueError if it is none of the precisions."""
    if value is not None and value not in PRECISIONS:
        raise ValueError(f"precision must be 'ieee', 'bf16x3', 'tf32' or None, but got {value!r}")
    return value


def effective() -> str:
    """The op's precision for a call without one."""
    value = _current.get()
    if value is not None:
        return value
    return ALLOW_TF32 if _torch_setting("cuda", "conv") == "tf32" else "ieee"


def traced() -> str:
    """effective() in a function that torch.compile traces, where it is a constant under a guard.

    Dynamo can read neither the context variable nor torch's getter. It runs this instead, as what
    torch.compiler.assume_constant_result marks; the decorator itself would import torch._dynamo (0.8 s).
    """
    if torch._guards.TracingContext.try_get() is not None:
        from torch._dynamo import source
        from torch._dynamo.guards import GuardBuilder, install_guard

        package: Any
        if hasattr(source, "ImportSource"):
            package = source.ImportSource("fastconv")
        else:  # torch 2.10 imports nothing but itself
            itself = source.TorchSource()  # type: ignore[attr-defined]
            modules = source.AttrSource(source.AttrSource(itself, "sys"), "modules")
            package = source.DictGetItemSource(modules, "fastconv")
        function = source.AttrSource(source.AttrSource(package, "functional"), "effective")
        install_guard(source.CallFunctionNoArgsSource(function).make_guard(GuardBuilder.EQUALS_MATCH))
    return effective()


traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


def resolve(value: Precision | None) -> str:
    """The op's precision for a call with the argument `value`."""
    if value is None:
        return traced() if torch.compiler.is_compiling() else effective()
    check(value)
    return value


class precision(_DecoratorContextManager):
    """Sets how float32 convolutions form their products: until changed, for a block, or in a function.

    Args:
        value: normwise error against float64, ``|y - y64| / |y64|``:

            - ``"ieee"``: that of float32 arithmetic, about 1e-6;
            - ``"bf16x3"``: at most 2e-5 (two bfloat16 parts, three products: what
              ``torch.set_float32_matmul_precision("high")`` calls bfloat16_3x);
            - ``"tf32"``: about 3e-4 (operands rounded to TF32's 10-bit mantissa);
            - ``None``: what torch would do for a convolution. Where ``torch.backends.cudnn.conv.fp32_precision`` is
              "tf32", that is "tf32", or "ieee" for problems that it computes in about the same time: cuDNN too leaves
              those exact for which it has no TF32 kernel. Otherwise "ieee".

            A bound is a promise: a kernel may be more precise. Other dtypes ignore the setting, complex64 does not.

    Raises:
        ValueError: ``value`` is none of these.

    The setting belongs to the calling thread (to the asyncio task where there is one), as grad mode does: another
    thread starts with ``None``. Torch's own setting, which ``None`` follows, belongs to the process. A backward pass
    uses the precision of its forward pass, whichever thread runs it; what ``torch.utils.checkpoint`` computes again is
    a call of that thread's. A function given to ``torch.compile`` is compiled anew when the setting, or torch's, is
    another one; setting it inside breaks the graph, the ``precision`` argument does not. What ``torch.export``,
    ``torch.jit.trace`` and ``make_fx`` return keeps the precision that held when they traced it.

    >>> fastconv.precision("ieee")                 # from now on
    precision('ieee')
    >>> with fastconv.precision("tf32"):           # here only
    ...     y = fastconv.conv2d(torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3))
    >>> @fastconv.precision("bf16x3")              # whenever this is called
    ... def f(x, w):
    ...     return fastconv.conv2d(x, w)
    """

    def __init__(self, value: Precision | None) -> None:
        self.value = check(value)
        self._previous = [_current.get()]  # what each exit restores, the innermost last; the first is the block's
        self._entered = False  # or a decorator
        _current.set(value)

    def __call__(self, function: Any) -> Any:
        if not self._entered:  # what __init__ set holds in the function only, unless something else was set since
            self._entered = True
            previous = self._previous.pop()
            if _current.get() == self.value:
                _current.set(previous)
        if not callable(function) or inspect.isclass(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"precision({self.value!r}) decorates functions, but got {function!r}")
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with self.clone():
                return await function(*args, **kwargs)

        return coroutine

    def clone(self) -> precision:
        # A manager for one call of a decorated function: no docstring, as nobody else calls it.
        manager = type(self).__new__(type(self))
        manager.value, manager._previous, manager._entered = self.value, [], True
        return manager

    def __enter__(self) -> precision:  # type: ignore[override]
        if self._entered:
            self._previous.append(_current.get())
        self._entered = True
        _current.set(self.value)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _current.set(self._previous.pop())

    def __repr__(self) -> str:
        return f"precision({self.value!r})"
