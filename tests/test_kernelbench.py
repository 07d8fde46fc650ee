"""KernelBench's solutions, against plain PyTorch, and what runs them, on problems of the test's own."""

from __future__ import annotations

import ast
import inspect
import json
import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastconv
from bench.kernelbench import tables
from bench.kernelbench.__main__ import main
from bench.kernelbench.measure import COMPILED
from bench.kernelbench.problems import SOLUTIONS, execute, problems

# A solution's arguments, by the names that KernelBench's statement has for them and in its order; the size of an input;
# and what the statement computes of it: of the module's parameters, and of the input.
Case: TypeAlias = tuple[dict[str, Any], tuple[int, ...], Callable[[nn.Module, Tensor], Tensor]]


def conv(layer: str = "conv", **geometry: Any) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, x: F.conv2d(x, (of := getattr(m, layer)).weight, of.bias, **geometry)


def transposed(layer: str = "conv_transpose", **geometry: Any) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, x: F.conv_transpose2d(x, (of := getattr(m, layer)).weight, of.bias, **geometry)


def then(first: Callable[[Any, Tensor], Tensor], rest: Callable[[Any, Tensor], Tensor]) -> Any:
    return lambda m, x: rest(m, first(m, x))


def layer(kernel: Any, **more: Any) -> dict[str, Any]:
    return {"in_channels": 4, "out_channels": 6, "kernel_size": kernel, **more}


def group_norm(groups: int) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, x: F.group_norm(x, groups, m.group_norm.weight, m.group_norm.bias)


IMAGE = (2, 4, 9, 8)
SHAPE = (6, 1, 1)
SPO: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1}
UP = transposed(**SPO)
DILATED: dict[str, Any] = {"stride": (2, 3), "padding": (1, 2), "dilation": (2, 1), "groups": 2}

LEVEL_1: dict[int, Case] = {
    50: ({"num_classes": 7}, (2, 3, 31, 27), conv("conv1", stride=4, padding=2)),
    55: (layer(3), IMAGE, conv("conv2d")),
    56: (layer((5, 7)), IMAGE, conv("conv2d")),
    57: (layer(3), IMAGE, transposed("conv_transpose2d")),
    62: (layer((3, 5)), IMAGE, conv("conv2d")),
    63: (layer(3), IMAGE, conv("conv2d")),
    65: (layer((3, 7)), IMAGE, transposed("conv_transpose2d")),
    67: (layer(3), (2, 4, 19), lambda m, x: F.conv1d(x, m.get_parameter("conv1d.weight"))),
    69: (layer((3, 5)), IMAGE, transposed("conv_transpose2d")),
    71: (layer(3), IMAGE, transposed("conv_transpose2d")),
    75: (layer((3, 5), **DILATED), IMAGE, transposed("conv_transpose2d", **DILATED)),
    76: (
        layer(3, stride=3, dilation=4),
        (2, 4, 29),
        lambda m, x: F.conv1d(x, m.get_parameter("conv1d.weight"), None, 3, 0, 4),
    ),
    78: (layer((3, 7), stride=(1, 1), padding=(1, 3)), IMAGE, transposed("conv_transpose2d", padding=(1, 3))),
    80: (
        layer((3, 5), stride=1, padding=(2, 4), dilation=(2, 3)),
        IMAGE,
        conv("conv2d", padding=(2, 4), dilation=(2, 3)),
    ),
    81: (
        layer(3, stride=5, padding=1, dilation=2),
        IMAGE,
        transposed("conv_transpose2d", stride=5, padding=1, dilation=2),
    ),
    82: ({"in_channels": 4, "kernel_size": 3, "stride": 1, "padding": 0}, IMAGE, conv("conv2d", groups=4)),
    83: (
        {"in_channels": 4, "kernel_size": 3, "stride": 1, "padding": 0, "dilation": 1},
        IMAGE,
        conv("conv2d", groups=4),
    ),
    84: ({**layer(3, stride=1, padding=0), "out_channels": 4}, IMAGE, conv("conv2d", groups=4)),
    85: (
        {"in_channels": 4, "out_channels": 4, "kernel_size_h": 3, "kernel_size_w": 5, "stride_h": 1, "stride_w": 2}
        | {"padding_h": 1, "padding_w": 0, "dilation_h": 1, "dilation_w": 1, "groups": 4},
        IMAGE,
        conv("conv2d", stride=(1, 2), padding=(1, 0), groups=4),
    ),
    86: (
        layer(3, stride=1, padding=1, dilation=1),
        IMAGE,
        then(conv("depthwise", padding=1, groups=4), conv("pointwise")),
    ),
    87: ({"in_channels": 4, "out_channels": 6}, IMAGE, conv("conv1d")),
}

