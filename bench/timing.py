"""How long calls take: on the GPU, on the CPU, and on the host that feeds the GPU."""

from __future__ import annotations

import collections
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

Call = Callable[[], object]

# Above this a call is timed by itself: launch overhead is lost in it, and holding a graph's outputs would cost memory.
GRAPH_LIMIT_MS = 3.0
# What starts a replay, and the events around it, take 2 to 7 us of it.
MIN_REPLAY_MS = 2.0
MAX_CYCLES = 16
MAX_SETS = 512


@dataclass(frozen=True)
class Measurement:
    """Time per call. `spread` is the interquartile range over the median."""

    ms: float  # median
    spread: float
    least_ms: float
    samples: int
    method: str


def summarize(samples_ms: Sequence[float], method: str) -> Measurement:
    median = statistics.median(samples_ms)
    if len(samples_ms) < 2:
        return Measurement(median, 0.0, median, len(samples_ms), method)
    low, _, high = statistics.quantiles(samples_ms, n=4, method="inclusive")
    return Measurement(median, (high - low) / median, min(samples_ms), len(samples_ms), method)


def cache_bytes(device: torch.device) -> int:
    """The cache that repeated calls must not live in: L2 of a GPU, the last level of a CPU.

    Servers share hundreds of MiB between many cores, of which a process gets little, so at most 32 MiB count.
    """
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return min(32 << 20, max((int(size.removesuffix("K")) << 10 for size in sizes), default=32 << 20))


