"""Complex numbers: one real convolution of stacked channels, right in every pass and behind every transform."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastconv
from fastconv.activation import ACTIVATIONS
from shapes import CASES, VIEWS, Problem, tensor

PROBLEMS = {
    "dense": Problem(2, 4, 7, 6, 6, 3, 3, stride=(2, 1), padding=(1, 0), bias=True),
    "grouped": Problem(2, 4, 7, 6, 6, 3, 2, padding=(1, 1), groups=2, bias=True),
    "depthwise": Problem(2, 4, 7, 6, 4, 3, 3, dilation=(1, 2), groups=4),
    "unbatched": Problem(None, 4, 7, 6, 6, 3, 3, bias=True),
    "one_channel": Problem(2, 1, 7, 6, 1, 3, 3),
    "empty_batch": CASES["empty_batch"],
}
# Of float32 and float64, 2^10 units in the last place of the sum of some hundred products near 1.
TOLERANCE = {torch.complex64: 1e-4, torch.complex128: 1e-13}


def complex_tensor(
    size: tuple[int, ...], dtype: torch.dtype, device: str, seed: int, view: str = "contiguous"
) -> Tensor:
    parts = [tensor(size, torch.float64, "cpu", seed + i) for i in range(2)]
    dense = torch.complex(*parts).to(dtype)
    if view == "channels_last" and len(size) == 4:
        dense = dense.to(memory_format=torch.channels_last)
    return dense.to(device)


def operands(problem: Problem, dtype: torch.dtype, device: str, view: str) -> list[Tensor]:
    """Input, weight, gradient of the output and, where there is one, the bias."""
    sizes = [problem.input_size, problem.weight_size, problem.output_size]
    if problem.bias:
        sizes.append((problem.k,))
    return [complex_tensor(size, dtype, device, 10 * i, view) for i, size in enumerate(sizes)]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype in TOLERANCE
    error = (actual.detach().cpu().to(torch.complex128) - expected.detach()).abs()
    assert actual.shape == expected.shape and bool((error <= TOLERANCE[actual.dtype]).all())


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("view", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_pass_is_torchs(device: str, dtype: torch.dtype, view: str, name: str) -> None:
    problem = PROBLEMS[name]
    ours = operands(problem, dtype, device, view)
    theirs = [t.cpu().to(torch.complex128).contiguous() for t in ours]
    results = []
    for convolve, (x, w, dy, *b) in ((fastconv.conv2d, ours), (F.conv2d, theirs)):
        wanted = [t.requires_grad_() for t in (x, w, *b)]
        options: dict[str, Any] = {"precision": "ieee"} if convolve is fastconv.conv2d else {}
        y = convolve(x, w, b[0] if b else None, *problem.geometry, **options)
        results.append([y, *torch.autograd.grad(y, wanted, dy)])
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)
    assert results[0][2].stride() == ours[1].stride()
    functions = fastconv.grad.conv2d_input, fastconv.grad.conv2d_weight
    x, w, dy = (t.detach() for t in ours[:3])
    by_size = (
        functions[0](problem.input_size, w.conj(), dy, *problem.geometry, precision="ieee"),
        functions[1](x.conj(), problem.weight_size, dy, *problem.geometry, precision="ieee"),
    )
    for actual, expected in zip(by_size, results[1][1:3], strict=True):
        assert_close(actual, expected)


def test_derivatives_of_any_order(device: str) -> None:
    problem = PROBLEMS["grouped"].with_(n=1, h=4, w=4)
    x, w, _, b = operands(problem, torch.complex128, device, "contiguous")
    inputs = tuple(t.requires_grad_() for t in (x, w, b))

    def function(*tensors: Tensor) -> Tensor:
        x, w, b = tensors
        return fastconv.conv2d(x, w, b, *problem.geometry)

    torch.autograd.gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("view", VIEWS)
def test_the_result_is_laid_out_as_fake_tensors_say(device: str, view: str) -> None:
    x = torch.complex(*(tensor((2, 4, 7, 6), torch.float32, device, seed, view=view) for seed in (0, 1)))
    w = complex_tensor((6, 4, 3, 3), torch.complex64, device, 2)
    for images in (x, x.to(memory_format=torch.channels_last), x[:, :1]):
        filters = w[:, : images.shape[1]]
        real = fastconv.conv2d(images, filters)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = fastconv.conv2d(mode.from_tensor(images), mode.from_tensor(filters))
        assert (fake.size(), fake.stride(), fake.dtype) == (real.size(), real.stride(), real.dtype)


def test_transforms(device: str) -> None:
    torch._dynamo.reset()
    xs = complex_tensor((12, 3, 6, 6), torch.complex64, device, 0).unflatten(0, (3, 4))
    ws = complex_tensor((12, 3, 3, 3), torch.complex64, device, 2).unflatten(0, (3, 4))
    each = torch.stack(
        [F.conv2d(x.cpu().to(torch.complex128), w.cpu().to(torch.complex128)) for x, w in zip(xs, ws, strict=True)]
    )
    with fastconv.precision("ieee"):
        assert_close(torch.vmap(fastconv.conv2d)(xs, ws), each)
        compiled = torch.compile(lambda x, w: fastconv.conv2d(x, w), fullgraph=True, backend="aot_eager")
        assert_close(compiled(xs[0], ws[0]), each[0])
        with torch.inference_mode():
            assert_close(torch.ops.fastconv.conv2d(xs[0].conj().conj_physical(), ws[0], precision="ieee"), each[0])


def test_lazily_conjugated_views_are_read_as_conjugated(device: str) -> None:
    x = complex_tensor((2, 3, 6, 6), torch.complex64, device, 0)
    w = complex_tensor((4, 3, 3, 3), torch.complex64, device, 2)
    expected = F.conv2d(x.conj().cpu().to(torch.complex128), w.conj().cpu().to(torch.complex128))
    assert x.conj().is_conj()
    assert_close(fastconv.conv2d(x.conj(), w.conj(), precision="ieee"), expected)


def test_real_and_complex_do_not_mix(device: str) -> None:
    x, w = tensor((1, 2, 5, 5), device=device), complex_tensor((3, 2, 3, 3), torch.complex64, device, 0)
    with pytest.raises(RuntimeError, match="float32.*complex64"):
        fastconv.conv2d(x, w)


def test_explain_plans_the_real_convolution() -> None:
    arguments: dict[str, Any] = {"dtype": torch.complex64, "device": "cpu"}
    assert "C4 H8 W8 K6" in fastconv.explain((1, 2, 8, 8), (3, 2, 3, 3), **arguments)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("residual", [False, True])
def test_an_activation_is_refused(device: str, activation: Any, residual: bool) -> None:
    x, w = (complex_tensor(size, torch.complex64, device, 0) for size in ((2, 3, 6, 6), (4, 3, 3, 3)))
    added = complex_tensor((2, 4, 4, 4), torch.complex64, device, 1) if residual else None
    layer = fastconv.Conv2d(3, 4, 3, bias=False, dtype=torch.complex64, device=device, activation=activation)
    for call in (
        lambda: fastconv.conv2d(x, w, activation=activation, residual=added, precision="ieee"),
        lambda: torch.ops.fastconv.conv2d_act(x, w, activation=activation, residual=added, precision="ieee"),
        lambda: layer(x, added),
    ):
        if activation is None:
            assert call().dtype == torch.complex64
            continue
        with pytest.raises(NotImplementedError, match="must be float32, .* where an activation follows.*complex64"):
            call()
