"""The package from outside: what importing it does, what it says about itself, what is in the wheel."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import fastconv
from check import KERNELS
from fastconv import _library

PACKAGE = Path(inspect.getfile(fastconv)).parent
ROOT = Path(__file__).parents[1]


def run(*arguments: str, path: Path = PACKAGE.parent, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in a new process that finds fastconv in `path`."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(path), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
    )


def output(*arguments: str, path: Path = PACKAGE.parent, **environment: str) -> str:
    done = run(*arguments, path=path, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_brings_in_nothing_heavy() -> None:
    """Each of these costs more than the 50 ms that the whole import may take."""
    new = output(
        "-c", "import sys, torch; old = set(sys.modules); import fastconv; print(*sorted(set(sys.modules) - old))"
    ).split()
    assert "fastconv" in new
    heavy = (
        "torch._dynamo",
        "torch._inductor",
        "torch._export",
        "torch.fx.experimental",
        "sympy",
        "triton",
        "numpy",
        "torch.utils.cpp_extension",
    )
    assert not [m for m in new if m.startswith(heavy)]
    others = [m for m in new if not m.startswith(("fastconv", "torch"))]
    assert len(others) <= 10, others


def test_import_prints_and_warns_nothing() -> None:
    done = run("-W", "error::UserWarning", "-c", "import fastconv")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_versions_agree() -> None:
    """The module's, that of the libraries' flavour and, where it was installed and not put on PYTHONPATH, the
    distribution's."""
    assert re.fullmatch(r"[0-9.]+(\.dev[0-9]+)?\+(cpu|cu[0-9]+)", fastconv.__version__)
    assert fastconv.__version__.endswith("+cpu") != (PACKAGE / "libfastconv_cuda.so").exists()
    for distribution in importlib.metadata.distributions(name="fastconv"):
        if distribution.read_text("RECORD") and Path(str(distribution.locate_file("fastconv"))) == PACKAGE:
            assert distribution.version == fastconv.__version__


