"""Whatever F.conv2d refuses, fastconv refuses: the same kind of error, naming argument, value and what is allowed."""

from __future__ import annotations

import gc
import re
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastconv
import reference
from shapes import tensor

# torch.testing's table of samples imports the package expecttest for a base class that it then does not use,
sys.modules.setdefault("expecttest", types.ModuleType("expecttest")).__dict__.setdefault("TestCase", unittest.TestCase)
# and would forbid this process to set torch's global flags from then on, which other tests here must.
with mock.patch.object(torch.backends, "disable_global_flags", lambda: None):
    from torch.testing._internal.common_methods_invocations import op_db

(OP_INFO,) = (op for op in op_db if op.name == "nn.functional.conv2d")

Call = Callable[[Any, str], Any]


def x(device: str, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return tensor(size or (2, 4, 8, 7), dtype, device)


def w(device: str, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return tensor(size or (6, 4, 3, 3), dtype, device, 1)


# What is wrong: the call, and what the message must name.
BAD: dict[str, tuple[Call, str]] = {
    "rank 2 input": (lambda f, d: f(x(d, 4, 8), w(d)), r"input.*\[4, 8\]"),
    "rank 5 input": (lambda f, d: f(x(d, 1, 1, 4, 8, 8), w(d)), r"input.*\[1, 1, 4, 8, 8\]"),
    "rank 0 input": (lambda f, d: f(x(d)[0, 0, 0, 0], w(d)), "input"),
    "rank 3 weight": (lambda f, d: f(x(d), w(d)[0]), r"weight.*\[4, 3, 3\]"),
    "rank 5 weight": (lambda f, d: f(x(d), w(d)[None]), r"weight.*\[1, 6, 4, 3, 3\]"),
    "rank 2 bias": (lambda f, d: f(x(d), w(d), x(d, 6, 1)), r"bias.*6.*\[6, 1\]"),
    "bias of another length": (lambda f, d: f(x(d), w(d), x(d, 5)), r"bias.*6.*\[5\]"),
    "dtype of weight": (lambda f, d: f(x(d), w(d).double()), "(?i)dtype|type"),
    "dtype of bias": (lambda f, d: f(x(d), w(d), x(d, 6).half()), "(?i)dtype|type"),
    "device of weight": (lambda f, d: f(x(d), w("meta")), "(?i)device"),
    "channels of weight": (lambda f, d: f(x(d), w(d, 6, 3, 3, 3)), r"channels.*4"),
    "channels not divisible by groups": (lambda f, d: f(x(d), w(d, 6, 1, 3, 3), None, 1, 0, 1, 3), "channels"),
    "filters not divisible by groups": (
        lambda f, d: f(x(d), w(d, 5, 2, 3, 3), None, 1, 0, 1, 2),
        r"groups=2.*\[5, 2, 3, 3\]",
    ),
    "fewer filters than groups": (
        lambda f, d: f(x(d), w(d, 2, 1, 3, 3), None, 1, 0, 1, 4),
        r"groups=4.*\[2, 1, 3, 3\]",
    ),
    "groups 0": (lambda f, d: f(x(d), w(d), None, 1, 0, 1, 0), "groups.*0"),
    "groups -1": (lambda f, d: f(x(d), w(d), None, 1, 0, 1, -1), "groups.*-1"),
    "kernel higher than the padded input": (
        lambda f, d: f(x(d), w(d, 6, 4, 11, 3), None, 1, (1, 0)),
        r"(?i)kernel.*11",
    ),
    "kernel wider than the padded input": (
        lambda f, d: f(x(d), w(d, 6, 4, 3, 3), None, 1, 0, (1, 4)),
        r"(?i)kernel.*9",
    ),
    "stride 0": (lambda f, d: f(x(d), w(d), None, (1, 0)), r"stride.*\[1, 0\]"),
    "stride -1": (lambda f, d: f(x(d), w(d), None, -1), "stride.*-1"),
    "padding -1": (lambda f, d: f(x(d), w(d), None, 1, (0, -1)), r"padding.*\[0, -1\]"),
    "dilation 0": (lambda f, d: f(x(d), w(d), None, 1, 0, (0, 1)), r"dilation.*\[0, 1\]"),
    "three strides": (lambda f, d: f(x(d), w(d), None, (1, 1, 1)), "stride"),
    "three paddings": (lambda f, d: f(x(d), w(d), None, 1, (1, 1, 1)), "padding"),
    "no dilation": (lambda f, d: f(x(d), w(d), None, 1, 0, ()), "dilation"),
    "padding by an unknown name": (lambda f, d: f(x(d), w(d), None, 1, "full"), "padding.*full"),
    "padding same with a stride": (lambda f, d: f(x(d), w(d), None, 2, "same"), "(?i)same.*strid|strid.*same"),
    "no rows": (lambda f, d: f(x(d, 2, 4, 0, 7), w(d)), r"\[2, 4, 0, 7\]"),
    "no columns": (lambda f, d: f(x(d, 2, 4, 8, 0), w(d), None, 1, 2), r"\[2, 4, 8, 0\]"),
    "filter without taps": (lambda f, d: f(x(d), w(d, 6, 4, 0, 3)), r"\[6, 4, 0, 3\]"),
    "no filters": (lambda f, d: f(x(d), w(d, 0, 4, 3, 3)), r"\[0, 4, 3, 3\]"),
    "integers": (lambda f, d: f(x(d).int(), w(d).int()), "(?i)float|int"),
    "booleans": (lambda f, d: f(x(d).bool(), w(d).bool()), "(?i)float|bool"),
    "integer input, float weight": (lambda f, d: f(x(d).long(), w(d)), "(?i)dtype|type|float"),
    "sparse input": (lambda f, d: f(x(d).to_sparse(), w(d)), "(?i)sparse|layout|backend"),
    "sparse weight": (lambda f, d: f(x(d), w(d).to_sparse()), "(?i)sparse|layout|backend"),
    "quantised input": (
        lambda f, d: f(torch.quantize_per_tensor(x("cpu"), 0.1, 0, torch.quint8), w("cpu")),
        "(?i)quantized|float",
    ),
    "not a tensor": (lambda f, d: f([[1.0]], w(d)), "(?i)input|tensor"),
    "weight is None": (lambda f, d: f(x(d), None), "(?i)weight|tensor"),
    "stride is text": (lambda f, d: f(x(d), w(d), None, "2"), "stride"),
    "stride is True": (lambda f, d: f(x(d), w(d), None, True), "stride.*True"),
    "groups is True": (lambda f, d: f(x(d), w(d), None, 1, 0, 1, True), "groups.*True"),
    "True among the paddings": (lambda f, d: f(x(d), w(d), None, 1, (True, 1)), "padding.*True"),
    "stride of 2^70": (lambda f, d: f(x(d), w(d), None, 2**70), "stride.*1180591620717411303424"),
    "padding of 2^62": (lambda f, d: f(x(d), w(d), None, 1, 2**62), "padding.*4611686018427387904"),
    "dilation of 2^62": (lambda f, d: f(x(d), w(d), None, 1, 0, 2**62), r"dilation.*4611686018427387904"),
    "no dilation, padding same": (lambda f, d: f(x(d), w(d), None, 1, "same", ()), "dilation.*0"),
    "dilation 0, padding same": (lambda f, d: f(x(d), w(d), None, 1, "same", 0), r"dilation.*\[0, 0\]"),
    "stride is a float": (lambda f, d: f(x(d), w(d), None, 1.5), "stride"),
    "too many arguments": (lambda f, d: f(x(d), w(d), None, 1, 0, 1, 1, 1), "argument"),
}
# Legal for torch on some device, and not offered here: refused with a message, never computed wrongly.
UNSUPPORTED: dict[str, tuple[Call, str]] = {
    "float8": (lambda f, d: f(x(d).to(torch.float8_e4m3fn), w(d).to(torch.float8_e4m3fn)), "(?i)float8|float32"),
    "padding of 2^31": (lambda f, d: f(x(d), w(d), None, 2**31, 2**31), "padding.*2147483648"),
}
KINDS = (RuntimeError, ValueError, NotImplementedError, TypeError)


@pytest.mark.parametrize("what", [*BAD, *UNSUPPORTED])
def test_is_refused_by_name(device: str, what: str) -> None:
    call, names = {**BAD, **UNSUPPORTED}[what]
    with pytest.raises(KINDS, match=names):
        call(fastconv.conv2d, device)


# torch's schemas know no strings for a padding, and True is an integer to them.
FOR_THE_FUNCTION_ALONE = ("padding by", "padding same", "True")


@pytest.mark.parametrize("what", [k for k in BAD if not any(text in k for text in FOR_THE_FUNCTION_ALONE)])
def test_the_op_refuses_it_too(device: str, what: str) -> None:
    with pytest.raises(KINDS):
        BAD[what][0](torch.ops.fastconv.conv2d, device)


def refusal(call: Call, *arguments: Any) -> str:
    with pytest.raises(Exception) as error:
        call(*arguments)
    return str(error.value)


# What tensors without numbers cannot be, and what torch.compile itself refuses to trace or takes for something else.
NOT_ON_META = ("device of weight", "sparse", "quantised", "not a tensor", "weight is None")
NOT_TRACED = (*NOT_ON_META, "too many arguments", "is text", "float", "integers", "booleans", "2^70")


@pytest.mark.parametrize("what", [k for k in (*BAD, *UNSUPPORTED) if not any(text in k for text in NOT_ON_META)])
def test_eager_and_meta_calls_refuse_with_the_same_words(device: str, what: str) -> None:
    call, _ = {**BAD, **UNSUPPORTED}[what]
    assert refusal(call, fastconv.conv2d, "meta").replace("meta", device) == refusal(call, fastconv.conv2d, device)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", [k for k in BAD if not any(text in k for text in NOT_TRACED)])
def test_compiled_calls_refuse_with_the_same_words(what: str, dynamic: bool) -> None:
    """In torch's report of it."""
    torch._dynamo.reset()
    call, _ = BAD[what]
    compiled = torch.compile(fastconv.conv2d, backend="eager", fullgraph=True, dynamic=dynamic)
    assert refusal(call, fastconv.conv2d, "cpu") in refusal(call, compiled, "cpu")


BAD_INTEGERS: dict[str, tuple[dict[str, Any], str]] = {
    "stride of 2^70": ({"stride": 2**70}, "stride.*1180591620717411303424"),
    "padding of 2^70": ({"padding": 2**70}, "padding.*1180591620717411303424"),
    "groups of 2^70": ({"groups": 2**70}, "groups.*1180591620717411303424"),
    "stride True": ({"stride": True}, "stride.*True"),
    "padding False": ({"padding": False}, "padding.*False"),
    "groups True": ({"groups": True}, "groups.*True"),
    "dilation is a float": ({"dilation": 1.5}, "dilation.*1.5"),
    "padding of bytes": ({"padding": b"\x01\x01"}, "padding.*x01"),
    "padding of a set": ({"padding": frozenset((1, 2))}, "padding.*frozenset"),
}


@pytest.mark.parametrize("what", BAD_INTEGERS)
def test_every_function_refuses_integers_with_the_same_words(what: str) -> None:
    arguments, names = BAD_INTEGERS[what]
    image, filters = tensor((2, 4, 8, 8)), tensor((6, 4, 3, 3))
    gradient = tensor((2, 6, 6, 6))
    calls: tuple[Callable[..., Any], ...] = (
        lambda **k: fastconv.conv2d(image, filters, **k),
        lambda **k: fastconv.explain(image, filters, **k),
        lambda **k: fastconv.grad.conv2d_input(image.shape, filters, gradient, **k),
        lambda **k: fastconv.grad.conv2d_weight(image, filters.shape, gradient, **k),
    )
    said = set()
    for call in calls:
        with pytest.raises((RuntimeError, TypeError), match=names) as error:
            call(**arguments)
        said.add(str(error.value))
    assert len(said) == 1


@pytest.mark.parametrize("size", [(8,), (4, 8), (1, 2, 4, 8, 8)], ids=str)
def test_ranks_are_refused_as_they_were_given(size: tuple[int, ...]) -> None:
    sentence = re.escape(f"input must be 3-D (C, H, W) or 4-D (N, C, H, W), but got size {list(size)}")
    for padding in (0, "same"):
        with pytest.raises(RuntimeError, match=sentence):
            fastconv.conv2d(torch.randn(size), w("cpu"), padding=padding)
        for dtype in (torch.float32, torch.complex64):
            with pytest.raises(RuntimeError, match=sentence):
                fastconv.explain(size, w("cpu").shape, padding=padding, dtype=dtype)


LEGAL: dict[str, Call] = {
    "stride of 2^31, one output": lambda f, d: f(x(d), w(d), None, 2**31),
    "stride of 2^40, one output": lambda f, d: f(x(d), w(d), None, (2**40, 1), 1),
    "dilation of 2^40, one tap": lambda f, d: f(x(d), w(d, 6, 4, 1, 3), None, 1, 0, (2**40, 1)),
    "stride of 2^62, padding same of one output": lambda f, d: f(x(d, 2, 4, 1, 1), w(d), None, 2**62, 1),
}


@pytest.mark.parametrize("what", LEGAL)
def test_integers_beyond_32_bits_are_taken_where_torch_takes_them(device: str, what: str) -> None:
    """The stride of a single output and the dilation of a single tap are not used; torch takes them too."""
    call = LEGAL[what]
    seen: list[tuple[Any, ...]] = []

    def convolve(*arguments: Any) -> Tensor:
        seen.append(arguments)
        with fastconv.precision("ieee"):
            return fastconv.conv2d(*arguments)

    y = call(convolve, device)
    (image, filters, _, *geometry) = seen[0]
    small = [min(value, 8) if isinstance(value, int) else tuple(min(v, 8) for v in value) for value in geometry]
    reference.assert_right(y, reference.output(image, filters, None, *small))
    assert call(fastconv.conv2d, "meta").shape == y.shape == call(F.conv2d, "cpu").shape
    leaves = [t.detach().requires_grad_() for t in (image, filters)]
    dy = tensor(tuple(y.shape), device=device, seed=3)
    gradients = torch.autograd.grad(convolve(*leaves, None, *geometry), leaves, dy)
    expected = reference.gradients(*leaves, dy, *small)
    for actual, wanted in zip(gradients, (expected.input, expected.weight), strict=True):
        reference.assert_right(actual, wanted)


# oneDNN and THNN let some of these through where cuDNN does not, or compute on integers.
LENIENT_IN_TORCH = {"integers", "booleans", "device of weight", "sparse weight", "dtype of bias"}


@pytest.mark.parametrize("what", [k for k in BAD if k not in LENIENT_IN_TORCH])
def test_the_kind_of_error_is_torchs(device: str, what: str) -> None:
    call, _ = BAD[what]
    with pytest.raises(KINDS) as theirs:
        call(F.conv2d, device)
    with pytest.raises(KINDS) as ours:
        call(fastconv.conv2d, device)
    # torch itself says RuntimeError on one device and ValueError on another for the same mistake.
    values = (ValueError, RuntimeError)
    assert isinstance(ours.value, type(theirs.value)) or (
        isinstance(ours.value, values) and isinstance(theirs.value, values)
    )


def test_gradients_of_the_wrong_size_are_refused(device: str) -> None:
    image, filters = x(device), w(device)
    for dy in (x(device, 2, 6, 6, 6), x(device, 2, 5, 6, 5), x(device, 1, 6, 6, 5), x(device, 6, 6, 5)):
        with pytest.raises(KINDS, match=r"grad_output.*\[2, 6, 6, 5\]"):
            fastconv.grad.conv2d_input(image.shape, filters, dy)
        with pytest.raises(KINDS, match=r"grad_output.*\[2, 6, 6, 5\]"):
            fastconv.grad.conv2d_weight(image, filters.shape, dy)
    dy = x(device, 2, 6, 6, 5)
    input_sizes: list[tuple[int, ...]] = [(2, 4, 8), (2, 4, 8, 7, 1), (2, 4, -8, 7), (2, 3, 8, 7), (4,)]
    for size in input_sizes:
        with pytest.raises(KINDS):
            fastconv.grad.conv2d_input(size, filters, dy)
    weight_sizes: list[tuple[int, ...]] = [(6, 4, 3), (6, 4, 3, 3, 1), (6, 4, -3, 3), (6, 3, 3, 3), (4,)]
    for size in weight_sizes:
        with pytest.raises(KINDS):
            fastconv.grad.conv2d_weight(image, size, dy)
    gradient_sizes: list[tuple[int, ...]] = [(2,), (2, 6), (1, 2, 6, 6, 5)]
    for size in gradient_sizes:
        with pytest.raises(KINDS, match="grad_output"):
            torch.ops.fastconv.conv2d_bias(x(device, *size))


def test_gradient_ops_check_dtype_and_device(device: str) -> None:
    image, filters, dy = x(device), w(device), x(device, 2, 6, 6, 5)
    with pytest.raises(KINDS, match="(?i)dtype|type"):
        fastconv.grad.conv2d_input(image.shape, filters.double(), dy)
    with pytest.raises(KINDS, match="(?i)dtype|type"):
        fastconv.grad.conv2d_weight(image.half(), filters.shape, dy)


def test_gradients_are_of_tensors() -> None:
    image, filters, dy = x("cpu"), w("cpu"), x("cpu", 2, 6, 6, 5)
    for name in ("weight", "grad_output"):
        arguments: dict[str, Any] = {"weight": filters, "grad_output": dy, name: 3}
        with pytest.raises(TypeError, match=rf"conv2d_input\(\): {name} must be a Tensor, but got int"):
            fastconv.grad.conv2d_input(image.shape, **arguments)
    for name in ("input", "grad_output"):
        arguments = {"input": image, "grad_output": dy, name: None}
        with pytest.raises(TypeError, match=rf"conv2d_weight\(\): {name} must be a Tensor, but got NoneType"):
            fastconv.grad.conv2d_weight(weight_size=filters.shape, **arguments)


@pytest.mark.cuda
def test_operands_on_two_devices(cuda: str) -> None:
    for first, second in (("cpu", cuda), (cuda, "cpu")):
        with pytest.raises(KINDS, match="(?i)device.*(cuda|cpu)"):
            fastconv.conv2d(x(first), w(second))
        with pytest.raises(KINDS, match="(?i)device.*(cuda|cpu)"):
            fastconv.conv2d(x(first), w(first), x(second, 6))


def test_integers_cannot_require_grad(device: str) -> None:
    with pytest.raises(RuntimeError, match="(?i)floating"):
        fastconv.conv2d(x(device).int().requires_grad_(), w(device))


def test_a_complete_message(device: str) -> None:
    """One in full: argument, value, what is allowed; no path, no stack of C++."""
    with pytest.raises(RuntimeError) as error:
        fastconv.conv2d(x(device), w(device), None, 1, (0, -1))
    text = str(error.value)
    assert "padding" in text and "[0, -1]" in text and "at least 0" in text
    assert "\n" not in text and ".cpp" not in text and "/" not in text


def samples(device: str, dtype: torch.dtype) -> list[Any]:
    return list(OP_INFO.sample_inputs(device, dtype, requires_grad=False))


def test_torchs_error_inputs_are_refused(device: str) -> None:
    errors = list(OP_INFO.error_inputs(device))
    assert len(errors) >= 10
    for error in errors:
        sample = error.sample_input
        with pytest.raises(error.error_type):
            fastconv.conv2d(sample.input, *sample.args, **sample.kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_torchs_sample_inputs_are_computed(device: str, dtype: torch.dtype) -> None:
    assert len(samples(device, dtype)) >= 20
    for sample in samples(device, dtype):
        weight, bias = sample.args
        k = sample.kwargs
        geometry = (k.get("stride", 1), k.get("padding", 0), k.get("dilation", 1), k.get("groups", 1))
        y = fastconv.conv2d(sample.input, weight, bias, **k, precision="ieee")
        reference.assert_right(y, reference.output(sample.input, weight, bias, *geometry))


def test_errors_leak_nothing(device: str) -> None:
    """Neither tensors that Python sees nor memory of the device."""

    def live() -> int:
        gc.collect()
        return sum(isinstance(o, Tensor) for o in gc.get_objects())

    def fail_all() -> None:
        for call, _ in BAD.values():
            with pytest.raises(KINDS):
                call(fastconv.conv2d, device)

    def held() -> tuple[int, int]:
        return live(), torch.cuda.memory_allocated() if device == "cuda" else 0

    fail_all()
    changes = []
    for _ in range(3):  # what other tests left behind may go meanwhile, once
        before = held()
        for _ in range(5):
            fail_all()
        changes.append((before, held()))
    assert any(before == after for before, after in changes), changes


def test_a_refused_call_leaves_the_next_one_right(device: str) -> None:
    with pytest.raises(KINDS):
        fastconv.conv2d(x(device), w(device, 6, 3, 3, 3))
    reference.assert_right(
        fastconv.conv2d(x(device), w(device), precision="ieee"), reference.output(x(device), w(device))
    )
