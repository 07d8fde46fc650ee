"""How float32 products are formed."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Literal, TypeAlias, get_args

import torch

Precision: TypeAlias = Literal["ieee", "bf16x3", "tf32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_current: ContextVar[Precision | None] = ContextVar("fastconv.precision", default=None)
_torch_setting = torch._C._get_fp32_precision_getter


def check(value: Precision | None) -> Precision | None:
    """Returns `value`; raises ValueError if it is none of the precisions."""
    if value is not None and value not in PRECISIONS:
        raise ValueError(f"precision must be 'ieee', 'bf16x3', 'tf32' or None, but got {value!r}")
    return value


def effective() -> Precision:
    """The precision that a call without one gets now."""
    value = _current.get()
    if value is not None:
        return value
    return "tf32" if _torch_setting("cuda", "conv") == "tf32" else "ieee"


# What torch.compiler.assume_constant_result does, whose call imports torch._dynamo (0.8 s). Dynamo cannot trace the
# getter, so a compiled function keeps the precision it was traced with.
effective._dynamo_marked_constant = True  # type: ignore[attr-defined]


class precision:
    """Sets how float32 convolutions form their products, until changed or for a block.

    Args:
        value: normwise error against float64, ``|y - y64| / |y64|``:

            - ``"ieee"``: that of float32 arithmetic, about 1e-6;
            - ``"bf16x3"``: at most 2e-5 (two bfloat16 parts, three products: what
              ``torch.set_float32_matmul_precision("high")`` calls bfloat16_3x);
            - ``"tf32"``: about 3e-4 (operands rounded to TF32's 10-bit mantissa);
            - ``None``: what torch would do for a convolution: "tf32" where
              ``torch.backends.cudnn.conv.fp32_precision`` says so, otherwise "ieee".

            A bound is a promise: a kernel may be more precise. Other dtypes ignore the setting.

    Raises:
        ValueError: ``value`` is none of these.

    The setting belongs to the calling thread (to the asyncio task where there is one), as grad mode does: another
    thread starts with ``None``. Torch's own setting, which ``None`` follows, belongs to the process. A backward pass
    uses the precision of its forward pass, whichever thread runs it. Inside a function given to ``torch.compile`` pass
    the ``precision`` argument instead: the setting is read once, when the function is traced.

    >>> fastconv.precision("ieee")                 # from now on
    precision('ieee')
    >>> with fastconv.precision("tf32"):           # here only
    ...     y = fastconv.conv2d(torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3))
    """

    def __init__(self, value: Precision | None) -> None:
        self.value = check(value)
        self._previous = _current.get()
        _current.set(value)

    def __enter__(self) -> precision:
        _current.set(self.value)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _current.set(self._previous)

    def __repr__(self) -> str:
        return f"precision({self.value!r})"