def test_info_names_versions_and_devices_on_one_screen() -> None:
    text = fastconv.info()
    assert fastconv.__version__ in text and torch.__version__ in text
    assert sum(1 + len(line) // 80 for line in text.splitlines()) <= 24
    if torch.cuda.is_available():
        assert torch.cuda.get_device_name(0) in text


def test_info_lists_every_kernel_if_asked() -> None:
    text = fastconv.info(kernels=True)
    assert text.startswith(fastconv.info())
    for line in torch.ops.fastconv._kernels().splitlines():
        assert re.search(rf"^  {re.escape(line.split()[0])} ", text, re.MULTILINE)


def test_the_command_line_prints_info() -> None:
    assert output("-m", "fastconv").strip() == output("-m", "fastconv", "info").strip() == fastconv.info().strip()
    assert output("-m", "fastconv", "info", "--kernels").strip() == fastconv.info(kernels=True).strip()
    assert output("-m", "fastconv", "--version") == f"fastconv {fastconv.__version__}\n"


def test_the_command_line_ends_silently_when_nobody_reads_on() -> None:
    command = [sys.executable, "-m", "fastconv", "info", "--kernels"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


def test_cuda_error_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available() and (PACKAGE / "libfastconv_cuda.so").exists():
        assert fastconv.cuda_error() is None
    monkeypatch.setattr(_library, "cuda_error", "no such library")
    assert fastconv.cuda_error() == "no such library"
    monkeypatch.setattr(_library, "cuda_error", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fastconv.cuda_error() == "torch sees no CUDA device"


def test_cuda_error_is_what_a_call_would_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> list[int]:
        raise RuntimeError(f"fastconv: no code for device {index}\nand where C++ was then")

    monkeypatch.setattr(_library, "cuda_error", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.ops.fastconv, "_cuda_device", refuse, raising=False)
    assert fastconv.cuda_error() == "no code for device 1"
    assert fastconv.cuda_error("cuda:2") == fastconv.cuda_error(2) == "no code for device 2"
    monkeypatch.setattr(torch.ops.fastconv, "_cuda_device", lambda index: [90], raising=False)
    assert fastconv.cuda_error() is None


def test_the_command_line_explains() -> None:
    arguments = ("explain", "--input", "8,32,512,512", "--weight", "64,32,5,9", "--padding", "2,4", "--dilation", "2,3")
    for pass_ in ("fprop", "dgrad", "wgrad"):
        text = output("-m", "fastconv", *arguments, "--pass", pass_, "--arch", "90", "--refusals")
        names = [k.name for k in KERNELS if (k.pass_, k.device) == (pass_, "cuda")]
        assert names and all(name in text for name in names)
    same = output("-m", "fastconv", *arguments, "--precision", "ieee", "--arch", "90").strip()
    geometry: dict[str, Any] = {"padding": (2, 4), "dilation": (2, 3)}
    assert same == fastconv.explain((8, 32, 512, 512), (64, 32, 5, 9), **geometry, precision="ieee", arch=90).strip()


def test_explain_lists_the_cheapest_first_and_refusals_if_asked() -> None:
    arguments: dict[str, Any] = {"padding": 1, "dtype": torch.float16, "device": "cuda", "arch": 90}
    brief = fastconv.explain((64, 64, 56, 56), (64, 64, 3, 3), **arguments).splitlines()
    full = fastconv.explain((64, 64, 56, 56), (64, 64, 3, 3), **arguments, refusals=True).splitlines()
    costs = [float(cost) for cost in re.findall(r"cost_us (\S+)$", "\n".join(brief), re.MULTILINE)]
    assert brief[2].startswith("plan: ") and len(costs) > 4 and costs == sorted(costs)
    *listed, last = brief
    refusals = full[len(listed) :]
    assert full[: len(listed)] == listed and last == f"refused by {len(refusals)} others"
    assert len(refusals) > 4 and not [line for line in refusals if "cost_us" in line]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("explain", "--input", "8,64,32,32", "--weight", "128,63,3,3"), "63"),
        (("explain", "--input", "8,64", "--weight", "128,64,3,3"), "input"),
        (("explain", "--input", "8,64,32,32", "--weight", "128,64,3,3", "--stride", "0"), "stride"),
        (("explain", "--input", "8,64,32,x", "--weight", "128,64,3,3"), "--input"),
        (("explain", "--input", "8,64,32,32"), "--weight"),
        (("nonsense",), "nonsense"),
    ],
)
def test_the_command_line_refuses_in_one_line(arguments: tuple[str, ...], names: str) -> None:
    done = run("-m", "fastconv", *arguments)
    assert done.returncode != 0 and names in done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package that a test may damage."""
    shutil.copytree(PACKAGE, tmp_path / "fastconv", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


WORKS_ON_CPU = "y = fastconv.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)); assert y.item() == 9; "


def test_without_the_cuda_library_the_cpu_still_works(copied: Path) -> None:
    (copied / "fastconv" / "libfastconv_cuda.so").unlink(missing_ok=True)
    text = output("-c", "import torch, fastconv; " + WORKS_ON_CPU + "print(fastconv.info())", path=copied)
    assert re.search("CUDA library.*not", text)


def test_a_cuda_library_that_cannot_load_is_reported_exactly(copied: Path) -> None:
    """A truncated download, a driver too old, a missing libcudart: the loader's own words."""
    (copied / "fastconv" / "libfastconv_cuda.so").write_text("not a library")
    script = "import torch; torch.version.cuda = '13.0'; import fastconv; " + WORKS_ON_CPU + "print(fastconv.info())"
    assert re.search("invalid ELF header|file too short", output("-c", script, path=copied))


@pytest.mark.cuda
def test_cuda_tensors_raise_the_reason(cuda: str, copied: Path) -> None:
    (copied / "fastconv" / "libfastconv_cuda.so").write_text("not a library")
    script = "import torch, fastconv; x = torch.ones(1, 1, 3, 3, device='cuda'); fastconv.conv2d(x, x)"
    done = run("-c", script, path=copied)
    assert done.returncode != 0 and "RuntimeError" in done.stderr and "libfastconv_cuda.so" in done.stderr


def test_without_the_cpu_library_the_import_says_what_to_do(copied: Path) -> None:
    (copied / "fastconv" / "libfastconv_cpu.so").unlink()
    done = run("-c", "import fastconv", path=copied)
    assert "ImportError" in done.stderr and "pip install" in done.stderr


def test_an_older_torch_is_named_last(copied: Path) -> None:
    done = run("-c", "import torch; torch.__version__ = '2.9.1+cu128'; import fastconv", path=copied)
    assert done.stderr.splitlines()[-1] == "ImportError: fastconv needs torch >= 2.10, found 2.9.1+cu128"


