"""How long calls take: on the GPU, on the CPU, and on the host that feeds the GPU."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

Call = Callable[[], object]

# Above this a call is timed by itself: launch overhead is lost in it, and holding a graph's outputs would cost memory.
GRAPH_LIMIT_MS = 3.0
# A replay shorter than this is timed too coarsely by events (resolution about half a microsecond).
MIN_REPLAY_MS = 0.3
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


def time_calls(calls: Sequence[Call], device: torch.device, seconds: float) -> Measurement:
    """Time per call over `calls`, which do the same work on different data. First calls are not counted."""
    if device.type == "cuda":
        return _time_cuda(calls, seconds)
    return _time_cpu(calls, seconds)


def _repeats(seconds: float, each_ms: float, most: int) -> int:
    return max(5, min(most, round(seconds * 1e3 / max(each_ms, 1e-4))))


def _time_cpu(calls: Sequence[Call], seconds: float) -> Measurement:
    calls[0]()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < 3 or (time.perf_counter() < end and len(samples) < 1000):
        call = calls[len(samples) % len(calls)]
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e3)
    return summarize(samples, "perf_counter")


def _time_cuda(calls: Sequence[Call], seconds: float) -> Measurement:
    rough_ms = min(_event_times([calls[0]] * 2))
    if rough_ms > GRAPH_LIMIT_MS:
        repeats = _repeats(seconds, rough_ms, 50)
        return summarize(_event_times([calls[i % len(calls)] for i in range(repeats)]), "events")

    cycles = max(1, min(16, round(MIN_REPLAY_MS / (rough_ms * len(calls)))))
    graph = torch.cuda.CUDAGraph()
    # Not `with torch.cuda.graph`: it collects garbage and empties the allocator's cache, a tenth of a second each time.
    graph.capture_begin()
    try:
        # Kept until the capture ends, or every call would write its result to the same, cached, memory.
        results = [call() for _ in range(cycles) for call in calls]
    finally:
        graph.capture_end()
    del results
    graph.replay()
    replay_ms = min(_event_times([graph.replay] * 2))
    for _ in range(_repeats(seconds / 4, replay_ms, 100)):
        graph.replay()
    times = _event_times([graph.replay] * _repeats(seconds, replay_ms, 200))
    graph.reset()
    return summarize([ms / (cycles * len(calls)) for ms in times], f"graph of {cycles} x {len(calls)}")


def _event_times(calls: Sequence[Call]) -> list[float]:
    """Milliseconds of each call, queued without a gap for the host between them."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in calls]
    for call, (start, stop) in zip(calls, events, strict=True):
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) for start, stop in events]


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
