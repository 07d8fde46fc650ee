"""Builds the two libraries of the wheel. Metadata is in pyproject.toml; docs/packaging.md has the reasons."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

# pip sees to these, unless it was told --no-build-isolation.
for name, least in {"setuptools": "77", "setuptools-scm": "8", "torch": "2.10"}.items():
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found == "none" or [int(part) for part in found.split(".")[:2]] < [int(part) for part in least.split(".")]:
        sys.exit(f"fastconv needs {name} >= {least}, found {found}: python -m pip install '{name}>={least}'")

import torch
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist
from setuptools_scm import get_version
from torch.utils import cpp_extension
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

ROOT = Path(__file__).resolve().parent
# The oldest LibTorch whose stable ABI the libraries may use: 2.10.
TORCH_TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000"
# sm_90a is for H100/H200 alone and has no successor that runs it; every other chip from sm_80 on runs 8.0, newer ones
# through its PTX, of which nvcc.py makes the machine code for 10.0 and 12.0. Turing has tensor cores that Volta's code
# does not know; CUDA 13 does not compile for Volta any more.
DEFAULT_ARCHS = {12: "7.0;7.5;8.0+PTX;9.0a", 13: "7.5;8.0+PTX;9.0a;10.0;12.0"}


def find_cuda_home() -> Path | None:
    """The CUDA toolkit to build with, or None for a CPU-only wheel."""
    wanted = os.environ.get("FASTCONV_CUDA", "")
    if wanted not in ("", "0", "1"):
        sys.exit(f"FASTCONV_CUDA={wanted}: expected 0 (CPU only), 1 (CUDA required) or nothing (CUDA if nvcc is there)")
    if wanted == "0":
        return None
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    on_path = shutil.which("nvcc")
    nvccs = [Path(named, "bin", "nvcc")] if named else [Path(on_path)] if on_path else []
    if not named:
        nvccs.append(Path("/usr/local/cuda/bin/nvcc"))
        nvccs += sorted(Path("/usr/local").glob("cuda-*/bin/nvcc"), reverse=True)
    for nvcc in nvccs:
        home = nvcc.resolve().parents[1]
        # An nvcc on PATH may be a wrapper script that lies outside the toolkit.
        if nvcc.exists() and (home / "include/cuda_runtime.h").exists():
            return home
    if wanted == "1":
        sys.exit(f"FASTCONV_CUDA=1, but no CUDA toolkit in {[str(n) for n in nvccs]}: set CUDA_HOME to one with nvcc")
    return None


def nvcc_version(home: Path) -> str:
    text = subprocess.check_output([home / "bin/nvcc", "--version"], text=True)
    match = re.search(r"release (\d+\.\d+)", text)
    if match is None:
        sys.exit(f"{home}/bin/nvcc --version printed no release number:\n{text}")
    return match[1]


def architectures(wanted: str) -> str:
    """Hopper's kernels need its own features, so that 9.0 is 9.0a, and what newer chips compile is 8.0's PTX."""
    found: dict[str, None] = {}
    for entry in re.split(r"[;, ]+", wanted.strip("; ,")):
        if re.fullmatch(r"\d+\.\da?(\+PTX)?", entry) is None:
            sys.exit(f"TORCH_CUDA_ARCH_LIST={wanted}: expected numbers, such as {DEFAULT_ARCHS[13]}, not {entry!r}")
        for one in ["9.0a", *(["8.0+PTX"] if "+PTX" in entry else [])] if entry.startswith("9.0") else [entry]:
            found[one] = None
    return ";".join(found)


def instances() -> list[str]:
    """What is instantiated of the kernels, as the families' .def files say."""
    directory = BUILD_BASE / "instances"
    write = [sys.executable, str(ROOT / "build_backend/instances.py"), str(ROOT / directory)]
    subprocess.check_call(write, stdout=subprocess.DEVNULL)
    return sources(f"{directory}/*.cu")


