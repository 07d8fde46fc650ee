"""The seventeen mistakes of earlier attempts at this, each by its number."""

from __future__ import annotations

import inspect
import mmap
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._autograd import DeviceType

import fastconv
import reference
from check import check_problem
from shapes import DTYPES, VIEWS, Problem, operands, tensor


def forward(x: Tensor, w: Tensor, b: Tensor | None = None, *geometry: Any) -> Tensor:
    y: Tensor = fastconv.conv2d(x, w, b, *geometry, precision="ieee")
    return y


@pytest.mark.parametrize("h", [1, 15, 16, 17, 31, 33, 63, 65, 127, 129])
def test_01_partial_tiles_are_right(device: str, h: int) -> None:
    for w, c, k in ((h, 5, 7), (130 - h, 17, 33), (3, 33, 65)):
        check_problem(Problem(1, c, h, w, k, 3, 3, padding=(1, 1)), torch.float32, device)


@pytest.mark.parametrize(("r", "s"), [(0, 0), (0, 6), (4, 0), (4, 6), (2, 3)])
def test_02_the_halo_is_loaded(device: str, r: int, s: int) -> None:
    """A filter with a single tap moves the image, corner taps included."""
    x, w = tensor((2, 1, 70, 66), device=device), torch.zeros(1, 1, 5, 7, device=device)
    w[0, 0, r, s] = 1
    assert torch.equal(forward(x, w), x[:, :, r : r + 66, s : s + 60])


def test_03_output_size_is_that_of_torch(device: str) -> None:
    for size in range(1, 14):
        for kernel in range(1, 5):
            for stride, padding, dilation in ((1, 0, 1), (2, 0, 1), (3, 1, 2), (2, 3, 3), (4, 2, 1), (1, 1, 4)):
                if size + 2 * padding < dilation * (kernel - 1) + 1:
                    continue
                x, w = torch.zeros(1, 1, size, 3, device=device), torch.zeros(1, 1, kernel, 1, device=device)
                geometry = ((stride, 1), (padding, 0), (dilation, 1))
                assert fastconv.conv2d(x, w, None, *geometry).shape == F.conv2d(x, w, None, *geometry).shape


@pytest.mark.parametrize(
    "change",
    [
        {"stride": (2, 1)},
        {"stride": (1, 3)},
        {"padding": (2, 0)},
        {"padding": (0, 1)},
        {"dilation": (2, 1)},
        {"dilation": (1, 3)},
        {"groups": 2},
        {"bias": True},
        {"r": 1, "s": 1},
        {"r": 5, "s": 2},
        {"r": 11, "s": 11},
    ],
    ids=str,
)
def test_04_no_argument_is_ignored(device: str, change: dict[str, object]) -> None:
    check_problem(Problem(2, 6, 16, 17, 8, 3, 3).with_(**change), torch.float32, device)


