"""DTensor: two processes that each hold a part compute what one would, forward and backward."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import fastconv

# What each process runs, told its rank and the port of the other by torch's usual variables.
PROGRAM = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

import fastconv

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
sizes = {"dense": ((4, 6, 9, 8), (8, 6, 3, 3), 1), "grouped": ((4, 6, 9, 8), (8, 3, 3, 3), 2),
         "unbatched": ((6, 9, 8), (8, 6, 3, 3), 1)}
computed = 0
for name, (input_size, weight_size, groups) in sizes.items():
    channels = Shard(len(input_size) - 3)
    # input, weight and bias as they are held, and how the output comes out where no data need move
    splits = [(Replicate(), Replicate(), Replicate(), Replicate())]
    if len(input_size) == 4:
        splits.append((Shard(0), Replicate(), Replicate(), Shard(0)))
    splits.append((Replicate(), Shard(0), Shard(0), channels if groups == 1 else None))
    splits.append((channels, Replicate(), Replicate(), None))
    splits.append((channels, Shard(1), None, None))
    for *placements, result in splits:
        x, w, b = (torch.randn(size, dtype=torch.float64) for size in (input_size, weight_size, weight_size[:1]))
        held = [None if p is None else distribute_tensor(t, mesh, [p]).requires_grad_()
                for t, p in zip((x, w, b), placements)]
        whole = [None if p is None else t.requires_grad_() for t, p in zip((x, w, b), placements)]
        y, expected = (fastconv.conv2d(*tensors, (2, 1), 1, 1, groups) for tensors in (held, whole))
        assert result is None or y.placements == (result,), (name, placements, y.placements)
        torch.testing.assert_close(y.full_tensor(), expected)
        dy = torch.randn_like(expected)
        y.backward(distribute_tensor(dy, mesh, y.placements if not y.placements[0].is_partial() else [Replicate()]))
        expected.backward(dy)
        for t, e in zip(held, whole):
            if t is not None:
                torch.testing.assert_close(t.grad.full_tensor(), e.grad)
        # A frozen weight: the backward pass then has the input's size alone.
        frozen = [t if t is None or i == 0 else t.detach() for i, t in enumerate(held)]
        held[0].grad = None
        y = fastconv.conv2d(*frozen, (2, 1), 1, 1, groups)
        y.backward(distribute_tensor(dy, mesh, y.placements if not y.placements[0].is_partial() else [Replicate()]))
        torch.testing.assert_close(held[0].grad.full_tensor(), whole[0].grad)
        computed += 1
print("computed", computed)
dist.destroy_process_group()
"""


def test_two_processes_compute_what_one_does() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(fastconv.__file__).parents[1]),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            out, errors = process.communicate(timeout=300)
            assert process.returncode == 0 and out == "computed 14\n", errors
    finally:
        for process in processes:
            process.kill()


def test_registration_waits_for_the_import_itself() -> None:
    """Others ask where a module is without importing it."""
    program = """
import importlib.util
import fastconv
for name in ("torch.distributed.tensor", "torch.utils.flop_counter"):
    assert importlib.util.find_spec(name) is not None
import torch
import torch.utils.flop_counter
from torch.distributed.tensor import DTensor
x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
    fastconv.conv2d(x, w)
assert counter.get_total_flops() == 2 * 3 * 9 * 18
propagator = DTensor._op_dispatcher.sharding_propagator
print(torch.ops.fastconv.conv2d.default in propagator.op_strategy_funcs)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(fastconv.__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert run.stdout == "True\n", run.stderr
