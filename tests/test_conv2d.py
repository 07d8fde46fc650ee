"""Every legal problem, in every dtype, layout and view, by every kernel: values and gradients against float64."""

from __future__ import annotations

import itertools
import math
import os
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import Tensor

import fastconv
import reference
from check import (
    KERNELS,
    MODES,
    Kernel,
    check_pass,
    check_problem,
    expect_pass,
    is_poisoned,
    poison,
    run_activated,
    run_forced,
    run_pass,
)
from shapes import (
    CASES,
    DTYPES,
    NCHW,
    PASSES,
    PUBLIC,
    STEMS,
    VIEWS,
    Operands,
    Problem,
    cut,
    depthwise_problems,
    operands,
    patch_problems,
    problems,
    subpixel_problems,
    tensor,
    wide_problems,
)
from sweeps import examples

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
seeds = st.integers(0, 2**31)
HALF = [torch.float16, torch.bfloat16]
layouts = st.sampled_from(["contiguous", "channels_last"])
views = st.tuples(*[st.sampled_from(sorted(VIEWS))] * 3)


@dtypes
def test_memory_is_poisoned_before_a_call(device: str, dtype: torch.dtype) -> None:
    """Otherwise an element that is never written may be right by chance, and no test here would see it."""
    for size in (5, 1000, 300_000):
        like = torch.empty(size, dtype=dtype, device=device)
        poison(device, like)
        assert is_poisoned(torch.empty_like(like))


@pytest.mark.parametrize("name", CASES)
@dtypes
def test_named_problems(device: str, dtype: torch.dtype, name: str) -> None:
    check_problem(CASES[name], dtype, device)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_problems_on_one_image(device: str, name: str) -> None:
    check_problem(cut(PUBLIC[name]), torch.float32, device)


@given(problem=problems(), dtype=st.sampled_from(DTYPES), seed=seeds, kinds=views)
def test_random_problems(
    device: str, problem: Problem, dtype: torch.dtype, seed: int, kinds: tuple[str, str, str]
) -> None:
    check_problem(problem, dtype, device, seed, views=kinds)


@pytest.mark.parametrize("weight_view", VIEWS)
@pytest.mark.parametrize("input_view", VIEWS)
def test_every_pair_of_views(device: str, input_view: str, weight_view: str) -> None:
    problem = Problem(2, 6, 9, 8, 4, 3, 2, stride=(2, 1), padding=(1, 1), groups=2, bias=True)
    check_problem(problem, torch.float32, device, views=(input_view, weight_view, input_view))


@given(problem=problems(), dtype=st.sampled_from(DTYPES), seed=seeds, view=st.sampled_from(sorted(VIEWS)))
@settings(max_examples=examples(30))
def test_gradient_of_a_sum_is_expanded(device: str, problem: Problem, dtype: torch.dtype, seed: int, view: str) -> None:
    """y.sum().backward() sends one element with every stride 0."""
    ones = torch.ones((), dtype=dtype, device=device).expand(problem.output_size)
    o = operands(problem, dtype, device, seed, (view, "contiguous", "contiguous"))
    x, w = o.input.detach().requires_grad_(), o.weight.detach().requires_grad_()
    b = torch.zeros(problem.k, dtype=dtype, device=device, requires_grad=True)
    fastconv.conv2d(x, w, b, *problem.geometry, precision="ieee").sum().backward()
    expected = reference.gradients(x, w, ones, *problem.geometry)
    for leaf, gradient in ((x, expected.input), (w, expected.weight), (b, expected.bias)):
        assert leaf.grad is not None
        reference.assert_right(leaf.grad, gradient)


