"""DDP and FSDP2 of two processes compute what one process does; and a process may use several GPUs.

The functions without `test_` run in each of two processes at once; see processes.py.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fastconv
from processes import alone, run_checks, torchrun

fusing: Any = importlib.import_module("fastconv.fuse")  # the name is a function, too
EXAMPLE = Path(__file__).parents[1] / "examples" / "train_imagenet.py"
LAYOUTS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + x)


def plain(device: torch.device) -> nn.Module:
    """Filters of one pixel and of one channel lie the same in both layouts, but for what their strides say."""
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    last = nn.Conv2d(8, 8, 3, groups=8), nn.ReLU6(), nn.Conv2d(8, 1, 1), nn.Conv2d(1, 5, 2)
    return nn.Sequential(stem, Block(8), Block(8), *last, nn.Flatten()).to(device)


def ours(model: nn.Module, fused: bool) -> nn.Module:
    fastconv.convert(model)
    return fastconv.fuse(model) if fused else model


@contextlib.contextmanager
def fused_everywhere() -> Iterator[mock.Mock]:
    """On the CPU too. What counts the calls."""
    takes = fusing._takes
    with (
        mock.patch.object(fusing, "_takes", lambda x, residual: takes(x, residual, everywhere=True)),
        mock.patch.object(fusing, "norm_module", mock.Mock(wraps=fusing.norm_module)) as calls,
    ):
        yield calls


def batch(step: int, half: int, layout: torch.memory_format, device: torch.device) -> Tensor:
    images = torch.randn(8, 3, 19, 18, generator=torch.Generator().manual_seed(step))
    return images.chunk(2)[half].to(device, memory_format=layout)


def loss_of(model: nn.Module, x: Tensor, autocast: bool = False) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        y = model(x)
    loss: Tensor = y.float().sin().square().mean() if x.dtype == torch.float32 else y.sin().square().mean()
    return loss


def train_alone(
    model: nn.Module, layout: torch.memory_format, device: torch.device, autocast: bool = False, steps: int = 3
) -> list[Tensor]:
    """Parameters after steps whose gradients are the mean of two halves', as their batch norms see them apart."""
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for step in range(steps):
        of_halves = []
        for half in range(2):
            x = batch(step, half, layout, device).to(parameters[0].dtype)
            of_halves.append(torch.autograd.grad(loss_of(model, x, autocast), parameters))
        for p, a, b in zip(parameters, *of_halves, strict=True):
            p.grad = a / 2 + b / 2
        optimizer.step()
    return [p.detach() for p in parameters]


def train_together(
    model: nn.Module, layout: torch.memory_format, device: torch.device, autocast: bool = False, steps: int = 3
) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(step, dist.get_rank(), layout, device), autocast).backward()
        optimizer.step()
    return [whole(p).detach() for p in model.parameters()]


def whole(tensor: Any) -> Tensor:
    result: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return result


def assert_equal(actual: list[Tensor], expected: list[Tensor], what: object) -> None:
    """Bit for bit: the mean of two gradients is the same in any order."""
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert torch.equal(a, e), f"{what}: parameter {i} differs by {float((a - e).abs().max()):.1e}"


def assert_near(actual: list[Tensor], expected: list[Tensor], bound: float, what: object) -> None:
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        error = float((a.double() - e.double()).norm() / e.double().norm())
        assert error < bound, f"{what}: parameter {i} is {error:.1e} off"


# ---- in each of two processes ----


