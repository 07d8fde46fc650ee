"""float32 multiplied as fp16: the device decides by the tensors' range which of two kernels computes.

See core/operand_range.h. Numbers that one scale fits are for the kernel that was asked for; for others its partner's
result has to come out, bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fastconv
import reference
from check import KERNELS, Kernel, expect_pass, run_forced, run_pass
from fastconv.precision import Precision
from shapes import Operands, Problem, operands

PROBLEMS = [
    Problem(2, 64, 15, 16, 64, 3, 3, padding=(1, 1)),
    Problem(2, 32, 13, 24, 32, 3, 3, padding=(1, 1)),
    Problem(2, 16, 16, 20, 64, 3, 3),
    Problem(2, 64, 16, 20, 16, 3, 3),
    Problem(1, 128, 12, 12, 256, 1, 1),
    Problem(1, 16, 6, 134, 128, 3, 3),
    Problem(1, 40, 6, 134, 16, 3, 3, padding=(1, 1)),
    Problem(2, 64, 14, 16, 64, 3, 3, stride=(2, 2), padding=(1, 1)),
]
LAYOUTS = [  # those whose planes are read as they lie, or stored in pairs of columns, have NCHW alone
    pytest.param(kernel, layout, id=f"{kernel.name}-{layout}")
    for kernel in KERNELS
    for layout in ("contiguous", "channels_last")
    if "_scaled" in kernel.name
    and (layout == "contiguous" or not re.search("_transposed|_floats|_columns", kernel.name))
]
Change = Callable[[Tensor], object]
GROUP = slice(64, 96)  # of values that lie side by side


def in_memory(t: Tensor) -> Tensor:
    """The values in the order in which they lie; writes go to the tensor."""
    return t.as_strided((t.numel(),), (1,))


def shrink_a_group(t: Tensor) -> None:
    in_memory(t)[GROUP] *= 2.0**-40


def set_first(value: float) -> Change:
    def change(t: Tensor) -> None:
        in_memory(t)[0] = value

    return change


def scale_all(factor: float) -> Change:
    return lambda t: t.mul_(factor)


FIT = {
    "normal": lambda t: None,
    "zeros": lambda t: t.zero_(),
    "a group of zeros": lambda t: in_memory(t)[GROUP].zero_(),
    "a small number among others": lambda t: in_memory(t)[GROUP.start : GROUP.start + 1].mul_(2.0**-60),
    "a smaller group": lambda t: in_memory(t)[GROUP].mul_(2.0**-10),
    "large": scale_all(2.0**100),
    "small": scale_all(2.0**-100),
}
OTHERS = {
    "small numbers beside large ones": lambda t: in_memory(t)[::2].mul_(2.0**-40),
    "a group that is much smaller": shrink_a_group,
    "one number that is much larger": set_first(2.0**60),
    "an infinity": set_first(float("inf")),
    "a NaN": set_first(float("nan")),
    "denormal": scale_all(2.0**-130),
}


def read(kernel: Kernel, o: Operands) -> list[Tensor]:
    return {
        "fprop": [o.input, o.weight],
        "dgrad": [o.grad_output, o.weight],
        "wgrad": [o.input, o.grad_output],
    }[kernel.pass_]


def precision_of(kernel: Kernel) -> Precision:
    return "ieee" if "promoted" in kernel.name else "tf32"


def runs(kernel: Kernel, layout: str, change: Change, which: int) -> list[tuple[Operands, Problem]]:
    """The problems that the kernel takes, of which one of the two tensors is changed."""
    found = []
    for problem in PROBLEMS:
        o = operands(problem, torch.float32, "cuda", views=(layout,) * 3)
        change(read(kernel, o)[which])
        if run_forced(kernel, o, problem, precision_of(kernel)) is not None:
            found.append((o, problem))
    assert found
    return found


def partner(kernel: Kernel, layout: str, problem: Problem) -> Kernel:
    with fastconv.force_kernel(kernel.name):
        plan = fastconv.explain(
            problem.input_size,
            problem.weight_size,
            problem.bias,
            *problem.geometry,
            pass_=kernel.pass_,
            precision=precision_of(kernel),
            channels_last=layout == "channels_last",
        )
    found = re.search(r"other numbers \[(\S+) tile", plan)
    assert found is not None, plan
    return replace(kernel, name=found[1])


def equal_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def compare(kernel: Kernel, layout: str, o: Operands, problem: Problem) -> tuple[Tensor, bool]:
    """The kernel's result, and whether it is its partner's."""
    precision = precision_of(kernel)
    actual = run_forced(kernel, o, problem, precision)
    others = run_forced(partner(kernel, layout, problem), o, problem, precision)
    assert actual is not None and others is not None
    return actual, equal_bits(actual, others)


@pytest.mark.cuda
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("kernel", "layout"), LAYOUTS)
def test_numbers_that_fit_are_scaled(kernel: Kernel, which: int, layout: str) -> None:
    for name, change in FIT.items():
        for o, problem in runs(kernel, layout, change, which):
            actual, same = compare(kernel, layout, o, problem)
            reference.assert_right(actual, expect_pass(kernel.pass_, o, problem), name, precision_of(kernel))
            assert same == (name == "zeros"), name


@pytest.mark.cuda
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("kernel", "layout"), LAYOUTS)
def test_others_are_for_the_partner(kernel: Kernel, which: int, layout: str) -> None:
    for name, change in OTHERS.items():
        for o, problem in runs(kernel, layout, change, which):
            assert compare(kernel, layout, o, problem)[1], name


@pytest.mark.cuda
@pytest.mark.parametrize("first", [0, 608 * 1024, 4500 * 1024, 4_743_648, 4_743_680])
@pytest.mark.parametrize("change", [torch.Tensor.zero_, lambda t: t.mul_(2.0**-40)], ids=["zeros", "small"])
def test_every_group_is_measured(cuda: str, change: Callable[[Tensor], object], first: int) -> None:
    """Of the first threads' first and later loads, and of their second turn; the last whole group, and one of four."""
    problem = Problem(1, 36, 363, 363, 32, 3, 3)
    kernel = next(k for k in KERNELS if k.name == "halo_fprop_512x32_c32_scaled")
    o = operands(problem, torch.float32, cuda)
    values = in_memory(o.input)
    assert values.numel() == 4_743_684
    assert not compare(kernel, "contiguous", o, problem)[1]
    change(values[first : first + 32])
    assert compare(kernel, "contiguous", o, problem)[1] == (change is not torch.Tensor.zero_)