LEVEL_2: dict[int, Case] = {
    1: (layer(3, bias_shape=SHAPE), IMAGE, then(conv(), lambda m, x: F.relu(x) + m.bias)),
    2: (
        layer(3, **SPO, bias_shape=SHAPE, scaling_factor=3.0),
        IMAGE,
        then(UP, lambda m, x: ((x + m.bias).clamp(0, 1) * 3).clamp(0, 1) / 3),
    ),
    4: (layer(3), IMAGE, then(conv(), lambda m, x: F.mish(F.mish(x)))),
    5: (layer(4, bias_shape=SHAPE), IMAGE, then(UP, lambda m, x: torch.tanh(x - m.bias))),
    10: (
        layer(3, stride=1, padding=1, maxpool_kernel_size=2, maxpool_stride=2, hardtanh_min=-0.1, hardtanh_max=0.2),
        IMAGE,
        then(
            transposed(padding=1),
            lambda m, x: torch.tanh(F.max_pool2d(x, 2).clamp(-0.1, 0.2).mean((2, 3), keepdim=True)),
        ),
    ),
    11: (
        layer(5, stride=1, padding=1, groups=3, num_groups=2),
        IMAGE,
        then(
            then(
                transposed(padding=1),
                lambda m, x: F.max_pool2d(
                    torch.tanh(F.batch_norm(x, None, None, m.batch_norm.weight, m.batch_norm.bias, True)), 2
                ),
            ),
            group_norm(2),
        ),
    ),
    16: (
        layer(3, **SPO, add_value=0.5, scale=2.0),
        IMAGE,
        then(UP, lambda m, x: (F.mish(x) + 0.5).clamp(-1, 1) * 2),
    ),
    17: (layer(3, divide_by=2.0), IMAGE, then(conv(), lambda m, x: F.instance_norm(x) / 2)),
    19: (
        layer(3, stride=2, groups=3, num_groups=2),
        IMAGE,
        then(then(transposed(stride=2), lambda m, x: F.gelu(x)), group_norm(2)),
    ),
    21: (
        layer(3, num_groups=2, bias_shape=SHAPE, scale_shape=SHAPE),
        IMAGE,
        then(then(conv(), lambda m, x: torch.sigmoid((x + m.bias) * m.scale)), group_norm(2)),
    ),
    25: (layer(3), IMAGE, then(conv(), lambda m, x: torch.tanh(torch.tanh(x.amin(1, keepdim=True))))),
    31: (
        layer(3, constant_value=0.1, bias_shape=SHAPE, scaling_factor=2.0),
        IMAGE,
        then(conv(), lambda m, x: (x.clamp(max=0.1) + m.bias) * 2),
    ),
    32: (layer(3, scale_factor=-2.0), IMAGE, then(conv(), lambda m, x: (x * -2).amin(1, keepdim=True))),
    35: (
        layer(3, subtract_value=0.5, pool_kernel_size=2),
        IMAGE,
        then(conv(), lambda m, x: F.mish(F.max_pool2d(F.hardswish(x - 0.5), 2))),
    ),
    36: (
        layer(3, **SPO, bias_shape=(1, 1, 1)),
        IMAGE,
        then(UP, lambda m, x: F.gelu(x.amin(1, keepdim=True).sum(2, keepdim=True)) + m.bias),
    ),
    42: (
        layer(3, bias_shape=SHAPE),
        IMAGE,
        then(
            transposed(),
            lambda m, x: 10 * torch.logsumexp(x.mean((2, 3), keepdim=True) + m.bias, 1).sum((1, 2))[:, None],
        ),
    ),
    44: (layer(3, **SPO, multiplier=0.5), IMAGE, then(UP, lambda m, x: (0.5 * x).mean((2, 3), keepdim=True))),
    46: (
        layer(3, subtract1_value=0.5, subtract2_value=0.2, kernel_size_pool=2),
        IMAGE,
        then(conv(), lambda m, x: F.avg_pool2d(torch.tanh(x - 0.5) - 0.2, 2)),
    ),
    52: (
        layer(3),
        IMAGE,
        then(
            conv(),
            lambda m, x: F.batch_norm(torch.tanh(F.softplus(x)) * x, None, None, m.bn.weight, m.bn.bias, True),
        ),
    ),
    54: (
        layer(3, multiplier_shape=SHAPE),
        IMAGE,
        then(conv(), lambda m, x: F.gelu(F.leaky_relu(x * m.multiplier))),
    ),
    57: (layer(3), IMAGE, then(conv(), lambda m, x: F.relu(x) * ((F.relu(x) + 3) / 6).clamp(0, 1))),
    65: (
        layer(3, pool_kernel_size=2),
        IMAGE,
        then(conv(), lambda m, x: torch.sigmoid(F.avg_pool2d(x, 2)).sum((1, 2, 3))),
    ),
    67: (layer(3), IMAGE, then(conv(), lambda m, x: F.gelu(x).mean((2, 3)))),
    69: (layer(3), IMAGE, then(conv(), lambda m, x: F.relu(F.hardswish(x)))),
    71: (layer(3, divisor=2), IMAGE, then(conv(), lambda m, x: F.leaky_relu(x / 2))),
    73: (
        layer(3, scaling_factor=2.0),
        IMAGE,
        then(conv(), lambda m, x: 2 * F.batch_norm(x, None, None, m.bn.weight, m.bn.bias, True)),
    ),
    82: (
        layer(3, scaling_factor=2.0, bias_shape=SHAPE, pool_kernel_size=2),
        IMAGE,
        then(conv(), lambda m, x: F.max_pool2d(torch.tanh(x) * 2 + m.bias, 2)),
    ),
    85: (
        layer(3, num_groups=2, scale_shape=SHAPE, maxpool_kernel_size=2, clamp_min=0.0, clamp_max=1.0),
        IMAGE,
        then(then(conv(), group_norm(2)), lambda m, x: F.max_pool2d(x * m.scale, 2).clamp(0, 1)),
    ),
    87: (
        layer(3, subtract_value_1=0.5, subtract_value_2=0.2),
        IMAGE,
        then(conv(), lambda m, x: F.mish(x - 0.5 - 0.2)),
    ),
    91: (
        layer(4, **SPO, bias_shape=SHAPE, scaling_factor=2.0),
        IMAGE,
        then(UP, lambda m, x: torch.sigmoid(2 * (torch.softmax(x, 1) + m.bias))),
    ),
    92: (
        layer(3, groups=2),
        IMAGE,
        then(
            conv(),
            lambda m, x: torch.logsumexp(x + F.hardswish(torch.tanh(group_norm(2)(m, x))), 1, keepdim=True),
        ),
    ),
    93: (
        layer(4, stride=2, add_value=-0.1, multiply_value=2.0),
        IMAGE,
        then(transposed(stride=2), lambda m, x: 2 * F.gelu((x - 0.1).clamp(max=0))),
    ),
}
CASES = {(level, number): case for level, cases in ((1, LEVEL_1), (2, LEVEL_2)) for number, case in cases.items()}