def ddp_trains_as_one_process(device: torch.device) -> None:
    """Bit for bit; in float32 as torch's layers do in float64; and no gradient is copied, of which DDP would warn."""
    torch.backends.cudnn.allow_tf32 = False
    exact = train_alone(plain(device).double(), torch.contiguous_format, device)
    for (name, layout), fused, autocast in itertools.product(LAYOUTS.items(), (False, True), (False, True)):
        model: Any = ours(plain(device).to(memory_format=layout), fused)  # type: ignore[call-overload]
        choices: list[dict[str, Any]] = [{}, {"static_graph": True}, {"gradient_as_bucket_view": True}]
        for options in choices:
            what = name, "fused" if fused else "converted", "bf16" if autocast else "float32", options
            with fused_everywhere() as calls, warnings.catch_warnings():
                warnings.simplefilter("error")
                torch.set_warn_always(True)
                parallel = DistributedDataParallel(copy.deepcopy(model), **options)
                actual = train_together(parallel, layout, device, autocast)
                assert calls.call_count == (5 * 3 if fused else 0), what
                expected = train_alone(copy.deepcopy(model), layout, device, autocast)
            assert_equal(actual, expected, what)
            if not autocast:
                assert_near(actual, exact, 1e-5, what)


def ddp_warns_of_strides_that_are_not_its_buckets(device: torch.device) -> None:
    """Or nobody would know that the check above sees the warning."""
    torch.set_warn_always(True)

    class Strided(torch.autograd.Function):
        """The gradient of filters of one pixel, as a layer in channels_last might write it."""

        @staticmethod
        def forward(ctx: Any, weight: Tensor) -> Tensor:
            return weight.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad.as_strided((4, 3, 1, 1), (3, 1, 3, 3)).clone(memory_format=torch.preserve_format)

    class Pointwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.conv2d(x, Strided.apply(self.weight))

    parallel = DistributedDataParallel(Pointwise().to(device))
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="Grad strides do not match bucket view strides"):
        warnings.simplefilter("error")
        train_together(parallel, torch.contiguous_format, device, steps=1)


def ddp_accumulates_under_no_sync(device: torch.device) -> None:
    rank, layout = dist.get_rank(), torch.channels_last
    for fused in (False, True):
        model: Any = ours(plain(device).to(memory_format=layout), fused)  # type: ignore[call-overload]
        parameters = list(model.parameters())
        with fused_everywhere():
            of_batches = [
                [
                    torch.autograd.grad(loss_of(model, batch(step, half, layout, device)), parameters)
                    for half in range(2)
                ]
                for step in range(2)
            ]
            parallel = DistributedDataParallel(model)
            for _ in range(2):
                parallel.zero_grad()
                with parallel.no_sync():
                    loss_of(parallel, batch(0, rank, layout, device)).backward()
                assert_equal([p.grad for p in parameters], list(of_batches[0][rank]), "own gradients")
                loss_of(parallel, batch(1, rank, layout, device)).backward()
                sums = [[a + b for a, b in zip(of_batches[0][h], of_batches[1][h], strict=True)] for h in range(2)]
                means = [a / 2 + b / 2 for a, b in zip(*sums, strict=True)]
                assert_equal([p.grad for p in parameters], means, "means of sums")


def a_compiled_ddp_trains_as_one_process(device: torch.device) -> None:
    for fused in (False, True):
        model = ours(plain(device), fused)
        with fused_everywhere():
            expected = train_alone(copy.deepcopy(model), torch.contiguous_format, device, steps=2)
            compiled: Any = torch.compile(DistributedDataParallel(model), backend="aot_eager")
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Dynamo detected a call to a `functools.lru_cache`")
                actual = train_together(compiled, torch.contiguous_format, device, steps=2)
            assert_near(actual, expected, 1e-5, fused)


def fsdp_trains_as_one_process(device: torch.device) -> None:
    """Sharded block by block, and layer by layer, where filters are gathered by hooks of their own: then unfused."""
    mesh = dist.device_mesh.init_device_mesh(device.type, (2,))
    choices = itertools.product(LAYOUTS.items(), (False, True), (False, True), (False, True))
    for (name, layout), fused, by_layer, autocast in choices:
        model: Any = ours(plain(device), fused)
        parts = [m for m in model.modules() if not [*m.children()] and [*m.parameters()]]
        with fused_everywhere() as calls:
            for part in (*(parts if by_layer else model[:2]), model):
                fully_shard(part, mesh=mesh)
            actual = train_together(model, layout, device, autocast)
            what = name, "fused" if fused else "converted", "layers" if by_layer else "blocks", autocast
            assert calls.call_count == (5 * 3 if fused and not by_layer else 0), what
            expected = train_alone(ours(plain(device), fused and not by_layer), layout, device, autocast)
        assert_equal(actual, expected, what)