@pytest.mark.parametrize(
    "kernel", [pytest.param(k, id=k.name, marks=[pytest.mark.cuda] * (k.device == "cuda")) for k in KERNELS]
)
class TestKernel:
    @given(problem=problems(batches=[None, 1, 2, 3]), dtype=st.sampled_from(DTYPES), seed=seeds, kinds=views)
    @settings(max_examples=examples(40))
    def test_is_right_wherever_it_does_not_refuse(
        self, kernel: Kernel, problem: Problem, dtype: torch.dtype, seed: int, kinds: tuple[str, str, str]
    ) -> None:
        self.check(kernel, problem, dtype, seed, kinds)

    @given(
        problem=wide_problems(),
        mode=st.sampled_from([(torch.float16, "ieee"), (torch.bfloat16, "ieee"), *((torch.float32, m) for m in MODES)]),
        seed=seeds,
        kinds=st.tuples(*[layouts] * 3),
    )
    @settings(max_examples=examples(30))
    def test_is_right_where_tensor_cores_work(
        self, kernel: Kernel, problem: Problem, mode: tuple[torch.dtype, str], seed: int, kinds: tuple[str, str, str]
    ) -> None:
        self.check(kernel, problem, mode[0], seed, kinds, mode[1])

    def check(
        self,
        kernel: Kernel,
        problem: Problem,
        dtype: torch.dtype,
        seed: int,
        kinds: tuple[str, str, str],
        precision: str = "ieee",
    ) -> None:
        o = operands(problem, dtype, kernel.device, seed, kinds)
        actual = run_forced(kernel, o, problem, precision)
        if actual is None:
            event("refused")
            return
        reference.assert_right(actual, expect_pass(kernel.pass_, o, problem), kernel.name, precision)
        if kernel.pass_ == "fprop" and o.input.dim() == 4:
            # To round and to cut off may change places, and the bias is the same in float32.
            name = ("relu", "relu6")[seed % 2]
            activated = run_activated(kernel, o, problem, name, precision)
            assert activated is None or torch.equal(activated, reference.ACTIVATIONS[name](actual))

    def test_runs_some_named_problem(self, kernel: Kernel) -> None:
        """A kernel that refuses everything would pass the test above."""
        for dtype, layout in itertools.product(DTYPES, ("contiguous", "channels_last")):
            ran = 0
            for problem, precision in itertools.product(CASES.values(), MODES if dtype == torch.float32 else ["ieee"]):
                o = operands(problem, dtype, kernel.device, views=(layout,) * 3)
                actual = run_forced(kernel, o, problem, precision)
                if actual is None:
                    continue
                reference.assert_right(actual, expect_pass(kernel.pass_, o, problem), kernel.name, precision)
                ran += 1
            if ran:
                return
        pytest.fail("it refused every one")


