"""Several processes that talk to each other by torch.distributed, and what became of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import fastconv

Check = Callable[[torch.device], None]
TIMEOUT = 60  # seconds that a process waits for others
LIMIT = 240  # seconds of all checks together, or of a command


def run_checks(checks: Sequence[Check], folder: Path, device: str = "cpu") -> None:
    """Each function in two processes at once, with a process group of its own. One that fails is told by its name, and
    the others run all the same.

    Functions of modules, as others import them. A process that hangs is ended.
    """
    context = spawn(_work, (checks, folder, device), nprocs=2, join=False, daemon=True)
    deadline = time.monotonic() + LIMIT
    ended = "hangs"
    try:
        while time.monotonic() < deadline:
            if context.join(timeout=1):
                ended = "says nothing"
                break
    except Exception as error:  # a process was ended by a signal, say
        ended = str(error)
    finally:
        for process in context.processes:
            process.kill()
            process.join()
    failures = []
    for check in checks:
        for rank in range(2):
            report = _report(folder, check, rank)
            if text := report.read_text() if report.exists() else ended:
                failures.append(f"{check.__name__}, process {rank}: {text}")
    assert not failures, "\n".join(failures)


def _report(folder: Path, check: Check, rank: int) -> Path:
    return folder / f"{check.__name__}-{rank}.txt"


def _work(rank: int, checks: Sequence[Check], folder: Path, device_type: str) -> None:
    torch.set_num_threads(1)
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    for check in checks:
        backend = "nccl" if device.type == "cuda" else "gloo"
        file = f"file://{folder / check.__name__}-store"  # and no port, which another test may take
        wait = timedelta(seconds=TIMEOUT)
        dist.init_process_group(backend, init_method=file, rank=rank, world_size=2, timeout=wait)
        report = ""
        try:
            check(device)
            dist.barrier()  # who leaves first closes connections that the other one may still read
        except BaseException:  # also pytest's
            report = traceback.format_exc()
        dist.destroy_process_group()
        _report(folder, check, rank).write_text(report)


def torchrun(*command: object, **options: Any) -> str:
    """Of a script in two processes; see alone."""
    rendezvous = "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"  # a port that is free
    return alone("-m", "torch.distributed.run", "--nproc-per-node=2", *rendezvous, *command, **options)


def alone(
    *command: object,
    folder: Path,
    modules: Sequence[Path] = (),
    fails: bool = False,
    timeout: int = LIMIT,
    **variables: str,
) -> str:
    """What Python says, run in a folder with one thread; fails: as it is to. All of its children are ended with it.

    modules: folders that are searched first. variables: of the environment.
    """
    path = os.pathsep.join(map(str, (*modules, Path(fastconv.__file__).parents[1])))
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its processes then, which have sessions of their own
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode != 0) == fails, text
    return text
