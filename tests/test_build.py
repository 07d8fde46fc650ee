"""The build from outside: its versions, which torch it takes, what it says when something is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import instances
import nvcc
import pytest

from release import release

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
STUB = 'extern "C" __attribute__((visibility("default"))) int fastconv_stub() { return 0; }\n'


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without what pip could download."""
    offline = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
    for name in ("PIP_CONSTRAINT", "PIP_FIND_LINKS", "PYTHONPATH"):
        offline.pop(name, None)
    return subprocess.run(
        list(map(str, command)), env={**offline, **environment}, capture_output=True, text=True, timeout=300, cwd="/"
    )


def output(*command: str | Path, **environment: str) -> str:
    done = run(*command, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commit(tree: Path) -> None:
    git = ("git", "-C", tree, "-c", "user.name=test", "-c", "user.email=test@localhost")
    output(*git, "add", ".")
    output(*git, "commit", "-qm", "one more", "--allow-empty")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with fastconv's build, and of its sources one function, which takes seconds to build."""
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "_version.py", "*.egg-info")
    for name in ("build_backend", "python"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tree)
    (tree / "src/ops").mkdir(parents=True)
    for name in ("library.cpp", "conv2d_cuda.cpp"):
        (tree / "src/ops" / name).write_text(STUB)
    (tree / "src/ops/stub_torch_cuda.c").touch()
    (tree / "bench/results").mkdir(parents=True)
    (tree / "bench/results/large.json").write_text("{}")
    output("git", "init", "-q", tree)
    commit(tree)
    return tree


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """As much of a CUDA toolkit of release 13.0 as a library without CUDA sources needs."""
    home = tmp_path / "cuda"
    for folder in ("bin", "include", "lib64"):
        (home / folder).mkdir(parents=True)
    (home / "include/cuda_runtime.h").touch()
    (home / "bin/nvcc").write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.48\n")
    (home / "bin/nvcc").chmod(0o755)
    output("ar", "rc", home / "lib64/libcudart_static.a")
    return home


