"""A good citizen of the GPU: streams, devices, threads, graphs, memory. And, on the CPU, of threads and memory."""

from __future__ import annotations

import gc
import os
import random
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

import fastconv
import reference
import sweeps
from shapes import CASES, DTYPES, NCHW, PASSES, PUBLIC, Problem, operands, tensor

MIB = 2**20
PROBLEM = Problem(2, 16, 24, 24, 32, 3, 3, padding=(1, 1))


def training_step(device: str, seed: int = 0, problem: Problem = PROBLEM) -> list[Tensor]:
    o = operands(problem, torch.float32, device, seed)
    x, w = o.input.requires_grad_(), o.weight.requires_grad_()
    y = fastconv.conv2d(x, w, None, *problem.geometry)
    return [y.detach(), *torch.autograd.grad(y, (x, w), o.grad_output)]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_threads_do_not_disturb_each_other(device: str) -> None:
    expected = [training_step(device, seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert all(map(equal, expected, pool.map(lambda seed: training_step(device, seed), range(8))))


def test_the_source_of_each_kernel_waits_for_the_kernel_before_it() -> None:
    """On Hopper it is launched before that one has ended, and what that one writes is not constant; launch.cuh."""
    root = Path(__file__).parents[1]
    kernels = 0
    for file in (f for folder in ("include", "src") for f in (root / folder).rglob("*.cu*")):
        text = file.read_text()
        assert not re.search(r"__ldg\(|ld\.global\.nc", text), file
        for kernel in text.split("__global__")[1:]:
            assert "ptx::follow_previous_kernel();" in kernel, file
            kernels += 1
    assert kernels > 20


@pytest.mark.cuda
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(64, 56), (256, 14)])
def test_a_weight_gradient_waits_for_the_convolution_before_it(
    cuda: str, size: tuple[int, int], memory_format: torch.memory_format
) -> None:
    """On Hopper it is launched before the kernel ahead of it has ended, and here it reads what that one writes."""
    channels, width = size
    shape = (32, channels, width, width)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, device=cuda, dtype=torch.float16).to(memory_format=memory_format)

    weight, grad_output = random(channels, channels, 3, 3), random(*shape)
    inputs = [random(*shape) for _ in range(8)]

    def gradient(x: Tensor, *, together: bool) -> Tensor:
        y = fastconv.conv2d(x, weight, padding=1)
        if not together:
            torch.cuda.synchronize()
        return fastconv.grad.conv2d_weight(y, list(weight.shape), grad_output, padding=1)

    expected = [gradient(x, together=False) for x in inputs]
    torch.cuda.synchronize()
    for _ in range(5):
        assert equal([gradient(x, together=True) for x in inputs], expected)


@pytest.mark.cuda
def test_each_stream_sees_its_own_work(cuda: str) -> None:
    """Results are ordered after what the same stream did before, on any stream and in the backward."""
    expected = [training_step(cuda, seed) for seed in range(4)]
    torch.cuda.synchronize()
    streams, results = [torch.cuda.Stream() for _ in range(4)], []
    for seed, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            results.append(training_step(cuda, seed))
    torch.cuda.synchronize()
    assert all(map(equal, expected, results))


def norm_step(device: str, seed: int) -> list[Tensor]:
    """Of a batch norm whose blocks wait for each other, and have more than one wave's work."""
    torch.manual_seed(seed)
    x = torch.randn(16, 64, 56, 56, device=device, requires_grad=True)
    weight, bias = (torch.randn(64, device=device, requires_grad=True) for _ in range(2))
    y = fastconv.batch_norm_act(x, None, None, weight, bias, training=True, activation="relu")
    return [y.detach(), *torch.autograd.grad(y.square().sum(), (x, weight, bias))]


