"""DTensor: two processes that each hold a part compute what one would, forward and backward."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import fastconv
from processes import run_checks

SIZES = {
    "dense": ((4, 6, 9, 8), (8, 6, 3, 3), 1),
    "grouped": ((4, 6, 9, 8), (8, 3, 3, 3), 2),
    "unbatched": ((6, 9, 8), (8, 6, 3, 3), 1),
}


def parts_make_the_whole(device: torch.device) -> None:
    """Forward and backward, in each of two processes."""
    mesh = init_device_mesh(device.type, (2,))
    conv2d: Any = fastconv.conv2d
    torch.manual_seed(0)
    for name, (input_size, weight_size, groups) in SIZES.items():
        channels, all_of_it = Shard(len(input_size) - 3), Replicate()
        # input, weight and bias as they are held, and how the output comes out where no data need move
        splits: list[tuple[Any, ...]] = [(all_of_it, all_of_it, all_of_it, all_of_it)]
        if len(input_size) == 4:
            splits.append((Shard(0), all_of_it, all_of_it, Shard(0)))
        splits.append((all_of_it, Shard(0), Shard(0), channels if groups == 1 else None))
        splits.append((channels, all_of_it, all_of_it, None))
        splits.append((channels, Shard(1), None, None))
        for *placements, result in splits:
            sizes = input_size, weight_size, weight_size[:1]
            tensors = [torch.randn(size, dtype=torch.float64).to(device) for size in sizes]
            pairs = list(zip(tensors, placements, strict=True))
            held: list[Any] = [
                None if p is None else distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in pairs
            ]
            whole: list[Any] = [None if p is None else t.requires_grad_() for t, p in pairs]
            y, expected = (conv2d(*operands, (2, 1), 1, 1, groups) for operands in (held, whole))
            assert result is None or y.placements == (result,), (name, placements, y.placements)
            torch.testing.assert_close(y.full_tensor(), expected)
            dy = torch.randn(expected.shape, dtype=torch.float64).to(device)
            of_output = y.placements if not y.placements[0].is_partial() else [all_of_it]
            y.backward(distribute_tensor(dy, mesh, of_output))
            expected.backward(dy)
            for t, e in zip(held, whole, strict=True):
                if t is not None:
                    torch.testing.assert_close(t.grad.full_tensor(), e.grad)
            # A frozen weight: the backward pass then has the input's size alone.
            frozen = [t if t is None or i == 0 else t.detach() for i, t in enumerate(held)]
            held[0].grad = None
            y = conv2d(*frozen, (2, 1), 1, 1, groups)
            y.backward(distribute_tensor(dy, mesh, of_output))
            torch.testing.assert_close(held[0].grad.full_tensor(), whole[0].grad)


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    run_checks([parts_make_the_whole], tmp_path)


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
