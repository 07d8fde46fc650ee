"""The kernels for activations, and those that cast, without a GPU: thread by thread on the CPU, against float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import _fastconv_emulated as emulated
import reference
from fastconv.activation import ACTIVATIONS, CUT_OFF, passes

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
COUNTS = [1, 7, 8, 4096, 8195, 16389]  # less than a vector, blocks with a rest
MARGIN = 8


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def random(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(count, generator=generator, dtype=torch.float64)).to(dtype)


def amid_nans(count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Memory for a result, which lies at a multiple of 16 bytes in it."""
    memory = torch.full((count + 2 * MARGIN,), torch.nan, dtype=dtype)
    return memory, memory[MARGIN : MARGIN + count]


def vjp(function: Callable[[Tensor], Tensor], at: Tensor, grad: Tensor) -> Tensor:
    return torch.autograd.grad(function(at), at, grad.double())[0]


def assert_right(memory: Tensor, actual: Tensor, expected: Tensor) -> None:
    bound = 4 * torch.finfo(actual.dtype).eps * expected.norm()
    assert (actual.double() - expected).norm() <= bound
    actual.fill_(torch.nan)
    assert memory.isnan().all(), "written beside the result"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", range(len(ACTIVATIONS)), ids=map(str, ACTIVATIONS))
def test_activations(activation: int, dtype: torch.dtype) -> None:
    function = reference.ACTIVATIONS[ACTIVATIONS[activation]]
    for count, adds in itertools.product(COUNTS, (False, True)):
        z, residual, grad = (random(count, dtype, seed) for seed in range(3))
        addresses = {"z": z.data_ptr()} | ({"residual": residual.data_ptr()} if adds else {})
        memory, y = amid_nans(count, dtype)
        emulated.activate(name_of(dtype), count, activation, addresses | {"y": y.data_ptr()})
        before = (z.double() + residual.double() if adds else z.double()).requires_grad_()
        expected = function(before)
        kept = y.clone() if activation in CUT_OFF else z
        assert_right(memory, y, expected.detach())
        if activation == 0:
            continue
        of_sum = {"residual": residual.data_ptr()} if adds and activation not in CUT_OFF else {}
        pointers = {"grad_y": grad.data_ptr(), "kept": kept.data_ptr(), "grad_z": y.data_ptr()}
        emulated.activate(name_of(dtype), count, activation, of_sum | pointers)
        # Whether a value is cut off is told by the rounded output; at -3 and 3 hardswish is as torch has it.
        of_z = torch.where(passes(kept.double(), activation), grad.double(), 0) if activation in CUT_OFF else None
        function = F.hardswish if ACTIVATIONS[activation] == "hardswish" else function
        assert_right(memory, y, of_z if of_z is not None else vjp(function, before, grad))


@pytest.mark.parametrize("activation", ["relu", "relu6", "silu", "hardswish"])
def test_in_place_and_not_finite(activation: str) -> None:
    z = torch.tensor([torch.nan, torch.inf, -torch.inf, -1.0, 7.0, 0.5, -0.0, 3.0, 2.0])
    expected = reference.ACTIVATIONS[activation](z)
    pointers = {"z": z.data_ptr(), "y": z.data_ptr()}
    emulated.activate("float32", len(z), ACTIVATIONS.index(activation), pointers)
    torch.testing.assert_close(z, expected, equal_nan=True)


@pytest.mark.parametrize("count", COUNTS)
def test_casts(count: int) -> None:
    for from_type, to_type in itertools.product(DTYPES, DTYPES):
        values = random(count, from_type, count)
        memory, result = amid_nans(count, to_type)
        emulated.cast(name_of(from_type), name_of(to_type), values.data_ptr(), result.data_ptr(), count)
        assert torch.equal(result, values.to(to_type))
        result.fill_(torch.nan)
        assert memory.isnan().all(), "written beside the result"


@pytest.mark.parametrize("filters_type", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_batch_norm_is_folded_into_filters(dtype: torch.dtype, filters_type: torch.dtype) -> None:
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    for (count, values), wide, with_all in itertools.product(
        [(5, 9), (3, 2050), (2, 1024)], (False, True), (False, True)
    ):
        kind = sums if wide else dtype
        filters = random(count * values, filters_type, 0)
        mean, variance, *others = (random(count, kind, seed) for seed in range(1, 6))
        variance = variance.abs() + 0.5
        tensors = {"filters": filters, "mean": mean, "variance": variance}
        tensors |= dict(zip(("weight", "norm_bias", "bias"), others, strict=True)) if with_all else {}
        memory, folded = amid_nans(count * values, dtype)
        of_bias, folded_bias = amid_nans(count, sums)
        addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        addresses |= {"folded": folded.data_ptr(), "folded_bias": folded_bias.data_ptr()}
        emulated.fold_norm(name_of(dtype), name_of(filters_type), count, values, wide, 1e-3, addresses)
        weight, norm_bias, bias = (t.double() for t in others) if with_all else (1.0, 0.0, 0.0)
        scale = (variance.double() + 1e-3).rsqrt() * weight
        assert_right(memory, folded, (filters.double().view(count, values) * scale.view(count, 1)).flatten())
        assert_right(of_bias, folded_bias, (bias - mean.double()) * scale + norm_bias)