def sources(*patterns: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


HOST_FLAGS = [
    "-O3",
    "-g0",
    "-std=c++20",
    "-Wall",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    TORCH_TARGET,
    # STD_TORCH_CHECK puts __FILE__ into its messages.
    f"-ffile-prefix-map={ROOT}/=",
    f"-ffile-prefix-map={Path(torch.__file__).parents[1]}/=",
]
LINK_DIR = ROOT / "build_backend/link"
# Of libgcc the archive first: its shared half has had conversions of halves since GCC 12 alone.
LINK_FLAGS = [
    "-Wl,--exclude-libs,ALL",
    f"-Wl,--version-script={LINK_DIR / 'exports.map'}",
    "-Wl,-z,defs",
    "-Wl,-s",
    "-lgcc",
]
# Absolute, because ninja runs in the build directory.
INCLUDE_DIRS = [str(ROOT / "include")]
# Neither library exports symbols, so each carries these.
SHARED_SOURCES = [
    "src/core/*.cpp",
    "src/planner/*.cpp",
    "src/tile/*.cpp",
    "src/families/**/*.cpp",
    "src/ops/conv2d_ops.cpp",
    "src/ops/complex.cpp",
]


def cpu_extension() -> Extension:
    extension = CppExtension(
        "fastconv.libfastconv_cpu",
        sources(*SHARED_SOURCES, "src/cpu/*.cpp", "src/ops/library.cpp", "src/ops/conv2d_cpu.cpp"),
        include_dirs=INCLUDE_DIRS,
        extra_compile_args={"cxx": list(HOST_FLAGS)},
        extra_link_args=list(LINK_FLAGS),
        py_limited_api=True,
    )
    # The stable ABI lives in libtorch_cpu alone; the others that CppExtension names are not stable.
    extension.libraries = ["torch_cpu"]
    return extension


def cuda_extension(home: Path, version: str, stub_dir: Path) -> Extension:
    # A CPU-only torch can drive nvcc too: nothing of its CUDA half is compiled against or linked. These two lines tell
    # cpp_extension so, in this process only; the second also turns on header dependencies of .cu files.
    cpp_extension.CUDA_HOME = str(home)
    torch.version.cuda = version
    major = int(version.split(".")[0])
    if major < 12:
        sys.exit(
            f"fastconv needs CUDA 12 or 13, {home}/bin/nvcc is {version}: set CUDA_HOME to another, or FASTCONV_CUDA=0"
        )
    archs = architectures(os.environ.get("TORCH_CUDA_ARCH_LIST") or DEFAULT_ARCHS[min(major, 13)])
    os.environ["TORCH_CUDA_ARCH_LIST"] = archs
    # A line of the ninja file. The user's own may be several words, as with ccache.
    nvcc = os.environ.get("PYTORCH_NVCC", shlex.quote(str(home / "bin/nvcc")))
    # CUDA 12.4's compiler spills up to four registers of a few kernels, between tiles and not where products run.
    spills = 0 if major >= 13 else 16
    script = shlex.join([sys.executable, str(ROOT / "build_backend/nvcc.py"), str(spills)])
    os.environ["PYTORCH_NVCC"] = f"{script} {nvcc}"
    nvcc_flags = [
        "-O3",
        "-std=c++20",
        f"--threads={os.environ.get('NVCC_THREADS', '1')}",
        "-Xcompiler=-fvisibility=hidden,-Wall",
        "-Xptxas=-warn-spills",
        # cpp_extension forbids these conversions to protect ATen, which is not used here.
        "-U__CUDA_NO_HALF_OPERATORS__",
        "-U__CUDA_NO_HALF_CONVERSIONS__",
        "-U__CUDA_NO_HALF2_OPERATORS__",
        "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    ]
    if tuple(map(int, version.split("."))) >= (12, 9):
        nvcc_flags.append("--compress-mode=size")
    else:
        nvcc_flags.append("-Xfatbin=-compress-all")
    extension = CUDAExtension(
        "fastconv.libfastconv_cuda",
        [
            *sources(*SHARED_SOURCES, "src/launch/*.c*", "src/norm/*.c*", "src/families/**/*.cu"),
            *instances(),
            *sources("src/ops/*_cuda.cpp"),
        ],
        include_dirs=INCLUDE_DIRS,
        library_dirs=[str(stub_dir), *(str(home / d) for d in ("lib64", "lib") if (home / d).is_dir())],
        # Not for nvcc: any flag of its that contains "arch" makes cpp_extension drop the architectures.
        extra_compile_args={
            "cxx": [*HOST_FLAGS, "-DUSE_CUDA", f'-DFASTCONV_CUDA_ARCHS="{archs}"'],
            "nvcc": nvcc_flags,
        },
        extra_link_args=list(LINK_FLAGS),
        py_limited_api=True,
    )
    extension.libraries = ["torch_cpu", "torch_cuda", "cudart_static", "rt", "pthread", "dl"]
    return extension


CUDA_HOME = find_cuda_home()
FLAVOUR = f"cu{nvcc_version(CUDA_HOME).replace('.', '')}" if CUDA_HOME else "cpu"
# Each commit counts up. Of an sdist its own PKG-INFO is read; a tree with neither that nor git does not know.
PUBLIC_VERSION = get_version(root=ROOT, local_scheme="no-local-version", fallback_version="0.1.dev0")
# One directory a flavour, so that a CPU-only wheel cannot pick up what an earlier CUDA build left behind.
BUILD_BASE = Path("build", FLAVOUR)


class BuildLibraries(BuildExtension):
    """BuildExtension with one ninja file a library, in directories that outlive the command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "no_python_abi_suffix": True})

    def finalize_options(self) -> None:
        super().finalize_options()
        # `pip install -e` passes a fresh temporary directory, which would rebuild everything each time.
        self.build_temp = str(ROOT / BUILD_BASE / "obj")

    def run(self) -> None:
        super().run()
        # Not in the libraries: each commit would change them. Beside them: not all that is imported is installed.
        package = Path("python/fastconv" if self.inplace else Path(self.build_lib, "fastconv"))
        (package / "_version.py").write_text(f'version = "{self.distribution.get_version()}"\n')

    def build_extensions(self) -> None:
        compiler = shlex.split(cpp_extension.get_cxx_compiler())[0]
        if shutil.which(compiler) is None:
            sys.exit(f"fastconv needs a C++20 compiler, and there is no {compiler}: install g++, or name one in CXX")
        if shutil.which("ninja") is None:
            sys.exit("fastconv's build needs ninja on PATH: python -m pip install ninja")
        if CUDA_HOME:
            link_stubs(ROOT / BUILD_BASE / "stub")
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        shared = self.build_temp
        self.build_temp = str(Path(shared, ext.name))
        try:
            super().build_extension(ext)
        finally:
            self.build_temp = shared

    def copy_extensions_to_source(self) -> None:
        for stale in (ROOT / "python/fastconv").glob("libfastconv_*.so"):
            stale.unlink()
        super().copy_extensions_to_source()


def link_stubs(directory: Path) -> None:
    """Makes libraries to link against, whose places torch's and the system's take when fastconv's is loaded."""
    directory.mkdir(parents=True, exist_ok=True)
    link = [*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-nostdlib", "-w"]
    name = "libtorch_cuda.so"
    subprocess.check_call([*link, f"-Wl,-soname,{name}", ROOT / "src/ops/stub_torch_cuda.c", "-o", directory / name])
    if platform.machine() != "x86_64":
        return
    for versions in LINK_DIR.glob("lib*.map"):
        soname = versions.stem
        source, stub = directory / f"{soname}.c", directory / f"{soname.partition('.')[0]}.so"
        symbols = re.findall(r"^  (\w+);$", versions.read_text(), re.MULTILINE)
        source.write_text("".join(f"void {symbol}(void) {{}}\n" for symbol in symbols))
        flags = [f"-Wl,-soname,{soname}", f"-Wl,--version-script={versions}", "-fno-builtin"]
        subprocess.check_call([*link, *flags, source, "-o", stub])


class FreshBuildPy(build_py):
    """build_py that does not ship modules deleted since the last build."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class PublicSdist(sdist):
    """An sdist without the local label: what is built of it is not known yet."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.distribution.metadata.version = PUBLIC_VERSION


class AbsoluteLinks(egg_info):
    """The long description is README, read where its relative links would lead nowhere."""

    def run(self) -> None:
        metadata = self.distribution.metadata
        metadata.long_description = absolute_links(metadata.long_description, metadata.project_urls["Source"])
        super().run()


def absolute_links(markdown: str, url: str) -> str:
    link = re.compile(r"(!?)\[([^]]*)\]\((?!\w+:|#)([^)]+)\)")
    return link.sub(lambda m: f"{m[1]}[{m[2]}]({url}/{'raw' if m[1] else 'blob'}/HEAD/{m[3]})", markdown)


class AnyPythonWheel(bdist_wheel):
    """Tags the wheel for every Python from 3.10 on: the libraries know torch's ABI and no Python's. And for every Linux
    that torch's own wheels run on, unless what it was built with made the libraries need more."""

    def get_tag(self) -> tuple[str, str, str]:
        system = super().get_tag()[2]
        libraries = list(Path(self.bdist_dir).rglob("libfastconv_*.so"))
        if not libraries or platform.libc_ver()[0] != "glibc":
            return "py310", "none", system
        newer = sorted(set().union(*(newer_versions(library.read_bytes()) for library in libraries)))
        if newer:
            print(f"not for every Linux: the libraries need {', '.join(newer)}", file=sys.stderr)
        elif system.startswith("linux_"):
            system = system.replace("linux", "manylinux_2_28")
        return "py310", "none", system


def newer_versions(library: bytes) -> set[str]:
    """Of the versions of symbols that a library names, those that PEP 600's manylinux_2_28 does not have."""
    most = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
    found = re.findall(rb"\0(GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)(?=\0)", library)
    names = {(family.decode(), version.decode()) for family, version in found}
    return {f"{family}_{v}" for family, v in names if tuple(map(int, v.split("."))) > most[family]}


extensions = [cpu_extension()]
if CUDA_HOME:
    extensions.append(cuda_extension(CUDA_HOME, nvcc_version(CUDA_HOME), ROOT / BUILD_BASE / "stub"))

setup(
    version=f"{PUBLIC_VERSION}+{FLAVOUR}",
    ext_modules=extensions,
    cmdclass={
        "build_ext": BuildLibraries,
        "build_py": FreshBuildPy,
        "bdist_wheel": AnyPythonWheel,
        "egg_info": AbsoluteLinks,
        "sdist": PublicSdist,
    },
    options={"build": {"build_base": str(BUILD_BASE)}},
)