@pytest.mark.cuda
@pytest.mark.parametrize("kernel", [pytest.param(k, id=k.name) for k in KERNELS if k.name.startswith("depthwise_")])
@given(data=st.data(), dtype=st.sampled_from([torch.float32, *HALF]), seed=seeds, kinds=views)
@settings(max_examples=examples(40))
def test_depthwise_kernels(
    kernel: Kernel, data: st.DataObject, dtype: torch.dtype, seed: int, kinds: tuple[str, str, str]
) -> None:
    problem = data.draw(depthwise_problems(kernel.name))
    if data.draw(st.booleans()):
        kinds = (data.draw(layouts),) * 3
    o = operands(problem, dtype, "cuda", seed, kinds)
    actual = run_forced(kernel, o, problem)
    if actual is None:
        event("refused")
        return
    reference.assert_right(actual, expect_pass(kernel.pass_, o, problem), kernel.name)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "kernel", [pytest.param(k, id=k.name) for k in KERNELS if re.match("depthwise_any_(fprop|dgrad)", k.name)]
)
def test_equal_products_are_not_one_chain(kernel: Kernel) -> None:
    """Columns of filter and source repeat, so that eight equal products follow each other, seven times. One chain of
    multiply-adds rounds them the same way and leaves the bound: by 1.47 times with fprop's seed, 1.35 with dgrad's."""
    problem = Problem(1, 2, 24, 23, 2, 7, 8, padding=(3, 4), groups=2)
    o = operands(problem, torch.float32, "cuda", {"fprop": 654, "dgrad": 648}[kernel.pass_], ("same_columns",) * 3)
    actual = run_forced(kernel, o, problem)
    assert actual is not None, "refused"
    reference.assert_right(actual, expect_pass(kernel.pass_, o, problem), kernel.name)


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("special", [math.inf, math.nan])
@pytest.mark.parametrize("where", ["input", "weight"])
def test_depthwise_padding_and_values_that_are_not_finite(where: str, special: float, layout: str) -> None:
    """Rows of padding are left out where a product with zero is zero, and only there."""
    problem = Problem(2, 8, 12, 12, 8, 5, 5, padding=(2, 2), groups=8)
    for dtype, kernel in itertools.product([torch.float32, torch.float16], KERNELS):
        if not re.match("depthwise_(banded_|diagonal_|pairs_)?fprop", kernel.name):
            continue
        o = operands(problem, dtype, "cuda", views=(layout,) * 3)
        getattr(o, where)[1, 0, 0, 3] = special
        actual = run_forced(kernel, o, problem)
        if actual is None:
            continue
        expected = reference.output(o.input, o.weight, o.bias, *problem.geometry).value
        for same in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(same(actual).cpu(), same(expected).cpu()), (kernel.name, same.__name__)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "kernel", [pytest.param(k, id=k.name) for k in KERNELS if re.match("depthwise_wgrad_.*s2", k.name)]
)
def test_depthwise_gradient_of_rows_that_no_output_sees(kernel: Kernel) -> None:
    """They have no part in the weight's gradient, whatever they hold."""
    taps = int(kernel.name.split("_")[2][0])
    problem = Problem(2, 8, 14, 16, 8, taps, taps, stride=(2, 2), padding=(0, taps // 2), groups=8)
    ran = 0
    for layout in ("contiguous", "channels_last"):
        o = operands(problem, torch.float32, "cuda", views=(layout,) * 3)
        o.input[..., 13, :] = 0
        expected = expect_pass("wgrad", o, problem)
        o.input[..., 13, :] = math.nan
        actual = run_forced(kernel, o, problem)
        if actual is not None:
            reference.assert_right(actual, expected, kernel.name)
            ran += 1
    assert ran > 0, "it refused both layouts"


@pytest.mark.cuda
@pytest.mark.parametrize("kernel", [pytest.param(k, id=k.name) for k in KERNELS if k.name.startswith("patches_")])
@given(
    data=st.data(),
    mode=st.sampled_from([*((dtype, "ieee") for dtype in DTYPES), (torch.float32, "bf16x3"), (torch.float32, "tf32")]),
    seed=seeds,
    kinds=st.one_of(views, st.tuples(*[layouts] * 3)),
)
@settings(max_examples=examples(60))
def test_patches(
    kernel: Kernel, data: st.DataObject, mode: tuple[torch.dtype, str], seed: int, kinds: tuple[str, str, str]
) -> None:
    problem = data.draw(patch_problems(kernel.pass_))
    o = operands(problem, mode[0], "cuda", seed, kinds)
    # Nothing is read of what no filter meets.
    rows, columns = problem.output_size[-2] * problem.r, problem.output_size[-1] * problem.s
    if kernel.pass_ != "dgrad" and not kinds[0].startswith("same"):
        o.input[..., rows:, :] = math.nan
        o.input[..., columns:] = math.nan
    actual = run_forced(kernel, o, problem, mode[1])
    if actual is None:
        event("refused")
        return
    reference.assert_right(actual, expect_pass(kernel.pass_, o, problem), kernel.name, mode[1])


@pytest.mark.cuda
@pytest.mark.parametrize("kernel", [pytest.param(k, id=k.name) for k in KERNELS if k.name.startswith("subpixel_")])
@given(
    data=st.data(),
    mode=st.sampled_from([*((dtype, "ieee") for dtype in DTYPES), (torch.float32, "bf16x3"), (torch.float32, "tf32")]),
    seed=seeds,
    kinds=st.one_of(views, st.tuples(*[layouts] * 3)),
)
@settings(max_examples=examples(60))
def test_blocks_of_outputs(
    kernel: Kernel, data: st.DataObject, mode: tuple[torch.dtype, str], seed: int, kinds: tuple[str, str, str]
) -> None:
    problem = data.draw(subpixel_problems(kernel.pass_))
    o = operands(problem, mode[0], "cuda", seed, kinds)
    actual = run_forced(kernel, o, problem, mode[1])
    if actual is None:
        event("refused")
        return
    reference.assert_right(actual, expect_pass(kernel.pass_, o, problem), kernel.name, mode[1])


def by_cudnn(pass_: str, o: Operands, problem: Problem) -> Tensor:
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        if pass_ == "fprop":
            return F.conv2d(o.input, o.weight, o.bias, *problem.geometry)
        stride, padding, dilation, groups = problem.geometry
        dx, dw, _ = torch.ops.aten.convolution_backward(
            o.grad_output, o.input, o.weight, None, stride, padding, dilation, False, (0, 0), groups,
            (pass_ == "dgrad", pass_ == "wgrad", False),
        )  # fmt: skip
        return dx if pass_ == "dgrad" else dw


@pytest.mark.cuda
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.name.startswith(("halo_", "wgrad_"))], ids=lambda k: k.name)
@given(problem=wide_problems(), dtype=st.sampled_from(HALF), seed=seeds, kinds=st.tuples(*[layouts] * 3))
@settings(max_examples=examples(6))
def test_tensor_cores_lose_no_more_than_cudnn(
    kernel: Kernel, problem: Problem, dtype: torch.dtype, seed: int, kinds: tuple[str, str, str]
) -> None:
    """At most 1.1 times cuDNN's error, or that of the exact result, rounded to the dtype, where cuDNN was luckier."""
    o = operands(problem, dtype, "cuda", seed, kinds)
    actual = run_forced(kernel, o, problem)
    if actual is None:
        event("refused")
        return
    expected = expect_pass(kernel.pass_, o, problem)

    def error(result: Tensor) -> float:  # not relative: all may be zero
        return float((reference.f64(result) - expected.value).norm())

    limit = max(error(by_cudnn(kernel.pass_, o, problem)), error(expected.value.to(dtype)))
    assert error(actual) <= 1.1 * limit