@pytest.mark.parametrize("padding", [(1, 1), (2, 0), (0, 3)])
def test_05_padding_is_applied_once(device: str, padding: tuple[int, int]) -> None:
    x, w = tensor((2, 3, 9, 8), device=device), tensor((4, 3, 3, 3), device=device, seed=1)
    padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    reference.assert_right(forward(x, w, None, 1, padding), reference.output(padded, w))
    centre = torch.zeros(1, 1, 3, 3, device=device)
    centre[0, 0, 1, 1] = 1
    assert torch.equal(forward(x[:, :1], centre, None, 1, 1), x[:, :1])


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_06_grouped_weights_use_their_own_filters(device: str, groups: int) -> None:
    x, w = tensor((2, 12, 6, 6), device=device), tensor((18, 12 // groups, 3, 3), device=device, seed=1)
    one_by_one = [forward(a, b) for a, b in zip(x.chunk(groups, 1), w.chunk(groups, 0), strict=True)]
    expected = reference.output(x, w, None, 1, 0, 1, groups)
    reference.assert_right(torch.cat(one_by_one, 1), expected)
    reference.assert_right(forward(x, w, None, 1, 0, 1, groups), expected)


def launches(x: Tensor, w: Tensor) -> list[str]:
    """Names of what the GPU ran during a training step."""
    leaves = [x.detach().requires_grad_(), w.detach().requires_grad_()]
    gradient = torch.randn_like(forward(*leaves))
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        forward(*leaves).backward(gradient)
        torch.cuda.synchronize()
    return [e.name for e in profile.events() if e.device_type == DeviceType.CUDA]


@pytest.mark.cuda
def test_07_launches_do_not_grow_with_images_and_channels(cuda: str) -> None:
    small = launches(tensor((1, 8, 20, 20), device=cuda), tensor((8, 8, 3, 3), device=cuda))
    large = launches(tensor((48, 24, 20, 20), device=cuda), tensor((512, 24, 3, 3), device=cuda))
    larger = launches(tensor((96, 96, 20, 20), device=cuda), tensor((768, 96, 3, 3), device=cuda))
    # A pass is a few kernels. Both of the large problems are measured first, and one of two kernels returns at once.
    assert 3 <= len(small) <= 20
    assert 3 <= len(larger) <= len(large) + 3 <= 20


def test_08_offsets_have_64_bits(device: str) -> None:
    """Channels 2^31 elements apart; test_large.py has tensors that are as large as that.

    The pages between them are never touched, so on the CPU they cost nothing.
    """
    apart = 2**31 + 11
    elements = apart + 10 * 12
    if device == "cuda":
        storage = torch.empty(elements, device=device)
    else:
        untouched = mmap.mmap(
            -1, 4 * elements, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        )
        storage = torch.frombuffer(untouched, dtype=torch.float32)

    def far(size: tuple[int, int, int, int], seed: int) -> Tensor:
        view = storage.as_strided(size, (size[2] * size[3], apart, size[3], 1))
        return view.copy_(tensor(size, seed=seed))

    weight_size = (3, 2, 3, 3)
    w = tensor(weight_size, device=device, seed=1)
    x = far((1, 2, 10, 12), 0)
    reference.assert_right(forward(x, w), reference.output(x, w))
    dy = tensor((1, 3, 8, 10), device=device, seed=2)
    actual = fastconv.grad.conv2d_weight(x, weight_size, dy, precision="ieee")
    reference.assert_right(actual, reference.gradients(x, w, dy).weight)

    x, w, dy = tensor((1, 3, 10, 12), device=device), tensor((2, 3, 3, 3), device=device, seed=1), far((1, 2, 8, 10), 3)
    expected = reference.gradients(x, w, dy)
    reference.assert_right(fastconv.grad.conv2d_input(x.shape, w, dy, precision="ieee"), expected.input)
    reference.assert_right(fastconv.grad.conv2d_weight(x, w.shape, dy, precision="ieee"), expected.weight)
    reference.assert_right(torch.ops.fastconv.conv2d_bias(dy), expected.bias)


def test_08_images_of_more_than_2_31_pixels(device: str) -> None:
    """2^32 pixels, of which all rows are one row in memory: the pixel numbers alone exceed 32 bits."""
    x = tensor((1, 1, 1, 65536), device=device).expand(1, 1, 65536, 65536)
    w = tensor((2, 1, 3, 3), device=device, seed=1)
    y = forward(x, w, None, (4681, 4681))
    columns = (torch.arange(14) * 4681)[:, None] + torch.arange(3)
    picked = x[:, :, :1, :].cpu()[..., columns].reshape(1, 1, 1, 42).expand(1, 1, 42, 42)
    reference.assert_right(y, reference.output(picked, w, None, 3))


def test_09_the_output_requires_grad_and_trains(device: str) -> None:
    torch.manual_seed(0)
    layer = fastconv.Conv2d(3, 4, 3, padding=1, device=device)
    x, target = tensor((8, 3, 10, 10), device=device), tensor((8, 4, 10, 10), device=device, seed=1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        y = layer(x)
        assert y.requires_grad and y.grad_fn is not None
        loss = F.mse_loss(y, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_10_filters_larger_than_48_kib_of_shared_memory(device: str, dtype: torch.dtype) -> None:
    """31 x 31 float32 filters of 16 channels are 61 KiB each, and the halo of a tile is larger still."""
    check_problem(Problem(1, 16, 40, 36, 3, 31, 31), dtype, device)
    check_problem(Problem(1, 2, 90, 90, 2, 9, 9, dilation=(10, 10)), dtype, device)


@pytest.mark.cuda
def test_11_the_current_stream_is_used_and_never_waited_for(cuda: str) -> None:
    x, w = tensor((2, 8, 20, 20), device=cuda), tensor((8, 8, 3, 3), device=cuda, seed=1)
    expected = reference.output(2 * x, w)
    forward(x, w)  # the driver loads a kernel's code at its first launch, and waits
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile, torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(200_000_000)  # any other stream would read zeros meanwhile
        late.copy_(2 * x)
        y = forward(late, w)
        assert not stream.query(), "the call waited for the GPU"
    # The profiler itself ends with a cudaDeviceSynchronize; one of ours would have failed the query above.
    assert not [e.name for e in profile.events() if e.name in ("cudaStreamSynchronize", "cudaEventSynchronize")]
    stream.synchronize()
    reference.assert_right(y, expected)


def test_12_initialisation_is_that_of_nn_conv2d() -> None:
    for arguments in ((3, 8, 3), (16, 32, (5, 3), 2, 1, 1, 4)):
        torch.manual_seed(7)
        theirs = torch.nn.Conv2d(*arguments)
        torch.manual_seed(7)
        ours = fastconv.Conv2d(*arguments)
        assert theirs.bias is not None and ours.bias is not None
        assert torch.equal(ours.weight, theirs.weight) and torch.equal(ours.bias, theirs.bias)


def test_13_errors_are_raised_and_nothing_is_printed(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    x, w = tensor((2, 4, 5, 5), device=device), tensor((6, 4, 3, 3), device=device)
    bad = [
        lambda: forward(x, w, None, 0),
        lambda: forward(x, w, None, 1, -1),
        lambda: forward(x, w[:, :3]),
        lambda: forward(x[..., :2], w),
        lambda: forward(x, w.double()),
        lambda: fastconv.conv2d(x, w, precision="fp8"),  # type: ignore[arg-type]
    ]
    for call in bad:
        with pytest.raises((RuntimeError, ValueError)):
            call()
    assert capfd.readouterr() == ("", "")


def test_14_dilated_5x9_gives_508x496(device: str) -> None:
    x, w = torch.empty(1, 32, 512, 512, device="meta"), torch.empty(64, 32, 5, 9, device="meta")
    assert fastconv.conv2d(x, w, None, 1, (2, 4), (2, 3)).shape == (1, 64, 508, 496)
    one = torch.zeros(1, 1, 512, 512, device=device)
    assert forward(one, torch.zeros(1, 1, 5, 9, device=device), None, 1, (2, 4), (2, 3)).shape == (1, 1, 508, 496)


def test_15_nothing_is_compiled_at_import_or_first_call(device: str, tmp_path: Path) -> None:
    """No process starts, no compiler is in reach, and no file appears."""
    script = textwrap.dedent(
        f"""
        import sys
        STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork")
        import torch
        torch.zeros(1, device={device!r})
        started = []
        sys.addaudithook(lambda event, args: started.append((event, args)) if event in STARTS else None)
        import fastconv
        layer = fastconv.Conv2d(3, 4, 3, device={device!r})
        layer(torch.randn(2, 3, 8, 8, device={device!r})).sum().backward()
        assert layer.weight.grad is not None
        assert not started, started
        assert "torch.utils.cpp_extension" not in sys.modules
        """
    )
    package = str(Path(inspect.getfile(fastconv)).parents[1])
    environment = {
        "PATH": "",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": package,
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        # The driver keeps PTX that it compiled here; a chip the library has SASS for leaves it empty.
        "CUDA_CACHE_PATH": str(tmp_path),
    }
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True, timeout=120)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.parametrize("view", VIEWS)
def test_16_views_are_read_by_their_strides(device: str, view: str) -> None:
    problem = Problem(2, 5, 11, 10, 6, 3, 3, padding=(1, 1))
    for dtype in DTYPES:
        check_problem(problem, dtype, device, views=(view, view, view))


def test_17_the_profile_shows_our_ops_and_no_other(device: str) -> None:
    """Nothing of torch's computes, copies or transposes behind them."""
    o = operands(Problem(2, 6, 9, 9, 8, 3, 3, bias=True), torch.float32, device)
    o = type(o)(VIEWS["channels_last"](o.input), o.weight, o.bias, VIEWS["transposed"](o.grad_output))
    forward(o.input, o.weight, o.bias)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        forward(o.input, o.weight, o.bias)
        torch.ops.fastconv.conv2d_input(o.input.shape, o.weight, o.grad_output)
        torch.ops.fastconv.conv2d_weight(o.input, o.weight.shape, o.grad_output)
        torch.ops.fastconv.conv2d_bias(o.grad_output)
    names = {e.name for e in profile.events()}
    assert {"fastconv::_conv2d", "fastconv::conv2d_input", "fastconv::conv2d_weight", "fastconv::conv2d_bias"} <= names
    torch_ops = {name for name in names if name.startswith("aten::")}
    assert all(name.startswith(("aten::empty", "aten::new_empty", "aten::detach")) for name in torch_ops), torch_ops


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", ["contiguous", "channels_last"])
def test_17_every_kernel_in_the_profile_is_ours(cuda: str, dtype: torch.dtype, view: str) -> None:
    for problem in (
        Problem(4, 32, 30, 30, 64, 3, 3, padding=(1, 1)),
        Problem(8, 64, 28, 28, 128, 3, 3, stride=(2, 2), padding=(1, 1)),
        Problem(4, 32, 30, 30, 32, 3, 3, groups=32),
    ):
        o = operands(problem, dtype, cuda, views=(view, view, view))
        forward(o.input, o.weight, None, *problem.geometry)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            forward(o.input, o.weight, None, *problem.geometry)
            torch.ops.fastconv.conv2d_input(problem.input_size, o.weight, o.grad_output, *problem.geometry)
            torch.ops.fastconv.conv2d_weight(o.input, problem.weight_size, o.grad_output, *problem.geometry)
            torch.ops.fastconv.conv2d_bias(o.grad_output)
            torch.cuda.synchronize()
        names = [e.name for e in profile.events() if e.device_type == DeviceType.CUDA]
        assert len(names) >= 4
        assert all("fastconv" in name for name in names), names
