"""The kernels of batch normalisation without a GPU: thread by thread on the CPU (tests/emulated), against float64."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import _fastconv_emulated as emulated
import _fastconv_native as native
import reference
from fastconv.activation import ACTIVATIONS
from fastconv.batch_norm import mask_vector
from sweeps import examples

DEVICE = native.DeviceSpec.cuda(arch=90, sm_count=2, smem_optin_bytes=232448)
ONE_BLOCK = native.DeviceSpec.cuda(arch=75, sm_count=1, smem_optin_bytes=64 << 10)  # runs at once
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# N, C, H, W: vectors of one channel and of several, elements of many images and of one; channels by the tile, tiles by
# the channel, more channels than a block has threads; one channel, one pixel.
SIZES = {
    "vectors": (3, 24, 4, 6),
    "odd images": (4, 16, 7, 7),
    "odd channels": (5, 29, 3, 8),
    "nothing even": (3, 5, 5, 3),
    "large images": (2, 3, 48, 52),
    "odd images of two tiles": (6, 4, 19, 19),
    "large odd images": (2, 2, 51, 53),
    "many channels": (3, 4104, 1, 2),
    "very odd channels": (8, 517, 1, 3),
    "pixels": (40, 24, 1, 1),
    "one channel": (3, 1, 9, 8),
    "long": (130, 8, 6, 8),
    "more channels than blocks": (2, 20, 36, 36),
}


@dataclass
class Case:
    """Tensors of a call, and what float64 makes of them."""

    dtype: torch.dtype
    channels_last: bool
    size: tuple[int, int, int, int]
    activation: int
    residual: bool
    training: bool
    wide: bool  # parameters in float32
    eps: float = 1e-3
    momentum: float = 0.3
    device: native.DeviceSpec = DEVICE

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(sum(self.size) + 7 * self.activation)
        format_ = torch.channels_last if self.channels_last else torch.contiguous_format

        def random(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, dtype=torch.float64)

        def image(scale: float = 1.0) -> Tensor:
            return (random(*self.size) * scale).to(self.dtype).contiguous(memory_format=format_)

        def parameter(low: float = -1e9) -> Tensor:
            wide = self.wide and self.dtype != torch.float64
            return random(self.size[1]).clamp_min(low).to(torch.float32 if wide else self.dtype)

        self.x = (image(2.0) + random(1, self.size[1], 1, 1).to(self.dtype)).contiguous(memory_format=format_)
        self.residual_ = image() if self.residual else None
        self.weight, self.bias, self.running_mean = parameter(), parameter(), parameter()
        self.running_var = parameter(0.2)
        self.grad_y = image()

    @property
    def problem(self) -> emulated.NormProblem:
        n, c, h, w = self.size
        dtype = str(self.dtype).removeprefix("torch.")
        return emulated.NormProblem(dtype=dtype, channels_last=self.channels_last, n=n, c=c, pixels=h * w)

    def empty_image(self) -> Tensor:
        return torch.full_like(self.x, float("nan"))

    def expected(self) -> dict[str, Tensor]:
        x, weight, bias = (t.double().requires_grad_() for t in (self.x, self.weight, self.bias))
        leaves = [x, weight, bias]
        running_mean, running_var = self.running_mean.double(), self.running_var.double()
        z = torch.nn.functional.batch_norm(
            x, running_mean, running_var, weight, bias, self.training, self.momentum, self.eps
        )
        if self.residual_ is not None:
            leaves.append(self.residual_.double().requires_grad_())
            z = z + leaves[-1]
        y = reference.ACTIVATIONS[ACTIVATIONS[self.activation]](z)
        grads = torch.autograd.grad(y, leaves, self.grad_y.double())
        names = ["grad_x", "grad_weight", "grad_bias", "grad_residual"]
        values = {"y": y.detach(), "running_mean": running_mean, "running_var": running_var}
        return values | dict(zip(names, grads, strict=False))


def addresses(tensors: dict[str, Tensor | None]) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}


def run(case: Case, masked: bool = True) -> dict[str, Tensor]:
    """masked: relu and relu6 of a sum keep a mask, and not the residual."""
    wide = torch.float64 if case.dtype == torch.float64 else torch.float32
    result = {"y": case.empty_image(), "statistics": torch.full((2, case.size[1]), float("nan"), dtype=wide)}
    result["batches"] = torch.tensor(4)
    result["running_mean"], result["running_var"] = case.running_mean.clone(), case.running_var.clone()
    cuts = masked and ACTIVATIONS[case.activation] in ("relu", "relu6")
    mask = None
    if case.residual and cuts:
        mask = torch.full((case.x.numel() // emulated.norm_vector(case.problem),), 255, dtype=torch.uint8)
    inputs: dict[str, Any] = {"x": case.x, "weight": case.weight, "bias": case.bias, "mask": mask}
    options: dict[str, Any] = {"activation": case.activation, "training": case.training, "wide": case.wide}
    emulated.batch_norm_forward(
        case.problem,
        case.device,
        momentum=case.momentum,
        eps=case.eps,
        addresses=addresses({**inputs, "residual": case.residual_, **result}),
        **options,
    )
    for name in ("grad_weight", "grad_bias"):
        result[name] = torch.full_like(case.weight, float("nan"))
    for name in ("grad_x", *(["grad_residual"] if case.residual else [])):
        result[name] = case.empty_image()
    gradients = {name: tensor for name, tensor in result.items() if name.startswith("grad")}
    inputs |= {"grad_y": case.grad_y, "statistics": result["statistics"]}
    inputs["residual"] = None if cuts else case.residual_
    emulated.batch_norm_backward(case.problem, case.device, addresses=addresses({**inputs, **gradients}), **options)
    return result


def check(case: Case, masked: bool = True) -> None:
    actual, expected = run(case, masked), case.expected()
    for name, value in expected.items():
        scale = value.norm()
        if name in ("grad_weight", "grad_bias"):  # sums of random signs: one that is small by chance is no more exact
            scale = scale.clamp_min(0.5 * case.grad_y.numel() ** 0.5)
        error = (actual[name].double() - value).norm()
        # Of the type that the value is rounded to, and of the one that is summed in.
        eps = torch.finfo(actual[name].dtype).eps
        sums = torch.finfo(torch.float64 if case.dtype == torch.float64 else torch.float32).eps
        assert error <= (eps + 16 * sums) * scale, f"{name}: {error:.1e} of {scale:.1e}"  # which may be zero
    assert actual["batches"].item() == 4 + case.training


@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_way_through_a_tensor(dtype: torch.dtype, size: Any, channels_last: bool) -> None:
    check(Case(dtype, channels_last, size, ACTIVATIONS.index("relu"), residual=False, training=True, wide=True))


@pytest.mark.parametrize("size", [SIZES["vectors"], SIZES["odd images"], SIZES["nothing even"]], ids=str)
@pytest.mark.parametrize("activation", range(len(ACTIVATIONS)), ids=map(str, ACTIVATIONS))
def test_activations(activation: int, size: Any) -> None:
    for dtype, layout, residual, training in itertools.product(DTYPES, (False, True), (False, True), (False, True)):
        for masked in (True, False):
            check(Case(dtype, layout, size, activation, residual, training, wide=dtype == torch.float16), masked)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_traced_masks_have_the_size_of_those_of_kernels(size: Any) -> None:
    for dtype, channels_last in itertools.product(DTYPES, (False, True)):
        case = Case(dtype, channels_last, size, 0, residual=False, training=False, wide=True)
        assert mask_vector(size, dtype.itemsize, channels_last) == emulated.norm_vector(case.problem)


def test_where_blocks_cannot_run_at_once() -> None:
    """A launch for each phase then."""
    emulated.run_together(False)
    try:
        for size, layout, residual in itertools.product(SIZES.values(), (False, True), (False, True)):
            check(Case(torch.float32, layout, size, ACTIVATIONS.index("relu"), residual, training=True, wide=True))
    finally:
        emulated.run_together(True)


def test_a_large_mean_of_few_values() -> None:
    """Whose square overflows."""
    case = Case(torch.float32, False, (2, 3, 2, 2), 0, residual=False, training=True, wide=True)
    case.x = torch.full_like(case.x, 1e20)
    mean, invstd = run(case)["statistics"]
    assert mean.equal(torch.full((3,), 1e20)) and invstd.isfinite().all()


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("activation", [None, "relu", "relu6"])
def test_frozen_statistics_keep_infinite_values_from_gradients(activation: str | None, size: Any) -> None:
    """What an overflow gets of a gradient is as finite as with torch: nothing is subtracted that depends on it."""
    index = ACTIVATIONS.index(activation)
    for dtype, layout in itertools.product(DTYPES, (False, True)):
        case = Case(dtype, layout, size, index, residual=False, training=False, wide=True)
        case.x.as_strided((2,), (1,)).copy_(torch.tensor([-math.inf, math.inf]))
        expected = case.expected()["grad_x"]
        assert expected.isfinite().all()
        error = (run(case)["grad_x"].double() - expected).norm()
        assert error <= 2 * torch.finfo(dtype).eps * expected.norm()


@settings(max_examples=examples(60))
@given(st.data())
def test_any_size(data: st.DataObject) -> None:
    extents = [st.integers(1, 9), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12)]
    size: Any = tuple(data.draw(extent) for extent in extents)
    training = data.draw(st.booleans()) and size[0] * size[2] * size[3] > 1
    case = Case(
        data.draw(st.sampled_from(DTYPES)),
        data.draw(st.booleans()),
        size,
        data.draw(st.integers(0, len(ACTIVATIONS) - 1)),
        data.draw(st.booleans()),
        training,
        wide=data.draw(st.booleans()),
        eps=data.draw(st.sampled_from([1e-5, 1e-3, 0.5])),
        momentum=data.draw(st.sampled_from([0.0, 0.1, 1.0])),
        device=data.draw(st.sampled_from([DEVICE, ONE_BLOCK])),
    )
    check(case)


@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "nhwc"])
def test_a_mean_far_from_zero(channels_last: bool) -> None:
    """1000 and deviation 1: the difference of the squares' mean and the mean's square would have lost all digits."""
    case = Case(torch.float32, channels_last, (16, 8, 16, 16), 0, residual=False, training=True, wide=True, eps=0.0)
    case.x = torch.empty_like(case.x).copy_(1e3 + torch.randn(case.size, generator=torch.Generator().manual_seed(1)))
    expected = case.x.double().var((0, 2, 3), correction=0)
    statistics = run(case)["statistics"].double()
    assert ((statistics[0] - case.x.double().mean((0, 2, 3))).abs() < 1e-4).all()
    assert ((statistics[1] ** -2 / expected - 1).abs() < 1e-5).all()


def test_batches_count_alike() -> None:
    """momentum=None: of a batch after four, a fifth of the running statistics."""
    case = Case(torch.float32, True, (3, 8, 4, 4), 0, residual=False, training=True, wide=True, momentum=-1.0)
    mean = run(case)["running_mean"].double()
    expected = 0.8 * case.running_mean.double() + 0.2 * case.x.double().mean((0, 2, 3))
    assert (mean - expected).norm() < 1e-6 * expected.norm()
