"""The folders of include/ and src/, and what may depend on what. docs/architecture.md says why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAMILIES = ROOT / "include/fastconv/families"
# What a folder may include besides itself.
MAY_INCLUDE = {
    "core": set(),
    "planner": {"core"},
    "ptx": {"core"},
    "tile": {"core", "planner", "ptx"},
    "launch": {"core", "planner", "ptx", "tile"},
    "norm": {"core", "planner", "ptx", "tile", "launch"},
    "cpu": {"core", "planner"},
    "ops": {"core", "planner", "launch", "norm", "cpu"},
    "families": {"core", "planner", "ptx", "tile", "launch"},
}


def sources() -> Iterator[tuple[Path, str]]:
    """The files and the folders that they belong to."""
    for top in (ROOT / "include/fastconv", ROOT / "src"):
        for path in sorted(top.rglob("*")):
            if path.suffix in (".h", ".cuh", ".cpp", ".cu", ".def"):
                yield path, path.relative_to(top).parts[0]


def includes(path: Path) -> list[str]:
    return re.findall(r'#include "fastconv/([^"]+)"', path.read_text())


def family_names() -> list[str]:
    return re.findall(r"^FASTCONV_(?:HOST_)?FAMILY\((\w+)\)", (FAMILIES / "families.def").read_text(), re.MULTILINE)


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_folders_include_those_below(folder: str) -> None:
    files = [path for path, found in sources() if found == folder]
    assert files
    wrong = [
        f"{path.relative_to(ROOT)} includes {included}"
        for path in files
        for included in includes(path)
        if included.split("/")[0] not in MAY_INCLUDE[folder] | {folder}
        and not (folder == "families" and path.parent.name == "cpu" and included.startswith("cpu/"))
    ]
    assert not wrong


def test_every_folder_has_rules() -> None:
    assert {folder for _, folder in sources()} == set(MAY_INCLUDE)


def test_every_family_has_a_folder() -> None:
    folders = {path.name for path in (ROOT / "src/families").iterdir() if path.is_dir()}
    assert folders == set(family_names())
    assert {path.name for path in FAMILIES.iterdir() if path.is_dir()} <= folders


def test_families_include_no_other() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} includes {included}"
        for path, folder in sources()
        if folder == "families" and path.parent.name in family_names()
        for included in includes(path)
        if included.startswith("families/") and included.split("/")[1] != path.parent.name
    ]
    assert not wrong


def test_nothing_but_a_family_names_its_types() -> None:
    """In comments and strings, either."""
    type_ = re.compile(
        r"^(?:struct|class|enum class) (\w+(?:Config|Tiling|Params|Staging|Launch|Operands))\b", re.MULTILINE
    )
    types = {
        name
        for path, folder in sources()
        if folder == "families" and path.parent.name in family_names()
        for name in type_.findall(path.read_text())
    }
    assert len(types) > 40
    wrong = [
        f"{path.relative_to(ROOT)} names {name}"
        for path, folder in sources()
        if folder != "families"
        for name in sorted(set(re.findall(r"\w+", path.read_text())) & types)
    ]
    assert not wrong


def test_the_matrix_is_that_of_the_table() -> None:
    import matrix  # needs the native module

    (written,) = matrix.BLOCK.findall(matrix.ARCHITECTURE.read_text())
    assert written == matrix.matrix(), "python tests/matrix.py writes it anew"


def test_what_the_emulator_hides_is_there() -> None:
    hiding = ROOT / "tests/emulated/include"
    headers = [path.relative_to(hiding) for path in hiding.glob("fastconv/**/*.*")]
    assert headers and [str(path) for path in headers if not (ROOT / "include" / path).exists()] == []


def test_numbers_that_were_measured_stand_in_tables() -> None:
    """What planners count with is in costs.def, where bench.fit finds it, and not beside the formulas."""
    counted = {"kWarpsAtOnce", "kUnitsTogether", "kMaxCount"}  # facts, not measurements
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, folder in sources()
        if folder in ("planner", "tile", "families") and path.suffix in (".h", ".cpp")
        for name in re.findall(r"constexpr double (k\w+)", path.read_text())
        if name not in counted
    ]
    assert not found


def test_only_the_epilogue_reads_the_bias() -> None:
    """Kernels hand it on, or copy it (subpixel.cuh), and never count with it themselves."""
    readers = [
        path.relative_to(ROOT / "include/fastconv").as_posix()
        for path, _ in sources()
        if path.suffix == ".cuh" and re.search(r"\bbias(es)?\)?\s*\[", path.read_text())
    ]
    assert sorted(readers) == ["families/space_to_depth/subpixel.cuh", "tile/epilogue.cuh"]


def test_costs_are_used() -> None:
    words = {word for path, _ in sources() if path.name != "costs.def" for word in re.findall(r"\w+", path.read_text())}
    names = [
        name
        for path, _ in sources()
        if path.name == "costs.def"
        for name in re.findall(r"^FASTCONV_COSTS?\(\w+, (\w+),", path.read_text(), re.MULTILINE)
    ]
    assert len(names) > 200
    assert not set(names) - words