def sync_batch_norms_see_the_whole_batch(device: torch.device) -> None:
    """On GPUs only: torch has them nowhere else. Fused before or after, or as layers that are fused by themselves."""
    whole_batch = [
        torch.cat([batch(step, half, torch.channels_last, device) for half in range(2)]) for step in range(3)
    ]

    def layers() -> nn.Module:
        torch.manual_seed(0)
        own = fastconv.ConvBnAct2d(8, 8, 3, activation="relu").to(device)
        return nn.Sequential(plain(device)[0], own, *list(plain(device).children())[1:])  # type: ignore[index]

    expected_model = layers().double()
    optimizer = torch.optim.SGD(expected_model.parameters(), lr=0.1, momentum=0.9)
    for x in whole_batch:
        optimizer.zero_grad()
        loss_of(expected_model, x.double()).backward()
        optimizer.step()
    convert = nn.SyncBatchNorm.convert_sync_batchnorm
    for order in ("converted", "before", "after"):
        model = convert(layers()) if order != "after" else layers()
        model = ours(model, order != "converted")
        model = convert(model) if order == "after" else model
        parallel = DistributedDataParallel(model)
        actual = train_together(parallel, torch.channels_last, device)
        assert_near(actual, [p.detach() for p in expected_model.parameters()], 1e-4, order)


CHECKS: list[Callable[[torch.device], None]] = [
    ddp_trains_as_one_process,
    ddp_warns_of_strides_that_are_not_its_buckets,
    ddp_accumulates_under_no_sync,
    a_compiled_ddp_trains_as_one_process,
    fsdp_trains_as_one_process,
]


def test_two_processes(tmp_path: Path) -> None:
    run_checks(CHECKS, tmp_path)


@pytest.mark.cuda
@two_gpus
def test_two_processes_with_a_gpu_each(tmp_path: Path) -> None:
    run_checks([*CHECKS, sync_batch_norms_see_the_whole_batch], tmp_path, "cuda")


# ---- examples/train_imagenet.py ----

# A package by torchvision's name, whose network fails once it has seen so many batches.
STUB = """
import os
import torch
from torch import nn


class Failing(nn.Dropout):
    def forward(self, x):
        if self.training:
            self.batches = getattr(self, "batches", 0) + 1
            if self.batches > int(os.environ.get("BATCHES", 1000)):
                raise RuntimeError("the machine was taken away")
        return super().forward(x)


def get_model(name, num_classes):
    stem = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AvgPool2d(2)
    convolution = nn.Conv2d(32, 768, 7, padding=3, bias=False)
    stage = nn.Sequential(nn.Dropout(0.1, inplace=True), convolution, nn.BatchNorm2d(768), nn.ReLU())
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), Failing(0.2), nn.Linear(768, num_classes)
    return nn.Sequential(*stem, stage, *head)
"""