@pytest.mark.cuda
def test_batch_norms_of_several_streams(cuda: str) -> None:
    """None gets places on the GPU that another waits for."""
    expected = [norm_step(cuda, seed) for seed in range(4)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    for _ in range(20):
        results = []
        for seed, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results.append(norm_step(cuda, seed))
        torch.cuda.synchronize()
        assert all(map(equal, expected, results))


@pytest.mark.cuda
def test_a_batch_norm_runs_beside_a_long_kernel(cuda: str) -> None:
    """Of one block, as a collective's that waits for another GPU: which may wait for this GPU in turn."""
    side, main = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(main):
        expected = norm_step(cuda, 0)  # and the stream has the memory that it needs
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(4_000_000_000)  # clocks: two seconds
    with torch.cuda.stream(main):
        result = norm_step(cuda, 0)
    main.synchronize()
    assert not side.query()
    assert equal(result, expected)
    side.synchronize()


@pytest.mark.cuda
def test_a_thread_that_has_used_no_cuda_yet(cuda: str) -> None:
    """As one of autograd's may be, when the allocator has all memory that it needs. Tensor maps want more."""
    o = operands(PROBLEM, torch.float16, cuda, views=("channels_last",) * 3)
    call = partial(fastconv.conv2d, o.input, o.weight, None, *PROBLEM.geometry)
    expected = [call().clone() for _ in range(2)][0]
    torch.cuda.synchronize()
    results: list[Tensor] = []
    thread = Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    assert torch.equal(results[0], expected)


@pytest.mark.cuda
def test_threads_on_their_own_streams(cuda: str) -> None:
    expected = [training_step(cuda, seed) for seed in range(8)]
    torch.cuda.synchronize()

    def work(seed: int) -> list[Tensor]:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            result = training_step(cuda, seed)
        stream.synchronize()
        return result

    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            assert all(map(equal, expected, pool.map(work, range(8))))


@pytest.mark.cuda
def test_the_tensors_device_is_used_and_the_current_one_kept(cuda: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    expected = training_step("cuda:0")
    with torch.cuda.device(0):
        other = training_step("cuda:1")
        assert torch.cuda.current_device() == 0
    assert all(t.device.index == 1 for t in other)
    assert equal(expected, [t.to("cuda:0") for t in other])


GRAPHED = ["plain_3x3", "grouped", "depthwise_strided", "long_reduction", "rgb_stem"]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*GRAPHED, "odd planes", "more blocks than run at once"])
def test_a_training_step_is_captured_in_a_graph(cuda: str, name: str, dtype: torch.dtype) -> None:
    problem = {**CASES, **NCHW}[name].with_(bias=True)
    o = operands(problem, dtype, cuda)
    assert o.bias is not None
    x, w, b = (t.requires_grad_() for t in (o.input, o.weight, o.bias))

    def step() -> tuple[Tensor, ...]:
        y = fastconv.conv2d(x, w, b, *problem.geometry, precision="ieee")
        return (y, *torch.autograd.grad(y, (x, w, b), o.grad_output))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    fresh = operands(problem, dtype, cuda, seed=7)
    with torch.no_grad():
        x.copy_(fresh.input)
        w.copy_(fresh.weight)
    for result in captured:
        result.detach().fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert equal([t.detach() for t in captured], [t.detach() for t in step()])
    reference.assert_right(captured[0], reference.output(x, w, b, *problem.geometry))


@pytest.mark.cuda
def test_make_graphed_callables(cuda: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(fastconv.Conv2d(3, 8, 3), torch.nn.ReLU(), fastconv.Conv2d(8, 4, 1)).to(cuda)
    x = tensor((2, 3, 12, 12), device=cuda).requires_grad_()
    expected = torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()])
    graphed: Any = torch.cuda.make_graphed_callables(net, (x,))
    assert equal(list(expected), list(torch.autograd.grad(graphed(x).square().sum(), [x, *net.parameters()])))


def random_problems(count: int, seed: int) -> list[Problem]:
    rng = random.Random(seed)
    groups = [rng.choice((1, 1, 2, 4)) for _ in range(count)]
    return [
        Problem(
            rng.randint(1, 3),
            4 * g,
            rng.randint(3, 30),
            rng.randint(3, 30),
            8 * g,
            rng.randint(1, 3),
            rng.randint(1, 3),
            stride=(rng.randint(1, 2), rng.randint(1, 2)),
            padding=(rng.randint(0, 2), rng.randint(0, 2)),
            groups=g,
        )  # fmt: skip
        for g in groups
    ]


