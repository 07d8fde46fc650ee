"""Under autocast fastconv casts as F.conv2d does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastconv
import reference
from shapes import tensor

low = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@low
@pytest.mark.parametrize("from_", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_operands_are_cast(device: str, dtype: torch.dtype, from_: torch.dtype) -> None:
    x, w, b = (
        tensor((2, 3, 8, 8), from_, device),
        tensor((4, 3, 3, 3), from_, device, 1),
        tensor((4,), from_, device, 2),
    )
    with torch.autocast(device, dtype):
        ours, theirs = fastconv.conv2d(x, w, b), F.conv2d(x, w, b)
    assert ours.dtype == theirs.dtype == dtype
    reference.assert_right(ours, reference.output(x.to(dtype), w.to(dtype), b.to(dtype)))


@low
def test_mixed_operands_are_cast_to_one_dtype(device: str, dtype: torch.dtype) -> None:
    """A half activation meets a float32 filter in every autocast model."""
    x, w = tensor((2, 3, 8, 8), dtype, device), tensor((4, 3, 3, 3), torch.float32, device, 1)
    with torch.autocast(device, dtype):
        y = fastconv.conv2d(x, w)
    reference.assert_right(y, reference.output(x, w.to(dtype)))


def test_float64_is_left_alone(device: str) -> None:
    """As by torch: autocast casts no float64."""
    x, w = tensor((2, 3, 8, 8), torch.float64, device), tensor((4, 3, 3, 3), torch.float64, device, 1)
    with torch.autocast(device, torch.bfloat16):
        ours, theirs = fastconv.conv2d(x, w), F.conv2d(x, w)
    assert ours.dtype == theirs.dtype


@low
def test_gradients_come_back_in_the_parameters_dtype(device: str, dtype: torch.dtype) -> None:
    layer = fastconv.Conv2d(3, 4, 3, device=device)
    x = tensor((2, 3, 8, 8), torch.float32, device).requires_grad_()
    with torch.autocast(device, dtype):
        y = layer(x)
    dy = tensor(y.shape, dtype, device, 3)
    y.backward(dy)
    assert layer.bias is not None
    expected = reference.gradients(x.to(dtype), layer.weight.to(dtype), dy)
    for leaf, gradient in ((x, expected.input), (layer.weight, expected.weight), (layer.bias, expected.bias)):
        assert leaf.grad is not None and leaf.grad.dtype == torch.float32
        reference.assert_right(leaf.grad.to(dtype), gradient)


def test_disabled_inside(device: str) -> None:
    x, w = tensor((2, 3, 8, 8), device=device), tensor((4, 3, 3, 3), device=device, seed=1)
    with torch.autocast(device, torch.bfloat16), torch.autocast(device, enabled=False):
        assert fastconv.conv2d(x, w).dtype == torch.float32


def test_the_op_itself_is_cast(device: str) -> None:
    x, w = tensor((2, 3, 8, 8), device=device), tensor((4, 3, 3, 3), device=device, seed=1)
    with torch.autocast(device, torch.bfloat16):
        assert torch.ops.fastconv.conv2d(x, w).dtype == torch.bfloat16


def test_meta_tensors_under_autocast_of_a_device(device: str) -> None:
    x, w = torch.empty(2, 3, 8, 8, device="meta"), torch.empty(4, 3, 3, 3, device="meta")
    with torch.autocast(device, torch.bfloat16):
        assert fastconv.conv2d(x, w).shape == (2, 4, 6, 6)


@pytest.mark.cuda
def test_a_gradscaler_step(cuda: str) -> None:
    torch.manual_seed(0)
    layer = fastconv.Conv2d(3, 4, 3, device=cuda)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler(cuda)
    x, before, losses = tensor((4, 3, 8, 8), device=cuda), layer.weight.detach().clone(), []
    for _ in range(3):
        with torch.autocast(cuda, torch.float16):
            loss = layer(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and not torch.equal(before, layer.weight)


def test_what_is_no_tensor_is_a_type_error_under_autocast_too(device: str) -> None:
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    with torch.autocast(device):
        with pytest.raises(TypeError, match="input"):
            fastconv.conv2d(None, w)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="weight"):
            fastconv.conv2d(x, None)  # type: ignore[arg-type]


def casts_of(profile: torch.profiler.profile) -> int:
    return sum(event.name == "aten::_to_copy" for event in profile.events())


def test_a_filter_that_is_used_several_times_is_cast_once(device: str) -> None:
    x = tensor((2, 3, 8, 8), torch.bfloat16, device)
    w = tensor((3, 3, 3, 3), torch.float32, device, 1).requires_grad_()
    grads = []
    for conv2d in (fastconv.conv2d, F.conv2d):
        with (
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
            torch.autocast(device, torch.bfloat16),
        ):
            y = conv2d(conv2d(conv2d(x, w), w), w)
        assert casts_of(profile) == 1
        grads.append(torch.autograd.grad(y.float().sum(), w)[0])
    ours, theirs = grads
    assert torch.linalg.vector_norm(ours - theirs) <= 2e-2 * torch.linalg.vector_norm(theirs)  # rounded three times


@pytest.mark.parametrize("change", ["step", "other memory", "dtype", "no grad", "cache off"])
def test_a_cast_serves_only_what_it_was_made_of(device: str, change: str) -> None:
    x = tensor((2, 3, 8, 8), torch.bfloat16, device)
    w = tensor((4, 3, 3, 3), torch.float32, device, 1).requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        kept = fastconv.conv2d(x, w)  # whose graph keeps the cast
    dtype = torch.float16 if change == "dtype" else torch.bfloat16
    with torch.no_grad():
        if change == "step":
            w += 1
    if change == "other memory":
        w.data = w.data + 1
    with (
        torch.autocast(device, dtype, cache_enabled=change != "cache off"),
        torch.set_grad_enabled(change != "no grad"),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
    ):
        y = fastconv.conv2d(x, w)
    assert casts_of(profile) >= 1
    assert (y.dtype, y.requires_grad) == (dtype, change != "no grad")
    reference.assert_right(y, reference.output(x.to(dtype), w.to(dtype)))
    assert kept.requires_grad


@pytest.mark.parametrize("what", ["conv2d", "padded conv2d", "Conv2d", "conv_bn_act", "ConvBnAct2d", "batch_norm_act"])
@pytest.mark.parametrize("from_", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_residual_is_cast(device: str, from_: torch.dtype, what: str) -> None:
    """torch's addition takes both; the gradient comes back in the residual's own dtype."""
    x, w = tensor((2, 3, 8, 8), device=device), tensor((4, 3, 3, 3), device=device, seed=1)
    norm: Any = {"running_mean": None, "running_var": None, "training": True}
    functions: dict[str, Callable[..., Tensor]] = {
        "conv2d": lambda r: fastconv.conv2d(x, w, residual=r, activation="silu"),
        "padded conv2d": lambda r: fastconv.conv2d(x, w, padding="valid", residual=r),
        "Conv2d": fastconv.Conv2d(3, 4, 3, activation="relu", device=device),
        "conv_bn_act": lambda r: fastconv.conv_bn_act(x, w, None, **norm, residual=r, activation="relu"),
        "ConvBnAct2d": fastconv.ConvBnAct2d(3, 4, 3, device=device),
        "batch_norm_act": lambda r: fastconv.batch_norm_act(y, **norm, residual=r, activation="relu"),
    }
    function, arguments = functions[what], (x,) if what[0].isupper() else ()
    y, residual = tensor((2, 4, 6, 6), torch.bfloat16, device, 2), tensor((2, 4, 6, 6), from_, device, 3)
    results = []
    for cast in (False, True):
        leaf = residual.clone().requires_grad_()
        with torch.autocast(device, torch.bfloat16):
            output = function(*arguments, leaf.to(torch.bfloat16) if cast else leaf)
        assert output.dtype == torch.bfloat16
        output.backward(y)
        assert leaf.grad is not None and leaf.grad.dtype == from_
        results.append((output.detach(), leaf.grad))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    if from_ != torch.bfloat16:
        with pytest.raises(RuntimeError, match="same dtype"):
            fastconv.batch_norm_act(y, **norm, residual=residual)


def test_a_residual_of_float64_layers_is_left_alone(device: str) -> None:
    layer = fastconv.ConvBnAct2d(3, 4, 3, dtype=torch.float64, device=device)
    x, residual = (tensor(size, torch.float64, device) for size in ((2, 3, 8, 8), (2, 4, 6, 6)))
    expected = layer(x, residual)
    with torch.autocast(device, torch.bfloat16):
        torch.testing.assert_close(layer(x, residual), expected, rtol=0, atol=0)


def test_a_residual_is_cast_when_compiled(device: str) -> None:
    torch._dynamo.reset()
    layers = torch.nn.ModuleList([fastconv.ConvBnAct2d(3, 4, 3), fastconv.Conv2d(3, 4, 3)]).to(device)
    x, residual = tensor((2, 3, 8, 8), device=device), tensor((2, 4, 6, 6), device=device)
    with torch.autocast(device, torch.bfloat16):
        for layer in layers:
            y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, residual)
            torch.testing.assert_close(y, layer(x, residual))


def _layers(x: Tensor, w: Tensor, running: Tensor) -> dict[str, Callable[[], Tensor]]:
    return {
        "conv2d": lambda: fastconv.conv2d(x, w),
        "silu": lambda: fastconv.conv2d(x, w, activation="silu"),
        "relu": lambda: fastconv.conv2d(x, w, activation="relu"),
        "norm": lambda: fastconv.conv_bn_act(
            x, w, None, running.clone(), running.clone(), None, None, activation="gelu", training=True
        ),
    }


@pytest.mark.parametrize("name", ["conv2d", "silu", "relu", "norm"])
@pytest.mark.parametrize("twice", [False, True])
def test_gradients_are_as_exact_within_autocast_as_outside(device: str, name: str, twice: bool) -> None:
    """A gradient penalty: the critic runs in float32, its gradients are taken where autocast is on."""
    x = tensor((4, 8, 9, 9), torch.float32, device).requires_grad_()
    w = tensor((8, 8, 3, 3), torch.float32, device, 1).requires_grad_()
    results = []
    for enabled in (False, True):
        y = _layers(x, w, torch.ones(8, device=device))[name]()
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            grads = torch.autograd.grad(y.pow(2).sum(), (x, w), create_graph=True)
            if twice:
                grads = torch.autograd.grad(torch.stack([grad.pow(2).sum() for grad in grads]).sum(), (x, w))
        results.append(grads)
    for plain, within in zip(*results, strict=True):
        assert within.dtype == plain.dtype
        assert (within - plain).norm() <= 1e-5 * plain.norm()
