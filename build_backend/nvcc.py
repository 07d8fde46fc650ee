"""Runs the nvcc command that it is given, with three differences.

    python build_backend/nvcc.py SPILLS nvcc ARGUMENT...

A source whose first line is `// from sm_80` is compiled for those architectures alone, as it has no kernels for older
ones. sm_90a has no successors, so that is what `// from sm_90a` is compiled for. If none of them is asked for, it is
compiled for the first that is, where its kernels are empty. Of Volta and Turing, sources for both are compiled for the
former, whose machine code both run.

Machine code for chips after Hopper is made of the PTX for 8.0 where something is compiled for that: no kernel uses what
they have beyond it, and each source goes through the compiler's front end once less.

And it fails where ptxas says that a kernel whose name ends in _sm90, as those of halo and wgrad, spills registers, more
than SPILLS bytes of them, or that it had to serialise or patch up asynchronous matrix products (C7508 to C7519). ptxas
calls the latter information, which -Werror lets pass.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FROM = re.compile(r"// from sm_(\d+a?)\n")
# As cpp_extension and CMake write it.
CODE = re.compile(r'"?--?gen(?:erate-)?code=arch=compute_(\d+a?),')
TURINGS = re.compile(r"code=\[?sm_75\b(?!.*compute)")  # machine code alone
AFTER_HOPPER = re.compile(r"(?<=arch=compute_)1\d\d(?=,code=\[?sm_)(?!.*compute)")  # machine code alone
SERIALISED = re.compile(r"\(C75[01]\d\)")
SPILLED = re.compile(r"Registers are spilled .*(?:_sm90|reduce_wgrad).*, (\d+) bytes spill stores")


def is_served(arch: str, least: str) -> bool:
    return arch == least if least.endswith("a") else int(arch.rstrip("a")) >= int(least)


def for_kernels(command: list[str]) -> list[str]:
    """The command without the architectures that its source has no kernels for."""
    source = next((Path(word) for word in command if word.endswith(".cu")), None)
    if source is None:
        return command
    with source.open() as text:
        least = FROM.fullmatch(text.readline())
    archs = {word: code[1] for word in command if (code := CODE.match(word))}
    served = {word: arch for word, arch in archs.items() if least is None or is_served(arch, least[1])}
    kept = {word for word in served if not ("70" in served.values() and TURINGS.search(word))}
    if archs and not kept:
        kept = {next(iter(archs))}
    words = [word for word in command if word not in archs or word in kept]
    has_80 = any(archs[word] == "80" for word in kept)
    return [AFTER_HOPPER.sub("80", word) if has_80 and word in kept else word for word in words]


def main(spills: int, command: list[str]) -> int:
    done = subprocess.run(for_kernels(command), stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
    sys.stderr.write(done.stdout)
    if SERIALISED.search(done.stdout) or any(int(bytes) > spills for bytes in SPILLED.findall(done.stdout)):
        remedy = "; CUDA 12 needs ptxas 12.9 (release/cuda12.sh), or a TORCH_CUDA_ARCH_LIST without 9.0a"
        print(f"nvcc.py: refused, see ptxas's complaints above{remedy}", file=sys.stderr)
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
