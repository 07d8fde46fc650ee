"""Whether a solution is right, and how long it takes, by KernelBench's rules: its eval.py and timing.py."""

from __future__ import annotations

import contextlib
import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.errors import without_cudnn
from bench.kernelbench.problems import SEED, Case, Problem

TOLERANCE = 1e-4  # of float32, absolute and relative
CHECKS = 5
WARM_UPS = 5
FLUSHED_BYTES = 256 << 20
PRECISIONS = {"default": True, "strict": False}  # whether cuDNN may use TF32, as it may unless told otherwise
FASTCONV, COMPILED = "fastconv", "fastconv, compiled"
# "searched": with cudnn.benchmark=True, which KernelBench does not set.
OPPONENTS = {"eager": ("eager", "eager, searched"), "compile": ("compile", "compile, searched")}
ALL_OPPONENTS = [name for names in OPPONENTS.values() for name in names]


@dataclass(frozen=True)
class Contender:
    call: Callable[..., Tensor]
    searches: bool = False  # cudnn.benchmark


def row(
    problem: Problem, precision: str, device: torch.device, opponents: Sequence[str], trials: int, small: bool
) -> dict[str, Any]:
    """What was found of one problem. Statuses: ok, WRONG by KernelBench's check, FAILED."""
    found: dict[str, Any] = {"level": problem.level, "problem": problem.name, "precision": precision}
    try:
        with torch.no_grad(), _tf32(PRECISIONS[precision]):
            found |= _measured(problem, device, opponents, trials, small)
    except torch.AcceleratorError:
        raise  # the CUDA context is lost: whatever follows would fail too
    except Exception as failure:  # a solution's, whatever it is
        found |= {"status": "FAILED", "failure": _words(failure)}
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def _measured(
    problem: Problem, device: torch.device, opponents: Sequence[str], trials: int, small: bool
) -> dict[str, Any]:
    case = Case(problem, device, small)
    found = _checked(case)
    if found["status"] != "FAILED":
        found |= _timed(_contenders(case, opponents), case.inputs(), device, trials)
        if failure := found["failures"].pop(FASTCONV, ""):
            found |= {"status": "FAILED", "failure": failure}
    return found


def _words(failure: Exception) -> str:
    return f"{type(failure).__name__}: {' '.join(str(failure).split())}"[:300]


# ---- right or wrong ----


def _checked(case: Case) -> dict[str, Any]:
    torch.manual_seed(SEED)
    seeds = [int(torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(CHECKS)]
    passed, furthest, errors = 0, [], dict[str, dict[str, float]]()
    for seed in seeds:
        inputs = case.inputs(seed)
        expected, output = case.model(*inputs), case.new(*inputs)
        if expected.shape != output.shape:
            failure = f"the output must be of size {list(expected.shape)}, but is of {list(output.shape)}"
            return {"status": "FAILED", "failure": failure}
        passed += torch.allclose(expected, output, atol=TOLERANCE, rtol=TOLERANCE)
        furthest.append(_distance(expected, output))
        errors = errors or _errors(case.model, inputs, {FASTCONV: output, "torch": expected})
        del inputs, expected, output  # gigabytes each
    return {
        "status": "ok" if passed == CHECKS else "WRONG",
        "check": {"passed": passed, "of": CHECKS, "distance": float(torch.stack(furthest).amax())},
        "errors": errors,
    }


def _distance(expected: Tensor, output: Tensor) -> Tensor:
    """The largest, in tolerances: up to 1 torch.allclose holds them for equal. NaN if there is one."""
    return (expected - output).abs_().div_(output.abs().mul_(TOLERANCE).add_(TOLERANCE)).amax()


def _errors(model: nn.Module, inputs: Sequence[Any], outputs: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """Of each against float64, normwise and in tolerances: of the first and last image, where images stand alone."""
    wide = copy.deepcopy(model).double()
    first = next(iter(outputs.values()))
    images = torch.arange(len(first), device=first.device)
    if not any(isinstance(module, _BatchNorm) for module in wide.modules()):
        images = images[:: max(1, len(images) - 1)]
    with without_cudnn():
        exact = wide(*(x.index_select(0, images).double() if isinstance(x, Tensor) else x for x in inputs))
    parts = {name: output.index_select(0, images).double() for name, output in outputs.items()}
    size = exact.norm().clamp_min(torch.finfo(torch.float64).tiny)  # of some problems the output is all zeros
    return {
        name: {"normwise": float((part - exact).norm() / size), "distance": float(_distance(exact, part))}
        for name, part in parts.items()
    }


# ---- how long ----


def _contenders(case: Case, opponents: Sequence[str]) -> dict[str, Contender]:
    calls: dict[str, Callable[..., Tensor]] = {"eager": case.model}
    made = {FASTCONV: Contender(case.new)}
    if "compile" in opponents:
        torch._dynamo.reset()
        calls["compile"] = torch.compile(case.model)
        made[COMPILED] = Contender(torch.compile(case.new))
    for opponent in opponents:
        plain, searched = OPPONENTS[opponent]
        made[plain] = Contender(calls[opponent])
        if case.device.type == "cuda":
            made[searched] = Contender(calls[opponent], searches=True)
    return made


def _timed(
    contenders: Mapping[str, Contender], inputs: Sequence[Any], device: torch.device, trials: int
) -> dict[str, Any]:
    """Contenders take turns, trial by trial. The first trial of each is not counted, as in KernelBench."""
    samples: dict[str, list[float]] = {}
    failures = {}
    # cuDNN's plans are remembered by thread, and a remembered one is taken whether it was searched for or not.
    with ThreadPoolExecutor(1) as searching:
        for name, contender in contenders.items():
            try:
                for _ in range(WARM_UPS):
                    _sample(contender, inputs, device, searching)
                samples[name] = []
            except torch.AcceleratorError:
                raise
            except RuntimeError as failure:  # of memory, or of a compiler
                failures[name] = _words(failure)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        for trial in range(trials + 1):
            for name, taken in samples.items():
                ms = _sample(contenders[name], inputs, device, searching)
                if trial:
                    taken.append(ms)
    return {
        "ms": {name: statistics.fmean(taken) for name, taken in samples.items()},
        "median_ms": {name: statistics.median(taken) for name, taken in samples.items()},
        "least_ms": {name: min(taken) for name, taken in samples.items()},
        "most_ms": {name: max(taken) for name, taken in samples.items()},
        "failures": failures,
    }


def _sample(contender: Contender, inputs: Sequence[Any], device: torch.device, searching: Executor) -> float:
    if contender.searches:
        return searching.submit(_trial, contender, inputs, device).result()
    return _trial(contender, inputs, device)


def _trial(contender: Contender, inputs: Sequence[Any], device: torch.device) -> float:
    """Milliseconds, with a cold cache."""
    torch.backends.cudnn.benchmark = contender.searches
    try:
        with torch.no_grad():  # threads have grad modes of their own
            if device.type != "cuda":
                begin = time.perf_counter()
                contender.call(*inputs)
                return (time.perf_counter() - begin) * 1e3
            torch.cuda.synchronize(device)
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=device).fill_(42)
            start.record()
            output = contender.call(*inputs)
            stop.record()
            torch.cuda.synchronize(device)
            del output
            return start.elapsed_time(stop)
    finally:
        torch.backends.cudnn.benchmark = False


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Of cuDNN alone; matrix products stay as torch has them by default, without."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
