"""The same call gives the same bits, every time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import fastconv
import reference
from check import KERNELS, MODES, Kernel, expect_pass, run_forced, run_pass
from shapes import CASES, DTYPES, NCHW, PASSES, Operands, Problem, operands

# Reductions long enough that an implementation would want to split them.
SPLIT = {
    "long_reduction": CASES["long_reduction"],
    "many_pixels": Problem(16, 4, 40, 40, 4, 3, 3, padding=(1, 1)),
    "depthwise": Problem(16, 8, 40, 40, 8, 5, 5, padding=(2, 2), groups=8),
    "wide": Problem(4, 64, 16, 16, 128, 3, 3, padding=(1, 1)),
    "strided": Problem(8, 16, 33, 33, 16, 3, 3, stride=(2, 2), padding=(1, 1)),
    "even_columns": Problem(8, 48, 16, 32, 64, 3, 3, stride=(2, 2), padding=(1, 1)),
    "patches": Problem(16, 3, 64, 64, 64, 8, 8, stride=(8, 8)),
    "rgb_stem": Problem(8, 3, 40, 44, 48, 7, 7, stride=(2, 2), padding=(3, 3)),
}
names = pytest.mark.parametrize("name", SPLIT)


def training_step(problem: Problem, dtype: torch.dtype, device: str) -> list[Tensor]:
    o = operands(problem.with_(bias=True), dtype, device)
    assert o.bias is not None
    x, w, b = leaves = [t.requires_grad_() for t in (o.input, o.weight, o.bias)]
    y = fastconv.conv2d(x, w, b, *problem.geometry)
    y.backward(o.grad_output)
    return [y.detach(), *(t.grad for t in leaves if t.grad is not None)]


@names
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_runs_are_bitwise_equal(device: str, dtype: torch.dtype, name: str) -> None:
    first = training_step(SPLIT[name], dtype, device)
    for _ in range(100 if device == "cuda" else 5):
        assert all(torch.equal(a, b) for a, b in zip(first, training_step(SPLIT[name], dtype, device), strict=True))


@pytest.mark.cuda
@pytest.mark.parametrize("kernel", [k for k in KERNELS if "depthwise_banded_wgrad_" in k.name], ids=lambda k: k.name)
def test_blocks_that_fill_the_device_are_right(kernel: Kernel, cuda: str) -> None:
    """Small maps, whose blocks are short, follow each other without a pause: what one leaves behind must not show."""
    ran = False
    for taps, size in ((3, 7), (5, 7), (7, 7), (3, 14), (7, 14)):
        stride = 2 if "s2" in kernel.name else 1
        half = (taps // 2, taps // 2)
        problem = Problem(64, 1152, stride * size, stride * size, 1152, taps, taps, (stride, stride), half, groups=1152)
        o = operands(problem, torch.float16, cuda)
        first = run_forced(kernel, o, problem)
        if first is None:
            continue
        ran = True
        reference.assert_right(first, expect_pass("wgrad", o, problem), kernel.name)
        for _ in range(20):
            again = run_forced(kernel, o, problem)
            assert again is not None and torch.equal(first, again), (kernel.name, problem)
    assert ran


@pytest.mark.parametrize(
    "kernel", [pytest.param(k, id=k.name, marks=[pytest.mark.cuda] * (k.device == "cuda")) for k in KERNELS]
)
def test_each_kernel_is_bitwise_repeatable(kernel: Kernel) -> None:
    repeats = 1000 if kernel.device == "cuda" else 20
    modes = [*((torch.float32, mode) for mode in MODES), (torch.float16, "ieee")]
    for problem, (dtype, mode), layout in itertools.product(SPLIT.values(), modes, ("contiguous", "channels_last")):
        o = operands(problem, dtype, kernel.device, views=(layout,) * 3)
        first = run_forced(kernel, o, problem, mode)
        if first is None:
            continue
        for _ in range(repeats):
            again = run_forced(kernel, o, problem, mode)
            assert again is not None and torch.equal(first, again)
        repeats = 20  # of the other problems


@cache
def sources(problem: Problem, dtype: torch.dtype, layout: str) -> list[Operands]:
    return [operands(problem, dtype, "cuda", seed, views=(layout,) * 3) for seed in range(2)]


@pytest.mark.cuda
@pytest.mark.parametrize("kernel", [pytest.param(k, id=k.name) for k in KERNELS if k.device == "cuda"])
def test_each_kernel_waits_for_the_kernel_before_it(kernel: Kernel) -> None:
    """Here that one writes what it reads, where something else was before.

    On Hopper gradients of the weight are launched in the meantime, and all kernels of a call but its first.
    """

    def write(o: Operands) -> Operands:
        values = getattr(o, which)
        ones = torch.ones(values.size(1), 1, 1, 1, device="cuda", dtype=values.dtype)
        return replace(o, **{which: fastconv.conv2d(values, ones, groups=len(ones))})

    problems = [p for p in (*SPLIT.values(), *CASES.values(), *NCHW.values()) if p.n]
    modes = [*((torch.float32, mode) for mode in MODES), (torch.float16, "ieee"), (torch.float64, "ieee")]
    which = "input" if kernel.pass_ == "fprop" else "grad_output"
    waited = 0
    for problem, (dtype, mode), layout in itertools.product(problems, modes, ("contiguous", "channels_last")):
        both = sources(problem, dtype, layout)
        written = [write(o) for o in both]
        expected = [y for o in written if (y := run_forced(kernel, o, problem, mode)) is not None]
        if not expected:
            continue
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)  # until all are under way
        results = [run_forced(kernel, write(both[i % 2]), problem, mode, poisons=False) for i in range(20)]
        for i, result in enumerate(results):
            assert result is not None and torch.equal(result, expected[i % 2])
        waited += 1
        if waited == 3:
            break
    assert waited > 0


@names
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_number_of_threads_does_not_matter(dtype: torch.dtype, name: str) -> None:
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append(training_step(SPLIT[name], dtype, "cpu"))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.cuda
def test_a_busy_gpu_does_not_matter(cuda: str) -> None:
    """Blocks finish in another order when other work competes for the chip."""
    expected = training_step(SPLIT["many_pixels"], torch.float32, cuda)
    side, a = torch.cuda.Stream(), torch.randn(2048, 2048, device=cuda)
    for _ in range(20):
        with torch.cuda.stream(side):
            a @ a
        assert all(
            torch.equal(x, y)
            for x, y in zip(expected, training_step(SPLIT["many_pixels"], torch.float32, cuda), strict=True)
        )


def test_torchs_deterministic_mode_is_satisfied(device: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        for pass_ in PASSES:
            run_pass(pass_, operands(CASES["plain_3x3"], torch.float32, device), CASES["plain_3x3"])
    finally:
        torch.use_deterministic_algorithms(False)
