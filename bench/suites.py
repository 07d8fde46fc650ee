"""Convolution problems as data: one JSON file a suite, next to this module in suites/."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

SUITES_DIR = Path(__file__).parent / "suites"
PASSES = ("fprop", "dgrad", "wgrad")
LAYOUTS = ("nchw", "nhwc")

Pair = tuple[int, int]


@dataclass(frozen=True)
class Problem:
    """A convolution without dtype or layout. `count` is how often a network of the suite contains it."""

    name: str
    input: tuple[int, int, int, int]  # N C H W
    weight: tuple[int, int, int, int]  # K C/groups R S
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    count: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        def require(condition: bool, what: str) -> None:
            if not condition:
                raise ValueError(f"problem {self.name!r}: {what}")

        require(min(*self.input, *self.weight, *self.stride, *self.dilation) > 0, "sizes must be positive")
        require(min(self.padding) >= 0, f"padding must not be negative, got {self.padding}")
        require(self.groups > 0 and self.count > 0, "groups and count must be positive")
        require(
            self.input[1] == self.weight[1] * self.groups and self.weight[0] % self.groups == 0,
            f"{self.input[1]} input and {self.weight[0]} output channels do not fit weight {self.weight} "
            f"and groups={self.groups}",
        )
        require(min(self.output[2:]) > 0, "the kernel is larger than the padded input")

    @property
    def output(self) -> tuple[int, int, int, int]:
        """N K P Q."""
        p, q = (
            (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
            for size, taps, stride, padding, dilation in self._axes()
        )
        return self.input[0], self.weight[0], p, q

    @property
    def flops(self) -> int:
        """2 x products, with those in the padding counted: the convention of torch's FLOP counter."""
        n, k, p, q = self.output
        return 2 * n * k * p * q * self.weight[1] * self.weight[2] * self.weight[3]

    @property
    def elements(self) -> int:
        """Of input, weight and output together."""
        total = 0
        for a, b, c, d in (self.input, self.weight, self.output):
            total += a * b * c * d
        return total

    @property
    def kind(self) -> str:
        """What sort of layer it is, of those that kernels differ for."""
        per_group, taps = self.weight[1], self.weight[2:]
        if self.groups > 1:
            return "depthwise" if per_group == 1 else "grouped"
        if per_group <= 4:
            return "first"
        return "pointwise" if taps == (1, 1) else "dense 3x3" if taps == (3, 3) else "dense"

    @property
    def conv_args(self) -> tuple[Pair, Pair, Pair, int]:
        """What follows the tensors in the signature of every convolution function."""
        return self.stride, self.padding, self.dilation, self.groups

    def in_bounds(self) -> tuple[Pair, Pair]:
        """Per spatial axis: (output, tap) pairs that meet a pixel rather than padding; pixels that any of them meets.

        A direct convolution cannot do fewer products, nor read fewer pixels.
        """
        pairs, pixels = [], []
        sizes_out = self.output[2:]
        for (size, taps, stride, padding, dilation), out in zip(self._axes(), sizes_out, strict=True):
            met = [
                position
                for tap in range(taps)
                for index in range(out)
                if 0 <= (position := index * stride - padding + tap * dilation) < size
            ]
            pairs.append(len(met))
            pixels.append(len(set(met)))
        return (pairs[0], pairs[1]), (pixels[0], pixels[1])

    def with_input(self, size: tuple[int, int, int, int]) -> Problem:
        return replace(self, input=size)

    def _axes(self) -> list[tuple[int, int, int, int, int]]:
        return list(zip(self.input[2:], self.weight[2:], self.stride, self.padding, self.dilation, strict=True))

    def describe(self) -> str:
        """Short form, e.g. `N64 C128 56x56 K128 3x3 s2 p1`; 1 and 0 are left out where they are the default."""
        n, c, h, w = self.input
        k, _, r, s = self.weight
        parts = [f"N{n} C{c} {h}x{w} K{k} {r}x{s}"]
        for letter, (a, b), default in (("s", self.stride, 1), ("p", self.padding, 0), ("d", self.dilation, 1)):
            if (a, b) != (default, default):
                parts.append(f"{letter}{a}" if a == b else f"{letter}({a},{b})")
        if self.groups > 1:
            parts.append(f"g{self.groups}")
        return " ".join(parts)


@dataclass(frozen=True)
class Suite:
    name: str
    about: str
    problems: tuple[Problem, ...]


def suite_names() -> list[str]:
    return sorted(path.stem for path in SUITES_DIR.glob("*.json"))


def load_suite(name: str) -> Suite:
    path = SUITES_DIR / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"no suite {name!r}; there are: {', '.join(suite_names())}")
    data = json.loads(path.read_text())
    problems = tuple(Problem(**{key: _tuple(value) for key, value in entry.items()}) for entry in data["problems"])
    names = [problem.name for problem in problems]
    if len(set(names)) != len(names):
        raise ValueError(f"suite {name!r} has two problems of one name")
    return Suite(data["name"], data["about"], problems)


def select(problems: Sequence[Problem], patterns: Sequence[str]) -> tuple[Problem, ...]:
    """Those whose name matches one of the shell patterns; all of them without patterns."""
    if not patterns:
        return tuple(problems)
    for pattern in patterns:
        if not any(fnmatchcase(problem.name, pattern) for problem in problems):
            raise ValueError(f"no problem matches {pattern!r}; there are: {', '.join(p.name for p in problems)}")
    return tuple(problem for problem in problems if any(fnmatchcase(problem.name, pattern) for pattern in patterns))


def sample(problems: Sequence[Problem], count: int | None, seed: int) -> tuple[Problem, ...]:
    """So many at random, in the order that they had; all of them without a count."""
    if count is None or count >= len(problems):
        return tuple(problems)
    return tuple(problems[i] for i in sorted(random.Random(seed).sample(range(len(problems)), count)))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
