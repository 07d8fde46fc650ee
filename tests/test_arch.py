"""FASTCONV_ARCH: the kernels of another GPU on the one at hand."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

SCRIPT = """
import torch, fastconv
torch.manual_seed(0)
x = torch.randn(2, 64, 20, 20, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)
w = torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)
y = fastconv.conv2d(x, w, padding=1)
columns = torch.nn.functional.unfold(x.double(), 3, padding=1)
exact = (w.double().flatten(1) @ columns).view(2, 64, 20, 20)
print(((y - exact).norm() / exact.norm()).item())
print(fastconv.explain(x, w, padding=1))
print(fastconv.info())
"""


def run(arch: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FASTCONV_ARCH": arch}
    return subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.cuda
@pytest.mark.parametrize("arch", ["70", "t4", "a100", "86", "rtx4090", ""])
def test_its_kernels_run_here(arch: str) -> None:
    ran = run(arch)
    assert ran.returncode == 0, ran.stderr
    error, _, *explained = ran.stdout.splitlines()
    assert float(error) < 5e-4  # half an ulp of float16
    text = "\n".join(explained)
    hopper = torch.cuda.get_device_capability() == (9, 0) and not arch
    assert ("plan: halo_" in text or "plan: pointwise_" in text) == hopper, text
    assert (f"FASTCONV_ARCH: kernels of {arch} run" in text) == bool(arch)


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