@pytest.mark.cuda
def test_tensors_with_gaps_are_not_measured(cuda: str) -> None:
    problem = PROBLEMS[0]
    kernel = next(k for k in KERNELS if k.name == "halo_fprop_256x128_c64_scaled")
    o = operands(problem, torch.float32, cuda)
    assert run_forced(kernel, o, problem, "tf32") is not None
    n, c, h, w = problem.input_size
    for source in (
        torch.randn(n, c + 4, h, w, device=cuda)[:, :c],
        torch.randn(n, c, 1, w, device=cuda).expand(n, c, h, w),
        torch.randn(n * c * h * w + 1, device=cuda)[1:].view(n, c, h, w),
    ):
        assert run_forced(kernel, replace(o, input=source), problem, "tf32") is None


@pytest.mark.cuda
@pytest.mark.parametrize("pass_", ["fprop", "dgrad", "wgrad"])
def test_both_kernels_are_captured(pass_: str) -> None:
    """A graph's replays decide anew, by the numbers that they find."""
    problem = Problem(8, 256, 28, 28, 256, 3, 3, padding=(1, 1))
    kernel = next(k for k in KERNELS if k.pass_ == pass_ and "_scaled" in k.name and "promoted" not in k.name)
    o = operands(problem, torch.float32, "cuda")
    with fastconv.force_kernel(kernel.name):
        run_pass(pass_, o, problem, "tf32")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run_pass(pass_, o, problem, "tf32")
    for change in (FIT["normal"], shrink_a_group, FIT["normal"]):
        source = operands(problem, torch.float32, "cuda", seed=1)
        change(read(kernel, source)[0])
        for to, values in zip(read(kernel, o), read(kernel, source), strict=True):
            to.copy_(values)
        graph.replay()
        expected = run_forced(kernel, o, problem, "tf32")
        assert expected is not None and equal_bits(result, expected)
        reference.assert_right(result, expect_pass(pass_, o, problem), kernel.name, "tf32")


TILES = [kernel for kernel in KERNELS if re.match("(stem|quads)_.*_(1_half|2_halves)_", kernel.name)]


@pytest.mark.cuda
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("kernel", TILES, ids=lambda kernel: kernel.name)
def test_tiles_are_scaled_one_by_one(kernel: Kernel, layout: str, which: int) -> None:
    """Of images of few channels: whether numbers fit shows in the kernel itself, where some blocks may find that they
    do not. Forward, those have the bits of the kernel in parts, if there is one."""
    problem = Problem(16, 3, 61, 60, 72, 5, 5, stride=(2, 2), padding=(2, 2))
    precision = "ieee" if "2_halves" in kernel.name else "tf32"
    others = kernel.name.replace("2_halves", "3_parts").replace("1_half", "2_parts")
    partner = next((it for it in KERNELS if it.name == others), None)
    for name, change in {**FIT, **OTHERS}.items():
        o = operands(problem, torch.float32, "cuda", views=(layout,) * 3)
        change(read(kernel, o)[which])
        actual = run_forced(kernel, o, problem, precision)
        assert actual is not None
        expected = expect_pass(kernel.pass_, o, problem)
        if expected.value.isfinite().all() and name != "denormal":
            reference.assert_right(actual, expected, f"{kernel.name}, {name}", precision)
        has_same_bits = {"normal": False, "large": False, "small": False, "denormal": True}
        has_same_bits["small numbers beside large ones"] = True
        if name in has_same_bits:
            if partner is not None and (kernel.pass_ == "fprop" or not has_same_bits[name]):
                parts = run_forced(partner, o, problem, precision)
                assert parts is not None and equal_bits(actual, parts) == has_same_bits[name], name
        elif kernel.pass_ == "fprop":
            for same in (torch.isnan, torch.isposinf, torch.isneginf):
                assert torch.equal(same(actual).cpu(), same(expected.value).cpu()), name


def test_kernels_that_scale_have_a_partner() -> None:
    """Without a GPU: the plan names it."""
    for entry in (kernel for kernel in KERNELS if "_scaled" in kernel.name):
        taken = 0
        for problem in PROBLEMS:
            with fastconv.force_kernel(entry.name):
                try:
                    plan = fastconv.explain(
                        problem.input_size, problem.weight_size, problem.bias, *problem.geometry,
                        pass_=entry.pass_, precision=precision_of(entry), arch=90,
                    )  # fmt: skip
                except RuntimeError:
                    continue
            if f"plan: {entry.name} " in plan:
                taken += 1
                other = re.search(r"other numbers \[(\S+) tile", plan)
                assert other is not None and "_scaled" not in other[1]
        assert taken, entry.name