def test_forced_kernel_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTCONV_KERNEL", raising=False)
    problem = CASES["plain_3x3"]
    for kernel in KERNELS:
        with fastconv.force_kernel(kernel.name):
            assert os.environ["FASTCONV_KERNEL"] == kernel.name
    assert "FASTCONV_KERNEL" not in os.environ
    with fastconv.force_kernel("no_such_kernel"), pytest.raises(RuntimeError, match="no_such_kernel"):
        run_pass("fprop", operands(problem), problem)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("channels_last", [False, True])
@dtypes
def test_ops_without_a_batch(device: str, dtype: torch.dtype, pass_: str, channels_last: bool) -> None:
    view = "channels_last" if channels_last else "contiguous"
    problem = CASES["unbatched"]
    check_pass(pass_, operands(problem, dtype, device, views=(view, view, view)), problem)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("r", "s", "dilation"), [(3, 3, 1), (2, 5, 1), (4, 4, 3), (1, 6, (2, 3)), (8, 1, 2)])
def test_padding_by_name(device: str, padding: Any, r: int, s: int, dilation: int | tuple[int, int]) -> None:
    """An even kernel pads one more on the right and below."""
    x, w = tensor((2, 3, 24, 23), device=device), tensor((5, 3, r, s), device=device, seed=1)
    actual = fastconv.conv2d(x, w, None, 1, padding, dilation, precision="ieee")
    reference.assert_right(actual, reference.output(x, w, None, 1, padding, dilation))


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(2, 1, 2), ((2,), (1,), (2,)), ([2, 1], [0, 3], [1, 2])])
def test_arguments_as_numbers_tuples_and_lists(device: str, stride: Any, padding: Any, dilation: Any) -> None:
    x, w = tensor((2, 3, 12, 13), device=device), tensor((5, 3, 3, 3), device=device, seed=1)
    expected = reference.output(x, w, None, stride, padding, dilation)
    reference.assert_right(fastconv.conv2d(x, w, None, stride, padding, dilation, precision="ieee"), expected)
    by_name = fastconv.conv2d(input=x, weight=w, stride=stride, padding=padding, dilation=dilation, precision="ieee")
    reference.assert_right(by_name, expected)


@pytest.mark.usefixtures("no_tf32")
def test_short_calls_use_the_defaults(device: str) -> None:
    x, w = tensor((2, 3, 12, 13), device=device), tensor((5, 3, 3, 3), device=device, seed=1)
    expected = reference.output(x, w)
    reference.assert_right(torch.ops.fastconv.conv2d(x, w), expected)
    reference.assert_right(torch.ops.fastconv.conv2d(x, w, stride=1, padding=0), expected)
    reference.assert_right(fastconv.conv2d(x, w), expected)


@dtypes
def test_gradient_functions_have_the_signatures_of_torch_nn_grad(device: str, dtype: torch.dtype) -> None:
    problem = CASES["grouped"]
    o = operands(problem, dtype, device)
    expected = reference.gradients(o.input, o.weight, o.grad_output, *problem.geometry)
    arguments: dict[str, Any] = dict(zip(("stride", "padding", "dilation", "groups"), problem.geometry, strict=True))
    for spelled in (arguments.values(), ()):
        named: dict[str, Any] = {} if spelled else arguments
        grad_input = fastconv.grad.conv2d_input(
            problem.input_size, o.weight, o.grad_output, *spelled, **named, precision="ieee"
        )
        reference.assert_right(grad_input, expected.input)
        grad_weight = fastconv.grad.conv2d_weight(
            o.input, problem.weight_size, o.grad_output, *spelled, **named, precision="ieee"
        )
        reference.assert_right(grad_weight, expected.weight)