def readelf(*arguments: str | Path) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("binutils' readelf is not installed")
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


def libraries() -> list[Path]:
    found = sorted(PACKAGE.glob("libfastconv_*.so"))
    assert found
    return found


def test_the_libraries_need_no_python_and_no_cudart() -> None:
    """Why one wheel serves every Python and torch; libtorch_cuda.so alone may be asked for besides libtorch."""
    for library in libraries():
        needed = re.findall(r"NEEDED.*\[(.*)\]", readelf("-d", library))
        allowed = r"libtorch(_cpu|_cuda)?\.so|libc10\.so|lib(stdc\+\+|gcc_s|c|m|dl|rt|pthread|gomp)\.so.*|ld-linux.*"
        assert all(re.fullmatch(allowed, name) for name in needed), (library.name, needed)
        assert not re.search(r"UND .*\b_?Py[A-Z_]", readelf("--dyn-syms", library))


def test_the_libraries_export_nothing() -> None:
    """Each has the planner, and what either instantiates of the standard library stays its own."""
    for library in libraries():
        symbols = re.findall(r" (?:GLOBAL|WEAK) +DEFAULT +(\S+) (.*)", readelf("--dyn-syms", library))
        assert symbols and all(section == "UND" for section, _ in symbols), (library.name, symbols)


def test_the_wheels_name_says_which_systems_it_is_for() -> None:
    """torch's wheels run with glibc 2.28 and what GCC 8 brought. A newer compiler or toolkit may make that impossible,
    but then no name may promise it."""
    tag = importlib.metadata.distribution("fastconv").read_text("WHEEL")
    assert tag is not None
    most = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
    newer = []
    for library in libraries():
        versions = re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)", readelf("-V", library))
        assert {family for family, _ in versions} >= {"GLIBC", "GLIBCXX"}
        newer += [(library.name, *v) for v in versions if tuple(map(int, v[1].split("."))) > most[v[0]]]
    if "manylinux" in tag:
        assert "-none-manylinux_2_28_" in tag and not newer
    elif PACKAGE.parent != ROOT / "python":  # an editable installation is for no other system
        assert newer, tag


def test_the_libraries_want_no_newer_libm() -> None:
    """Functions that glibc 2.29 and later have anew: one of them, and no wheel is for systems of 2.28 any longer, nor
    says so."""
    anew = {"exp", "exp2", "exp10", "log", "log2", "pow", "fmod", "hypot"}
    for library in libraries():
        wanted = re.findall(r" UND (\w+)@", readelf("--dyn-syms", library))
        assert wanted and not anew & set(wanted), library.name


def test_the_wheel_holds_both_libraries_and_nothing_of_the_tests() -> None:
    wheels = sorted((ROOT / "dist").glob("fastconv-*.whl"))
    if not wheels:
        pytest.skip("no wheel in dist/; `./dev wheel` builds one")
    for wheel in wheels:
        assert re.search(r"-(py3|py310|cp310)-(none|abi3)-", wheel.name), wheel.name
        names = zipfile.ZipFile(wheel).namelist()
        assert "fastconv/libfastconv_cpu.so" in names and "fastconv/py.typed" in names
        assert not [
            n for n in names if "native" in n or n.startswith(("tests", "bench")) or n.endswith((".cu", ".h", ".cpp"))
        ]
        if "+cpu" not in wheel.name and (PACKAGE / "libfastconv_cuda.so").exists():
            assert "fastconv/libfastconv_cuda.so" in names


@pytest.mark.parametrize("wheels", [[], ["fastconv/libfastconv_cpu.so"]], ids=["no wheel", "a wheel for CPUs alone"])
def test_the_gpu_machine_refuses_what_has_no_gpu_kernels(tmp_path: Path, wheels: list[str]) -> None:
    """Its tests would fail one by one for minutes of device time."""
    (tmp_path / "device").mkdir()
    (tmp_path / "dist").mkdir()
    command = shutil.copy(ROOT / "device/run", tmp_path / "device")
    for name in wheels:
        with zipfile.ZipFile(tmp_path / "dist/fastconv-0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(name, "")
    done = subprocess.run([command, "info"], capture_output=True, text=True, env={**os.environ, "OUT": str(tmp_path)})
    assert done.returncode == 1
    assert "no wheel with CUDA kernels in dist/" in done.stderr
    assert "===" not in done.stdout, "it began all the same"