@pytest.mark.cuda
@pytest.mark.alone
def test_memory_stays_flat_over_a_thousand_shapes(cuda: str) -> None:
    """Nothing is kept per shape: no workspace, no plan with a tensor in it, no autotuned buffer."""
    training_step(cuda)
    torch.cuda.synchronize()
    gc.collect()  # what earlier tests left must not go in between
    before = torch.cuda.memory_allocated()
    free_before = torch.cuda.mem_get_info()[0]
    for problem in random_problems(1000, 1):
        training_step(cuda, problem=problem)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    torch.cuda.empty_cache()
    # What torch's allocator does not account for, cudaMalloc of our own among it.
    assert free_before - torch.cuda.mem_get_info()[0] <= 64 * MIB


def peak_growth(script: str) -> int:
    """Bytes by which a script's peak memory grew since it set `before`, in a process whose peak nobody else moved."""
    head = "import resource\ndef peak(): return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    tail = "\nprint(peak() - before)"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(script) + tail],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_host_memory_stays_flat_over_a_thousand_shapes() -> None:
    growth = peak_growth(
        """
        from test_streams import random_problems, training_step
        for problem in random_problems(300, 1):
            training_step("cpu", problem=problem)
        before = peak()
        for problem in random_problems(1000, 2):
            training_step("cpu", problem=problem)
        """
    )
    assert growth <= 32 * MIB


@pytest.mark.cuda
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", PUBLIC)
def test_workspace_is_bounded(cuda: str, name: str, pass_: str) -> None:
    """At most 256 MiB or a quarter of the tensors besides the result and the parts of float32, in every pass of every
    public problem."""
    problem = PUBLIC[name]
    sizes = {"fprop": problem.output_size, "dgrad": problem.input_size, "wgrad": problem.weight_size}
    x, w, dy = (torch.randn(s, device=cuda) for s in (problem.input_size, problem.weight_size, problem.output_size))
    ops, geometry = torch.ops.fastconv, problem.geometry
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    if pass_ == "fprop":
        result = ops.conv2d(x, w, None, *geometry)
    elif pass_ == "dgrad":
        result = ops.conv2d_input(problem.input_size, w, dy, *geometry)
    else:
        result = ops.conv2d_weight(x, problem.weight_size, dy, *geometry)
    assert result.shape == sizes[pass_]
    tensors = x.nbytes + w.nbytes + dy.nbytes
    rounding = 2 * MIB  # torch's allocator rounds blocks up
    assert (
        torch.cuda.max_memory_allocated() - before
        <= result.nbytes + max(256 * MIB, tensors // 4) + tensors * 3 // 2 + rounding
    )


@sweeps.sweep(3)
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cpu_scratch_is_small(dtype: torch.dtype, layout: str, pass_: str) -> None:
    """im2col of the whole problem would take 1.2 GiB; blocks that stay in cache take little."""
    growth = peak_growth(
        f"""
        import torch
        from check import run_pass
        from shapes import Problem, operands
        torch.set_num_threads(2)
        problem = Problem(8, 64, 64, 128, 64, 5, 7, padding=(2, 3))
        small = problem.with_(h=8, w=8)
        o, few = (operands(p, {dtype}, views=({layout!r},) * 3) for p in (problem, small))
        run_pass({pass_!r}, few, small)
        before = peak()
        run_pass({pass_!r}, o, problem)
        """
    )
    assert growth <= 8 * 64 * 64 * 128 * dtype.itemsize + 32 * MIB


@pytest.mark.cuda
def test_out_of_memory_is_torchs_error_and_recoverable(cuda: str) -> None:
    total = torch.cuda.mem_get_info()[1]
    side = int((total / 4) ** 0.5)
    x = torch.ones(1, 1, 1, 1, device=cuda).expand(1, 1, side, side)
    with pytest.raises(RuntimeError, match="(?i)memory"):
        fastconv.conv2d(x, torch.ones(2, 1, 1, 1, device=cuda))
    torch.cuda.empty_cache()
    o = operands(PROBLEM, torch.float32, cuda)
    y = fastconv.conv2d(o.input, o.weight, None, *PROBLEM.geometry, precision="ieee")
    reference.assert_right(y, reference.output(o.input, o.weight, None, *PROBLEM.geometry))