@dtypes
@pytest.mark.parametrize("view", VIEWS)
def test_bias_gradient_op(device: str, dtype: torch.dtype, view: str) -> None:
    # The last ones are read 16 bytes at a time, in channels_last or in rows, and have many slices or short rows.
    few = ((3, 17, 9, 11), (17, 9, 11), (1, 1, 1, 1), (2, 300, 1, 1))
    for size in (*few, (3, 40, 5, 8), (70, 24, 4, 4), (65, 16, 7, 7), (4, 8, 112, 96)):
        dy = tensor(size, dtype, device, view=view)
        poison(device, dy.new_empty(size[-3]))
        over = [d for d in range(dy.dim()) if d != dy.dim() - 3]
        expected = reference.Expected(reference.f64(dy).sum(over), reference.f64(dy).abs().sum(over))
        reference.assert_right(torch.ops.fastconv.conv2d_bias(dy), expected)


def test_empty_batch_trains(device: str) -> None:
    """Gradients of an empty batch are zeros, not what the memory held."""
    x, w = tensor((0, 3, 8, 8), device=device).requires_grad_(), tensor((4, 3, 3, 3), device=device).requires_grad_()
    b = tensor((4,), device=device).requires_grad_()
    poison(device, w, b)
    y = fastconv.conv2d(x, w, b)
    assert y.shape == (0, 4, 6, 6)
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    assert w.grad is not None and torch.equal(w.grad, torch.zeros_like(w))
    assert b.grad is not None and torch.equal(b.grad, torch.zeros_like(b))


