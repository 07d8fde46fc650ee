"""FASTCONV_ARCH: the kernels of another GPU on the one at hand."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fastconv.explain import gpu

# Normwise errors of all passes against float64, beside the most that docs/precision.md allows; then a plan.
SCRIPT = """
import sys, torch, fastconv
import torch.nn.functional as F
device = sys.argv[1]
torch.manual_seed(0)
torch.set_num_threads(2)  # of the references: others run beside this
HALF = [(torch.half, None, 2**-11), (torch.bfloat16, None, 2**-8)]
modes = HALF + [(torch.float, "ieee", 1e-6), (torch.float, "bf16x3", 2e-5), (torch.float, "tf32", 2**-11)]
problems = [
    ((2, 64, 20, 20), (64, 64, 3, 3), 1, 1, 1, 1), ((2, 24, 17, 19), (40, 24, 3, 5), 2, 2, 1, 1),
    ((3, 48, 14, 14), (96, 48, 1, 1), 1, 0, 1, 1), ((2, 32, 15, 15), (32, 8, 3, 3), 1, 2, 2, 4),
    ((2, 32, 28, 28), (32, 1, 5, 5), 1, 2, 1, 32), ((2, 3, 33, 35), (16, 3, 7, 7), 2, 3, 1, 1),
]
for size, filters, stride, padding, dilation, groups in problems:
    for dtype, precision, bound in modes:
        for layout in (torch.contiguous_format, torch.channels_last):
            random = (torch.randn(shape, device=device, dtype=dtype) for shape in (size, filters))
            operands = [t.to(memory_format=layout) for t in random]
            x, w = (t.requires_grad_() for t in operands)
            y = fastconv.conv2d(x, w, None, stride, padding, dilation, groups, precision=precision)
            dy = torch.randn_like(y)
            results = [y.detach(), *torch.autograd.grad(y, (x, w), dy)]
            x, w = (t.detach().double().cpu().requires_grad_() for t in operands)
            y = F.conv2d(x, w, None, stride, padding, dilation, groups)
            for name, a, b in zip("ydw", results, [y.detach(), *torch.autograd.grad(y, (x, w), dy.double().cpu())]):
                error = ((a.cpu() - b).norm() / b.norm()).item()
                assert error <= bound, (name, size, filters, dtype, precision, layout, error)
x, w = (torch.randn(size, device=device).half().to(memory_format=layout) for size in ((2, 64, 20, 20), (64, 64, 3, 3)))
print(fastconv.explain(x, w, padding=1))
print(fastconv.info())
"""


def run(arch: str, device: str = "cuda") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FASTCONV_ARCH": arch}
    command = [sys.executable, "-c", SCRIPT, device]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_script_tells_right_from_wrong() -> None:
    """On the CPU, for which there is no other architecture."""
    ran = run("", "cpu")
    assert ran.returncode == 0, ran.stderr
    wrong = SCRIPT.replace("precision=precision)", "precision=precision) * 1.01")
    ran = subprocess.run([sys.executable, "-c", wrong, "cpu"], capture_output=True, text=True, check=False)
    assert "AssertionError: ('y', (2, 64, 20, 20)" in ran.stderr


@pytest.mark.cuda
@pytest.mark.parametrize("arch", ["70", "75", "80", "t4", "a100", "86", "rtx4090", ""])
def test_its_kernels_run_here(arch: str) -> None:
    own = torch.ops.fastconv._cuda_device(torch.cuda.current_device())[0]
    if arch and gpu(arch).arch > own:
        pytest.skip(f"the GPU here is {own}")
    ran = run(arch)
    assert ran.returncode == 0, ran.stderr
    hopper = own == 90 and not arch
    assert ("plan: halo_" in ran.stdout or "_wgmma" in ran.stdout) == hopper, ran.stdout
    assert (f"FASTCONV_ARCH: kernels of {arch} run" in ran.stdout) == bool(arch)


@pytest.mark.cuda
def test_there_is_no_such_gpu() -> None:
    ran = run("h300")
    assert ran.returncode != 0
    assert "FASTCONV_ARCH must be a GPU or its compute capability times 10: v100 (70)" in ran.stderr
    assert "but got 'h300'" in ran.stderr


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() >= (12, 0), reason="runs all")
def test_the_device_cannot_run_its_kernels() -> None:
    ran = run("rtx5090")
    assert ran.returncode != 0
    assert "FASTCONV_ARCH asks for kernels of compute capability 12.0, which do not run on this device" in ran.stderr
