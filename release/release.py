"""Builds the wheels that are released, and tries them: ./dev release [--help]

Each flavour is a folder that pip takes as a package index, beside which the torch of one's choice is installed:

    dist/release/cu124/fastconv/fastconv-VERSION+cu124-py310-none-manylinux_2_28_x86_64.whl
    pip install --index-url file://$PWD/dist/release/cu124 fastconv

dist/release/report.json has what was found of each: size, SHA-256, auditwheel's verdict, where the smoke test passed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CUDA12 = ROOT / "build/cuda12"
MOST_BYTES = 60 * 10**6
NEWEST_GLIBC = (2, 28)
OLDEST_PYTHON = (3, 10)
# What comes with torch.
FOREIGN_LIBRARIES = {"libtorch_cpu.so", "libtorch_cuda.so"}


@dataclass
class Wheel:
    path: str
    version: str
    flavour: str
    bytes: int
    sha256: str
    symbols_of: str  # the oldest platform that has all versions of symbols
    foreign_libraries: list[str]
    build_s: float
    smoke_tests: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        found = []
        if self.bytes > MOST_BYTES:
            found.append(f"has {self.bytes} bytes, more than {MOST_BYTES}")
        glibc = re.fullmatch(r"manylinux_(\d+)_(\d+)_\w+", self.symbols_of)
        if glibc is None or (int(glibc[1]), int(glibc[2])) > NEWEST_GLIBC:
            found.append(f"needs symbols of {self.symbols_of}")
        if foreign := set(self.foreign_libraries) - FOREIGN_LIBRARIES:
            found.append(f"needs {', '.join(sorted(foreign))}")
        return found


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"release: {' '.join(map(str, command))} failed\n{done.stdout}")
    return done.stdout


def build(toolkit: Path, directory: Path) -> Wheel:
    """A wheel in the index folder of its flavour."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", scratch)
        run(*pip, ROOT, CUDA_HOME=str(toolkit), FASTCONV_CUDA="1")
        (built,) = Path(scratch).glob("fastconv-*.whl")
        flavour = re.split(r"[+-]", built.name)[2]
        if (directory / flavour).exists():
            sys.exit(f"release: {toolkit} makes the flavour {flavour}, which another toolkit has made")
        path = index(directory / flavour, built)
    audit = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", path))
    return Wheel(
        path=str(path.relative_to(directory)),
        version=path.name.split("-")[1],
        flavour=flavour,
        bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        symbols_of=audit["sym_tag"],
        foreign_libraries=sorted(audit["external_libs"]),
        build_s=round(time.monotonic() - begin),
    )


def index(directory: Path, wheel: Path) -> Path:
    """Makes a package index of PEP 503 that has this wheel alone."""
    project = directory / "fastconv"
    project.mkdir(parents=True)
    path = project / wheel.name
    shutil.move(wheel, path)
    page = '<!DOCTYPE html>\n<html><body><a href="{}">{}</a></body></html>\n'
    (directory / "index.html").write_text(page.format("fastconv/", "fastconv"))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    # A + in an address would be read as a space.
    href = f"{path.name.replace('+', '%2B')}#sha256={sha256}"
    (project / "index.html").write_text(page.format(href, path.name))
    return path


def interpreters() -> dict[tuple[int, int], str]:
    """Of each minor version of Python that fastconv takes, pyenv's too, one that runs."""
    named = [shutil.which(f"python3.{minor}") for minor in range(10, 20)]
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))
    found: dict[tuple[int, int], str] = {}
    for path in [sys.executable, *filter(None, named), *map(str, pyenv)]:
        ask = [path, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            major, minor = map(int, done.stdout.split())
            if (major, minor) >= OLDEST_PYTHON:
                found.setdefault((major, minor), path)
    return found


def smoke(wheels: list[Wheel], directory: Path, python: str, torch: str) -> None:
    """Installs one wheel after the other from its index into a new environment, and runs release/smoke.py there."""
    with tempfile.TemporaryDirectory(dir=directory) as environment:
        run(python, "-m", "venv", environment)
        inside = Path(environment, "bin/python")
        run(inside, "-m", "pip", "install", "-q", torch, "numpy")
        ask = "import torch, platform; print(torch.__version__, platform.python_version(), torch.version.cuda)"
        versions = run(inside, "-c", ask).split()
        if versions[2] == "None":
            sys.exit(
                f"release: {torch} brought a torch without CUDA, beside which fastconv's CUDA library is not loaded"
            )
        alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_NO_INDEX": "0"}
        for wheel in wheels:
            url = (directory / wheel.flavour).as_uri()
            pip = (inside, "-m", "pip", "install", "-q", "--force-reinstall", "--no-deps")
            run(*pip, "--index-url", url, "fastconv", **alone)
            said = run(inside, ROOT / "release/smoke.py", versions[0].partition("+")[0], wheel.version)
            print(f"{wheel.flavour}: torch {versions[0]}, Python {versions[1]}: {said.strip()}", flush=True)
            wheel.smoke_tests.append(f"torch {versions[0]}, Python {versions[1]}, {platform.system()}: passed")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev release", description="Builds the wheels to release, and tries them.")
    parser.add_argument(
        "--toolkit", type=Path, action="append", metavar="CUDA_HOME",
        help="build with this alone (again for another); default: CUDA 12, made in build/cuda12, and /usr/local/cuda",
    )  # fmt: skip
    parser.add_argument(
        "--torch", action="append", metavar="REQUIREMENT",
        help="try beside this torch (again for another); default: 2.10.0 in the oldest Python, any in the newest",
    )  # fmt: skip
    parser.add_argument("--no-smoke", action="store_true", help="build and look at the wheels, but do not try them")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    if changed := run("git", "-C", ROOT, "status", "--porcelain").strip():
        sys.exit(f"release: commit these first, or their wheels are nobody's:\n{changed}")
    commit = run("git", "-C", ROOT, "rev-parse", "HEAD").strip()
    run(sys.executable, "-m", "auditwheel", "--version")
    toolkits = arguments.toolkit or [CUDA12, Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    missing = [str(toolkit) for toolkit in toolkits if not (toolkit / "bin/nvcc").exists()]
    if not arguments.toolkit and str(CUDA12) in missing:
        print(f"release: making a CUDA 12 toolkit in {CUDA12}", flush=True)
        run(ROOT / "release/cuda12.sh", CUDA12)
        missing.remove(str(CUDA12))
    if missing:
        sys.exit(f"release: no bin/nvcc in {', '.join(missing)}")
    directory = ROOT / "dist/release"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    wheels = []
    for toolkit in toolkits:
        print(f"release: building with {toolkit}", flush=True)
        wheel = build(toolkit, directory)
        if faults := wheel.faults():
            sys.exit(f"release: {wheel.path} {', '.join(faults)}")
        wheels.append(wheel)
    if not arguments.no_smoke:
        pythons = [path for _, path in sorted(interpreters().items())]
        beside = arguments.torch or ["torch==2.10.0", "torch"]
        for i, torch in enumerate(beside):
            smoke(wheels, directory, pythons[0 if i + 1 < len(beside) else -1], torch)
    report = {"commit": commit, "wheels": [asdict(wheel) for wheel in wheels]}
    (directory / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (directory / "SHA256SUMS").write_text("".join(f"{wheel.sha256}  {wheel.path}\n" for wheel in wheels))
    for wheel in wheels:
        print(
            f"{wheel.path}: {wheel.bytes / 1e6:.1f} MB, symbols of {wheel.symbols_of}, built in {wheel.build_s:.0f} s"
        )
        for test in wheel.smoke_tests:
            print(f"  {test}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