@dtypes
@pytest.mark.parametrize("channels_last", [False, True])
def test_sums_of_no_products_are_zeros_or_the_bias(device: str, dtype: torch.dtype, channels_last: bool) -> None:
    format = torch.channels_last if channels_last else torch.contiguous_format
    x, w = (tensor(size, dtype, device).to(memory_format=format) for size in ((2, 0, 5, 6), (4, 0, 3, 3)))
    b = tensor((4,), dtype, device)
    for bias in (None, b):
        poison(device, torch.empty(2, 4, 3, 4, dtype=dtype))
        expected = torch.zeros_like(b) if bias is None else b
        assert torch.equal(fastconv.conv2d(x, w, bias), expected.view(1, 4, 1, 1).expand(2, 4, 3, 4))
    none, dy = (tensor(size, dtype, device).to(memory_format=format) for size in ((0, 8, 5, 6), (0, 4, 3, 4)))
    for groups in (1, 4):
        size = (4, 8 // groups, 3, 3)
        poison(device, torch.empty(size, dtype=dtype))
        gradient = torch.ops.fastconv.conv2d_weight(none, size, dy, groups=groups, channels_last=channels_last)
        assert torch.equal(gradient, torch.zeros(size, dtype=dtype, device=device))
    assert torch.ops.fastconv.conv2d_bias(tensor((2, 0, 3, 3), dtype, device)).shape == (0,)


def test_lazy_negation_is_resolved(device: str) -> None:
    """A view with torch's negative bit holds the values with the wrong sign in memory."""
    x, w = tensor((2, 3, 8, 8), device=device), tensor((4, 3, 3, 3), device=device, seed=1)
    negated = torch.complex(torch.zeros_like(x), x).conj().imag
    assert negated.is_neg()
    reference.assert_right(fastconv.conv2d(negated, w, precision="ieee"), reference.output(-x, w))
    reference.assert_right(torch.ops.fastconv.conv2d(negated, w), reference.output(-x, w))


def test_inputs_are_left_alone(device: str) -> None:
    problem = CASES["grouped"]
    o = operands(problem, torch.float32, device)
    before = [t.clone() for t in (o.input, o.weight, o.grad_output)]
    for pass_ in PASSES:
        run_pass(pass_, o, problem)
    assert all(torch.equal(a, b) for a, b in zip(before, (o.input, o.weight, o.grad_output), strict=True))


def test_the_reference_is_a_convolution() -> None:
    """The yardstick against the definition, product by product."""
    x, w = tensor((1, 4, 7, 6)), tensor((6, 2, 3, 2), seed=1)
    stride, padding, dilation, groups = (2, 1), (1, 2), (1, 3), 2
    padded = F.pad(x.double(), (padding[1], padding[1], padding[0], padding[0]))
    expected = reference.output(x, w, None, stride, padding, dilation, groups)
    for k in range(6):
        for p in range(expected.value.shape[2]):
            for q in range(expected.value.shape[3]):
                total = 0.0
                for c in range(2):
                    for r in range(3):
                        for s in range(2):
                            pixel = padded[
                                0, k // 3 * 2 + c, p * stride[0] + r * dilation[0], q * stride[1] + s * dilation[1]
                            ]
                            total += float(pixel) * float(w[k, c, r, s])
                assert abs(total - float(expected.value[0, k, p, q])) < 1e-12


def test_no_input_channels(device: str) -> None:
    """A sum of no products is zero. (torch's own, on the CPU, has no output channels then.)"""
    x = torch.zeros(2, 0, 9, 8, device=device, requires_grad=True)
    w = torch.zeros(6, 0, 3, 3, device=device, requires_grad=True)
    b = torch.randn(6, device=device, requires_grad=True)
    poison(device, torch.empty(2, 6, 7, 6, device="meta"))
    y = fastconv.conv2d(x, w, b)
    assert y.shape == (2, 6, 7, 6) and (y == b[:, None, None]).all()
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    assert w.grad is not None and w.grad.shape == w.shape


@pytest.mark.cuda
@pytest.mark.parametrize("mode", ["float16", *MODES])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", NCHW)
def test_every_way_to_stage_nchw(cuda: str, name: str, pass_: str, mode: str) -> None:
    problem = NCHW[name]
    dtype, precision = (torch.float16, "ieee") if mode == "float16" else (torch.float32, mode)
    o = operands(problem, dtype, cuda)
    expected = expect_pass(pass_, o, problem)
    kernels = [k for k in KERNELS if k.pass_ == pass_ and k.name.startswith(("halo_", "wgrad_"))]
    results = {k.name: run_forced(k, o, problem, precision) for k in kernels}
    assert any(result is not None for result in results.values())
    for kernel, result in results.items():
        if result is not None:
            reference.assert_right(result, expected, kernel, precision)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("pass_", ["fprop", "wgrad"])
@pytest.mark.parametrize("name", STEMS)
def test_strides_folded_into_channels(cuda: str, name: str, pass_: str, layout: str, dtype: torch.dtype) -> None:
    problem = STEMS[name]
    o = operands(problem, dtype, cuda, views=(layout,) * 3)
    expected = expect_pass(pass_, o, problem)
    kernels = [k for k in KERNELS if k.pass_ == pass_ and k.name.endswith(("_folded", "_tma", "_rows"))]
    results = {k.name: run_forced(k, o, problem) for k in kernels}
    ran = {kernel: result for kernel, result in results.items() if result is not None}
    assert any(kernel.endswith("_folded") for kernel in ran) if pass_ == "fprop" else ran
    for kernel, result in ran.items():
        reference.assert_right(result, expected, kernel)


@pytest.mark.parametrize("pass_", PASSES)
def test_no_input_channels_have_a_plan(pass_: str) -> None:
    assert "plan: " in fastconv.explain((2, 0, 9, 8), (6, 0, 3, 3), pass_=pass_, device="cuda", arch=90)


def test_expanded_filter_taller_than_64_bits(device: str) -> None:
    w = torch.randn(1, device=device).expand(1, 1, 2**34 + 1, 1)
    with pytest.raises(RuntimeError, match="larger than the padded input"):
        fastconv.conv2d(torch.randn(1, 1, 4, 1, device=device), w, dilation=(2**30, 1))


def test_channels_last_images_expanded_along_their_columns(device: str) -> None:
    """As in the gradient of a mean over pixels: channels are contiguous, but columns lie closer still."""
    problem = Problem(2, 32, 10, 9, 16, 3, 3, padding=(1, 1))
    o = operands(problem, torch.float32, device, views=("channels_last",) * 3)
    # One at a time: products of two that repeat round the same way each time, which the bound does not expect.
    x, dy = (t[..., :1].expand(t.shape) for t in (o.input, o.grad_output))
    y = torch.ops.fastconv.conv2d(x, o.weight, None, *problem.geometry)
    reference.assert_right(y, reference.output(x, o.weight, None, *problem.geometry))
    dx = torch.ops.fastconv.conv2d_input(x.shape, o.weight, dy, *problem.geometry)
    reference.assert_right(dx, reference.gradients(o.input, o.weight, dy, *problem.geometry).input)
    dw = torch.ops.fastconv.conv2d_weight(x, o.weight.shape, o.grad_output, *problem.geometry)
    reference.assert_right(dw, reference.gradients(x, o.weight, o.grad_output, *problem.geometry).weight)


@pytest.mark.parametrize(
    "geometry",
    [
        {"stride": 40, "padding": 3},
        {"padding": 600, "stride": 7},
        {"dilation": 300, "padding": 300},
        {"stride": [2, 1]},
        {"stride": (31, 2), "padding": (511, 1), "dilation": (255, 3)},
    ],
    ids=str,
)
def test_geometries_at_the_limits_of_packing(device: str, geometry: dict[str, Any]) -> None:
    """Eager calls pass most geometries in one integer; the others must not be cut off."""
    x = torch.randn(1, 2, 11, 12, dtype=torch.float64, device=device, requires_grad=True)
    w = torch.randn(3, 2, 3, 3, dtype=torch.float64, device=device, requires_grad=True)
    y, expected = fastconv.conv2d(x, w, **geometry), F.conv2d(x, w, **geometry)
    torch.testing.assert_close(y, expected)
    gradients = torch.autograd.grad(y.square().sum(), (x, w))
    for ours, theirs in zip(gradients, torch.autograd.grad(expected.square().sum(), (x, w)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_more_groups_than_packing_holds(device: str) -> None:
    groups = 2**16 + 1
    x, w = torch.randn(1, groups, 2, 2, device=device), torch.randn(groups, 1, 1, 1, device=device)
    assert torch.equal(fastconv.conv2d(x, w, groups=groups), x * w.view(1, groups, 1, 1))


def test_a_float_is_no_stride_even_after_its_integer(device: str) -> None:
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    fastconv.conv2d(x, w, None, 1)
    with pytest.raises(TypeError, match="stride"):
        fastconv.conv2d(x, w, None, 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dilation"):
        fastconv.conv2d(x, w, None, 1, 0, (1.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="groups"):
        fastconv.conv2d(x, w, None, 1, 0, 1, 1.0)  # type: ignore[arg-type]


def test_a_stride_that_changes_is_read_again(device: str) -> None:
    x, w = torch.randn(1, 2, 9, 9, device=device), torch.randn(3, 2, 3, 3, device=device)
    stride = torch.tensor(1), torch.tensor(1)
    assert fastconv.conv2d(x, w, None, stride).shape == (1, 3, 7, 7)  # type: ignore[arg-type]
    stride[0].fill_(3)
    assert fastconv.conv2d(x, w, None, stride).shape == (1, 3, 3, 7)  # type: ignore[arg-type]


def test_integers_of_other_kinds(device: str) -> None:
    """As torch's function takes them: NumPy's, and tensors of one integer."""
    x, w = torch.randn(1, 4, 9, 9, device=device), torch.randn(6, 2, 3, 3, device=device)
    expected = fastconv.conv2d(x, w, None, 2, 1, 1, 2)
    assert torch.equal(fastconv.conv2d(x, w, None, np.int64(2), np.int32(1), 1, np.int64(2)), expected)
    assert torch.equal(fastconv.conv2d(x, w, None, (np.int64(2), 2), [np.int8(1), 1], 1, 2), expected)
    assert torch.equal(fastconv.conv2d(x, w, None, torch.tensor(2), torch.tensor(1), 1, 2), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_weight_gradient_of_images_that_both_repeat(device: str, seed: int) -> None:
    """Runs of equal products: the roundings of a float32 sum no longer cancel."""
    torch.manual_seed(seed)
    x = torch.randn(1, 1, 9, 1, device=device).expand(1, 1, 9, 9)
    dy = torch.randn(1, 1, 9, 1, device=device).expand(1, 1, 9, 9)
    actual = torch.ops.fastconv.conv2d_weight(x, (1, 1, 1, 1), dy)
    reference.assert_right(actual, reference.gradients(x, torch.ones(1, 1, 1, 1), dy).weight, "weight gradient")
