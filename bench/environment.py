"""Where and with what a benchmark ran."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench.floors import H200, H200_BY_WARPS, Ceilings
from bench.modes import Mode
from bench.timing import tf32_allowed, time_calls

ROOT = Path(__file__).parent.parent


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        acts_as = os.environ.get("FASTCONV_ARCH")
        return torch.cuda.get_device_name(device) + (f" as {acts_as}" if acts_as else "")
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return model.group(1) if model else platform.machine()


def slug(device: torch.device) -> str:
    """For file names: `h200`, `cpu`."""
    if device.type == "cpu":
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", device_name(device).lower().removeprefix("nvidia ")).strip("-")


def machine(device: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {"device": device_name(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["SMs"] = properties.multi_processor_count
        facts["L2 MiB"] = properties.L2_cache_size >> 20
        facts["driver"] = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    facts["CPU threads"] = torch.get_num_threads()
    facts["system"] = platform.platform()
    return facts


def versions(device: torch.device) -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if device.type == "cuda":
        found["CUDA"] = str(torch.version.cuda)
        found["cuDNN"] = str(torch.backends.cudnn.version())
    return found


def build() -> dict[str, Any]:
    """What identifies the measured fastconv: the commit, the wheel it was installed from, the libraries loaded.

    A copy of the tree without .git takes the commit from the environment variable FASTCONV_COMMIT.
    """
    import fastconv

    named = os.environ.get("FASTCONV_COMMIT")
    facts: dict[str, Any] = {"commit": named or _output("git", "rev-parse", "HEAD")}
    if not named and _output("git", "status", "--porcelain"):
        facts["uncommitted changes"] = "yes"
    try:
        origin = importlib.metadata.distribution("fastconv").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        origin = None
    if origin:
        facts["wheel"] = json.loads(origin).get("archive_info", {}).get("hash", "")
    return facts | libraries(Path(fastconv.__file__).parent)


def libraries(package: Path) -> dict[str, str]:
    """The hashes of a package's libraries by their names."""
    found = sorted(package.glob("libfastconv_*.so"))
    return {path.name: "sha256=" + hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def stem(out: Path, name: str, device: torch.device) -> Path:
    """Of a measurement's files, in a folder that is made if there is none."""
    out.mkdir(parents=True, exist_ok=True)
    return out / f"{name}-{slug(device)}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"


def run_facts(device: torch.device) -> dict[str, Any]:
    """What the JSON of a measurement begins with."""
    import fastconv

    run = {"command": sys.argv, "fastconv": fastconv.__version__, "machine": machine(device)}
    return run | {"versions": versions(device), "build": build()}


def headed(title: str, built: dict[str, Any], table: str) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in built.items() if value)
    return f"{title}\n\n- Build: {facts}\n\n{table}\n"


def write_table(out: Path, name: str, device: torch.device, title: str, table: str, **data: Any) -> Path:
    """A measurement with a command of its own, as JSON and as a table to read. Their path without the suffix."""
    path, run = stem(out, name, device), run_facts(device)
    path.with_suffix(".json").write_text(json.dumps({**run, **data}, indent=1) + "\n")
    path.with_suffix(".md").write_text(headed(title, run["build"], table))
    return path


def measure_ceilings(device: torch.device, modes: list[Mode], seconds: float = 0.2) -> Ceilings:
    """The best of a large copy and of PyTorch's matrix product in each mode (for bf16x3 a third of bfloat16's)."""
    cuda = device.type == "cuda"
    source = torch.randn(1 << (29 if cuda else 25), device=device)
    target = torch.empty_like(source)
    copy_ms = time_calls([lambda: target.copy_(source)], device, seconds).least_ms
    tflops = {}
    side = 8192 if cuda else 1024
    for mode in modes:
        three_products = mode.precision == "bf16x3"
        dtype = torch.bfloat16 if three_products else mode.torch_dtype
        a = torch.randn(side, side, device=device).to(dtype)
        b = torch.randn(side, side, device=device).to(dtype)
        with tf32_allowed(mode.opponent_tf32):
            gemm_ms = time_calls([functools.partial(torch.matmul, a, b)], device, seconds).least_ms
        tflops[mode.label] = 2 * side**3 / gemm_ms / 1e9 / (3 if three_products else 1)
    return Ceilings(2 * source.nbytes / copy_ms / 1e6, tflops, "copy and PyTorch GEMM, this run")


def ceilings_for(device: torch.device, measured: Ceilings) -> Ceilings:
    """The ceilings that floors are computed from: the H200's are known better than a GEMM shows them."""
    if device.type != "cuda" or "H200" not in device_name(device):
        return measured
    return H200 if " as " not in device_name(device) else H200_BY_WARPS
