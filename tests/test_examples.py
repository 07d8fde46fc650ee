"""The examples run as they stand. The digits of train_digits.py are `./dev train`."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastconv

EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGE = Path(inspect.getfile(fastconv)).parent
PATHS = {  # of this Python and fastconv
    "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    "PYTHONPATH": os.pathsep.join((str(PACKAGE.parent), os.environ.get("PYTHONPATH", ""))),
}


def output(*command: str | Path, cwd: Path, **environment: str) -> str:
    variables = {**os.environ, **PATHS, **environment}
    done = subprocess.run(list(map(str, command)), env=variables, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("nbclient", "ipykernel", "sklearn"):
        pytest.importorskip(module)
    import nbclient
    import nbformat

    for name, value in PATHS.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(EXAMPLES / "digits.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count], "outputs are not kept"
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = "".join(out.get("text", "") for cell in code for out in cell.outputs)
    (accuracy,) = re.findall(r"epoch 2: .* test accuracy ([0-9.]+)%", text)
    assert float(accuracy) > 90
    errors = re.findall(r"^(?:output|\d\.\w+) +(\S+) +(\S+)$", text, re.MULTILINE)
    assert len(errors) == 12 and all(float(value) < 1e-5 for pair in errors for value in pair)


@pytest.mark.parametrize("options", [["--model=resnet18"], ["--model=tf_efficientnet_b0", "--amp=none"]], ids="".join)
def test_timms_loop_runs(options: list[str], tmp_path: Path) -> None:
    pytest.importorskip("timm")
    sizes = ["--steps=2", "--batch-size=2", "--image-size=64", "--classes=10"]
    text = output(sys.executable, EXAMPLES / "timm_loop.py", *options, *sizes, cwd=tmp_path)
    assert len(re.findall(r"^step [01]: loss [0-9.]+ ", text, re.MULTILINE)) == 2
    assert "is left to torch" not in text


def test_timms_loop_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("raise ModuleNotFoundError('no torchvision')")
    paths = os.pathsep.join((str(tmp_path), PATHS["PYTHONPATH"]))
    command = [sys.executable, str(EXAMPLES / "timm_loop.py")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 1 and "no torchvision" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_package_runs_without_python(device: str, tmp_path: Path) -> None:
    """By the commands of its README, of which torch's CMake files and Python's C API are no part."""
    if not shutil.which("cmake", path=PATHS["PATH"]):
        pytest.skip("no cmake")
    folder = tmp_path / "aot"
    shutil.copytree(EXAMPLES / "aot", folder, ignore=shutil.ignore_patterns("build"))
    (commands,) = re.findall(r"```sh\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    hidden = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    if device == "cuda":
        commands = commands.replace("# on a GPU also ", "")
    printed = output("bash", "-ec", commands, cwd=folder, **hidden)
    rows = [
        list(map(float, row.split())) for row in re.findall(r"^(?:-?[0-9.]+(?:e-\d+)? ?){10}$", printed, re.MULTILINE)
    ]
    assert len(rows) == 8
    for actual, expected in zip(rows[4:], rows[:4], strict=True):
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert "libpython" not in output("ldd", folder / "build/run", cwd=folder)