@pytest.mark.parametrize("how", ["alone", "ddp", "fsdp"])
def test_the_example_resumes_where_it_was_interrupted(tmp_path: Path, how: str) -> None:
    package = tmp_path / "stub" / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "models.py").write_text(STUB)
    arguments = [EXAMPLE, *"--device cpu --image-size 8 --batch 4 --classes 10 --steps 3 --log-every 1".split()]
    arguments += ["--epochs", "2", "--lr", "3"]

    def run(folder: str, *more: str, fails: bool = False) -> dict[str, Any]:
        command = [*arguments, "--output", tmp_path / folder, *more]
        options: dict[str, Any] = {"folder": tmp_path, "modules": [package.parent], "fails": fails}
        options |= {"BATCHES": "4"} if fails else {}
        if how == "alone":
            text = alone(*command, **options)
        else:
            text = torchrun(*command, "--parallel", how, **options)
        assert ("the machine was taken away" in text) == fails, text
        assert text.count("epoch 1: 100%") <= 2 and "Warning" not in text, text  # of one process; it may be drawn twice
        state: dict[str, Any] = torch.load(tmp_path / folder / "checkpoint.pt")
        return state

    expected = run("whole")
    interrupted = run("parts", fails=True)
    assert interrupted["epochs"] == 1 and interrupted["history"]["step"] == [1, 2, 3]
    resumed = run("parts", "--resume")
    assert resumed["epochs"] == 2 and resumed["history"]["step"] == [1, 2, 3, 4, 5, 6]
    assert resumed["history"]["loss"] == expected["history"]["loss"]
    assert resumed["history"]["top-1"] == expected["history"]["top-1"]
    torch.testing.assert_close(resumed["model"], expected["model"], rtol=0, atol=0)
    losses = expected["history"]["loss"]
    assert losses[-1] < losses[0] - 0.1 and len(set(losses)) == 6
    assert (tmp_path / "parts" / "training.png").stat().st_size > 1000


def test_the_example_says_what_is_missing(tmp_path: Path) -> None:
    for library in ("torchvision", "timm"):
        (tmp_path / f"{library}.py").write_text("raise ImportError('made for another torch')")
    text = alone(EXAMPLE, "--device", "cpu", folder=tmp_path, modules=[tmp_path], fails=True)
    assert "no model 'resnet50'" in text and text.count("made for another torch") == 2 and "Traceback" not in text


# ---- one process, several GPUs ----


def gpu_step(device: str, seed: int) -> list[Tensor]:
    """Forward and backward of layers of several kernels, fused ones among them; one GPU's results are another's."""
    torch.manual_seed(seed)
    wide = fastconv.Conv2d(64, 64, 3), fastconv.Conv2d(64, 64, 3, groups=64), fastconv.Conv2d(64, 64, 1)
    *narrow, _ = plain(torch.device("cpu")).children()
    block = fastconv.ConvBnAct2d(5, 64, 3, padding=1, activation="relu")
    model: Any = ours(nn.Sequential(*narrow, block, *wide), True)
    model.to(device, memory_format=torch.channels_last)
    x = torch.randn(4, 3, 41, 42).to(device)
    found: list[Tensor] = []
    for autocast in (False, True):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
            y = model(x)
        found += [y.detach(), *torch.autograd.grad(y.float().square().sum(), [*model.parameters()])]
    return [t.cpu() for t in (*found, *model.buffers())]


@pytest.mark.cuda
@two_gpus
def test_gpus_in_turns() -> None:
    """Whichever is the current one, which stays the current one. Beside test_streams.py's single layer."""
    if torch.cuda.get_device_name(0) != torch.cuda.get_device_name(1):
        pytest.skip("needs two GPUs of a kind")
    expected = [gpu_step("cuda:0", seed) for seed in range(2)]
    for current in (0, 1):
        with torch.cuda.device(current):
            for index, seed in itertools.product((1, 0, 1), range(2)):
                assert_equal(gpu_step(f"cuda:{index}", seed), expected[seed], (current, index, seed))
                assert torch.cuda.current_device() == current


@pytest.mark.cuda
@two_gpus
def test_gpus_of_several_threads() -> None:
    def work(number: int) -> list[Tensor]:
        index = number % 2
        results = gpu_step(f"cuda:{index}", index)
        assert torch.cuda.current_device() == 0
        return results

    torch.cuda.set_device(0)
    expected = [gpu_step(f"cuda:{index}", index) for index in range(2)]
    with ThreadPoolExecutor(4) as pool:
        for number, results in enumerate(pool.map(work, range(24))):
            assert_equal(results, expected[number % 2], number)


@pytest.mark.cuda
@two_gpus
def test_tensors_of_two_gpus_are_refused() -> None:
    x, w = torch.randn(1, 2, 5, 5, device="cuda:1"), torch.randn(3, 2, 3, 3, device="cuda:0")
    with pytest.raises(RuntimeError, match="device"):
        fastconv.conv2d(x, w)
