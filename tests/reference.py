"""What is right: torch's convolution in float64 on the CPU, and how far from it a result may be.

Derivation of the bound. A result computed in precision u (the unit roundoff of the accumulator) from L products has an
error of at most L * u * sum |x||w| (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1). For
operands with random signs the roundings act as a random walk, and the error of one element is normally distributed with
a standard deviation of about 0.6 * u * sum |x||w| for summation one by one, less for any blocked order, whatever L
is. ACCUMULATION = 16 of those units is beyond reach of chance for any L, certain for L <= 16, and far below what one
wrong, missing or doubled product changes. Where both operands of a gradient repeat along an axis (expanded views), r
equal products follow each other and r roundings fall the same way: the walk has steps of r, and its end is
sqrt(r) times as far. Rounding the result to a 16-bit dtype adds half an ulp of the result.
Each element is held to this, so that a single wrong one cannot hide in a norm.

float32 in the modes below "ieee" adds what its operands lose: "tf32" rounds each to 11 bits, two roundings of 2^-11 a
product; "bf16x3" leaves out the product of two second parts, 2^-16, and rounds each of them by 2^-17, 2^-15 in all, and
lets the tensor cores truncate sums of up to 4096 products, 16 at a time: no more than 2^-14 of sum |x||w|.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ACCUMULATION = 16
# float16 and bfloat16 accumulate in float32.
_ACCUMULATOR_EPS = {
    torch.float64: torch.finfo(torch.float64).eps,
    torch.float32: torch.finfo(torch.float32).eps,
    torch.float16: torch.finfo(torch.float32).eps,
    torch.bfloat16: torch.finfo(torch.float32).eps,
}


# Of sum |x||w|, besides accumulation.
LOST = {"ieee": 0.0, "bf16x3": 2**-14, "tf32": 2**-10}


@dataclass(frozen=True)
class Expected:
    value: Tensor  # float64, on the CPU
    magnitude: Tensor  # the same sum over absolute values
    repeats: int = 1  # equal products in a row

    def bound(self, dtype: torch.dtype, precision: str = "ieee") -> Tensor:
        """The largest error allowed, for each element."""
        info = torch.finfo(dtype)
        # The reference rounds as well, with float64's unit.
        eps = _ACCUMULATOR_EPS[dtype] + torch.finfo(torch.float64).eps
        accumulation = ACCUMULATION * math.sqrt(self.repeats) * 0.5 * eps * self.magnitude
        if dtype == torch.float32:
            accumulation = accumulation + LOST[precision] * self.magnitude
        rounding = 0.0 if dtype in (torch.float32, torch.float64) else 0.5 * info.eps
        return accumulation + rounding * (self.value.abs() + accumulation) + info.smallest_normal * info.eps


def f64(t: Tensor) -> Tensor:
    # Contiguous, because torch itself (2.11, 2.13) gives wrong weight gradients for some views on the CPU: unbatched
    # input of size (4, 2, 1) and strides (1, 4, 1), 1x1 filters in channels_last, groups=2.
    return t.detach().to(device="cpu", dtype=torch.float64).contiguous()


def output(input: Tensor, weight: Tensor, bias: Tensor | None = None, *geometry: Any) -> Expected:
    x, w, b = f64(input), f64(weight), None if bias is None else f64(bias)
    return Expected(F.conv2d(x, w, b, *geometry), F.conv2d(x.abs(), w.abs(), None if b is None else b.abs(), *geometry))


def _backward(x: Tensor, w: Tensor, dy: Tensor, geometry: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    b = torch.zeros(w.shape[0], dtype=torch.float64, requires_grad=True)
    dx, dw, db = torch.autograd.grad(F.conv2d(x, w, b, *geometry), (x, w, b), dy)
    return dx, dw, db


@dataclass(frozen=True)
class Gradients:
    input: Expected
    weight: Expected
    bias: Expected


def gradients(input: Tensor, weight: Tensor, grad_output: Tensor, *geometry: Any) -> Gradients:
    x, w, dy = f64(input), f64(weight), f64(grad_output)
    values, magnitudes = _backward(x, w, dy, geometry), _backward(x.abs(), w.abs(), dy.abs(), geometry)
    groups = geometry[3] if len(geometry) > 3 else 1
    repeats = (_repeated_filters(weight, grad_output, groups), _repeats(input, grad_output), 1)
    return Gradients(*map(Expected, values, magnitudes, repeats))


def _repeated_filters(weight: Tensor, grad_output: Tensor, groups: int) -> int:
    """How many filters are the same, and so are the channels that they produced."""
    return weight.shape[0] // groups if weight.stride(0) == 0 and grad_output.stride(-3) == 0 else 1


def _repeats(input: Tensor, grad_output: Tensor) -> int:
    """How many pixels in a row, or images, are the same in both."""
    pairs = zip(input.shape, input.stride(), grad_output.shape, grad_output.stride(), strict=True)
    common = [max(size, other) for size, stride, other, other_stride in pairs if stride == 0 and other_stride == 0]
    return math.prod(common)


def assert_right(actual: Tensor, expected: Expected, what: str = "output", precision: str = "ieee") -> None:
    assert actual.shape == expected.value.shape, (
        f"{what}: size {tuple(actual.shape)}, not {tuple(expected.value.shape)}"
    )
    bound = expected.bound(actual.dtype, precision)
    error = (f64(actual) - expected.value).abs()
    wrong = ~(error <= bound)  # a NaN is wrong
    if wrong.any():
        first = tuple(int(i) for i in wrong.nonzero()[0])
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} elements are wrong, first {first}: "
            f"{actual[first].item()!r}, not {expected.value[first].item()!r} +- {bound[first].item():.2g}"
        )


def normwise_error(actual: Tensor, expected: Expected) -> float:
    """||actual - expected|| / ||expected||, the measure of the precision contract."""
    return float((f64(actual) - expected.value).norm() / expected.value.norm())


ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda z: z,
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "hardswish": lambda z: z * (z + 3).clamp(0, 6) / 6,  # torch's on a GPU divides by 6 as in float32 (2.11)
}