def solution(level: int, number: int) -> Path:
    (path,) = (SOLUTIONS / f"level{level}").glob(f"{number}_*.py")
    return path


def test_solutions_are_of_the_problems_that_begin_with_a_convolution() -> None:
    found = problems(Path("anywhere"))
    assert [(problem.level, problem.number) for problem in found] == list(CASES)
    assert all("onv" in problem.name and "3d" not in problem.name.lower() for problem in found)
    assert {problem.title for problem in problems(Path("anywhere"), [1], ["8[67]*"])} == {
        "1/86_conv_depthwise_separable_2D",
        "1/87_conv_pointwise_2D",
    }


@pytest.mark.parametrize(("level", "number"), CASES)
def test_solution_computes_what_the_problem_says(level: int, number: int) -> None:
    arguments, size, expected = CASES[level, number]
    new = execute(solution(level, number))["ModelNew"]
    assert list(inspect.signature(new).parameters)[: len(arguments)] == list(arguments)
    torch.manual_seed(42)
    module = new(*arguments.values())
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    x = torch.rand(size)
    with torch.no_grad(), fastconv.precision("ieee"):
        torch.testing.assert_close(module(x), expected(module, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("level", "number"), CASES)
def test_solution_convolves_by_fastconv_alone(level: int, number: int) -> None:
    """Not by a torch layer that somebody forgot to replace."""
    tree = ast.parse(solution(level, number).read_text())
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert any(call.startswith("fastconv.") for call in calls)
    assert not [
        call for call in calls if "onv" in call.rpartition(".")[2] and not call.startswith(("fastconv.", "self."))
    ]


@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
def test_a_seed_gives_a_solution_torchs_weights(name: str) -> None:
    """As KernelBench needs it: its modules have parameters of their own after the layer's."""
    number, kind = {"conv": (54, nn.Conv2d), "conv_transpose": (91, nn.ConvTranspose2d)}[name]
    arguments = LEVEL_2[number][0]
    torch.manual_seed(7)
    new = execute(solution(2, number))["ModelNew"](*arguments.values())
    torch.manual_seed(7)
    geometry = [arguments[key] for key in ("stride", "padding", "output_padding") if key in arguments]
    weights, own = [*kind(4, 6, arguments["kernel_size"], *geometry).parameters()], torch.randn(SHAPE)
    expected = [own, *weights]  # a module's own come first, though the layer's are drawn first
    assert all(torch.equal(one, other) for one, other in zip(new.parameters(), expected, strict=True))


# ---- what runs them ----

STATEMENT = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self, channels, kernel_size):
            super().__init__()
            self.conv = nn.Conv2d(channels, channels, kernel_size)

        def forward(self, x):
            return torch.relu(self.conv(x))

    batch_size = 512
    height = width = 9000

    def get_inputs():
        return [torch.rand(batch_size, 3, height, width)]

    def get_init_inputs():
        return [3, 2]