def wheel(source: str | Path, to: Path, **environment: str) -> Path:
    output(*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", to, source, **environment)
    (built,) = to.glob("*.whl")
    return built


def test_a_wheel_replaces_one_of_another_flavour_and_one_of_an_older_commit(
    tree: Path, toolkit: Path, tmp_path: Path
) -> None:
    wheels = [
        wheel(tree, tmp_path / "cpu", FASTCONV_CUDA="0"),
        wheel(tree, tmp_path / "cuda-wheel", FASTCONV_CUDA="1", CUDA_HOME=str(toolkit)),
    ]
    commit(tree)
    wheels.append(wheel(f"git+{tree.as_uri()}", tmp_path / "newer", FASTCONV_CUDA="0"))
    venv.create(tmp_path / "user", symlinks=True)
    python = tmp_path / "user/bin/python"
    show = (
        "import importlib.metadata as m; print(m.version('fastconv'), m.distribution('fastconv').read_text('RECORD'))"
    )
    for built, version in zip(wheels, ["0.1.dev1+cpu", "0.1.dev1+cu130", "0.1.dev2+cpu"], strict=True):
        output(*PIP, "--python", python, "install", "--no-deps", built)
        installed, record = output(python, "-c", show).split(" ", 1)
        assert installed == version and built.name.startswith(f"fastconv-{version}-")
        assert ("libfastconv_cuda.so" in record) == ("cu" in version)
        (module,) = (tmp_path / "user").rglob("fastconv/_version.py")
        assert module.read_text() == f'version = "{version}"\n'


def setup_py(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("env", "-C", tree, sys.executable, "setup.py", *arguments, **{"FASTCONV_CUDA": "0", **environment})


def test_a_shallow_clone_and_a_tree_without_git_have_versions(tree: Path, tmp_path: Path) -> None:
    commit(tree)
    output("git", "clone", "-q", "--depth=1", tree.as_uri(), tmp_path / "shallow")
    assert setup_py(tmp_path / "shallow", "--version").stdout == "0.1.dev1+cpu\n"
    shutil.rmtree(tmp_path / "shallow/.git")
    assert setup_py(tmp_path / "shallow", "--version").stdout == "0.1.dev0+cpu\n"


def test_an_sdist_keeps_the_version_and_leaves_measurements_out(tree: Path, tmp_path: Path) -> None:
    commit(tree)
    (tree / "python/fastconv/_version.py").write_text('version = "of an earlier build"\n')
    assert setup_py(tree, "-q", "sdist", "-d", str(tmp_path)).returncode == 0
    with tarfile.open(tmp_path / "fastconv-0.1.dev2.tar.gz") as archive:
        archive.extractall(tmp_path)
    sdist = tmp_path / "fastconv-0.1.dev2"
    assert (sdist / "build_backend/link/exports.map").exists() and not (sdist / "bench/results").exists()
    assert not (sdist / "python/fastconv/_version.py").exists()
    built = wheel(sdist, tmp_path / "wheel", FASTCONV_CUDA="0")
    assert built.name.startswith("fastconv-0.1.dev2+cpu-")
    metadata = zipfile.ZipFile(built).read("fastconv-0.1.dev2+cpu.dist-info/METADATA").decode()
    links = re.findall(r"\]\(([^)]+)\)", metadata)
    assert len(links) > 4 and all(link.startswith(("https://", "#")) for link in links)
    assert "(https://github.com/fastconv/fastconv/blob/HEAD/docs/packaging.md)" in metadata


@pytest.mark.parametrize("found", ["setuptools 65.5.0", "setuptools 76.1.0", "torch 2.9.1+cpu", "setuptools-scm 7.1.0"])
def test_what_is_too_old_is_named_with_what_is_needed(tree: Path, tmp_path: Path, found: str) -> None:
    name, version = found.split()
    least = {"setuptools": "77", "torch": "2.10", "setuptools-scm": "8"}[name]
    metadata = tmp_path / "old" / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    done = setup_py(tree, "--version", PYTHONPATH=str(tmp_path / "old"))
    remedy = f"python -m pip install '{name}>={least}'"
    assert done.returncode == 1
    assert done.stderr == f"fastconv needs {name} >= {least}, found {version}: {remedy}\n"


def test_a_build_without_its_requirements_says_so(tree: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    done = run("env", "-C", tree, tmp_path / "bare/bin/python", "setup.py", "--version")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("fastconv needs setuptools >= 77, found none: python -m pip install")


@pytest.mark.parametrize("missing", ["c++", "ninja"])
def test_a_build_without_a_tool_says_so(tree: Path, tmp_path: Path, missing: str) -> None:
    (tmp_path / "bin").mkdir()
    for tool in {"c++", "ninja", "env", "git"} - {missing}:
        found = shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    done = setup_py(tree, "-q", "build_ext", PATH=str(tmp_path / "bin"), CXX="c++")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert missing in last and ("install g++" in last if missing == "c++" else "python -m pip install ninja" in last)


def own_site(place: Path) -> Path:
    venv.create(place / "env", symlinks=True)
    (site,) = (place / "env/lib").glob("python*/site-packages")
    return site


def site_of_a_venv(place: Path) -> tuple[Path, Path]:
    return place / "env/bin/python", own_site(place)


def behind_a_pth_file(place: Path) -> tuple[Path, Path]:
    elsewhere = place / "elsewhere"
    (own_site(place) / "elsewhere.pth").write_text(f"{elsewhere}\n")
    return place / "env/bin/python", elsewhere


def user_site(place: Path) -> tuple[Path, Path]:
    """pip sees the user's directory where it sees the system's."""
    venv.create(place / "env", symlinks=True, system_site_packages=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return place / "env/bin/python", place / "user/lib" / version / "site-packages"


def system_site(place: Path) -> tuple[Path, Path]:
    """The system is a copy of this one's in links, with site-packages of its own."""
    standard = Path(sysconfig.get_path("stdlib"))
    library = place / "system/lib" / standard.name
    library.mkdir(parents=True)
    for entry in standard.iterdir():
        if entry.name != "site-packages":
            (library / entry.name).symlink_to(entry)
    (place / "system/bin").mkdir()
    python = place / "system/bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    python.symlink_to(Path(sys.executable).resolve())
    output(python, "-m", "venv", "--without-pip", "--system-site-packages", place / "env")
    return place / "env/bin/python", library / "site-packages"


@pytest.mark.parametrize("place_torch", [site_of_a_venv, behind_a_pth_file, user_site, system_site, None])
def test_an_isolated_build_takes_the_torch_that_is_installed(tmp_path: Path, place_torch: Any) -> None:
    """setuptools is replaced by what tells which torch it was given, so that nothing has to be downloaded."""
    python, site = (place_torch or site_of_a_venv)(tmp_path)
    torch = site / "torch/__init__.py"
    if place_torch:
        torch.parent.mkdir(parents=True)
        torch.touch()
    project = tmp_path / "project"
    (project / "setuptools").mkdir(parents=True)
    shutil.copy(ROOT / "build_backend/fastconv_backend.py", project)
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "fastconv_backend"\nbackend-path = ["."]\n'
    )
    (project / "setuptools/__init__.py").touch()
    (project / "setuptools/build_meta.py").write_text(
        "def build_wheel(*_):\n    import torch\n    raise SystemExit(f'built with {torch.__file__}')\n"
    )
    done = run(*PIP, "--python", python, "wheel", project, PYTHONUSERBASE=str(tmp_path / "user"))
    text = done.stdout + done.stderr
    assert done.returncode != 0
    if place_torch:
        assert f"built with {torch}" in text
    else:
        assert "built with" not in text and "torch>=2.10" in text


def test_instances_are_what_the_def_files_list(tmp_path: Path) -> None:
    written = instances.write(tmp_path)
    texts = {path.name: path.read_text() for path in written}
    assert sorted(tmp_path.glob("*.cu")) == written and len(written) > 30
    everything = "".join(texts.values())
    assert everything.count("template Launcher ") == len(set(re.findall(r"template Launcher .*", everything)))
    assert set(re.findall(r"(\w+)>\(int\)", everything)) == {"float", "double", "__half", "__nv_bfloat16"}
    halo = texts["halo_kTma_kPairs_kScaled.cu"]
    assert '#include "fastconv/families/halo/launch.cuh"' in halo
    assert "halo_launcher<HaloStaging::kTma, FilterTile::kPairs, OperandForm::kScaled, float>(int);" in halo


def test_instances_that_did_not_change_are_left_alone(tmp_path: Path) -> None:
    first, second, *_ = instances.write(tmp_path)
    before = first.stat().st_mtime_ns
    second.write_text("stale")
    (tmp_path / "of_a_family_that_is_gone.cu").write_text("")
    assert first in instances.write(tmp_path)
    assert first.stat().st_mtime_ns == before and second.read_text() != "stale"
    assert not (tmp_path / "of_a_family_that_is_gone.cu").exists()


def test_each_kernel_is_emulated_in_one_of_the_types_of_16_bits(tmp_path: Path) -> None:
    """Of each file that has both."""
    both = {path.name: path.read_text() for path in instances.write(tmp_path / "both")}
    one = {path.name: path.read_text() for path in instances.write(tmp_path / "one", one_half=True)}
    assert list(both) == list(one)
    left = []
    for name, text in both.items():
        compiled = [
            half
            for half in instances.HALVES
            if re.search(rf"^template Launcher .*\b{half}>\(int\);$", one[name], re.MULTILINE)
        ]
        if all(half in text for half in instances.HALVES):
            left += compiled
            assert len(compiled) == 1
            stubs = re.findall(r"^template <> Launcher .*\b(\w+)>\(int\) { return nullptr; }$", one[name], re.MULTILINE)
            assert set(stubs) == set(instances.HALVES) - set(compiled)
            assert text.count("Launcher ") == one[name].count("Launcher ")
        else:
            assert one[name] == text
    assert set(left) == set(instances.HALVES)


def test_a_def_file_names_its_arguments(tmp_path: Path) -> None:
    path = tmp_path / "kernels.def"
    path.write_text("// some/launch.cuh: some_launcher<T>\n")
    with pytest.raises(SystemExit, match="no comment names the arguments"):
        instances.files(path)
    path.write_text("// SOME_KERNEL(name)\n// some/launch.cuh: some_launcher<T>\nSOME_KERNEL(a)\n")
    with pytest.raises(SystemExit, match="neither its macro nor its launcher"):
        instances.files(path)
    path.write_text("// SOME_KERNEL(name, kind, dtypes)\n// some/launch.cuh: some<Kind::kind, T>\n"
                    "SOME_KERNEL(a, kOne, kF32 | kHalf)\nSOME_KERNEL(b, kTwo, kF64)\n")  # fmt: skip
    found = instances.files(path)
    assert list(found) == [f"{tmp_path.name}_kOne.cu", f"{tmp_path.name}_kTwo.cu"]
    assert found[f"{tmp_path.name}_kOne.cu"].count("template") == 3
    assert "some<Kind::kTwo, double>(int)" in found[f"{tmp_path.name}_kTwo.cu"]


GENCODE = [
    "-gencode=arch=compute_70,code=sm_70",
    "-gencode=arch=compute_75,code=sm_75",
    "-gencode=arch=compute_80,code=compute_80",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_120,code=sm_120",
]


@pytest.mark.parametrize(
    ("first_line", "kept"),
    [
        ("#include <cstdint>", [GENCODE[0], *GENCODE[2:]]),  # Volta's code runs on Turing
        ("// from sm_75", GENCODE[1:]),
        ("// from sm_80", GENCODE[2:]),
        ("// from sm_90a", [GENCODE[4]]),
        ("// from sm_130", [GENCODE[0]]),  # nothing is asked for that runs it: the host's half is needed all the same
    ],
)
def test_sources_are_compiled_for_what_runs_them(tmp_path: Path, first_line: str, kept: list[str]) -> None:
    source = tmp_path / "some.cu"
    source.write_text(first_line + "\n")
    command = ["nvcc", "-O3", *GENCODE, "-c", str(source)]
    of_80 = [word.replace("compute_120", "compute_80") for word in kept]
    assert nvcc.for_kernels(command) == ["nvcc", "-O3", *of_80, "-c", str(source)]
    as_cmake = r'"--generate-code=arch=compute_\1,code=[sm_\1]"'
    cmake = {word: re.sub(r".*compute_(\w+),.*", as_cmake, word) for word in GENCODE}
    of_80 = [cmake[word].replace("compute_120", "compute_80") for word in kept]
    assert nvcc.for_kernels([*cmake.values(), str(source)]) == [*of_80, str(source)]
    for code in ("compute_120", "[compute_120,sm_120]"):  # nvcc makes no newer PTX of an older one's
        ptx = f'"--generate-code=arch=compute_120,code={code}"'
        assert (ptx in nvcc.for_kernels(["nvcc", *GENCODE[:5], ptx, str(source)])) == (GENCODE[5] in kept)
    alone = ["nvcc", GENCODE[0], GENCODE[5], str(source)]
    assert (GENCODE[5] in nvcc.for_kernels(alone)) == (GENCODE[5] in kept)
    assert nvcc.for_kernels(["nvcc", "--version"]) == ["nvcc", "--version"]
    without_volta = [word for word in command if word != GENCODE[0]]
    if "130" not in first_line:
        assert nvcc.for_kernels(without_volta).count(GENCODE[1]) == (GENCODE[0] in kept or GENCODE[1] in kept)


def test_turings_ptx_is_kept_beside_voltas_code(tmp_path: Path) -> None:
    source = tmp_path / "some.cu"
    source.write_text("")
    volta, turing = '"--generate-code=arch=compute_70,code=[sm_70]"', '"--generate-code=arch=compute_75,code=[{}]"'
    for code, kept in [("sm_75", False), ("compute_75,sm_75", True), ("compute_75", True)]:
        command = [volta, turing.format(code), str(source)]
        assert (command[1] in nvcc.for_kernels(command)) == kept


@pytest.mark.parametrize(
    ("says", "refused"),
    [
        ("", False),
        ("ptxas warning : Registers are spilled to local memory in function 'some_sm80', 4 bytes spill stores", False),
        ("ptxas warning : Registers are spilled to local memory in function 'halo_sm90', 16 bytes spill stores", False),
        ("ptxas warning : Registers are spilled to local memory in function 'halo_sm90', 20 bytes spill stores", True),
        ("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized", True),
    ],
)
def test_the_build_refuses_what_ptxas_complains_of(says: str, refused: bool, capfd: pytest.CaptureFixture[str]) -> None:
    status = nvcc.main(16, ["sh", "-c", 'echo "$0"; exit 3', says])
    assert status == (1 if refused else 3)
    said = capfd.readouterr().err
    assert says in said and ("refused" in said) == refused


def test_a_release_is_a_package_index(tmp_path: Path) -> None:
    name = "fastconv-0.1.dev7+cu124-py310-none-any.whl"
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        wheel.writestr(
            "fastconv-0.1.dev7+cu124.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: fastconv\nVersion: 0.1.dev7+cu124\n",
        )
        wheel.writestr(
            "fastconv-0.1.dev7+cu124.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py310-none-any\n",
        )
        wheel.writestr("fastconv-0.1.dev7+cu124.dist-info/RECORD", "")
    built = (tmp_path / name).read_bytes()
    path = release.index(tmp_path / "index", tmp_path / name)
    assert path.read_bytes() == built
    got = tmp_path / "got"
    download = (*PIP, "download", "--no-deps", "--index-url", (tmp_path / "index").as_uri(), "-d", str(got))
    output(*download, "fastconv", PIP_NO_INDEX="0")
    assert (got / name).read_bytes() == built
    shutil.rmtree(got)
    path.write_bytes(built + b"\0")
    assert "DO NOT MATCH" in run(*download, "fastconv", PIP_NO_INDEX="0", PIP_NO_CACHE_DIR="1").stderr


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"bytes": 60 * 10**6 + 1}, "more than 60000000"),
        ({"symbols_of": "manylinux_2_34_x86_64"}, "needs symbols of manylinux_2_34"),
        ({"symbols_of": "linux_x86_64"}, "needs symbols of linux_x86_64"),
        ({"foreign_libraries": ["libcudart.so.12", "libtorch_cpu.so"]}, "needs libcudart.so.12"),
    ],
)
def test_a_wheel_that_would_not_do_is_not_released(change: dict[str, Any], fault: str) -> None:
    good: dict[str, Any] = {
        "path": "", "version": "0.1.dev7+cu124",
        "flavour": "cu124", "bytes": 50 * 10**6, "sha256": "", "symbols_of": "manylinux_2_27_x86_64",
        "foreign_libraries": ["libtorch_cpu.so", "libtorch_cuda.so"], "build_s": 0,
    }  # fmt: skip
    faults = release.Wheel(**{**good, **change}).faults()
    assert len(faults) == bool(fault) and fault in "".join(faults)


