"""What the site of the documentation holds, as far as that shows without building it, and the community files."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest

import fastconv
import pages

API = (pages.ROOT / "docs/api.md").read_text()
FORMS = sorted(path for path in pages.ROOT.glob(".github/ISSUE_TEMPLATE/*.yml") if path.name != "config.yml")


def public() -> dict[str, Any]:
    found = {f"fastconv.{name}": getattr(fastconv, name) for name in fastconv.__all__}
    for module in (fastconv.grad, fastconv.onnx):
        names = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        own = [name for name in names if name[0] != "_" and getattr(module, name).__module__ == module.__name__]
        found |= {f"{module.__name__}.{name}": getattr(module, name) for name in own}
    return found


def test_the_navigation_has_each_page_once() -> None:
    listed = pages.listed()
    assert sorted(map(pages.name, [*listed, pages.INDEX])) == sorted(map(pages.name, pages.PAGES))


def test_code_blocks_say_what_they_are() -> None:
    """Whatever is not `python` would not run as a test."""
    found = {language for path in pages.PAGES for language, _ in pages.blocks(path)}
    assert found == {"", "python", "sh", "{eval-rst}", "{toctree}"}


def test_the_reference_has_all_public_names() -> None:
    """Of a module's documented ones Sphinx takes those in `__all__`, or else all that are its own."""
    automatic = dict(re.findall(r"^\.\. automodule:: (\S+)\n   (.*)$", API, re.MULTILINE))
    modules = [name for name, value in public().items() if isinstance(value, types.ModuleType)]
    assert automatic == dict.fromkeys(["fastconv", *modules], ":members:")
    assert [name for name, value in public().items() if not inspect.getdoc(value) and f":: {name}\n" not in API] == []


@pytest.mark.parametrize("name", [name for name, value in public().items() if callable(value)])
def test_docstrings_have_arguments_and_an_example(name: str) -> None:
    value = public()[name]
    text = value.__doc__
    assert text and "\n    >>> " in text
    assert "Returns:\n" in text or inspect.isclass(value) or name == "fastconv.force_kernel"
    described = re.split(r"\n\n    (?! )", text.partition("Args:\n")[2])[0]
    assert [name for name in inspect.signature(value).parameters if not re.search(rf"\b{name}\b", described)] == []


def test_the_project_has_one_address() -> None:
    (source,) = re.findall(r'^Source = "(.*)"', (pages.ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f'SOURCE = "{source}"\n' in (pages.ROOT / "docs/conf.py").read_text()
    assert f"repository-code: {source}\n" in (pages.ROOT / "CITATION.cff").read_text()


def read_yaml(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text())


def test_the_citation_is_complete() -> None:
    citation = read_yaml(pages.ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # required by version 1.2.0
    assert citation["cff-version"] == "1.2.0" and citation["license"] == "MIT" and citation["authors"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_complete_and_their_code_runs(path: Path) -> None:
    form = read_yaml(path)
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert all(field["type"] in ("textarea", "input", "dropdown", "checkboxes") for field in fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    text = path.read_text()
    assert "python -m fastconv info" in text and "fastconv.explain" in text
    (code,) = (field["attributes"]["value"] for field in fields if field["attributes"].get("render") == "python")
    exec(compile(code, path.name, "exec"), {})