"""
RIGHT = """
    from torch import nn
    import fastconv

    class ModelNew(nn.Module):
        def __init__(self, channels, kernel_size):
            super().__init__()
            self.conv = fastconv.Conv2d(channels, channels, kernel_size, activation="relu")

        def forward(self, x):
            return self.conv(x)
"""
WRONG = RIGHT.replace("return self.conv(x)", "return self.conv(x) + 3e-4")
OF_ANOTHER_SIZE = RIGHT.replace("return self.conv(x)", "return self.conv(x)[1:]")
RAISES = RIGHT.replace("return self.conv(x)", "raise KeyError('nothing')")


def run(tmp_path: Path, texts: dict[str, str], *options: str) -> tuple[int, dict[str, Any], str]:
    """The exit status, the JSON and the table."""
    for name, text in texts.items():
        for folder, content in (("kernelbench", STATEMENT), ("solutions", text)):
            path = tmp_path / folder / "level1" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(content))
    folders = ["--kernelbench", str(tmp_path / "kernelbench"), "--solutions", str(tmp_path / "solutions")]
    out = ["--device", "cpu", "--quick", "--trials", "2", "--out", str(tmp_path / "out")]
    status = main([*folders, *out, *options])
    (written,) = (tmp_path / "out").glob("kernelbench-cpu-*.json")
    assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    return status, json.loads(written.read_text()), written.with_suffix(".md").read_text()


def test_a_right_solution_is_timed_beside_torch(tmp_path: Path) -> None:
    status, data, text = run(tmp_path, {"7_right": RIGHT})
    assert status == 0 and data["settings"]["trials"] == 2 and data["settings"]["tolerance"] == 1e-4
    assert [(row["level"], row["problem"], row["precision"], row["status"]) for row in data["rows"]] == [
        (1, "7_right", "default", "ok"),
        (1, "7_right", "strict", "ok"),
    ]
    for row in data["rows"]:
        assert row["check"]["passed"] == row["check"]["of"] == 5 and row["check"]["distance"] < 0.1
        assert all(error["normwise"] < 1e-6 for error in row["errors"].values())
        assert list(row["ms"]) == ["fastconv", "eager"] and all(ms > 0 for ms in row["ms"].values())
    assert "| 1/7_right | strict    | ok     |" in text and "of small images" in text


@pytest.mark.parametrize(
    ("solution", "expected"),
    [(WRONG, "WRONG"), (OF_ANOTHER_SIZE, "FAILED"), (RAISES, "FAILED")],
    ids=["off", "size", "raises"],
)
def test_a_wrong_solution_is_found_and_others_are_measured(tmp_path: Path, solution: str, expected: str) -> None:
    status, data, text = run(tmp_path, {"1_wrong": solution, "2_right": RIGHT}, "--precision", "strict")
    wrong, right = data["rows"]
    assert (status, wrong["status"], right["status"]) == (1, expected, "ok")
    if expected == "WRONG":
        assert wrong["check"]["passed"] == 0 and 1 < wrong["check"]["distance"] < 10
        assert wrong["errors"]["fastconv"]["distance"] > 1 > wrong["errors"]["torch"]["distance"]
        assert "- 1/1_wrong, strict: 0 of 5 trials pass" in text
    else:
        assert "ms" not in wrong and f"- 1/1_wrong, strict: FAILED, {wrong['failure']}" in text


def test_problems_are_chosen_by_pattern_and_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, data, _ = run(tmp_path, {"57_a": RIGHT, "8_b": RIGHT}, "--problem", "57*", "--precision", "strict")
    assert [row["problem"] for row in data["rows"]] == ["57_a"]
    for options, words in ((["--problem", "9*"], "no solution matches 9*"), (["--level", "2"], "no solution matches")):
        with pytest.raises(SystemExit):
            run(tmp_path, {}, *options)
        assert words in capsys.readouterr().err
    (tmp_path / "kernelbench" / "level1" / "8_b.py").unlink()
    with pytest.raises(SystemExit):
        run(tmp_path, {})
    assert "8_b.py" in capsys.readouterr().err


def test_what_a_run_has_is_written_problem_by_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(rows: Any) -> str:
        raise KeyboardInterrupt  # before there is a table

    monkeypatch.setattr(tables, "times", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, {"1_a": RIGHT, "2_b": RIGHT}, "--precision", "strict")
    (written,) = (tmp_path / "out").glob("kernelbench-cpu-*.json")
    monkeypatch.undo()
    assert [row["problem"] for row in json.loads(written.read_text())["rows"]] == ["1_a"]
    assert main(["--render", str(written)]) == 0
    assert "1/1_a" in written.with_suffix(".md").read_text() and written.with_suffix(".png").exists()


def made_up(status: str = "ok", **ms: float) -> dict[str, Any]:
    names = {"ours": "fastconv", "ours_compiled": COMPILED, "searched": "eager, searched"}
    return {
        "level": 1,
        "problem": "3_x",
        "precision": "default",
        "status": status,
        "check": {"passed": 5 if status == "ok" else 1, "of": 5, "distance": 1.5},
        "errors": {"fastconv": {"normwise": 2e-4, "distance": 1.2}, "torch": {"normwise": 2e-4, "distance": 1.3}},
        "ms": {names.get(name, name): value for name, value in ms.items()},
    }


def test_tables_show_losses_and_what_does_not_pass() -> None:
    rows = [
        made_up(ours=1.0, ours_compiled=0.5, eager=4.0, searched=0.8, compile=2.0),
        made_up("WRONG", ours=1.0, ours_compiled=0.5, eager=1.0, searched=1.0, compile=2.0),
    ]
    assert tables.pairs(rows) == [
        ("fastconv", "eager"),
        ("fastconv", "eager, searched"),
        ("fastconv", "compile"),
        (COMPILED, "compile"),
    ]
    assert tables.losses(rows).splitlines() == [
        "- 1/3_x, default: 1 of 5 trials pass; 1.5 x tolerance apart, from float64 fastconv 1.2, torch 1.3",
        "- 1/3_x, default: fastconv 0.80x of eager, searched",
    ]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.summary(rows).splitlines()[2:]]
    assert cells[0] == ["default", "1", "fastconv", "eager", "2", "1", "50%", "2.00x", "1.00x", "4.00x"]
    assert cells[1][-4:] == ["0%", f"{math.sqrt(0.8):.2f}x", "0.80x", "1.00x"]
    assert cells[3][2:4] == [COMPILED, "compile"] and cells[3][-3:] == ["4.00x"] * 3