def set_count(bytes_per_call: int, cache: int) -> int:
    """How many input sets to rotate so that a call finds none of its data in the cache."""
    return max(1, min(MAX_SETS, -(-3 * cache // bytes_per_call)))


def use_device(device: torch.device) -> None:
    """To be called before anything is measured."""
    torch.backends.cudnn.benchmark = True
    if device.type == "cuda":
        # A graph cannot be captured on the default stream. One stream for everything, so that workspaces that a
        # library keeps per stream exist before the capture.
        torch.cuda.set_stream(torch.cuda.Stream(device))


@dataclass(frozen=True)
class Timed:
    """What is timed again and again: `start` begins a sample and returns what tells its milliseconds, once done."""

    start: Callable[[], Callable[[], float]]
    calls: int  # of a sample
    sample_ms: float  # roughly
    method: str


def time_calls(calls: Sequence[Call], device: torch.device, seconds: float) -> Measurement:
    """Time per call over `calls`, which do the same work on different data. First calls are not counted."""
    return time_in_turns({"": prepare(calls, device)}, device, seconds)[""]


def time_in_turns(contenders: Mapping[str, Timed], device: torch.device, seconds: float) -> dict[str, Measurement]:
    """Time per call of each contender, over about `seconds` each.

    They take turns, because a GPU at its power limit lowers its clocks and is slow to raise them again: whoever came
    after a hungry one would pay for it.
    """
    cuda = device.type == "cuda"
    repeats = {name: _repeats(seconds, timed.sample_ms) for name, timed in contenders.items()}
    warm_up = 2 if cuda else 0
    samples: dict[str, list[Callable[[], float]]] = {name: [] for name in contenders}
    for round_ in range(warm_up + max(repeats.values(), default=0)):
        for name, timed in contenders.items():
            if round_ < warm_up + repeats[name]:
                samples[name].append(timed.start())
        if cuda and round_ % 16 == 15:  # the queue of launches is finite
            torch.cuda.synchronize(device)
    if cuda:
        torch.cuda.synchronize(device)
    return {
        name: summarize([sample() / timed.calls for sample in samples[name][warm_up:]], timed.method)
        for name, timed in contenders.items()
    }


def prepare(calls: Sequence[Call], device: torch.device) -> Timed:
    """Runs the calls once and makes of them what can be timed."""
    return _prepare_cuda(calls) if device.type == "cuda" else _prepare_cpu(calls)


def prepare_bursts(call: Call, device: torch.device, calls: int) -> Timed:
    """For what keeps the host busy too, as a model's step does: `calls` after one more, which the GPU starts idle."""
    cuda = device.type == "cuda"

    def burst() -> None:
        for _ in range(calls):
            call()

    def start() -> Callable[[], float]:
        if cuda:
            torch.cuda.synchronize(device)  # what was launched before would give the host a lead
        call()
        return _start_events(burst) if cuda else _start_clock(burst)

    sample = start()
    if cuda:
        torch.cuda.synchronize(device)
    return Timed(start, calls, sample(), f"{calls} calls after one")


def _repeats(seconds: float, each_ms: float) -> int:
    return max(5, min(200, round(seconds * 1e3 / max(each_ms, 1e-4))))


def _prepare_cpu(calls: Sequence[Call]) -> Timed:
    turn = itertools.cycle(calls)

    def start() -> Callable[[], float]:
        return _start_clock(next(turn))

    return Timed(start, 1, start()(), "perf_counter")


def _prepare_cuda(calls: Sequence[Call]) -> Timed:
    rough_ms = _event_ms(calls[0])
    if rough_ms > GRAPH_LIMIT_MS:
        turn = itertools.cycle(calls)
        return Timed(lambda: _start_events(next(turn)), 1, rough_ms, "events")

    graph = _capture(calls, 1)
    cycles = max(1, min(MAX_CYCLES, round(MIN_REPLAY_MS / _event_ms(graph.replay))))
    if cycles > 1:
        del graph
        graph = _capture(calls, cycles)
    method = f"graph of {cycles} x {len(calls)}"
    return Timed(lambda: _start_events(graph.replay), cycles * len(calls), _event_ms(graph.replay), method)


def _capture(calls: Sequence[Call], cycles: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    # A round's results are kept until others of the next one take their place, or every call would write to the same,
    # cached, memory.
    results: collections.deque[object] = collections.deque(maxlen=len(calls))
    # Not `with torch.cuda.graph`: it collects garbage and empties the allocator's cache, a tenth of a second each time.
    graph.capture_begin()
    try:
        for call in [*calls] * cycles:
            results.append(call())
    finally:
        graph.capture_end()
    return graph


def _start_events(call: Call) -> Callable[[], float]:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    stop.record()
    return lambda: start.elapsed_time(stop)


def _start_clock(call: Call) -> Callable[[], float]:
    begin = time.perf_counter()
    call()
    elapsed = (time.perf_counter() - begin) * 1e3
    return lambda: elapsed


def _event_ms(call: Call) -> float:
    """Of the faster of two."""
    samples = [_start_events(call) for _ in range(2)]
    torch.cuda.synchronize()
    return min(sample() for sample in samples)


@dataclass(frozen=True)
class HostTime:
    """Microseconds that a call keeps the calling thread."""

    problem: str
    what: str
    microseconds: dict[str, float]


def host_times(
    calls: Mapping[str, Call], device: torch.device, bursts: int = 15, burst: int = 150, seconds: float = 3.0
) -> dict[str, float]:
    """Median time to issue a call, per contender.

    Bursts stay below the launch queue's depth (1024), so that no call waits for the GPU, and the contenders take
    turns, so that a slow spell of the machine hits all of them. Beyond `seconds` three bursts are enough.
    """

    def drain() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for round_ in range(bursts + 2):
        if round_ >= 5 and time.perf_counter() > end:
            break
        for name, call in calls.items():
            drain()
            start = time.perf_counter()
            for _ in range(burst):
                call()
            elapsed = time.perf_counter() - start
            if round_ >= 2:
                samples[name].append(elapsed / burst * 1e6)
    drain()
    return {name: statistics.median(values) for name, values in samples.items()}


@contextlib.contextmanager
def tf32_allowed(allowed: bool) -> Iterator[None]:
    """PyTorch's switches for float32 convolutions and matrix products."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
