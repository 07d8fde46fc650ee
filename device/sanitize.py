"""Runs every CUDA kernel of the library on small problems, for compute-sanitizer to watch: each dtype, both layouts.

    compute-sanitizer --tool memcheck --kernel-name kns=fastconv --error-exitcode 1 python3 device/sanitize.py

Arguments are shell patterns of the kernels' names, `batch_norm`, and `fused`: what follows a convolution. Results are
compared with the reference, so that a kernel that does nothing is no success. Exits with 1 if a kernel ran on none of
the problems.
"""

from __future__ import annotations

import itertools
import sys
from fnmatch import fnmatch
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import fastconv
import reference
import test_activation as activations
import test_batch_norm as norms
import test_conv_bn_act as blocks
from check import KERNELS, MODES, Kernel, expect_pass, run_forced
from shapes import DTYPES, Problem, operands

PROBLEMS = (
    Problem(2, 40, 19, 20, 72, 3, 3, padding=(1, 1), bias=True),
    Problem(1, 64, 24, 16, 128, 3, 3, stride=(2, 2), padding=(1, 1)),
    Problem(2, 64, 14, 14, 64, 3, 5, dilation=(2, 1), groups=2),
    Problem(1, 64, 16, 16, 64, 1, 1),
    Problem(1, 256, 16, 16, 256, 1, 1),
    Problem(1, 256, 14, 14, 128, 1, 1),
    Problem(1, 128, 9, 16, 256, 3, 3, padding=(1, 1)),
    Problem(1, 16, 16, 24, 32, 3, 3, padding=(1, 1)),
    Problem(1, 32, 16, 16, 40, 3, 3, padding=(1, 1)),
    Problem(1, 3, 21, 20, 24, 7, 7, stride=(2, 2), padding=(3, 3)),
    Problem(2, 4, 13, 18, 40, 3, 3, padding=(1, 1), bias=True),
    Problem(1, 40, 16, 24, 16, 3, 3, padding=(1, 1)),
    Problem(3, 3, 30, 40, 72, 4, 4, stride=(4, 4), bias=True),
    # Short rows, whose copies several warps start.
    Problem(5, 128, 14, 14, 40, 1, 1, stride=(2, 2)),
    Problem(5, 72, 7, 7, 64, 2, 2),
    # Tiles that blocks share.
    Problem(1, 256, 9, 10, 72, 3, 3, padding=(1, 1), bias=True),
    Problem(1, 72, 9, 10, 256, 3, 3, padding=(1, 1)),
    Problem(1, 16, 6, 134, 40, 3, 3, bias=True),
    Problem(1, 40, 6, 134, 16, 3, 3, padding=(1, 1)),
    Problem(1, 3, 21, 20, 128, 7, 7, stride=(2, 2), padding=(3, 3)),
    *(
        Problem(2, 40, 13, 48, 40, taps, taps, (stride, stride), (taps // 2, taps // 2), groups=40, bias=True)
        for taps in (3, 5, 7)
        for stride in (1, 2)
    ),
    # Sequences: filters of one row or column.
    *(
        Problem(2, 16, 1, 200, 16, 1, taps, padding=(0, taps // 2), dilation=(1, step), groups=16, bias=True)
        for taps in (15, 31, 63)
        for step in (1, 2)
    ),
    Problem(2, 16, 1, 200, 16, 1, 3, padding=(0, 16), dilation=(1, 16), groups=16, bias=True),
    *(Problem(2, 16, 1, 203, 16, 1, taps, (1, 2), padding=(0, 2), groups=16, bias=True) for taps in (4, 33)),
    Problem(2, 16, 1, 203, 16, 1, 4, padding=(0, 3), groups=16),
    # Windows that never leave the source: the output's, and the input gradient's.
    *(
        Problem(2, 40, 13, 49 - s if full else 48, 40, r, s, padding=(r - 1, s - 1) if full else (0, 0), groups=40)
        for r, s in [(3, 1), (3, 3), (3, 7), (5, 5), (7, 7)]
        for full in [False, True]
    ),
    # Images that no tensor map takes: the second does not begin at a multiple of 16 bytes.
    Problem(2, 42, 9, 14, 42, 3, 3, padding=(1, 1)),
    Problem(2, 33, 7, 9, 22, 3, 3, padding=(1, 1)),
    Problem(2, 33, 7, 9, 42, 3, 3, padding=(1, 1)),
    # Narrow groups: whole rows of shared memory, and odd ones.
    *(Problem(2, 40, 19, 22, 40, 3, 3, (step, step), padding=(1, 1), groups=5) for step in (1, 2)),
    *(Problem(2, 48, 19, 22, 48, 3, 3, (step, step), padding=(1, 1), groups=3, bias=True) for step in (1, 2)),
    Problem(2, 40, 19, 24, 40, 3, 3, stride=(2, 2), padding=(1, 1), groups=5),
    Problem(1, 48, 9, 150, 33, 3, 3, stride=(2, 2), padding=(1, 1), groups=3, bias=True),
    Problem(600, 32, 6, 6, 32, 3, 3, padding=(1, 1), groups=4),
    Problem(2, 32, 1, 1, 32, 3, 3, padding=(1, 1), groups=4),
    # Images of few channels: more tiles than blocks.
    Problem(300, 3, 14, 18, 40, 3, 3, padding=(1, 1), bias=True),
    # Patches: rows and columns left over, and vectors.
    Problem(2, 3, 33, 34, 40, 4, 4, stride=(4, 4)),
    Problem(2, 16, 32, 48, 40, 16, 16, stride=(16, 16), bias=True),
    # Outputs of few channels, in blocks, some of which end outside the image.
    Problem(2, 40, 19, 22, 3, 3, 3, padding=(1, 1), bias=True),
    Problem(1, 3, 27, 32, 64, 11, 11, stride=(4, 4), padding=(2, 2)),
)
VIEWS = ("contiguous", "channels_last")
# What weight gradients of rows stream while products go on: more pixels than all warps write at once.
STREAMED = Problem(3, 64, 264, 264, 64, 3, 3, padding=(1, 1))


def runs_right(kernel: Kernel, problem: Problem, dtype: torch.dtype, view: str, precision: str = "ieee") -> bool:
    """False if the kernel refuses the problem."""
    o = operands(problem, dtype, "cuda", views=(view, view, view))
    actual = run_forced(kernel, o, problem, precision)
    if actual is None:
        return False
    reference.assert_right(actual, expect_pass(kernel.pass_, o, problem), kernel.name, precision)
    return True


def explain(kernel: Kernel, problem: Problem) -> str:
    x, w = problem.input_size, problem.weight_size
    with fastconv.force_kernel(kernel.name):
        return fastconv.explain(x, w, None, *problem.geometry, pass_=kernel.pass_, dtype=torch.float16, device="cuda")


def run_norms() -> None:
    """Every way through a tensor: vectors of one channel, of several, single elements; more channels than threads."""
    for size, dtype, layout in itertools.product(
        [(3, 24, 4, 6), (4, 16, 7, 7), (3, 5, 5, 3), (2, 3, 48, 52), (3, 4104, 1, 2)], norms.DTYPES, norms.LAYOUTS
    ):
        for activation, residual in itertools.product(("relu", "silu"), (False, True)):
            o = norms.Operands("cuda", dtype, layout, size)
            actual = norms.train(fastconv.batch_norm_act, o, True, activation, residual)
            expected = norms.train(norms.by_torch, o, True, activation, residual, double=True)
            norms.assert_right(actual, expected, o.grad.numel())
    print("batch norms ran", flush=True)


def run_fused() -> None:
    """Activations behind convolutions, filters that are cast, batch norms within them."""
    for dtype, layout in itertools.product(norms.DTYPES, norms.LAYOUTS):
        activations.test_values_and_gradients("cuda", dtype, layout)
        for autocast in (False, True)[: 1 + (dtype == torch.bfloat16)]:
            blocks.test_inference("cuda", dtype, layout, autocast)
    for residual in (False, True):
        blocks.test_autocast_casts_the_filters_within("cuda", residual)
    print("fused calls ran", flush=True)


OTHERS = {"batch_norm": run_norms, "fused": run_fused}


def main() -> int:
    idle = []
    patterns = sys.argv[1:] or ["*"]
    for name, run in OTHERS.items():
        if any(fnmatch(name, pattern) for pattern in patterns):
            run()
    chosen = [k for k in KERNELS if k.device == "cuda" and any(fnmatch(k.name, pattern) for pattern in patterns)]
    if not chosen and not set(patterns) <= set(OTHERS):
        sys.exit("no kernel has such a name")
    for kernel in chosen:
        runs = sum(
            any(runs_right(kernel, problem, dtype, view, precision) for problem in PROBLEMS)
            for dtype, view in itertools.product(DTYPES, VIEWS)
            for precision in (MODES if dtype == torch.float32 else ["ieee"])
        )
        if kernel.name.endswith("64x3_1x3_rows"):
            assert "streams input" in explain(kernel, STREAMED)
            runs += runs_right(kernel, STREAMED, torch.float16, "contiguous")
        print(f"{kernel.name}: {runs} runs", flush=True)
        if runs == 0:
            idle.append(kernel.name)
    if idle:
        print("ran on none of the problems:", *idle)
    return 1 if idle else 0


if __name__ == "__main__":
    sys.exit(main())
