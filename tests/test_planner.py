"""The planner, without a GPU: a plan for every legal problem on every architecture, within every limit."""

from __future__ import annotations

import functools
import itertools
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import instances
import nvcc
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st

import _fastconv_native as native
import fastconv
from bench.suites import load_suite
from fastconv.explain import H100, H200, Device
from fastconv.explain import gpu as known_gpu
from shapes import CASES, PASSES, PUBLIC, STEMS, Problem, group_widths, problems, wide_problems
from sweeps import examples

# Compute capability: SMs and shared memory that a block may have, from the CUDA programming guide's table of them; all
# else as of a part of an H200, so that kernels are chosen by what they can do.
GPUS = {
    75: native.DeviceSpec.cuda(75, 40, 64 << 10),
    80: native.DeviceSpec.cuda(80, 108, 163 << 10),
    86: native.DeviceSpec.cuda(86, 84, 99 << 10),
    89: native.DeviceSpec.cuda(89, 142, 99 << 10),
    90: native.DeviceSpec.cuda(90, 132, 227 << 10),
    100: native.DeviceSpec.cuda(100, 148, 227 << 10),
    120: native.DeviceSpec.cuda(120, 188, 99 << 10),
}
SOLD = {name: native.DeviceSpec.gpu(name) for name in native.GPUS}
DEVICES = {"cpu": native.DeviceSpec.cpu(2), **{f"sm_{arch}": gpu for arch, gpu in GPUS.items()}, **SOLD}
devices = pytest.mark.parametrize("name", DEVICES)
KERNELS = {kernel.name: kernel for kernel in native.kernel_table()}
DTYPES = ["float32", "float64", "float16", "bfloat16"]
PRECISIONS = ["ieee", "bf16x3", "tf32"]
SANITIZED = runpy.run_path(str(Path(__file__).parents[1] / "device/sanitize.py"))["PROBLEMS"]


def native_problem(problem: Problem, pass_: str = "fprop", **options: Any) -> native.ConvProblem:
    n = 1 if problem.n is None else problem.n
    return native.ConvProblem(
        (n, problem.c, problem.h, problem.w),
        problem.weight_size,
        *problem.geometry,
        pass_=pass_,
        bias=problem.bias and pass_ == "fprop",
        **options,
    )


options = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(DTYPES),
        "precision": st.sampled_from(PRECISIONS),
        "channels_last": st.booleans(),
        "align": st.sampled_from([2, 4, 8, 16, 128]),
    }
)
passes = st.sampled_from(PASSES)


