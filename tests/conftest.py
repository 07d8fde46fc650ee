"""Devices, hypothesis profiles, and memory that is never clean by chance."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import sweeps

# Shapes and numbers are drawn afresh in every run; CI must give the same answer twice.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "print_blob": True,
}
settings.register_profile("thorough", max_examples=2000, **_COMMON)

# glibc fills what malloc hands out with 0x7f bytes from here on (mallopt(3), M_PERTURB takes the complement): 3e38 in
# float32 and bfloat16, NaN in float16, 1e306 in float64. Without it most new memory is zero, and an element that a
# kernel forgets to write, or adds to without clearing, is often right by chance. Our libraries allocate in C++, where
# torch.utils.deterministic.fill_uninitialized_memory does not reach. On CUDA see check.poison.
_M_PERTURB = -6
assert ctypes.CDLL(None).mallopt(_M_PERTURB, 0x80) == 1


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("fastconv").addoption
    add("--all", action="store_true", help="all cases of the long sweeps, of which otherwise a sample runs")
    add("--sample-seed", type=int, help="of that sample; default: drawn, the commit's where the variable CI is set")


def seed_of_commit() -> int:
    """Other cases with every commit, the same ones when it is tested again."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    return int(git.stdout[:7] or "0", 16)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sweep(one_in): of its cases a sample runs, one in so many; all with --all")
    if config.option.sample_seed is None:
        drawn = seed_of_commit() if "CI" in os.environ else random.randrange(1 << 31)
        config.option.sample_seed = int(os.environ.setdefault("FASTCONV_SAMPLE_SEED", str(drawn)))  # workers inherit it
    sweeps.all_cases = config.option.all
    settings.register_profile("fresh", max_examples=sweeps.examples(60), **_COMMON)
    settings.register_profile("ci", max_examples=sweeps.examples(60), derandomize=True, database=None, **_COMMON)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "fresh"))
    config.addinivalue_line("markers", "cuda: needs an NVIDIA GPU")
    config.addinivalue_line("markers", "alone: sees what other processes do on the GPU")
    # Workers of pytest-xdist compute references side by side; each with a thread a core, they would take turns.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


def pytest_report_header(config: pytest.Config) -> str:
    return "sweeps: all cases" if config.option.all else f"sweeps: --sample-seed {config.option.sample_seed}, or --all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Cases that were asked for by their names all run.
    if not config.option.all and not any("[" in argument for argument in config.args):
        left_out = sweeps.left_out(items, config.option.sample_seed)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    if torch.cuda.is_available():
        return
    no_gpu = pytest.mark.skip(reason="torch sees no CUDA device")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(no_gpu)


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    """Session-wide, because hypothesis does not rebuild narrower fixtures between examples."""
    return str(request.param)


@pytest.fixture
def no_tf32() -> Iterator[None]:
    """torch allows TF32 in convolutions unless it is told not to; ours and theirs may then differ by its rounding."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture
def cuda() -> str:
    """For what only a GPU has; the test carries the cuda mark itself."""
    return "cuda"
