"""Writes the files that instantiate the families' launchers, from the .def files of include/fastconv/families.

    python build_backend/instances.py DIRECTORY [--one-half]     prints the files' names, each on a line

A .def begins with comments, two of which are read here: the macro with the names of its arguments, and the launcher,
with the header that defines it:

    // HALO_KERNEL(name, dtypes, staging, ...)
    // halo/launch.cuh: halo_launcher<HaloStaging::staging, T>

Names of arguments stand for what a line of the file has in their place, T for each of its element types: those of its
argument `dtypes`, or of all lines, as in `for kHalf` after the launcher. What ends that comment, as `from sm_80`, says
what the kernels are compiled for (see nvcc.py). Choices of arguments become files, which
compile in parallel; element types share one, which saves reading headers again. With --one-half each file has one of
the two types of 16 bits, by turns, and of the other a launcher that is null.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FAMILIES = Path(__file__).resolve().parents[1] / "include/fastconv/families"
HALVES = ["__half", "__nv_bfloat16"]
ELEMENT_TYPES = {"kF32": ["float"], "kF64": ["double"], "kHalf": HALVES}


def write(directory: Path, one_half: bool = False) -> list[Path]:
    """The files, of which those that are up to date are left alone. Others are deleted."""
    directory.mkdir(parents=True, exist_ok=True)
    found = {name: text for path in sorted(FAMILIES.glob("*/*.def")) for name, text in files(path).items()}
    if one_half:
        halves = [name for name, text in sorted(found.items()) if all(half in text for half in HALVES)]
        for i, name in enumerate(halves):
            found[name] = without(HALVES[i % 2], found[name])
    texts = {directory / name: text for name, text in found.items()}
    for stale in set(directory.glob("*.cu")) - set(texts):
        stale.unlink()
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    return sorted(texts)


def files(definition: Path) -> dict[str, str]:
    text = definition.read_text()
    launcher = re.search(
        r"^// (\S+\.cuh): (.+?)(?: for (k\w+(?: \| k\w+)*))?(?: (from sm_\d+a?))?$", text, re.MULTILINE
    )
    if launcher is None:  # launched by functions that are no templates
        return {}
    macro = re.search(r"^// (\w+)\((.+)\)$", text, re.MULTILINE)
    if macro is None:
        sys.exit(f"{definition}: no comment names the arguments of its macro")
    header, template, dtypes, least = launcher.groups()
    parameters = macro[2].split(", ")
    if dtypes is None and "dtypes" not in parameters:
        sys.exit(f"{definition}: neither its macro nor its launcher names element types")
    found: dict[str, set[str]] = {}
    for line in re.findall(rf"^{macro[1]}\((.+)\)$", text, re.MULTILINE):
        values = [value.strip() for value in line.split(",")]
        given = dict(zip(parameters, values, strict=False))
        chosen = [given[word] for word in re.findall(r"\w+", template) if word in given]
        kind = [] if definition.stem == "kernels" else [definition.stem]
        name = "_".join([definition.parent.name, *kind, *chosen])
        for type_ in (t for bits in (dtypes or given["dtypes"]).split(" | ") for t in ELEMENT_TYPES[bits]):
            instance = re.sub(r"\w+", lambda m: {**given, "T": type_}.get(m[0], m[0]), template)  # noqa: B023
            found.setdefault(f"{name}.cu", set()).add(f"template Launcher {instance}(int);\n")
    begin = f"// {least}\n" if least else ""
    return {
        name: f'{begin}#include "fastconv/families/{header}"\n\nnamespace fastconv {{\n\n{"".join(sorted(instances))}\n'
        "}  // namespace fastconv\n"
        for name, instances in found.items()
    }


def without(element_type: str, text: str) -> str:
    """Launchers of this type are null."""
    launcher = rf"^template (Launcher .*\b{element_type}>\(int\));$"
    return re.sub(launcher, r"template <> \1 { return nullptr; }", text, flags=re.MULTILINE)


if __name__ == "__main__":
    print("\n".join(str(path) for path in write(Path(sys.argv[1]), "--one-half" in sys.argv[2:])))
