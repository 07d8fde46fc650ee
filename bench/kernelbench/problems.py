"""KernelBench's statements, from a checkout, and the solutions that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SOLUTIONS = Path(__file__).parent / "solutions"
LEVELS = (1, 2)
SEED = 42  # KernelBench's
SMALL = {"batch_size": 2, "height": 32, "width": 32, "height_in": 32, "width_in": 32, "length": 64}


@dataclass(frozen=True)
class Problem:
    level: int
    name: str  # of both files
    folder: Path  # with KernelBench's level1 and level2
    solutions: Path

    @property
    def number(self) -> int:
        return int(self.name.partition("_")[0])

    @property
    def title(self) -> str:
        return f"{self.level}/{self.name}"

    @property
    def statement(self) -> Path:
        return self.folder / f"level{self.level}" / f"{self.name}.py"

    @property
    def solution(self) -> Path:
        return self.solutions / f"level{self.level}" / f"{self.name}.py"


def problems(
    kernelbench: Path, levels: Sequence[int] = LEVELS, patterns: Sequence[str] = ("*",), solutions: Path = SOLUTIONS
) -> list[Problem]:
    """Those that there is a solution of. kernelbench: a checkout, or a folder with its level1 and level2."""
    folder = kernelbench / "KernelBench" if (kernelbench / "KernelBench").is_dir() else kernelbench
    found = [
        Problem(level, path.stem, folder, solutions)
        for level in levels
        for path in (solutions / f"level{level}").glob("*.py")
        if any(fnmatchcase(path.stem, pattern) for pattern in patterns)
    ]
    return sorted(found, key=lambda problem: (problem.level, problem.number))


def execute(path: Path) -> dict[str, Any]:
    """The names that a file defines. As KernelBench does it: the file is no module."""
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


class Case:
    """A statement's and a solution's module, of equal weights, and inputs for both."""

    def __init__(self, problem: Problem, device: torch.device, small: bool = False) -> None:
        self.device = device
        self._names = execute(problem.statement)
        if small:  # get_inputs reads these
            self._names |= {name: min(most, self._names.get(name, most)) for name, most in SMALL.items()}
        self.model = self._built(self._names["Model"])
        self.new = self._built(execute(problem.solution)["ModelNew"])

    def _built(self, kind: type[nn.Module]) -> nn.Module:
        torch.manual_seed(SEED)
        arguments = self._names["get_init_inputs"]()
        torch.manual_seed(SEED)
        return kind(*arguments).to(self.device)

    def inputs(self, seed: int = SEED) -> list[Any]:
        """Drawn where they are needed: to draw billions of numbers on the CPU takes longer than all the rest."""
        torch.manual_seed(seed)
        with self.device:
            made = self._names["get_inputs"]()
        return [x.to(self.device) if isinstance(x, Tensor) else x for x in made]
