"""The snippets of all pages, and the examples of docstrings, run; and kernels are what docs/gpus.md says."""

from __future__ import annotations

import ast
import contextvars
import doctest
import importlib.util
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fastconv
import pages


def examples() -> Iterator[doctest.DocTest]:
    """Of all docstrings, read from the source: doctest's own finder does not see functions that are decorated."""
    for path in sorted(Path(fastconv.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name, line = f"{path.stem}.{getattr(node, 'name', '')}", getattr(node, "lineno", 0)
                names = {"torch": torch, "fastconv": fastconv}
                test = doctest.DocTestParser().get_doctest(ast.get_docstring(node) or "", names, name, str(path), line)
                if test.examples:
                    yield test


SNIPPETS = {
    f"{pages.name(path)}-{number}": text
    for path in pages.PAGES
    for number, (language, text) in enumerate(pages.blocks(path), 1)
    if language == "python"
}
EXAMPLES = list(examples())
GPUS = (pages.ROOT / "docs/gpus.md").read_text()
PRECISIONS = ("ieee", "bf16x3", "tf32")


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small network by the name of theirs where they are not installed."""
    if importlib.util.find_spec("torchvision"):
        return

    def resnet18() -> torch.nn.Module:
        layers = torch.nn.Conv2d(3, 8, 7, stride=4), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 1000))

    module = types.ModuleType("torchvision")
    module.models = types.SimpleNamespace(resnet18=resnet18)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", module)


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet_runs(name: str, torchvision: None) -> None:
    exec(compile(SNIPPETS[name], name, "exec"), {})


@pytest.mark.parametrize("test", EXAMPLES, ids=lambda test: test.name)
def test_example_runs(test: doctest.DocTest) -> None:
    assert not any(doctest.SKIP in example.options for example in test.examples)
    printed: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    contextvars.copy_context().run(runner.run, test, out=printed.append)  # some set the precision
    assert runner.summarize(verbose=False).failed == 0, "".join(printed)


def on_tensor_cores(dtype: torch.dtype, precision: str | None, nhwc: bool, pass_: str, arch: int) -> bool:
    """Whether a 3x3 layer's kernel is another than those for multiply-adds. `arch`: ten times compute capability."""
    size, weight = (32, 64, 56, 56), (64, 64, 3, 3)
    options = {"pass_": pass_, "precision": precision, "dtype": dtype, "channels_last": nhwc, "arch": arch}
    plan = fastconv.explain(size, weight, None, 1, 1, device="cuda", **options).partition("plan: ")[2]  # type: ignore[arg-type]
    return not plan.startswith(("direct_", "im2col_"))


def test_kernels_are_what_the_table_says() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in GPUS.splitlines() if line[:1] == "|"]
    found = set()
    for tensors, layout, hopper, others, *_ in (row for row in rows if len(row) == 5):
        for name in re.findall(r"(?:b?float)\d\d", tensors):
            for precision in re.findall(r'"(\w+)"', tensors) or [None]:
                for nhwc in {"NCHW": [False], "channels_last": [True]}.get(layout, [False, True]):
                    found.add((name, precision, nhwc))
                    for pass_ in ("fprop", "dgrad", "wgrad"):
                        for arch, cell in ((90, hopper), (80, others), (100, others)):
                            expected = cell.startswith("tensor cores")
                            actual = on_tensor_cores(getattr(torch, name), precision, nhwc, pass_, arch)
                            assert actual == expected, (name, precision, nhwc, pass_, arch)
    modes = [("float16", None), ("bfloat16", None), *(("float32", precision) for precision in PRECISIONS)]
    assert found == {(*mode, nhwc) for mode in [*modes, ("float64", None)] for nhwc in (False, True)}