def test_pythons_for_a_release_are_those_that_fastconv_takes() -> None:
    found = release.interpreters()
    assert sys.version_info[:2] in found and min(found) >= (3, 10)


def test_a_release_needs_a_clean_tree_and_its_toolkits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    output("git", "init", "-q", tmp_path)
    (tmp_path / "changed").touch()
    with pytest.raises(SystemExit, match="commit these first"):
        release.main([])
    commit(tmp_path)
    (tmp_path / "auditwheel.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / ".git/info/exclude").write_text("auditwheel.py\n")
    with pytest.raises(SystemExit, match="no bin/nvcc in .*toolkit"):
        release.main(["--toolkit", str(tmp_path / "toolkit")])
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize(
    ("asked", "built"),
    [
        ("9.0", "9.0a"),  # Hopper's kernels would be empty
        ("8.6 9.0+PTX", "8.6;9.0a;8.0+PTX"),
        ("", "7.5;8.0+PTX;9.0a;10.0;12.0"),
    ],
)
def test_architectures_are_those_that_kernels_know(tree: Path, toolkit: Path, asked: str, built: str) -> None:
    done = setup_py(tree, "-q", "build_ext", CUDA_HOME=str(toolkit), FASTCONV_CUDA="1", TORCH_CUDA_ARCH_LIST=asked)
    assert done.returncode == 0, done.stderr
    (ninja,) = tree.glob("build/cu130/obj/fastconv.libfastconv_cuda/build.ninja")
    (found,) = set(re.findall(r'FASTCONV_CUDA_ARCHS=\S*?"([^"\\]+)', ninja.read_text()))
    assert found == built


@pytest.mark.parametrize("asked", ["Ampere;9.0a", "native"])
def test_architectures_are_numbers(tree: Path, toolkit: Path, asked: str) -> None:
    done = setup_py(tree, "--version", CUDA_HOME=str(toolkit), FASTCONV_CUDA="1", TORCH_CUDA_ARCH_LIST=asked)
    name = asked.partition(";")[0]
    expected = f"TORCH_CUDA_ARCH_LIST={asked}: expected numbers, such as 7.5;8.0+PTX;9.0a;10.0;12.0, not '{name}'"
    assert done.returncode != 0 and expected in done.stderr


def included(header: str, found: set[str]) -> set[str]:
    """Of fastconv's headers what one includes, itself too."""
    path = ROOT / "include" / header
    if header not in found and path.exists():
        found.add(header)
        for other in re.findall(r'#include "(fastconv/[^"]+)"', path.read_text()):
            included(other, found)
    return found


def test_files_for_different_architectures_share_no_kernel() -> None:
    """Before CUDA 13 host stubs of templates are weak: of a kernel in two files either's machine code would run."""
    reached: dict[str, set[str]] = {}
    texts = [text for definition in instances.FAMILIES.glob("*/*.def") for text in instances.files(definition).values()]
    texts += [path.read_text() for path in (ROOT / "src").rglob("*.cu")]
    for text in texts:
        archs = nvcc.FROM.match(text)
        for header in re.findall(r'#include "(fastconv/[^"]+)"', text):
            for each in included(header, set()):
                reached.setdefault(each, set()).add(archs[1] if archs else "")
    shared = {header for header, archs in reached.items() if len(archs) > 1}
    kernels = {
        header: re.findall(r"(static )?__global__ void", (ROOT / "include" / header).read_text()) for header in shared
    }
    assert [header for header, found in kernels.items() if not all(found)] == []
    assert sum(map(len, kernels.values())) >= 2