@st.composite
def huge_problems(draw: st.DrawFn) -> Problem:
    """Sizes that no test could compute: launch limits and products of 64 bits."""
    size = st.sampled_from([1, 3, 64, 1000, 65535, 65536, 65537, 2**20 + 1, 2**26])
    groups = draw(st.sampled_from([1, 1, 2, 4096]))
    problem = Problem(
        draw(size),
        groups * draw(st.sampled_from([1, 3, 64, 4096])),
        draw(size),
        draw(size),
        groups * draw(st.sampled_from([1, 3, 64, 4096, 70000])),
        draw(st.sampled_from([1, 3, 31, 300])),
        draw(st.sampled_from([1, 3, 31, 300])),
        stride=draw(st.sampled_from([(1, 1), (2, 3), (100, 1)])),
        padding=draw(st.sampled_from([(300, 300), (150, 150)])),
        groups=groups,
    )
    # To what memory can hold: 2^40 elements are 4 TiB. Shrunk, not discarded: most draws are larger.
    while max(map(math.prod, (problem.input_size, problem.weight_size, problem.output_size))) > 2**40:
        c = max(1, problem.c // groups // 4) * groups
        k = max(1, problem.k // groups // 4) * groups
        pixels = {"h": problem.h // 3 + 1, "w": problem.w // 5 + 1, "n": problem.n // 2 + 1} if problem.n else {}
        problem = problem.with_(c=c, k=k, **pixels)
    return problem


def most_workspace_bytes(problem: native.ConvProblem) -> int:
    """As README has it."""
    return max(256 << 20, int(problem.compulsory_bytes * (2 if problem.dtype == "float32" else 1.25)))


def check_plan(problem: native.ConvProblem, pass_: str, device: native.DeviceSpec) -> native.Plan:
    plan = native.make_plan(problem, device)
    assert plan.kernel in KERNELS, plan.reason
    kernel = KERNELS[plan.kernel]
    assert kernel.pass_ == pass_ and kernel.is_cuda == device.is_cuda
    assert kernel.why_not(problem, device) is None
    assert 0 <= plan.workspace_bytes <= most_workspace_bytes(problem)
    assert plan.split >= 1 and plan.cost_us >= 0
    native.check_copies(problem, kernel, device)
    if plan.inner is not None:
        assert plan.workspace_bytes >= plan.inner[1].workspace_bytes and plan.cost_us >= plan.inner[1].cost_us
        check_plan(plan.inner[0], plan.inner[0].pass_, device)
    assert (plan.others is not None) == ("_scaled" in plan.kernel)
    if plan.others is not None:  # for numbers that one scale does not fit
        partner = KERNELS[plan.others.kernel]
        assert "_scaled" not in partner.name and partner.pass_ == pass_ and partner.why_not(problem, device) is None
        assert plan.others.workspace_bytes < plan.workspace_bytes
        native.check_copies(problem, partner, device)
    if device.is_cuda:
        assert 0 <= plan.grid <= 2**31 - 1  # the CUDA programming guide's limit on gridDim.x
        assert 32 <= plan.block_threads <= 1024 and plan.block_threads % 32 == 0
        assert 0 <= plan.smem_bytes <= device.smem_optin_bytes
    return plan


@devices
@given(problem=st.one_of(problems(), wide_problems()), pass_=passes, options=options)
@settings(max_examples=examples(150))
def test_every_legal_problem_has_a_plan_within_the_limits(
    name: str, problem: Problem, pass_: str, options: dict[str, object]
) -> None:
    check_plan(native_problem(problem, pass_, **options), pass_, DEVICES[name])


@devices
@given(problem=huge_problems(), pass_=passes, options=options)
@example(problem=PUBLIC["seed_3x3"].with_(n=17), pass_="fprop", options={})
@example(problem=Problem(3, 3, 64, 2**26, 3, 300, 300, padding=(150, 150)), pass_="dgrad", options={})
@example(problem=Problem(65536, 4096, 64, 3, 3, 31, 300, (2, 3), (300, 300)), pass_="wgrad", options={})
@example(problem=Problem(1, 1, 2**31 - 1, 1, 1, 1, 1), pass_="fprop", options={})
@example(problem=Problem(2**31, 1, 1, 1, 1, 1, 1), pass_="wgrad", options={})
@example(problem=Problem(1, 2**20, 1, 1, 2**20, 1, 1), pass_="fprop", options={})
@example(problem=Problem(1, 2**20, 8, 8, 2**20, 3, 3, groups=2**20), pass_="dgrad", options={})
@settings(max_examples=examples(100))
def test_huge_problems_have_a_plan_within_the_limits(
    name: str, problem: Problem, pass_: str, options: dict[str, object]
) -> None:
    check_plan(native_problem(problem, pass_, **options), pass_, DEVICES[name])


@devices
@pytest.mark.parametrize("pass_", PASSES)
def test_named_and_public_problems_have_a_plan(name: str, pass_: str) -> None:
    for problem, dtype, channels_last in itertools.product([*CASES.values(), *PUBLIC.values()], DTYPES, [False, True]):
        check_plan(native_problem(problem, pass_, dtype=dtype, channels_last=channels_last), pass_, DEVICES[name])


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(64, 3, 1024, 1024, 16, 3, 3, stride=(2, 2), padding=(1, 1)),
        Problem(32, 3, 2048, 2048, 16, 3, 3, stride=(2, 2), padding=(1, 1)),
        Problem(64, 8, 1024, 1024, 3, 3, 3, padding=(1, 1)),
        Problem(512, 3, 224, 224, 768, 16, 16, stride=(16, 16)),
        Problem(32, 24, 192, 192, 24, 3, 3, padding=(1, 1)),
        PUBLIC["seed_3x3"].with_(n=64),
    ],
    ids=lambda problem: f"{problem.n}x{problem.c}x{problem.h}_k{problem.k}",
)
def test_no_kernel_takes_more_workspace_than_is_promised(problem: Problem, dtype: str, pass_: str) -> None:
    planned = 0
    for precision, channels_last in itertools.product(PRECISIONS if dtype == "float32" else ["ieee"], [False, True]):
        asked = native_problem(problem, pass_, dtype=dtype, precision=precision, channels_last=channels_last)
        for gpu, kernel in itertools.product([GPUS[90], GPUS[80]], KERNELS.values()):
            if kernel.pass_ == pass_ and kernel.is_cuda:
                plan = native.make_plan(asked, gpu, kernel.name)
                assert plan.workspace_bytes <= most_workspace_bytes(asked), kernel.name
                planned += plan.kernel == kernel.name
    assert planned > 0


EMPTY = {
    "no_images": Problem(0, 64, 32, 32, 64, 1, 1),
    "no_channels": Problem(2, 0, 9, 8, 4, 3, 3, padding=(1, 1), bias=True),
    "neither": Problem(0, 0, 9, 8, 4, 3, 3),
    "no_images_of_groups": Problem(0, 8, 9, 8, 8, 3, 3, groups=8),
}


@devices
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("empty", EMPTY)
def test_problems_without_products_have_a_plan(empty: str, pass_: str, name: str) -> None:
    problem = EMPTY[empty]
    results = {"fprop": problem.output_size, "dgrad": problem.input_size, "wgrad": problem.weight_size}
    for dtype, precision, channels_last in itertools.product(DTYPES, PRECISIONS, [False, True]):
        asked = native_problem(problem, pass_, dtype=dtype, precision=precision, channels_last=channels_last)
        plan = check_plan(asked, pass_, DEVICES[name])
        assert plan.kernel.startswith(("im2col_", "cpu_"))  # the others count extents from 1 on
        said = "the result is empty" if 0 in results[pass_] else "the result is zeros"
        assert said in native.explain(asked, DEVICES[name])


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize(("device", "arch"), [("cpu", None), *(("cuda", arch) for arch in (None, *GPUS, "v100"))])
def test_explain_answers_for_problems_without_products(device: str, arch: int | str | None, pass_: str) -> None:
    for problem, dtype, channels_last in itertools.product(EMPTY.values(), DTYPES, [False, True]):
        text = fastconv.explain(
            problem.input_size, problem.weight_size, None, *problem.geometry,
            pass_=pass_, dtype=getattr(torch, dtype), channels_last=channels_last, device=device, arch=arch,
        )  # fmt: skip
        assert "the result is" in text and "plan:" in text


def test_a_gpu_has_a_name_or_an_architecture() -> None:
    a100, h200 = (native.DeviceSpec.gpu(name) for name in ("a100", "h200"))
    assert (a100.arch, a100.sm_count, a100.smem_optin_bytes) == (80, 108, 163 << 10)
    sizes = ((1, 8, 9, 9), (8, 8, 3, 3))
    for name in ("a100", "A100", "8.0", "sm_80"):
        assert fastconv.explain(*sizes, arch=80) == fastconv.explain(*sizes, arch=name)
    assert (known_gpu("RTX5090"), known_gpu("12.0")) == (known_gpu("rtx5090"), known_gpu(120))
    for unknown in ("81", "H200", "", "9"):
        with pytest.raises(RuntimeError, match=rf"the GPU must be .* v100 \(70\), .*; but got '{unknown}'"):
            native.DeviceSpec.gpu(unknown)
    with pytest.raises(RuntimeError, match="arch must be a GPU .* but got 'h300'"):
        fastconv.explain((1, 8, 9, 9), (8, 8, 3, 3), arch="h300")
    part = native.DeviceSpec.cuda(90, 16, 99 << 10)
    acting = part.acting_as(a100)
    assert (acting.arch, acting.sm_count, acting.smem_optin_bytes) == (80, 16, 99 << 10)
    assert acting.clock_mhz == a100.clock_mhz and acting.memory_gbps == a100.memory_gbps
    with pytest.raises(RuntimeError, match=r"compute capability 9.0, which do not run on this device of 8.0"):
        a100.acting_as(h200)


def test_explain_says_what_it_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ((1, 8, 9, 9), (8, 8, 3, 3))

    def line(*operands: Any, **arguments: Any) -> str:
        return str(fastconv.explain(*(operands or sizes), **arguments).splitlines()[1])

    a100 = "planned for compute capability 8.0, 108 SMs, 1410 MHz, 1555 GB/s"
    assert line(arch="a100") == f"{a100}; costs are estimates"
    assert "9.0, 66 SMs" in line(arch=H200._replace(sm_count=66))
    assert line(device="cpu") == f"planned for the CPU, {torch.get_num_threads()} threads; costs are estimates"
    tensors = [torch.zeros(size) for size in sizes]
    assert line(*tensors) == line(device="cpu")
    with pytest.raises(ValueError, match="the device is the CPU, not 'cuda': got 'a100'"):
        line(*tensors, arch="a100")
    assert line(*tensors, arch="a100", device="cuda") == line(arch="a100")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("FASTCONV_ARCH", raising=False)
    assert "9.0, 132 SMs, 1980 MHz, 4917 GB/s (an H200's, as torch sees no GPU); " in line()
    monkeypatch.setenv("FASTCONV_ARCH", "a100")
    assert line() == f"{a100} (FASTCONV_ARCH); costs are estimates" and "8.9" in line(arch="l4")
    monkeypatch.setenv("FASTCONV_ARCH", "nonsense")
    with pytest.raises(RuntimeError, match="FASTCONV_ARCH must be a GPU .* but got 'nonsense'"):
        line()


def test_the_command_line_explains_problems_without_products() -> None:
    sizes = ["--input", "0,64,32,32", "--weight", "64,64,1,1"]
    command = [sys.executable, "-m", "fastconv", "explain", *sizes]
    assert "the result is empty" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


@devices
@given(problem=st.one_of(problems(), wide_problems()), pass_=passes, options=options)
@settings(max_examples=examples(50))
def test_planning_is_pure(name: str, problem: Problem, pass_: str, options: dict[str, object]) -> None:
    """The same question has the same answer, whatever was asked in between."""
    asked = native_problem(problem, pass_, **options)
    first, explained = repr(native.make_plan(asked, DEVICES[name])), native.explain(asked, DEVICES[name])
    for device in DEVICES.values():
        native.make_plan(native_problem(CASES["dilated"], pass_), device)
    again = native_problem(problem, pass_, **options)
    assert repr(native.make_plan(again, DEVICES[name])) == first
    assert native.explain(again, DEVICES[name]) == explained


@devices
@given(problem=st.one_of(problems(), wide_problems()), pass_=passes, options=options)
@settings(max_examples=examples(50))
def test_every_other_kernel_is_dearer_or_refuses(
    name: str, problem: Problem, pass_: str, options: dict[str, object]
) -> None:
    asked, device = native_problem(problem, pass_, **options), DEVICES[name]
    chosen = native.make_plan(asked, device)
    explained = native.explain(asked, device)
    for kernel in KERNELS.values():
        forced = native.make_plan(asked, device, kernel.name)
        if kernel.pass_ != pass_ or kernel.is_cuda != device.is_cuda:
            assert repr(forced) == repr(chosen)  # it names a kernel of another pass or device: no constraint here
            continue
        assert kernel.name in explained
        refusal = kernel.why_not(asked, device)
        if refusal is None:
            assert forced.kernel == kernel.name and forced.cost_us >= chosen.cost_us
        else:
            assert forced.kernel == "" and kernel.name in forced.reason and refusal in forced.reason
            assert refusal in explained and len(refusal.split()) >= 3, "a refusal is a sentence"


@pytest.mark.parametrize("name", PUBLIC)
def test_an_a100_multiplies_every_public_problem_on_tensor_cores(name: str) -> None:
    """Multiply-adds take up to 10 times as long."""
    modes = [("float16", "ieee"), ("bfloat16", "ieee"), *(("float32", it) for it in ("ieee", "bf16x3", "tf32"))]
    for pass_, (dtype, precision), channels_last in itertools.product(PASSES, modes, [False, True]):
        options = {"dtype": dtype, "precision": precision, "channels_last": channels_last}
        kernel = native.make_plan(native_problem(PUBLIC[name], pass_, **options), GPUS[80]).kernel
        assert not kernel.startswith(("direct", "im2col")), (pass_, options, kernel)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
@pytest.mark.parametrize("name", [name for name, problem in PUBLIC.items() if problem.c >= 64 * problem.groups])
def test_tensor_cores_take_what_is_wide_enough_on_hopper_alone(name: str, pass_: str, channels_last: bool) -> None:
    for arch, gpu in GPUS.items():
        for dtype in DTYPES:
            # As many images as give each SM something to do.
            problem = native_problem(PUBLIC[name].with_(n=64), pass_, dtype=dtype, channels_last=channels_last)
            families = ("halo_", "pointwise_") if arch == 90 else ("halo_",)  # the latter is for others, too
            on_tensor_cores = native.make_plan(problem, gpu).kernel.startswith(families)
            # Six products of parts, for so few multiplications, are no cheaper than one by one if dy is written anew.
            cheap = dtype == "float32" and (name, pass_, channels_last) == ("rn50_l1_1x1", "dgrad", True)
            assert on_tensor_cores == (arch == 90 and dtype != "float64" and not cheap), (arch, dtype)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("name", "pass_", "family", "least_arch"),
    [
        *itertools.product(["dw_3x3", "dw_5x5s2", "dw_7x7"], PASSES, ["depthwise_"], [75]),
        *itertools.product(["resnext_g32"], ["fprop", "dgrad"], ["grouped_|depthwise_diagonal_"], [80]),
    ],
)
def test_few_channels_a_group_have_kernels_of_their_own(
    name: str, pass_: str, family: str, least_arch: int, channels_last: bool
) -> None:
    for arch, dtype in itertools.product(GPUS, ["float32", "float16", "bfloat16"]):
        # Odd images too: rows that begin anywhere.
        for size in (PUBLIC[name].h, PUBLIC[name].h // 2 - 1):
            image = PUBLIC[name].with_(h=size, w=size)
            problem = native_problem(image, pass_, dtype=dtype, channels_last=channels_last)
            kernel = native.make_plan(problem, GPUS[arch]).kernel
            assert arch < least_arch or re.match(family, kernel), (arch, dtype, size, kernel)
            assert "_any_" not in kernel


@pytest.mark.parametrize(
    ("r", "s", "name"),
    [(3, 3, "3x3_valid"), (3, 7, "3x7_valid")],
)
def test_float32_depthwise_rows_without_padding_are_read_four_at_a_time(r: int, s: int, name: str) -> None:
    problem = Problem(4, 16, 64, 256, 16, r, s, groups=16)
    assert native.make_plan(native_problem(problem, "fprop"), GPUS[90]).kernel == f"depthwise_fprop_{name}"
    for padded in (problem.with_(padding=(0, 2)), problem.with_(padding=(0, 5))):
        assert name not in native.make_plan(native_problem(padded, "fprop"), GPUS[90]).kernel
    rows = native.make_plan(native_problem(problem.with_(padding=(9, 0)), "fprop"), GPUS[90])
    assert rows.kernel == f"depthwise_fprop_{name}"


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("n", [1, 64])
def test_depthwise_weight_gradients_of_large_images_have_kernels_of_their_own(n: int, channels_last: bool) -> None:
    """Sums as exact as the direct kernels' need no small images."""
    for taps, dtype in itertools.product([(3, 1), (31, 31)], ["float32", "float16"]):
        problem = native_problem(
            Problem(n, 8, 512, 500, 8, *taps, groups=8), "wgrad", dtype=dtype, channels_last=channels_last
        )
        kernel = native.make_plan(problem, GPUS[90]).kernel
        family: str | tuple[str, ...] = "depthwise_any_"
        if taps == (3, 1):
            family = "depthwise_wgrad_3x1_", "depthwise_sequence_"
        if dtype == "float16" and not channels_last:
            family = "depthwise_banded_"
        elif dtype == "float16" and n == 1 and taps == (3, 1):
            family = "depthwise_diagonal_"
        assert kernel.startswith(family), (taps, dtype, kernel)


@pytest.mark.parametrize("channels_last", [False, True])
def test_sums_over_many_filters_are_not_one_chain(channels_last: bool) -> None:
    """Input gradient of grey images: depthwise, with 64 filters of one channel."""
    for k in (8, 64):
        problem = Problem(8, 1, 512, 512, k, 3, 3, padding=(1, 1))
        asked = native_problem(problem, "dgrad", dtype="float32", precision="ieee", channels_last=channels_last)
        for arch in GPUS:
            refused = KERNELS["depthwise_any_dgrad_4x8"].why_not(asked, GPUS[arch]) is not None
            assert refused == (k == 64), (k, arch)
            assert not (refused and native.make_plan(asked, GPUS[arch]).kernel.startswith("depthwise_any_"))


def test_banded_kernels_refuse_what_they_cannot_count() -> None:
    """Filters that no shared memory holds, and more blocks than a grid has."""
    huge = {"fprop": Problem(1, 1, 30_000_000, 2, 1, 30_000_000, 1), "wgrad": Problem(1, 2**20, 2, 2, 2**20, 16385, 1)}
    huge["wgrad"] = huge["wgrad"].with_(padding=(8192, 0), groups=2**20)
    for pass_, problem in huge.items():
        for kernel in native.kernel_table():
            if kernel.name.startswith(f"depthwise_banded_{pass_}"):
                assert kernel.why_not(native_problem(problem, pass_, dtype="float16"), GPUS[90]), kernel.name


@pytest.mark.parametrize("pass_", PASSES)
def test_depthwise_in_16_bits_and_channels_last_multiplies_by_diagonals_or_pairs(pass_: str) -> None:
    square = PUBLIC["dw_7x7"]
    # Fewer rows of taps, and a filter that is too wide for these kernels.
    problems = [(square, True), (square.with_(r=square.r - 1), True), (square.with_(s=9), False)]
    for arch, dtype, (problem, takes) in itertools.product(GPUS, ["float16", "bfloat16"], problems):
        plan = native.make_plan(native_problem(problem, pass_, dtype=dtype, channels_last=True), GPUS[arch])
        wide = "cross" if pass_ == "wgrad" else "pairs"
        family = "any" if not takes else wide if arch == 90 else "diagonal"
        assert arch < 80 or plan.kernel.startswith(f"depthwise_{family}_{pass_}_"), (arch, dtype, problem)
    # As measured: of a stride multiply-adds are faster, but for gradients.
    strided = native_problem(PUBLIC["dw_5x5s2"], pass_, dtype="float16", channels_last=True)
    expected = {"fprop": "depthwise_fprop_5x5s2_nhwc_tma", "dgrad": "depthwise_diagonal_dgrad_5s2_tma"}
    assert native.make_plan(strided, GPUS[90]).kernel == expected.get(pass_, "depthwise_cross_wgrad_5s2")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("pass_", PASSES)
def test_the_copy_engine_brings_rows_to_diagonals_and_pairs_where_that_was_measured_faster(
    pass_: str, dtype: str
) -> None:
    large, small = PUBLIC["dw_7x7"], PUBLIC["dw_7x7"].with_(n=1)
    fives = Problem(64, 672, 14, 14, 672, 5, 5, padding=(2, 2), groups=672)
    # EfficientNet's: channels that fill no line of memory.
    threes = [Problem(64, c, size, size, c, 3, 3, padding=(1, 1), groups=c) for c, size in [(32, 112), (144, 56)]]
    for problem, arch in itertools.product([large, small, fives, *threes, PUBLIC["dw_3x3"]], GPUS):
        kernel = native.make_plan(native_problem(problem, pass_, dtype=dtype, channels_last=True), GPUS[arch]).kernel
        staged = arch == 90 and (problem is not small or pass_ == "wgrad")
        expected = rf"depthwise_diagonal_{pass_}_\d_tma"
        if pass_ != "wgrad" and problem.r > 3:
            expected = rf"depthwise_pairs_{pass_}_\d"
        elif pass_ == "wgrad" and problem.r == 7 and problem is not small:
            expected = "depthwise_cross_wgrad_7"
        assert bool(re.fullmatch(expected, kernel)) == staged, kernel
        assert staged or not re.search("_tma|_pairs_|_cross_", kernel), kernel


@pytest.mark.parametrize(
    ("name", "n", "h", "w", "columns"),
    [
        ("7", 2, 9, 28, 28),
        ("7", 5, 20, 12, 12),
        ("7", 8, 7, 4, 8),
        ("7", 2, 9, 32, 32),
        ("5s2", 4, 20, 12, 12),
        ("5s2", 8, 7, 4, 8),
    ],
)
def test_rows_of_two_images_share_steps_of_columns(name: str, n: int, h: int, w: int, columns: int) -> None:
    taps, stride = int(name[0]), 2 if name.endswith("s2") else 1
    padding = (taps // 2, taps // 2)
    problem = Problem(n, 40, stride * h, stride * w, 40, taps, taps, (stride, stride), padding, groups=40)
    device, kernel = native.DeviceSpec.cuda(90, 1, 227 << 10), f"depthwise_cross_wgrad_{name}"
    plan = native.make_plan(native_problem(problem, "wgrad", dtype="float16", channels_last=True), device, kernel)
    parts = re.search(r"(\d+) columns, (\d+) images", str(plan))
    assert parts is not None
    assert int(parts[1]) == columns and (columns % 8 == 0 or int(parts[2]) % 2 == 0), str(plan)


def test_bands_sum_up_weight_gradients_of_a_stride_where_that_was_measured_faster() -> None:
    """By windows of five rows, of whole images or of halves, in slices that fill the SMs once."""
    for channels, rows, slices in [(240, 28, 2), (144, 14, 3)]:
        problem = PUBLIC["dw_5x5s2"].with_(c=channels, k=channels, groups=channels)
        for dtype in ("float16", "bfloat16"):
            plan = native.make_plan(native_problem(problem, "wgrad", dtype=dtype), GPUS[90])
            assert plan.kernel == "depthwise_banded_wgrad_5s2", str(plan)
            assert f" runs of {rows} rows" in str(plan) and plan.split == slices, str(plan)


@pytest.mark.parametrize(
    ("channels", "size", "taps", "step", "pass_", "rows"),
    [
        (256, 56, 3, 1, "fprop", 14),
        (512, 14, 3, 1, "fprop", 7),
        (240, 28, 5, 1, "fprop", 10),
        (384, 28, 7, 1, "dgrad", 14),
        (240, 56, 5, 2, "fprop", 7),
        (240, 56, 5, 2, "dgrad", 20),
        (240, 28, 3, 2, "dgrad", 10),
    ],
)
def test_runs_of_bands_are_near_those_that_were_measured_fastest(
    channels: int, size: int, taps: int, step: int, pass_: str, rows: int
) -> None:
    """By 2 % or less. Any number of runs an image, not powers of two alone."""
    problem = Problem(64, channels, size, size, channels, taps, taps, (step, step), (taps // 2,) * 2, groups=channels)
    plan = native.make_plan(native_problem(problem, pass_, dtype="float16"), GPUS[90])
    assert plan.kernel.startswith(f"depthwise_banded_{pass_}_{taps}"), str(plan)
    assert f" runs of {rows} rows" in str(plan), str(plan)


@pytest.mark.parametrize(
    ("problem", "pass_", "rows"),
    [
        (PUBLIC["dw_3x3"], "fprop", 14),
        (PUBLIC["dw_3x3"].with_(h=254, w=512, padding=(0, 0)), "fprop", 16),
        (PUBLIC["dw_3x3"].with_(h=512, w=511), "fprop", 64),
        (PUBLIC["dw_3x3"].with_(h=112, w=112, stride=(2, 2)), "fprop", 28),
        (PUBLIC["dw_3x3"].with_(h=112, w=112, stride=(2, 2)), "dgrad", 14),
        (PUBLIC["dw_5x5s2"].with_(stride=(1, 1), h=28, w=28), "fprop", 14),
        (PUBLIC["dw_5x5s2"], "fprop", 14),
    ],
)
def test_runs_of_depthwise_columns_are_short(problem: Problem, pass_: str, rows: int) -> None:
    """However many threads there are: what blocks read at once then lies close together."""
    for n in (64, 512):
        plan = native.make_plan(native_problem(problem.with_(n=n), pass_), GPUS[90])
        assert plan.kernel.startswith(f"depthwise_{pass_}_{problem.r}x{problem.s}"), str(plan)
        assert f" runs of {rows} rows" in str(plan), str(plan)


@pytest.mark.parametrize(("n", "at_once"), [(64, 3), (88, 4)])
def test_staged_weight_gradients_have_as_many_stages_as_their_blocks_have_room_for(n: int, at_once: int) -> None:
    """Blocks that an SM has share its memory: 384 are three for each, 528 four."""
    problem = native_problem(PUBLIC["dw_7x7"].with_(n=n), "wgrad", dtype="float32", channels_last=True)
    plan = native.make_plan(problem, GPUS[90])
    assert plan.kernel == "depthwise_wgrad_7x7_nhwc_tma"
    reserved = 1 << 10  # of each block
    assert (GPUS[90].smem_optin_bytes + reserved) // (plan.smem_bytes + reserved) == at_once, str(plan)


@pytest.mark.parametrize(
    ("name", "pass_", "at_once"),
    [("dw_7x7", "fprop", 3), ("dw_7x7", "dgrad", 3), ("dw_5x5s2", "fprop", 4), ("dw_5x5s2", "dgrad", 2)],
)
def test_fewer_blocks_of_staged_rows_run_at_once_where_that_was_measured_faster(
    name: str, pass_: str, at_once: int
) -> None:
    """Six blocks an SM as three and three, not four and two; two that store."""
    plan = native.make_plan(native_problem(PUBLIC[name], pass_, dtype="float32", channels_last=True), GPUS[90])
    assert plan.kernel.endswith("_nhwc_tma")
    reserved = 1 << 10  # of each block
    assert (GPUS[90].smem_optin_bytes + reserved) // (plan.smem_bytes + reserved) == at_once, str(plan)


@pytest.mark.parametrize(
    ("name", "dtype", "layouts"),
    [("dw_7x7", "float32", ["nchw", "nhwc"]), ("dw_5x5s2", "float32", ["nhwc"])],
)
@pytest.mark.parametrize("pass_", PASSES)
def test_the_copy_engine_brings_depthwise_rows_where_that_was_measured_faster(
    pass_: str, name: str, dtype: str, layouts: list[str]
) -> None:
    for layout, arch in itertools.product(layouts, GPUS):
        problem = native_problem(PUBLIC[name], pass_, dtype=dtype, channels_last=layout == "nhwc")
        staged = arch == 90 and (layout == "nhwc" or pass_ != "wgrad")
        kernel = native.make_plan(problem, GPUS[arch]).kernel
        assert kernel.endswith(f"_{layout}_tma") == staged, (arch, layout, kernel)


@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
def test_pairs_of_channels_leave_few_multiprocessors_and_runs_idle(pass_: str) -> None:
    """As many images at once as fill a block's runs, or so many fewer that all blocks have as much to do."""
    for n, c, size, columns, images, blocks in [
        (64, 384, 28, "4 runs of 7 columns", 2, 132),
        (64, 384, 14, "2 runs of 7 columns", 3, 132),
        (64, 768, 7, "1 runs of 7 columns", 7, 120),
        (64, 256, 32, "4 runs of 8 columns", 2, 128),
        (1, 96, 56, "8 runs of 7 columns", 1, 24),
    ]:
        problem = Problem(n, c, size, size, c, 7, 7, padding=(3, 3), groups=c)
        asked = native_problem(problem, pass_, dtype="float16", channels_last=True)
        plan = str(native.make_plan(asked, GPUS[90], f"depthwise_pairs_{pass_}_7"))
        assert f" grid {blocks} " in plan and f" {columns}, {images} images" in plan, plan


def test_pairs_of_channels_refuse_what_they_cannot_count() -> None:
    """More than fits any memory, which would be more blocks than a grid has, too."""
    problem = Problem(1, 2**28, 1, 2**28, 2**28, 7, 7, padding=(3, 3), groups=2**28)
    for kernel in (kernel for kernel in native.kernel_table() if kernel.name.startswith("depthwise_pairs_")):
        taps = int(kernel.name[-1])
        many = problem.with_(r=taps, s=taps, padding=(taps // 2,) * 2)
        for width, refused in [(7, False), (problem.w, True)]:
            asked = native_problem(many.with_(w=width), kernel.pass_, dtype="float16", channels_last=True)
            why = kernel.why_not(asked, GPUS[90])
            assert "up to 2^40 elements" in (why or "") if refused else why is None, (kernel.name, width, why)


@pytest.mark.parametrize(
    ("dtype", "layout", "pass_", "sizes", "expected"),
    [
        ("float16", "nhwc", "fprop", (96, 56, 7, 1), "depthwise_diagonal_fprop_7"),
        ("float16", "nhwc", "wgrad", (96, 56, 7, 1), "depthwise_diagonal_wgrad_7_tma"),
        ("float16", "nhwc", "wgrad", (240, 28, 5, 1), "depthwise_diagonal_wgrad_5_tma"),
        ("float16", "nchw", "fprop", (240, 28, 5, 1), "depthwise_banded_fprop_5"),
        ("float16", "nchw", "wgrad", (240, 28, 5, 1), "depthwise_banded_wgrad_7"),
        ("float32", "nchw", "fprop", (240, 28, 5, 1), "depthwise_fprop_5x5_columns"),
        ("float32", "nhwc", "fprop", (240, 28, 5, 1), "depthwise_fprop_5x5_nhwc"),
        ("float32", "nhwc", "wgrad", (96, 112, 3, 2), "depthwise_wgrad_3x3s2_nhwc1"),
    ],
)
def test_single_images_are_left_to_what_takes_them_the_least_time(
    dtype: str, layout: str, pass_: str, sizes: tuple[int, int, int, int], expected: str
) -> None:
    """As measured, where threads are so few that each has its own latencies to wait for."""
    c, size, taps, step = sizes
    problem = Problem(1, c, size, size, c, taps, taps, (step, step), (taps // 2,) * 2, groups=c)
    asked = native_problem(problem, pass_, dtype=dtype, precision="ieee", channels_last=layout == "nhwc")
    assert native.make_plan(asked, GPUS[90]).kernel == expected


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("taps", [3, 5, 7])
def test_rows_of_a_single_image_are_shared_out(taps: int, layout: str) -> None:
    """Where a thread that goes through all of them would be one of few."""
    single = Problem(1, 96, 56, 56, 96, taps, taps, padding=(taps // 2,) * 2, groups=96)
    rows = []
    for n in (1, 512):
        problem = native_problem(single.with_(n=n), "fprop", channels_last=layout == "nhwc")
        one = "1" if layout == "nhwc" else ""  # channel of a thread
        plan = str(native.make_plan(problem, GPUS[80], f"depthwise_fprop_{taps}x{taps}_{layout}{one}"))
        rows += [int(number) for number in re.findall(r" runs of (\d+) rows", plan)]
    assert rows[0] < rows[1], rows


def test_diagonal_kernels_refuse_what_they_cannot_count() -> None:
    """More blocks than a grid has: the images are all the same."""
    problem = Problem(2**22, 2**16, 7, 40, 2**16, 3, 3, padding=(1, 1), groups=2**16)
    kernels = [kernel for kernel in native.kernel_table() if kernel.name.startswith("depthwise_diagonal_")]
    assert {kernel.pass_ for kernel in kernels} == {"fprop", "dgrad", "wgrad"}
    for kernel in kernels:
        width = group_widths(kernel.name)[0]
        taps, step = int(kernel.name.split("_")[3][0]), 2 if "s2" in kernel.name else 1
        many = problem.with_(r=taps, s=taps, padding=(taps // 2,) * 2, stride=(step, step), groups=problem.c // width)
        mode = {"dtype": "float32", "precision": "tf32"} if "tf32" in kernel.name else {"dtype": "float16"}
        for n, refused in [(1, False), (problem.n, True)]:
            asked = native_problem(many.with_(n=n), kernel.pass_, channels_last=True, **mode)
            assert (kernel.why_not(asked, GPUS[90]) is not None) == refused, (kernel.name, n)


@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
def test_filters_that_the_copy_engine_cannot_bring_are_left_to_others(pass_: str) -> None:
    """Eight at once, from a multiple of 16 bytes on, without gaps, each value once: in any order."""
    problem = Problem(32, 256, 28, 28, 256, 3, 3, padding=(1, 1), groups=32)
    in_order, channels_last = (72, 9, 3, 1), (72, 1, 24, 8)
    with_gaps, side_by_side, one_row_thrice = (80, 9, 3, 1), (1, 9 * 256, 3 * 256, 256), (72, 9, 0, 1)
    kernel = f"depthwise_diagonal_{pass_}_3_groups_tma"
    for strides in (in_order, channels_last, with_gaps, side_by_side, one_row_thrice):
        asked = native_problem(problem, pass_, dtype="float16", channels_last=True, w_strides=strides)
        refused = KERNELS[kernel].why_not(asked, GPUS[90])
        assert (refused is not None) == (strides not in (in_order, channels_last)), (strides, refused)
        assert refused is None or native.make_plan(asked, GPUS[90]).kernel != kernel


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("pass_", PASSES)
def test_the_copy_engine_brings_planes_to_bands_where_that_was_measured_faster(pass_: str, dtype: str) -> None:
    small = Problem(64, 480, 14, 14, 480, 3, 3, padding=(1, 1), groups=480)  # of EfficientNet
    asked = [(PUBLIC["dw_3x3"], "3"), (PUBLIC["dw_7x7"], "7"), (PUBLIC["dw_5x5s2"], "5s2"), (small, "3")]
    for (problem, size), arch in itertools.product(asked, GPUS):
        kernel = native.make_plan(native_problem(problem, pass_, dtype=dtype), GPUS[arch]).kernel
        staged = arch == 90 and (pass_ != "wgrad" or problem is small)
        assert (kernel == f"depthwise_banded_{pass_}_{size}_tma") == staged, (problem, arch, kernel)
    # Of 7x7, where a row begins within a word; 3x3 stores them sooner by multiply-adds.
    sevens = {taps: Problem(64, 1152, 7, 7, 1152, taps, taps, padding=(taps // 2,) * 2, groups=1152) for taps in (3, 5)}
    fives = "7_tma_odd" if pass_ == "wgrad" else "5_tma_odd"
    assert native.make_plan(native_problem(sevens[5], pass_, dtype=dtype), GPUS[90]).kernel.endswith(fives)
    threes = "banded_wgrad_3_tma_odd" if pass_ == "wgrad" else "3x3_columns"
    assert native.make_plan(native_problem(sevens[3], pass_, dtype=dtype), GPUS[90]).kernel.endswith(threes)


def test_planes_are_copied_where_units_of_16_bytes_lie_in_the_tensor() -> None:
    def refusal(
        n: int,
        c: int,
        h: int,
        w: int,
        x_strides: native.Quad | None = None,
        align: int = 256,
        pass_: str = "fprop",
        y_strides: native.Quad | None = None,
    ) -> str | None:
        problem = Problem(n, c, h, w, c, 3, 3, padding=(1, 1), groups=c)
        asked = native.ConvProblem(
            problem.input_size,
            problem.weight_size,
            *problem.geometry,
            pass_=pass_,
            dtype="float16",
            x_strides=x_strides,
            y_strides=y_strides,
            align=align,
        )
        return KERNELS[f"depthwise_banded_{pass_}_3_tma"].why_not(asked, GPUS[90])

    assert refusal(1, 1, 4, 2) is None
    # Planes of 14x14 end within a unit: the last one does not where their number is even.
    assert refusal(1, 4, 14, 14) is None
    assert refusal(1, 3, 14, 14) is not None
    assert refusal(2, 3, 14, 14) is None
    # Of every second channel or image, whose neighbours may not be ours.
    assert refusal(2, 4, 14, 14, (8 * 196, 2 * 196, 14, 1)) is not None
    assert refusal(2, 4, 16, 16, (8 * 256, 2 * 256, 16, 1)) is None
    assert refusal(2, 4, 14, 14, (8 * 196, 196, 14, 1)) is not None
    # The same image as often as it takes.
    assert refusal(2, 4, 16, 16, (0, 256, 16, 1)) is None
    # Rows with gaps, or that begin anywhere; and more columns than a block has warps for.
    assert refusal(1, 4, 16, 16, (4 * 288, 288, 18, 1)) is not None
    assert refusal(1, 4, 16, 16, align=8) is not None
    assert refusal(1, 4, 16, 1024) is None
    assert refusal(1, 4, 16, 1032) is not None
    # The weight gradient copies dy as well, and a warp of it has all columns.
    apart = (8 * 196, 2 * 196, 14, 1)
    assert refusal(2, 4, 14, 14, pass_="wgrad") is None
    assert refusal(2, 4, 14, 14, apart, pass_="wgrad") is not None
    assert refusal(2, 4, 14, 14, pass_="wgrad", y_strides=apart) is not None
    assert refusal(1, 4, 16, 128, pass_="wgrad") is None
    assert refusal(1, 4, 16, 136, pass_="wgrad") is not None


def test_one_row_of_taps_takes_the_smallest_banded_kernel() -> None:
    for w, name in [(56, "depthwise_banded_wgrad_3"), (55, "depthwise_banded_wgrad_3_odd")]:
        problem = Problem(8, 64, 56, w, 64, 1, 3, padding=(0, 1), groups=64)
        assert native.make_plan(native_problem(problem, "wgrad", dtype="float16"), GPUS[90]).kernel == name


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("pass_", ["fprop", "wgrad"])
@pytest.mark.parametrize("images", [1, 64])
def test_float32_images_of_few_channels_have_kernels_of_their_own(images: int, pass_: str, channels_last: bool) -> None:
    for arch, precision in itertools.product(GPUS, ["ieee", "bf16x3", "tf32"]):
        stem = PUBLIC["rn50_stem"].with_(n=images)
        problem = native_problem(stem, pass_, dtype="float32", precision=precision, channels_last=channels_last)
        kernel = native.make_plan(problem, GPUS[arch]).kernel
        kinds = {"ieee": "3_parts|2_halves", "bf16x3": "2_parts", "tf32": "2_parts|1_half"}[precision]
        quads = {"ieee": "2_halves", "bf16x3": "2_parts", "tf32": "2_parts"}[precision]
        quads = rf"|quads_fprop_{quads}(_squares)?_n(chw|hwc)" if pass_ == "fprop" else ""
        found = re.fullmatch(rf"stem_{pass_}_({kinds})_(32|64){quads}", kernel)
        assert (found is not None) == (arch >= 80), (arch, precision, kernel)


@pytest.mark.parametrize(
    ("problem", "pass_", "precision", "channels_last"),
    [
        (Problem(256, 3, 8, 8, 2048, 9, 9, stride=(2, 2), padding=(4, 4)), "fprop", "tf32", True),
        (Problem(256, 4, 16, 16, 2048, 3, 3, padding=(1, 1)), "wgrad", "ieee", False),
    ],
)
def test_partners_of_scaled_kernels_look_at_the_gate(
    problem: Problem, pass_: str, precision: str, channels_last: bool
) -> None:
    """Kernels for images of few channels do not: both would write the result."""
    asked = native_problem(problem, pass_, dtype="float32", precision=precision, channels_last=channels_last)
    found = 0
    for name, kernel in KERNELS.items():
        if "_scaled" in name and kernel.pass_ == pass_ and kernel.why_not(asked, GPUS[90]) is None:
            other = re.search(r"other numbers \[(\S+) tile", str(native.make_plan(asked, GPUS[90], name)))
            assert other is not None and not other[1].startswith("stem_"), name
            found += 1
    assert found


@pytest.mark.parametrize("channels_last", [False, True])
def test_sums_of_few_products_are_not_of_two_parts(channels_last: bool) -> None:
    """Which lack a bit of float32's 24; roundings of longer sums hide that."""
    for pass_, few, enough in [
        ("fprop", Problem(8, 16, 56, 56, 256, 1, 1), Problem(8, 32, 56, 56, 256, 1, 1)),
        ("fprop", Problem(8, 2, 56, 56, 64, 3, 3), Problem(8, 3, 56, 56, 64, 3, 3)),
        ("dgrad", Problem(8, 256, 56, 56, 16, 2, 2, stride=(2, 2)), Problem(8, 256, 56, 56, 32, 2, 2, stride=(2, 2))),
        ("wgrad", Problem(1, 128, 6, 6, 256, 3, 3), Problem(1, 128, 8, 8, 256, 3, 3)),
    ]:
        for problem, expected in [(few, False), (enough, True)]:
            asked = native_problem(problem, pass_, dtype="float32", precision="ieee", channels_last=channels_last)
            scaled = [k for k in KERNELS.values() if "_scaled" in k.name and k.why_not(asked, GPUS[90]) is None]
            assert any(kernel.pass_ == pass_ for kernel in scaled) == expected, problem


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize("channels_last", [False, True])
def test_tensor_cores_multiply_in_every_layout(channels_last: bool, arch: int, pass_: str) -> None:
    """Multiply-adds, which it was left to but on Hopper, take several times as long there."""
    problem = Problem(8, 128, 28, 28, 128, 3, 3, padding=(1, 1))
    tensor_cores = ("halo_", "wgrad_") if arch == 90 else ("mma_", "taps_")
    for dtype, precision in [("float32", precision) for precision in PRECISIONS] + [
        ("float16", None),
        ("bfloat16", None),
    ]:
        options = {"dtype": dtype, "channels_last": channels_last, **({"precision": precision} if precision else {})}
        kernel = native.make_plan(native_problem(problem, pass_, **options), GPUS[arch]).kernel
        # There three products of parts take about as long as a multiply-add.
        as_fast = ("direct_",) if arch in (86, 89, 120) and precision in ("ieee", "bf16x3") else ()
        assert kernel.startswith((*tensor_cores, *as_fast)), (dtype, precision)


@pytest.mark.parametrize("arch", [80, 86, 90])
def test_sums_of_tensor_cores_are_short(arch: int) -> None:
    """They truncate what they add to: 200,000 pixels a sum are twice as wrong as TF32 is by itself."""
    ran = 0
    for n, c, size, k, taps in [(64, 512, 56, 512, 3), (256, 32, 1024, 64, 1)]:
        problem = Problem(n, c, size, size, k, taps, taps, padding=(taps // 2, taps // 2))
        asked = native_problem(problem, "wgrad", dtype="float32", precision="tf32", channels_last=True)
        for kernel in (it for it in KERNELS.values() if it.name.startswith("mma_wgrad")):
            if kernel.why_not(asked, GPUS[arch]) is not None:
                continue
            rows, columns = map(int, re.findall(r"_(\d+)x(\d+)", kernel.name)[0])
            sums = 8 // (rows // 64 * columns // 64) * native.make_plan(asked, GPUS[arch], kernel.name).split
            assert n * size * size / sums <= 8192, kernel.name
            ran += 1
    assert ran >= 2


@pytest.mark.parametrize("channels_last", [False, True])
def test_tf32_weight_gradients_of_pointwise_layers_read_their_operands_once(channels_last: bool) -> None:
    """Where they did not, they took 1.5 times as long in NCHW, and 3.5 by multiply-adds in channels_last."""
    problem = Problem(64, 64, 56, 56, 256, 1, 1)
    asked = native_problem(problem, "wgrad", dtype="float32", precision="tf32", channels_last=channels_last)
    assert native.make_plan(asked, GPUS[90]).kernel.startswith("mma_wgrad_64x256_")
    taps = native_problem(
        Problem(64, 64, 56, 56, 256, 3, 3, padding=(1, 1)), "wgrad", dtype="float32", precision="tf32"
    )
    assert KERNELS["mma_wgrad_64x256_nchw"].why_not(taps, GPUS[90]) is not None  # runs of x are none of dy


def test_copies_of_rows_beyond_an_image_of_one_are_aligned() -> None:
    """An asynchronous copy of nothing has an address, too, here that of a row that no stride of the tensor's tells."""
    name = "mma_wgrad_128x128_nhwc"
    for stride, refuses in [(256, False), (257, True)]:
        asked = native.ConvProblem(
            (1, 32, 1, 8),
            (32, 32, 3, 3),
            *Problem(1, 32, 1, 8, 32, 3, 3, padding=(1, 1)).geometry,
            pass_="wgrad",
            dtype="float32",
            precision="tf32",
            x_strides=(4096, 1, stride, 32),
            w_strides=(288, 1, 96, 32),
            y_strides=(256, 1, 256, 32),
            align=64,
        )
        assert (KERNELS[name].why_not(asked, GPUS[80]) is not None) == refuses


@pytest.mark.parametrize("along_rows", [False, True])
@pytest.mark.parametrize("is_b", [False, True])
@pytest.mark.parametrize("length", [64, 128])
def test_fragments_of_tiles_meet_different_banks(is_b: bool, along_rows: bool, length: int) -> None:
    """Eight lanes read at once: two neighbouring `g` of all `t`."""
    chunk = functools.partial(native.mma_chunk, along_rows, is_b, length=length)
    chunks = length // 4
    for line in range(64):
        places = sorted(chunk(line=line, chunk=i) for i in range(chunks))
        assert places == list(range(line * chunks, (line + 1) * chunks))  # it keeps to the line
    for first, step in itertools.product(range(0, 8, 2), range(4)):
        lanes = [(g // 2 + g % 2 * 4 if is_b else g, t) for g in (first, first + 1) for t in range(4)]
        if along_rows:
            places = [chunk(line=4 * t + step, chunk=g) for g, t in lanes]
        else:
            places = [chunk(line=4 * g + step, chunk=t) for g, t in lanes]
        assert len({place % 8 for place in places}) == 8


@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if kernel.is_cuda])
def test_the_sanitizer_sees_every_kernel(name: str) -> None:
    """Kernels that refuse all problems of device/sanitize.py would run under compute-sanitizer on none."""
    kernel = KERNELS[name]
    for problem in SANITIZED:
        for dtype, precision, channels_last in itertools.product(DTYPES, PRECISIONS, [False, True]):
            if dtype != "float32" and precision != "ieee":
                continue
            options = {"dtype": dtype, "precision": precision, "channels_last": channels_last}
            if kernel.why_not(native_problem(problem, kernel.pass_, **options), GPUS[90]) is None:
                return
    pytest.fail("refuses all problems")


@pytest.mark.parametrize("name", [name for name in KERNELS if re.match("depthwise_(cross|diagonal)_wgrad", name)])
def test_sums_of_depthwise_gradients_are_short(name: str) -> None:
    """A warp adds up some pixels of the gradient at once, and tensor cores truncate what they add to."""
    at_once = 64 if "_cross_" in name else 16
    taps, step = int(name.split("_")[3][0]), 2 if "s2" in name else 1
    for n, size, c in [(256, 7, 4096), (2048, 14, 4096), (64, 112, 32), (2, 2000, 8)]:
        width = group_widths(name)[0]
        c = max(c, width)
        problem = Problem(n, c, size, size, c, taps, taps, (step, step), (taps // 2,) * 2, groups=c // width)
        outputs = -(-size // step)
        plan = native.make_plan(native_problem(problem, "wgrad", dtype="float16", channels_last=True), GPUS[90], name)
        assert plan.kernel == name
        assert n * outputs**2 / at_once <= 1024 * plan.split


@pytest.mark.parametrize("pass_", ["fprop", "dgrad", "wgrad"])
def test_no_image_has_a_plan_by_every_kernel(pass_: str) -> None:
    empty = Problem(0, 16, 256, 1024, 128, 3, 3)
    for dtype, precision in [("float16", "ieee"), *(("float32", p) for p in ("ieee", "bf16x3", "tf32"))]:
        for channels_last in (False, True):
            problem = native_problem(empty, pass_, dtype=dtype, precision=precision, channels_last=channels_last)
            assert native.make_plan(problem, GPUS[90]).kernel
            for kernel in native.kernel_table():
                if kernel.is_cuda and kernel.pass_ == pass_:
                    native.make_plan(problem, GPUS[90], kernel.name)


def test_rows_that_begin_within_sectors_are_stored_in_lines() -> None:
    within = Problem(16, 16, 1024, 1024, 128, 3, 3)
    cases: list[tuple[Problem, dict[str, Any], bool]] = [
        (within, {}, True),
        (within.with_(n=1), {}, True),
        (within.with_(w=1026), {}, False),  # they begin with one
        (within.with_(w=1025), {}, False),  # pairs of pixels are not aligned
        (within.with_(w=124), {}, False),  # shorter than a tile
        (within.with_(stride=(1, 2), w=2045), {}, False),  # more than one halo a tile
        (within.with_(stride=(1, 2), dilation=(1, 2), w=2059), {}, False),  # a tile leaves out columns of its halo
        (within.with_(stride=(2, 1)), {}, False),  # more than one halo a tile
        (within.with_(stride=(2, 1), dilation=(2, 1), h=2045), {}, True),
        (within.with_(c=32, groups=2), {}, False),
        (within, {"channels_last": True}, False),
        (within, {"align": 2}, False),
    ]
    for problem, options, lines in cases:
        plan = native.make_plan(native_problem(problem, **{"dtype": "float16", "align": 128, **options}), GPUS[90])
        assert plan.kernel.endswith("_lines") == lines, (problem, options)


@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
def test_planes_that_are_shifted_may_be_transposed_too(pass_: str) -> None:
    """There are shifted kernels for many filters alone."""
    for few, groups in [(32, 1), (24, 1), (32, 2)]:
        c, k = (36 * groups, few * groups) if pass_ == "fprop" else (few * groups, 36 * groups)
        asked = native_problem(Problem(8, c, 14, 14, k, 1, 1, groups=groups), pass_, dtype="float16")
        kernels = [k for k in KERNELS.values() if k.name.startswith("halo") and k.pass_ == pass_]
        taken = [kernel.name for kernel in kernels if kernel.why_not(asked, GPUS[90]) is None]
        assert any("transposed" in name for name in taken) and not any("shifted" in name for name in taken), few


def test_rows_of_the_filter_that_reach_nothing_count_where_columns_are_packed_in_pairs() -> None:
    for rows, taken in [(60, True), (360, False)]:
        problem = Problem(1, 64, 1, 64, 64, rows, 2, stride=(2, 2), padding=(rows // 2, 1))
        asked = native_problem(problem, "dgrad", dtype="float16")
        assert (KERNELS["halo_dgrad_256x128_c64_columns"].why_not(asked, GPUS[90]) is None) == taken, rows


def test_the_largest_tiles_store_runs_alone() -> None:
    kernel = KERNELS["halo_fprop_384x128_c64_tma"]
    for filters, taken in [(96, True), (104, True), (100, False)]:  # channels_last: runs of 8 channels
        problem = native_problem(Problem(8, 64, 16, 16, filters, 3, 3), dtype="float16", channels_last=True)
        assert (kernel.why_not(problem, GPUS[90]) is None) == taken, filters
    planes = native_problem(Problem(8, 64, 15, 15, 100, 3, 3), dtype="float16")  # NCHW: rows of pixels, of any length
    assert kernel.why_not(planes, GPUS[90]) is None


@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
def test_halo_engine_counts_tiles_with_32_bits_and_elements_with_64(pass_: str) -> None:
    large = [PUBLIC["seed_3x3"].with_(n=17, c=64, k=64), Problem(64, 64, 2**13, 2**13, 64, 1, 1, padding=(0, 1))]
    too_large = [
        Problem(1, 64, 2**29, 1, 64, 1, 1),
        Problem(2**29, 64, 1, 1, 64, 1, 1),
        Problem(1, 64, 2**20, 64, 64, 3, 3, stride=(2**12, 1)),
    ]
    kernels = [kernel for kernel in KERNELS.values() if kernel.name.startswith(f"halo_{pass_}")]
    for channels_last in (False, True):
        options = {"dtype": "float16", "channels_last": channels_last}
        for problem in large:
            assert native.make_plan(native_problem(problem, pass_, **options), GPUS[90]).kernel.startswith("halo_")
        for problem in too_large:
            assert all(kernel.why_not(native_problem(problem, pass_, **options), GPUS[90]) for kernel in kernels)


@pytest.mark.parametrize(
    ("name", "channels_last"),
    [*((name, True) for name in STEMS if name != "patches"), ("rn50_stem", True), ("rn50_stem", False)],
)
def test_hopper_folds_the_strides_of_stems(name: str, channels_last: bool) -> None:
    stem = {**PUBLIC, **STEMS}[name]
    large = stem.with_(n=64, h=max(stem.h, 128), w=max(stem.w, 128))

    def plan(pass_: str) -> native.Plan:
        problem = native_problem(large, pass_, dtype="bfloat16", channels_last=channels_last)
        return native.make_plan(problem, GPUS[90])

    # Of few taps, all channels of one are staged as a quad instead.
    quads = name not in {"7x7", "odd rows and columns", "more channels than a stage", "rn50_stem"}
    kernel = plan("fprop").kernel
    assert kernel.startswith("quads_") if quads else kernel.endswith("_folded"), kernel
    wgrad = str(plan("wgrad"))
    assert "folds input" in wgrad or (quads and channels_last and wgrad.startswith("quads_wgrad_")), wgrad


@pytest.mark.parametrize(
    ("problem", "channels_last", "align", "filters", "pixels"),
    [
        (Problem(2, 3, 12, 16, 36, 3, 3), True, 16, 4, 1),
        (Problem(2, 3, 12, 16, 36, 3, 3), True, 8, 1, 1),
        (Problem(2, 3, 12, 16, 38, 3, 3), True, 16, 1, 1),
        (Problem(2, 3, 12, 18, 38, 3, 3), False, 16, 1, 4),
        (Problem(2, 3, 12, 18, 38, 3, 3), False, 8, 1, 2),
        (Problem(2, 3, 12, 20, 38, 3, 3), False, 16, 1, 2),
        (Problem(2, 3, 12, 17, 38, 3, 3), False, 16, 1, 1),
        (Problem(2, 3, 13, 33, 38, 3, 3, stride=(2, 2)), False, 16, 1, 2),
        (Problem(2, 3, 12, 50, 38, 3, 3, stride=(3, 3)), False, 16, 1, 1),
    ],
)
def test_lanes_store_neighbours_of_images_of_few_channels(
    problem: Problem, channels_last: bool, align: int, filters: int, pixels: int
) -> None:
    """As many as lie side by side at multiples of their bytes, and are read from different banks."""
    asked = native_problem(problem, dtype="float32", precision="ieee", channels_last=channels_last, align=align)
    kernel = KERNELS["stem_fprop_3_parts_32"]
    assert native.stem_neighbours(asked, kernel, GPUS[90]) == (filters, pixels)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["vgg_first", "latent", "mobilenet", "stem_b1"])
def test_images_of_few_channels_are_staged_as_quads(name: str, channels_last: bool) -> None:
    """And their filters of nine taps kept in registers."""
    problem = {it.name: it for it in load_suite("few_channels").problems}[name]
    modes = [("float16", "ieee"), ("bfloat16", "ieee"), ("float32", "tf32"), ("float32", "bf16x3")]
    for (dtype, precision), arch in itertools.product(modes, [80, 90]):
        asked = native.ConvProblem(
            problem.input,
            problem.weight,
            *problem.conv_args,
            dtype=dtype,
            precision=precision,
            channels_last=channels_last,
            align=128,
        )
        kernel = native.make_plan(asked, GPUS[arch]).kernel
        kind = "2_parts_" if dtype == "float32" else ""
        kind += "" if name == "stem_b1" else "3_steps_"
        wanted = f"quads_fprop_{kind}n{'hwc' if channels_last else 'chw'}"
        assert re.fullmatch(wanted, kernel), (dtype, arch, kernel)


def test_filters_of_images_of_few_channels_may_fill_shared_memory() -> None:
    """Which then has no room for them as they were, before they are packed."""
    problem = Problem(8, 4, 64, 64, 32, 17, 17, padding=(8, 8))
    kernel = native.make_plan(native_problem(problem, "fprop", dtype="float32", precision="ieee"), GPUS[90]).kernel
    assert re.fullmatch("quads_fprop_2_halves_n(chw|hwc)", kernel), kernel


def test_squares_have_room_for_large_filters_as_they_were() -> None:
    problem = Problem(64, 3, 224, 224, 96, 11, 11, stride=(2, 2), padding=(5, 5))
    kernel = native.make_plan(native_problem(problem, "fprop", dtype="float32", precision="ieee"), GPUS[90]).kernel
    assert re.fullmatch("quads_fprop_2_halves_squares_n(chw|hwc)", kernel), kernel


def test_squares_need_no_whole_runs_of_pixels() -> None:
    problem = Problem(32, 3, 224, 225, 64, 7, 7, stride=(2, 2), padding=(3, 3))
    asked = native_problem(problem, "fprop", dtype="float32", precision="ieee")
    assert native.make_plan(asked, GPUS[90]).kernel == "quads_fprop_2_halves_squares_nchw"


@pytest.mark.parametrize(
    ("name", "precision", "channels_last", "most"),
    [
        ("vgg_first", "", False, 1.1),
        ("vgg_first", "", True, 1.1),
        ("vgg_first", "tf32", True, 1.1),
        ("mobilenet", "", False, 2.1),
        ("mobilenet", "tf32", True, 1.2),
        ("latent", "bf16x3", True, 1.1),
        ("stem_b1", "ieee", True, 1.1),
        ("stem_b1", "bf16x3", False, 1.1),
    ],
)
def test_lanes_find_quads_in_different_banks(name: str, precision: str, channels_last: bool, most: float) -> None:
    """Rows of a tile are staged with gaps. Without one, accesses are up to 3.4 times as many as needed."""
    problem = {it.name: it for it in load_suite("few_channels").problems}[name]
    asked = native.ConvProblem(
        problem.input,
        problem.weight,
        *problem.conv_args,
        dtype="float32" if precision else "float16",
        precision=precision or "ieee",
        channels_last=channels_last,
        align=128,
    )
    kernel = {it.name: it for it in native.kernel_table()}[native.make_plan(asked, GPUS[90]).kernel]
    assert kernel.name.startswith("quads_fprop_") and "squares" not in kernel.name
    assert native.quads_accesses(asked, kernel, GPUS[90]) <= most


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("pass_", ["fprop", "wgrad"])
@pytest.mark.parametrize("arch", [80, 90])
def test_patch_embeddings_are_read_where_products_want_them(arch: int, pass_: str, channels_last: bool) -> None:
    problem = Problem(64, 3, 224, 224, 96, 4, 4, stride=(4, 4))
    layout = "nhwc" if channels_last else "nchw"
    modes = {"tf32": "2_parts_", "bf16x3": "2_parts_", "ieee": "3_parts_"}
    halves = [("float16", "ieee"), ("bfloat16", "ieee")] if pass_ == "fprop" else []
    for dtype, precision in [*halves, *(("float32", mode) for mode in modes)]:
        asked = native_problem(problem, pass_, dtype=dtype, precision=precision, channels_last=channels_last)
        kind = modes[precision] if dtype == "float32" else ""
        assert native.make_plan(asked, GPUS[arch]).kernel == f"embed_{pass_}_{kind}{layout}"


def test_patch_embeddings_that_do_not_fit_one_wave_take_as_many() -> None:
    """Whether by filters or by pixels, of which one sum adds up few."""
    device = native.DeviceSpec.cuda(90, 8, 227 << 10)
    costs = []
    for k in (256, 512, 768):
        problem = Problem(64, 3, 224, 224, k, 4, 4, stride=(4, 4))
        asked = native_problem(problem, "wgrad", dtype="float32", precision="ieee", channels_last=True)
        costs.append(native.make_plan(asked, device, "embed_wgrad_3_parts_nhwc").cost_us)
    assert costs[1] > 1.9 * costs[0] and costs[2] > 2.8 * costs[0]
    large = native_problem(Problem(4096, 3, 224, 224, 96, 4, 4, stride=(4, 4)), "wgrad", dtype="float32")
    plan = native.make_plan(large, GPUS[90], "embed_wgrad_3_parts_nchw")
    assert 4096 * 56**2 / 16 / 8 <= 1024 * plan.split


@pytest.mark.parametrize("pass_", ["fprop", "wgrad"])
def test_pointwise_layers_are_no_patch_embeddings(pass_: str) -> None:
    for c, arch in itertools.product([4, 16, 64], [80, 90]):
        problem = Problem(32, c, 56, 56, 64, 1, 1)
        asked = native_problem(problem, pass_, dtype="float32", precision="bf16x3", channels_last=True)
        assert not native.make_plan(asked, GPUS[arch]).kernel.startswith("embed_")


def test_more_filters_than_32_bits_count_bytes_of() -> None:
    problem = Problem(1, 1, 7, 11, 2**27 - 64, 1, 3, dilation=(1, 5))
    assert native.make_plan(native_problem(problem, "fprop", dtype="float16"), GPUS[90]).kernel


@pytest.mark.parametrize("channels_last", [False, True])
def test_one_channel_is_left_to_multiply_adds_in_tf32(channels_last: bool) -> None:
    """Which are as fast and more exact."""
    problem = Problem(8, 1, 512, 512, 64, 3, 3, padding=(1, 1))
    asked = native_problem(problem, "fprop", precision="tf32", channels_last=channels_last)
    assert native.make_plan(asked, GPUS[90]).kernel.startswith("depthwise_fprop_")


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_groups_that_lie_side_by_side_are_blocks_beside_a_diagonal(width: int, pass_: str) -> None:
    for size, stride, arch in [(56, 1, 90), (28, 1, 90), (56, 2, 90), *([(28, 1, 80)] if width < 8 else [])]:
        problem = Problem(32, 256, size, size, 256, 3, 3, (stride,) * 2, padding=(1, 1), groups=256 // width)
        asked = native_problem(problem, pass_, dtype="float16", channels_last=True)
        kernel = native.make_plan(asked, GPUS[arch]).kernel
        assert kernel.startswith(f"depthwise_diagonal_{pass_}_3"), kernel
        assert kernel.endswith("_tma") == (arch == 90), kernel


@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_groups_in_tf32_are_blocks_beside_a_diagonal_where_the_copy_engine_brings_them(width: int, pass_: str) -> None:
    for size, stride, precision, arch in itertools.product([56, 28], [1, 2], ["tf32", "bf16x3", "ieee"], [80, 90]):
        problem = Problem(32, 256, size, size, 256, 3, 3, (stride,) * 2, padding=(1, 1), groups=256 // width)
        asked = native_problem(problem, pass_, precision=precision, channels_last=True)
        kernel, expected = native.make_plan(asked, GPUS[arch]).kernel, f"depthwise_diagonal_{pass_}_3"
        assert kernel.startswith(expected) == (arch == 90 and precision == "tf32"), (
            size,
            stride,
            precision,
            arch,
            kernel,
        )


@pytest.mark.parametrize(
    ("dtype", "precision"), [("float16", "ieee"), ("bfloat16", "ieee"), ("float32", "tf32"), ("float32", "ieee")]
)
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_planes_of_narrow_groups_come_by_the_copy_engine(width: int, dtype: str, precision: str) -> None:
    """For the weight gradient; where rows have gaps, or begin within words, others compute it."""
    exact = precision == "ieee" and dtype == "float32"
    # A row is one block's, of 16 columns a warp, times four of groups of 16.
    for (size, stride), arch in itertools.product([(56, 2), (28, 1), *[(56, 1)] * (width < 16)], [80, 90]):
        problem = Problem(32, 256, size, size, 256, 3, 3, (stride,) * 2, padding=(1, 1), groups=256 // width)
        asked = native_problem(problem, "wgrad", dtype=dtype, precision=precision)
        kernel = native.make_plan(asked, GPUS[arch]).kernel
        assert kernel.startswith("grouped_planes_wgrad_") == (arch == 90 and not exact), (size, stride, arch, kernel)
    narrow = problem.with_(stride=(1, 1), h=28, w=28)
    strides = (256 * 30 * 28, 30 * 28, 30, 1)
    gaps = native_problem(narrow, "wgrad", dtype=dtype, precision=precision, x_strides=strides)
    odd = native_problem(narrow.with_(w=27), "wgrad", dtype=dtype, precision=precision)
    # Rows of x, or of dy alone.
    odd_x, odd_y = (
        native_problem(narrow.with_(w=w, stride=(2, 2)), "wgrad", dtype=dtype, precision=precision) for w in (27, 30)
    )
    floats = precision == "tf32"
    for refused, kept in [(gaps, False), (odd, floats), (odd_x, floats), (odd_y, floats)]:
        kernel = native.make_plan(refused, GPUS[90]).kernel
        assert kernel.startswith("grouped_planes_wgrad_") == kept, kernel


@pytest.mark.parametrize("n", [1, 32, 1024])
@pytest.mark.parametrize("width", [4, 16])
def test_planes_of_narrow_groups_add_up_few_pixels_at_once(width: int, n: int) -> None:
    """A warp those of 16 columns of a row, and tensor cores truncate what they add to."""
    problem = Problem(n, 1024, 28, 28, 1024, 3, 3, padding=(1, 1), groups=1024 // width)
    for sms in (1, 132):
        device = native.DeviceSpec.cuda(90, sms, 227 << 10)
        asked = native_problem(problem, "wgrad", dtype="float16")
        plan = native.make_plan(asked, device, "grouped_planes_wgrad_3")
        images, rows = (int(word) for word in re.findall(r"tiles of (\d+) images, (\d+) rows", str(plan))[0])
        tiles = -(-n // images) * -(-28 // rows)
        assert -(-tiles // plan.split) * rows * 16 <= 4096, plan


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize(("h", "w"), [(524287, 128), (2**28 - 1, 2), (4000, 128), (500, 128)])
def test_planes_of_tall_images_fit_shared_memory(h: int, w: int, precision: str) -> None:
    """Runs of rows are counted with 64 bits. Images, or channels, may all be the same."""
    mode = {"dtype": "float32" if precision == "tf32" else "float16", "precision": precision}
    size = 4 if precision == "tf32" else 2
    for n, c, strides in [(1, 1024, (0, 0, w, 1)), (132, 8, (0, h * w, w, 1))]:
        problem = Problem(n, c, h, w, c, 3, 3, padding=(1, 1), groups=c // 8)
        asked = native_problem(problem, "wgrad", x_strides=strides, y_strides=strides, **mode)
        name = "grouped_planes_wgrad_tf32_3" if precision == "tf32" else "grouped_planes_wgrad_3"
        # Sums of so few pixels would be more than the workspace holds.
        assert (KERNELS[name].why_not(asked, GPUS[90]) is not None) == (h > 4000)
        if h > 4000:
            continue
        plan = native.make_plan(asked, GPUS[90], name)
        images, rows = (int(word) for word in re.findall(r"tiles of (\d+) images, (\d+) rows", str(plan))[0])
        staged = images * 8 * (min(h, rows + 2) + rows) * w * size
        assert staged <= plan.smem_bytes <= 227 << 10, plan


@pytest.mark.parametrize("pass_", PASSES)
def test_narrow_groups_count_rows_of_shared_memory_with_32_bits(pass_: str) -> None:
    """Lanes name rows beyond a tile's last one."""
    problem = Problem(1, 32, 2, 8, 32, 1, 3, stride=(2**23, 1), padding=(0, 1), groups=4)
    for kernel in KERNELS.values():
        if kernel.name.startswith("grouped_"):
            assert kernel.why_not(native_problem(problem, pass_, dtype="float16"), GPUS[90]) is not None, kernel.name


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("precision", ["tf32", "bf16x3"])
@pytest.mark.parametrize("pass_", ["fprop", "dgrad"])
def test_blocks_share_tiles_where_there_are_few(pass_: str, precision: str, channels_last: bool) -> None:
    """One image leaves most SMs idle; clusters are at work at once, and fit groups of SMs."""
    layer = PUBLIC["b1_l3"]
    for problem, shared in [(layer, True), (layer.with_(n=64), False)]:
        asked = native_problem(problem, pass_, precision=precision, channels_last=channels_last)
        plan = str(native.make_plan(asked, GPUS[90]))
        assert ("shared by" in plan) == shared, plan
        if shared:
            shares, grid = (int(*re.findall(text, plan)) for text in (r"shared by (\d+)", r"grid (\d+)"))
            assert shares in {2, 4} and grid % shares == 0 and grid <= 99, plan


@pytest.mark.parametrize("taps", [7, 31, 63, 127])
@pytest.mark.parametrize("stride", [(2, 2), (4, 4)])
def test_folded_halos_are_three_at_least(taps: int, stride: tuple[int, int]) -> None:
    """With two, the producers would wait for the consumers to be done with a halo, and these for the next one."""
    plans = 0
    for c, h in itertools.product([1, 3, 4], [130, 300]):
        problem = native_problem(Problem(2, c, h, h, 64, taps, taps, stride=stride), dtype="float16")
        for kernel in KERNELS.values():
            if kernel.name.endswith("_folded") and kernel.why_not(problem, GPUS[90]) is None:
                plan = str(native.make_plan(problem, GPUS[90], kernel.name))
                stages = re.search(r"stages (\d+)\+", plan)
                assert stages and int(stages[1]) >= 3, plan
                plans += 1
    assert plans > 0


TAPS = [kernel for kernel in KERNELS.values() if kernel.name.startswith("taps_")]


def test_taps_pack_what_they_cannot_read_as_it_lies() -> None:
    """Whole chunks of channels, and offsets in a tile with 32 bits; of parts everything."""

    def packs(kernel: native.Kernel, asked: native.ConvProblem) -> bool:
        return "packed bytes" in str(native.make_plan(asked, GPUS[80], kernel.name))

    for kernel in TAPS:
        halves = kernel.why_not(native_problem(CASES["plain_3x3"], kernel.pass_, dtype="float16"), GPUS[80]) is None
        if not halves or kernel.pass_ == "dgrad":  # whose filter is packed whatever it is
            continue
        for c, channels_last, as_it_lies in [(16, True, True), (16, False, False), (12, True, False)]:
            problem = Problem(2, c, 9, 9, 16, 3, 3)
            asked = native_problem(problem, kernel.pass_, dtype="float16", channels_last=channels_last)
            assert packs(kernel, asked) != as_it_lies, kernel.name
        if kernel.pass_ == "fprop":
            for pitch, fits in [(1024, True), (2**29, False)]:  # of rows, in a crop of a wide image
                problem = Problem(1, 8, 2, 1, 8, 3, 1, padding=(8, 0))
                far: Any = {"x_strides": (2 * pitch, 1, pitch, 8)}
                asked = native_problem(problem, "fprop", dtype="float16", channels_last=True, **far)
                assert packs(kernel, asked) != fits, kernel.name
    for precision, parts in [("bf16x3", 2), ("ieee", 3)]:
        asked = native_problem(CASES["plain_3x3"], dtype="float32", precision=precision, channels_last=True)
        (kernel,) = [it for it in TAPS if it.name == f"taps_fprop_{parts}_parts_64x64"]
        assert packs(kernel, asked)
        for other in {"tf32", "bf16x3", "ieee"} - {precision}:
            refused = native_problem(CASES["plain_3x3"], dtype="float32", precision=other, channels_last=True)
            assert kernel.why_not(refused, GPUS[80]) == f"is for {precision} alone"


def test_taps_refuse_more_launches_than_some() -> None:
    """One for each phase of strides."""
    many = Problem(1, 8, 64, 64, 32, 18, 18, stride=(9, 9))
    for kernel in TAPS:
        for dtype, precision in [("float16", "ieee"), *(("float32", precision) for precision in PRECISIONS)]:
            options: Any = {"dtype": dtype, "precision": precision}
            if kernel.why_not(native_problem(CASES["plain_3x3"], kernel.pass_, **options), GPUS[80]) is None:
                reason = kernel.why_not(native_problem(many, kernel.pass_, **options), GPUS[80])
                assert (reason is not None and "for each phase" in reason) == (kernel.pass_ == "dgrad"), kernel.name


def test_vectors_fit_where_a_phase_begins() -> None:
    """Turned products of strided gradients: pixels side by side that do not begin at whole vectors."""
    ran = 0
    asked = native_problem(
        Problem(2, 8, 2, 8, 8, 1, 1, stride=(2, 1)), "dgrad", dtype="float16", x_strides=(576, 72, 9, 1)
    )
    for kernel in TAPS:
        if kernel.pass_ == "dgrad" and kernel.why_not(asked, GPUS[80]) is None:
            assert native.tap_vector_bytes(asked, kernel, GPUS[80]) == [16, 2]
            ran += 1
    assert ran


def test_unknown_kernels_are_refused() -> None:
    for force in ("no_such_kernel", "no_such_kernel,also_none"):
        for device in DEVICES.values():
            plan = native.make_plan(native_problem(CASES["plain_3x3"]), device, force)
            assert plan.kernel == "" and "no_such_kernel" in plan.reason


def test_several_kernels_can_be_forced_one_a_pass() -> None:
    of_each_pass = {}
    for kernel in KERNELS.values():
        if (
            not kernel.is_cuda
            and kernel.why_not(native_problem(CASES["depthwise"], kernel.pass_), DEVICES["cpu"]) is None
        ):
            of_each_pass[kernel.pass_] = kernel.name
    force = ",".join(of_each_pass.values())
    for pass_ in PASSES:
        assert (
            native.make_plan(native_problem(CASES["depthwise"], pass_), DEVICES["cpu"], force).kernel
            == of_each_pass[pass_]
        )


def test_kernel_names_are_unique_and_say_their_pass() -> None:
    names = [kernel.name for kernel in native.kernel_table()]
    assert len(set(names)) == len(names)
    assert all(kernel.pass_ in kernel.name for kernel in KERNELS.values())
    for pass_, is_cuda in itertools.product(PASSES, (False, True)):
        assert any(k.pass_ == pass_ and k.is_cuda == is_cuda for k in KERNELS.values()), (pass_, is_cuda)


def test_the_ops_show_the_same_table() -> None:
    lines = torch.ops.fastconv._kernels().splitlines()
    expected = [f"{k.name}\t{k.pass_}\t{'cuda' if k.is_cuda else 'cpu'}" for k in native.kernel_table()]
    assert lines == expected


@pytest.mark.parametrize("name", PUBLIC)
def test_work_and_bytes_of_a_problem(name: str) -> None:
    problem = PUBLIC[name]
    for dtype, size in (("float32", 4), ("float16", 2), ("float64", 8)):
        shown = native_problem(problem, dtype=dtype)
        assert shown.flops == 2 * problem.products
        elements = sum(math.prod(size) for size in (problem.input_size, problem.weight_size, problem.output_size))
        assert shown.compulsory_bytes == elements * size


small = st.integers(-1, 4)
pairs = st.tuples(small, small)


@given(
    # Nothing empty: of that torch checks little, and returns sizes that are no convolution's.
    input=st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6)),
    weight=st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    stride=pairs,
    padding=pairs,
    dilation=pairs,
    groups=small,
)
@settings(max_examples=examples(1500))
def test_validate_agrees_with_torch(
    input: tuple[int, ...],
    weight: tuple[int, ...],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> None:
    geometry = (input, weight, stride, padding, dilation, groups)
    error = native.validate(*geometry)
    try:
        expected = list(
            F.conv2d(torch.zeros(input), torch.zeros(weight), None, stride, padding, dilation, groups).shape
        )
    except RuntimeError:
        assert error != "" and native.output_size(*geometry) == []
        return
    assert error == ""
    assert native.output_size(*geometry) == expected


@pytest.mark.parametrize(("empty", "at"), [("input", 2), ("input", 3), ("weight", 0), ("weight", 2), ("weight", 3)])
def test_empty_images_and_filters_are_refused(empty: str, at: int) -> None:
    sizes = {"input": [2, 4, 8, 8], "weight": [6, 4, 3, 3]}
    sizes[empty][at] = 0
    error = native.validate(sizes["input"], sizes["weight"], (1, 1), (2, 2), (1, 1), 1)
    assert empty in error and str(sizes[empty]) in error


@given(problem=problems())
def test_every_problem_of_the_tests_is_legal(problem: Problem) -> None:
    n = 1 if problem.n is None else problem.n
    geometry = ((n, *problem.input_size[-3:]), problem.weight_size, *problem.geometry)
    assert native.validate(*geometry) == ""
    assert native.output_size(*geometry) == [n, *problem.output_size[-3:]]
    assert native.validate_bias(*geometry, bias=(problem.k,)) == ""
    assert native.validate_grad_output(*geometry, grad_output=(n, *problem.output_size[-3:])) == ""


def test_messages_name_the_argument_the_value_and_what_is_allowed() -> None:
    legal = ((2, 4, 8, 8), (6, 4, 3, 3), (1, 1), (0, 0), (1, 1), 1)
    for bias in ((5,), (6, 1), ()):
        text = native.validate_bias(*legal, bias=bias)
        assert "bias" in text and "6" in text and str(list(bias)) in text
    for grad_output in ((2, 6, 6, 5), (6, 6, 6), (1, 6, 6, 6)):
        text = native.validate_grad_output(*legal, grad_output=grad_output)
        assert "grad_output" in text and "[2, 6, 6, 6]" in text and str(list(grad_output)) in text


def test_overflowing_sizes_are_refused_not_wrapped() -> None:
    """2^62 of padding or dilation would wrap to something that looks legal."""
    for at in (3, 4):
        for huge in (2**31, 2**62, 2**63 - 1):
            arguments: list[Any] = [(1, 1, 8, 8), (1, 1, 3, 3), (1, 1), (1, 1), (1, 1), 1]
            arguments[at] = (huge, 1)
            assert native.validate(*arguments) != ""
    # The stride of a single output is not used, that of two is.
    for huge in (2**31, 2**62, 2**63 - 1):
        assert native.output_size((1, 1, 8, 8), (1, 1, 3, 3), (huge, 1), (1, 1), (1, 1), 1) == [1, 1, 1, 8]
    assert "stride" in native.validate((1, 1, 2**33, 8), (1, 1, 3, 3), (2**32, 1), (1, 1), (1, 1), 1)
    assert native.validate((1, 2**62, 8, 8), (4, 2**62, 3, 3), (1, 1), (0, 0), (1, 1), 4) != ""


@pytest.mark.parametrize(
    "tensor, input, weight, padding",
    [
        ("input", (2**30, 1, 2**30, 1), (1, 1, 1, 1), 0),
        ("input", (0, 1, 2**63 - 1, 1), (1, 1, 1, 1), 2**31 - 1),
        ("weight", (1, 2**40, 1, 1), (2**20, 2**40, 1, 1), 0),
        ("output", (2**30, 1, 1, 1), (2**30, 1, 1, 1), 0),
        ("output", (1, 1, 1, 1), (1, 1, 1, 1), 2**30),
    ],
)
def test_elements_that_64_bits_cannot_count_the_bytes_of_are_refused(
    tensor: str, input: tuple[int, ...], weight: tuple[int, ...], padding: int
) -> None:
    error = native.validate(input, weight, (1, 1), (padding, padding), (1, 1), 1)
    assert error.startswith(f"{tensor} must have fewer than 2^60 elements, but got size [")


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("strides", [(64, 1, 0, 0), (64 * 64, 1, 64, 0)], ids=str)
def test_vectors_of_channels_are_not_read_where_columns_lie_closer(
    pass_: str, strides: tuple[int, int, int, int]
) -> None:
    """As in the gradient of a mean over pixels: the taps are then not ordered with their channels side by side."""
    problem = Problem(8, 64, 64, 64, 64, 3, 3, padding=(1, 1))
    direct = [it for name, it in KERNELS.items() if name.startswith(f"direct_{pass_}")]

    def best(asked: native.ConvProblem) -> str:
        able = [it.name for it in direct if it.why_not(asked, GPUS[80]) is None]
        return min(able, key=lambda name: native.make_plan(asked, GPUS[80], name).cost_us)

    expanded = native_problem(problem, pass_, channels_last=True, x_strides=strides, y_strides=strides)
    assert not best(expanded).endswith("_nhwc")
    assert best(native_problem(problem, pass_, channels_last=True)).endswith("_nhwc")


@pytest.mark.parametrize(
    ("size", "filters", "pass_"),
    [((64, 32, 18, 18), 32, "fprop"), ((64, 64, 18, 18), 16, "dgrad"), ((32, 16, 18, 14), 32, "dgrad")],
)
def test_images_larger_than_a_box_of_the_copy_engine(size: tuple[int, ...], filters: int, pass_: str) -> None:
    """Small images are copied whole, by bulk copies."""
    weight = (filters, size[1], 3, 3)
    problem = native.ConvProblem(size, weight, (1, 1), (1, 1), (1, 1), 1, pass_=pass_, dtype="float16")
    for kernel in KERNELS.values():
        if kernel.pass_ == pass_ and kernel.is_cuda and kernel.why_not(problem, GPUS[90]) is None:
            native.check_copies(problem, kernel, GPUS[90])


@pytest.mark.parametrize("name", [name for name in KERNELS if name.startswith("grouped_wgrad")])
def test_a_block_of_narrow_groups_has_several_images(name: str) -> None:
    """So that a named problem runs the stages that take turns."""
    problem = CASES["groups_of_many_images"]
    dtype = "float16" if "half" in name else "float32"
    for channels_last in (False, True):
        asked = native_problem(problem, "wgrad", dtype=dtype, precision="tf32", channels_last=channels_last)
        plan = native.make_plan(asked, GPUS[90], name)
        assert problem.n is not None and 1 < plan.split < problem.n / 2


@pytest.mark.parametrize("name", [name for name in KERNELS if name.startswith("stem_")])
def test_a_block_of_few_channels_has_several_tiles(name: str) -> None:
    """The same."""
    problem, pass_ = CASES["many_images_of_rgb"], KERNELS[name].pass_
    for channels_last in (False, True):
        precision = "ieee" if "2_halves" in name else "tf32"
        asked = native_problem(problem, pass_, dtype="float32", precision=precision, channels_last=channels_last)
        plan = native.make_plan(asked, GPUS[90], name)
        assert "stages 2" in repr(plan)
        assert problem.n is not None and plan.grid < problem.n / 2


@pytest.mark.parametrize("name", [name for name in KERNELS if name.startswith("grouped_wgrad")])
@pytest.mark.parametrize("size", [7, 11])
def test_sums_of_narrow_groups_are_short(name: str, size: int) -> None:
    """Also where a filter has so many taps that all threads are busy with them, and none are left to share pixels."""
    problem = Problem(4, 32, 96, 96, 32, size, size, padding=(size // 2, size // 2), groups=2)
    dtype = "float16" if "half" in name else "float32"
    most = 128 if "_f32_" in name else 4096  # chain_length(), and of tensor cores what docs/precision.md says
    for channels_last in (False, True):
        asked = native_problem(problem, "wgrad", dtype=dtype, precision="tf32", channels_last=channels_last)
        assert native.grouped_wgrad_chain(asked, KERNELS[name], GPUS[90]) <= most


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "problem",
    [
        Problem(8, 16, 1, 64, 16, 1, 1, stride=(2, 1), padding=(1, 0)),
        Problem(1, 16, 1, 1, 16, 1, 1, stride=(2, 2), padding=(1, 1)),
        Problem(1, 6, 5, 1, 80, 5, 3, stride=(2, 2), padding=(0, 3), dilation=(1, 2), groups=2),
    ],
)
def test_gradients_that_no_tap_reaches_are_not_for_the_halo_engine(problem: Problem, channels_last: bool) -> None:
    """Its filter would have no step, and its stages no room for what packs it."""
    asked = native_problem(problem, "dgrad", dtype="float16", channels_last=channels_last)
    for kernel in KERNELS.values():
        if kernel.name.startswith("halo_dgrad"):
            assert kernel.why_not(asked, GPUS[90]) is not None, kernel.name
    others = ("direct_dgrad", "grouped_dgrad", "depthwise_diagonal_dgrad", "taps_dgrad")
    assert native.make_plan(asked, GPUS[90]).kernel.startswith(others)


@pytest.mark.parametrize(
    ("images", "side", "taps"), [(1024, 112, 7), (200_000, 8, 3), (200_000, 4, 3), (20_000, 14, 3), (64, 224, 3)]
)
def test_weight_gradients_of_quads_sum_up_no_more_than_is_promised(images: int, side: int, taps: int) -> None:
    """Tensor cores truncate what they add to: 16,384 pixels of a sum, of the slice that has most."""
    for kernel in (it for it in native.kernel_table() if it.name.startswith("quads_wgrad_")):
        problem = native.ConvProblem(
            (images, 3, side, side),
            (64, 3, taps, taps),
            padding=(taps // 2, taps // 2),
            pass_="wgrad",
            dtype="float16",
            channels_last="nhwc" in kernel.name,
            align=128,
        )
        if kernel.why_not(problem, GPUS[90]) is not None:
            assert side % 8 and "nchw" in kernel.name
            continue
        plan = str(native.make_plan(problem, GPUS[90], kernel.name))
        found = re.search(r"(\d+)x(\d+) pixels of 1 sets, walkers (\d+)", plan)
        assert found is not None, plan
        rows, columns, walkers = map(int, found.groups())
        units = -(-taps * taps // (16 if "3_channels" in kernel.name else 8))
        units = -(-units // -(-units // 12))
        tiles = images * -(-side // rows) * -(-side // columns)
        turns = -(-(rows * columns // 16) // (12 // units))
        assert -(-tiles // walkers) * turns * 16 <= 16384, plan


def test_weight_gradients_of_quads_name_aligned_addresses_alone() -> None:
    """Of copies that bring nothing, too: a dimension of size 1 may have any stride."""
    for name, size, strides in (
        ("quads_wgrad_nhwc", (4, 64, 1, 1), (64, 1, 1, 1)),
        ("quads_wgrad_nchw", (4, 1, 8, 8), (64, 1, 8, 1)),
    ):
        kernel = next(it for it in native.kernel_table() if it.name == name)
        n, k, p, q = size
        for y_strides, refused in ((strides, True), (None, False)):
            problem = native.ConvProblem(
                (n, 3, p, q),
                (k, 3, 1, 1),
                pass_="wgrad",
                dtype="float16",
                channels_last="nhwc" in name,
                align=128,
                y_strides=y_strides,
            )
            assert (kernel.why_not(problem, GPUS[90]) is not None) == refused, (name, y_strides)


def test_meta_tensors_are_explained_as_their_sizes_are() -> None:
    x, w = torch.empty(2, 8, 16, 16, device="meta"), torch.empty(4, 8, 3, 3, device="meta")
    assert fastconv.explain(x, w) == fastconv.explain(x.shape, w.shape)


@pytest.mark.parametrize("pass_", ["fprop", "dgrad", "wgrad"])
def test_expectations_follow_the_device(pass_: str) -> None:
    """Arithmetic its clock, copies its memory: each of these problems is bound by one of them."""

    def us(problem: Problem, **changed: float) -> float:
        device = native.DeviceSpec.cuda(90, 132, 227 << 10)
        for name, times in changed.items():
            setattr(device, name, times * getattr(device, name))
        return native.make_plan(native_problem(problem, pass_, dtype="float16", channels_last=True), device).cost_us

    products = Problem(64, 512, 56, 56, 512, 3, 3, padding=(1, 1))
    copies = Problem(256, 64, 112, 112, 64, 3, 3, padding=(1, 1), groups=64)
    assert us(products, clock_mhz=2) < 0.6 * us(products)
    assert us(products, memory_gbps=2) > 0.9 * us(products)
    assert us(copies, memory_gbps=2) < 0.7 * us(copies)
    assert us(copies, clock_mhz=2) > 0.8 * us(copies)


def test_explain_plans_for_a_gpu_of_which_all_is_given() -> None:
    """As for the architecture alone, which stands for an H200; an H100's memory takes longer."""

    def us(gpu: int | Device) -> float:
        text = fastconv.explain(
            (256, 64, 112, 112),
            (64, 1, 3, 3),
            padding=1,
            groups=64,
            dtype=torch.float16,
            channels_last=True,
            device="cuda",
            arch=gpu,
        )
        return float(re.findall(r"cost_us (\S+)", text)[0])

    if not torch.cuda.is_available():
        assert us(90) == us(H200)
    assert us(H100) > 1.2 * us(H200)


def test_a_deep_models_plans_are_made_once() -> None:
    """As many layers as DenseNet-264's, whose sizes all differ."""
    cache = native.PlanCache()
    layers = [
        native.ConvProblem((8, channels, 14, 14), (32, channels, 1, 1), pass_=pass_, dtype="float16")
        for channels in range(8, 8 * 150, 8)
        for pass_ in PASSES
    ]
    steps = [[repr(cache.plan(layer, GPUS[90])) for layer in layers] for _ in range(3)]
    assert cache.made == len(layers)
    assert steps[0] == steps[1] == steps[2] == [repr(native.make_plan(layer, GPUS[90])) for layer in layers]


def test_kept_plans_are_those_of_the_same_device_and_kernels() -> None:
    cache, layer = native.PlanCache(), native.ConvProblem((8, 64, 14, 14), (64, 64, 3, 3), dtype="float16")
    names = {cache.plan(layer, GPUS[90]).kernel for _ in range(2)} | {cache.plan(layer, GPUS[80]).kernel}
    assert (len(names), cache.made) == (2, 2)
    assert cache.plan(layer, GPUS[90], "direct_fprop_128x64").kernel == "direct_fprop_128x64"
    assert cache.plan(layer, GPUS[90]).kernel in names
    assert cache.made == 4


def test_kept_plans_are_bounded() -> None:
    cache = native.PlanCache(most=2)
    layers = [native.ConvProblem((1, 8, size, size), (8, 8, 3, 3)) for size in (5, 6, 7)]
    for _ in range(2):
        for layer in layers:
            assert cache.plan(layer, DEVICES["cpu"]).kernel
    assert cache.made == 6


@pytest.mark.parametrize(("pass_", "c", "k"), [("fprop", 64, 256), ("dgrad", 256, 64)])
def test_products_of_one_slice_need_no_workspace(pass_: str, c: int, k: int) -> None:
    """However much an output is larger than what a workspace may take."""
    problem = native_problem(Problem(128, c, 56, 56, k, 1, 1), pass_, dtype="float16", channels_last=True)
    kernel = next(it for it in native.kernel_table() if it.name == f"pointwise_{pass_}_64x64")
    assert kernel.why_not(problem, GPUS[90]) is None
    plan = native.make_plan(problem, GPUS[90], kernel.name)
    assert (plan.split, plan.workspace_bytes) == (1, 0)


@pytest.mark.parametrize("smem_bytes", [48 << 10, 65536, 70000])
def test_a_device_with_little_shared_memory_has_plans(smem_bytes: int) -> None:
    device = native.DeviceSpec.cuda(80, 108, smem_bytes)
    for pass_, channels_last in itertools.product(PASSES, (False, True)):
        problem = native_problem(
            Problem(8, 192, 14, 14, 192, 1, 1), pass_, dtype="float16", channels_last=channels_last
        )
        ran = [it for it in native.kernel_table() if it.pass_ == pass_ and it.why_not(problem, device) is None]
        for kernel in ran:
            assert native.make_plan(problem, device, kernel.name).smem_bytes <= smem_bytes
        assert ran


def test_kernels_are_compiled_for_each_architecture_that_runs_them() -> None:
    """What a .def says is no newer than what the planner takes its kernels for."""
    checked = set()
    for definition in instances.FAMILIES.glob("*/*.def"):
        least = {nvcc.FROM.match(text) for text in instances.files(definition).values()}
        archs = {int(said[1].rstrip("a")) if said else 0 for said in least}
        words = set(definition.stem.split("_")) - {"kernels"}
        for name in re.findall(r"^[A-Z_]+_KERNEL\((\w+)", definition.read_text(), re.MULTILINE):
            named = [
                kernel
                for kernel in native.kernel_table()
                if kernel.family == definition.parent.name
                and f"_{kernel.name}".endswith(f"_{name}")
                and words <= set(kernel.name.split("_"))
            ]
            assert named or not archs, (definition, name)
            assert all(kernel.least_arch >= max(archs, default=0) for kernel in named), (definition, name)
            checked |= {kernel.name for kernel in named}
    assert checked == {kernel.name for kernel in native.kernel_table() if kernel.is_cuda}


@pytest.mark.parametrize(
    ("archs", "expected"),
    [
        ("7.0;7.5;8.0+PTX;9.0a", {60: 0, 70: 70, 75: 75, 80: 80, 86: 86, 90: 90, 100: 100, 120: 120}),
        ("8.0+PTX;9.0a", {70: 0, 75: 0, 80: 80, 89: 89, 90: 90, 100: 100}),
        ("7.5;8.0;9.0a;10.0;12.0", {70: 0, 75: 75, 89: 89, 90: 90, 100: 100, 103: 103, 110: 0, 121: 121}),
        ("8.0+PTX", {86: 86, 90: 89, 120: 120}),  # where kernels for sm_90a are empty
        ("9.0", {80: 0, 90: 89, 100: 0}),
        ("9.0+PTX", {90: 89, 100: 100}),
        ("7.0+PTX", {75: 70, 80: 70, 90: 70, 120: 70}),  # and here those for sm_80
        ("7.0;7.5+PTX", {70: 70, 75: 75, 80: 75}),
        ("8.6 9.0a", {80: 0, 86: 86, 89: 89, 90: 90, 91: 0, 100: 0}),
        ("80;90a-real", {75: 0, 80: 80, 90: 90, 120: 120}),  # as CMake has it: machine code and PTX
        ("80-real 90a-real", {75: 0, 86: 86, 90: 90, 120: 0}),
    ],
)
def test_it_is_known_what_runs_where(archs: str, expected: dict[int, int]) -> None:
    assert {arch: native.arch_of_code(archs, arch) for arch in expected} == expected


def test_a_driver_that_is_too_old_gives_a_sentence() -> None:
    for runtime, driver in ((12040, 12000), (12040, 12080), (12040, 13000), (13000, 13000), (13010, 13000)):
        assert native.why_not_with_driver(runtime, driver) == ""
    assert native.why_not_with_driver(13000, 12040) == (
        "this build for CUDA 13.0 needs an NVIDIA driver from 580 on, and the one here is for CUDA 12.4: "
        "update it, or install fastconv's build for CUDA 12"
    )
    assert native.why_not_with_driver(12040, 11080).endswith(
        "from 525 on, and the one here is for CUDA 11.8: update it"
    )
    assert native.why_not_with_driver(13000, 11080).endswith("update it")  # there is no build for CUDA 11


def test_rates_of_architectures_decide() -> None:
    """Where an SM has many float32 lanes and slow tensor cores, parts do not pay; where it has few, they do."""
    problem = Problem(32, 32, 56, 56, 32, 3, 3, padding=(1, 1))
    asked = native_problem(problem, dtype="float32", precision="ieee")
    for name, family in [("a100", "taps_"), ("b200", "taps_"), ("l4", "direct_"), ("a10", "direct_")]:
        assert native.make_plan(asked, SOLD[name]).kernel.startswith(family), name


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("pass_", PASSES)
def test_turing_multiplies_float16_on_tensor_cores(pass_: str, channels_last: bool) -> None:
    for problem, family in [
        (Problem(8, 128, 28, 28, 128, 3, 3, padding=(1, 1)), "taps_"),
        (Problem(8, 128, 28, 28, 128, 1, 1), "pointwise_"),
    ]:
        for dtype, precision in [("float16", "ieee"), ("bfloat16", "ieee"), ("float32", "tf32"), ("float32", "ieee")]:
            asked = native_problem(problem, pass_, dtype=dtype, precision=precision, channels_last=channels_last)
            for device in (GPUS[75], SOLD["t4"]):
                chosen = native.make_plan(asked, device)
                assert chosen.kernel.startswith(family if dtype == "float16" else ("direct_", "im2col_")), (
                    dtype,
                    chosen,
                )
                assert chosen.smem_bytes <= 64 << 10
            assert native.make_plan(asked, SOLD["v100"]).kernel.startswith(("direct_", "im2col_"))


def test_rings_leave_room_for_a_second_block() -> None:
    """Of 128x64 four stages fill an A100's multiprocessor, three do not."""
    asked = native_problem(Problem(64, 128, 56, 56, 128, 3, 3, padding=(1, 1)), dtype="float16", channels_last=True)
    for name, stages in [("a100", 3), ("h200", 4), ("l4", 2)]:
        plan = str(native.make_plan(asked, SOLD[name], "taps_fprop_128x64"))
        assert f"stages {stages}" in plan, plan


def test_no_other_gpu_acts_as_hopper() -> None:
    """Its kernels are compiled for it alone."""
    for name in ("b200", "rtx5090", "a100"):
        with pytest.raises(RuntimeError, match=r"asks for kernels of compute capability 9\.0, which do not run"):
            SOLD[name].acting_as(SOLD["h200"])
    assert SOLD["b200"].acting_as(SOLD["a100"]).arch == 80


@pytest.mark.parametrize(
    ("problem", "strides"),
    [
        (Problem(2, 8, 2, 1, 8, 2, 1, padding=(16000, 0), dilation=(16000, 1)), (2**19, 1, 2**18, 2**18)),
        (Problem(1, 8, 2, 2, 8, 1, 2, padding=(0, 16000), dilation=(1, 16000)), (2**19, 1, 2**19, 2**18)),
    ],
)
def test_taps_count_a_tile_that_begins_again(problem: Problem, strides: tuple[int, int, int, int]) -> None:
    """From a row's or an image's last pixel to the next one's first it is far back, where padding is wide."""
    asked = native_problem(problem, dtype="float16", channels_last=True, x_strides=strides)
    plan = native.make_plan(asked, GPUS[80], "taps_fprop_64x64")
    assert plan.kernel == "" or "packed bytes" in str(plan)


def test_slices_have_steps() -> None:
    for kernel, device in itertools.product(TAPS, (GPUS[80], SOLD["h200"])):
        for problem in (Problem(1, 256, 14, 14, 256, 3, 3, padding=(1, 1)), Problem(2, 640, 9, 9, 64, 3, 3)):
            for dtype, precision in [("float16", "ieee"), *(("float32", precision) for precision in PRECISIONS)]:
                asked = native_problem(problem, kernel.pass_, dtype=dtype, precision=precision, channels_last=True)
                if kernel.why_not(asked, device) is not None:
                    continue
                depth = (
                    asked.n * asked.p * asked.q
                    if kernel.pass_ == "wgrad"
                    else problem.r * problem.s * (problem.k if kernel.pass_ == "dgrad" else problem.c)
                )
                steps = -(-depth // (32 if "tf32" in kernel.name else 64))
                split = native.make_plan(asked, device, kernel.name).split
                assert (split - 1) * -(-steps // split) < steps, (kernel.name, split, steps)
