"""Tracing: what torch.compile, torch.export, make_fx, opcheck and the FLOP counter see of fastconv."""

from __future__ import annotations

import copy
import itertools
import re
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import fastconv
import reference
import sweeps
from fastconv.activation import ACTIVATIONS
from shapes import CASES, DTYPES, VIEWS, Problem, operands, tensor

LAYOUTS = ["contiguous", "channels_last"]
GROUPED = {
    "dense": Problem(2, 4, 7, 6, 6, 3, 3, stride=(2, 1), padding=(1, 0)),
    "grouped": Problem(2, 4, 7, 6, 6, 3, 2, padding=(1, 1), groups=2, bias=True),
    "depthwise": Problem(2, 4, 7, 6, 4, 3, 3, dilation=(1, 2), groups=4, bias=True),
    "unbatched": Problem(None, 4, 7, 6, 6, 3, 3, bias=True),
}


def calls(
    problem: Problem, dtype: torch.dtype, device: str, layout: str, grad: bool
) -> list[tuple[Any, tuple[Any, ...]]]:
    """Each op with its arguments."""
    o = operands(problem, dtype, device, views=(layout, layout, layout))
    x, w, b, dy = (
        None if t is None else t.detach().requires_grad_(grad) for t in (o.input, o.weight, o.bias, o.grad_output)
    )
    ops = torch.ops.fastconv
    return [
        (ops.conv2d.default, (x, w, b, *problem.geometry)),
        (ops.conv2d_input.default, (problem.input_size, w, dy, *problem.geometry)),
        (ops.conv2d_weight.default, (x, problem.weight_size, dy, *problem.geometry)),
        (ops.conv2d_bias.default, (dy,)),
    ]


@sweeps.sweep(3)
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(device: str, dtype: torch.dtype, layout: str, name: str) -> None:
    """torch's own check of an op's schema, autograd registration, fake kernel and tracing with dynamic shapes."""
    for op, arguments in calls(GROUPED[name], dtype, device, layout, grad=True):
        torch.library.opcheck(op, arguments, rtol=1e-2, atol=1e-2)


OPS: dict[str, Callable[[Problem, Tensor, Tensor, Tensor], Tensor]] = {
    "conv2d": lambda p, x, w, dy: torch.ops.fastconv.conv2d(x, w, None, *p.geometry),
    "conv2d_input": lambda p, x, w, dy: torch.ops.fastconv.conv2d_input(p.input_size, w, dy, *p.geometry),
    "conv2d_weight": lambda p, x, w, dy: torch.ops.fastconv.conv2d_weight(x, p.weight_size, dy, *p.geometry),
    "conv2d_bias": lambda p, x, w, dy: torch.ops.fastconv.conv2d_bias(dy),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "name", ["plain_3x3", "grouped", "depthwise", "pointwise", "one_element", "rgb_stem", "empty_batch", "unbatched"]
)
def test_fake_tensors_have_the_strides_of_real_ones(device: str, name: str, op: str) -> None:
    problem = CASES[name]
    for views in itertools.product(VIEWS, repeat=2):
        o = operands(problem, torch.float32, device, views=(views[0], views[1], views[0]))
        tensors = (o.input, o.weight, o.grad_output)
        real = OPS[op](problem, *tensors)
        with FakeTensorMode() as mode:
            fake = OPS[op](problem, *map(mode.from_tensor, tensors))
        assert (fake.size(), fake.stride(), fake.dtype) == (real.size(), real.stride(), real.dtype), views
        assert fake.device.type == device
        meta = OPS[op](problem, *(t.to("meta") for t in tensors))
        assert meta.size() == real.size() and meta.dtype == real.dtype


def test_meta_tensors_are_checked_like_real_ones() -> None:
    x, w = torch.empty(2, 4, 8, 8, device="meta"), torch.empty(6, 4, 3, 3, device="meta")
    for bad in (
        lambda: fastconv.conv2d(x, w[:, :3]),
        lambda: fastconv.conv2d(x, w, None, 0),
        lambda: fastconv.conv2d(x[..., :2], w),
    ):
        with pytest.raises((RuntimeError, ValueError)):
            bad()


def small_net(device: str, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding="same", groups=4),
        nn.Conv2d(8, 4, 1, bias=False),
    ]
    return fastconv.convert(nn.Sequential(*layers).to(device=device, dtype=dtype))


def step(function: Callable[[Tensor], Tensor], net: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and every gradient of a training step."""
    x = x.detach().requires_grad_()
    net.zero_grad()
    y = function(x)
    y.square().mean().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad.clone() for p in net.parameters() if p.grad is not None)]


def assert_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    for a, e in zip(actual, expected, strict=True):
        # Normwise, as the precisions are: a layout has its own kernel, which adds in another order.
        assert (a.double() - e.double()).norm() <= 1e-6 + 1e-5 * e.double().norm()
        assert a.stride() == e.stride()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_trains_without_a_graph_break(device: str, backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    net = small_net(device)
    compiled = torch.compile(net, fullgraph=True, dynamic=dynamic, backend=backend)
    with fastconv.precision("ieee"):  # in which no sum's order matters much
        for view, size in (
            ("contiguous", (2, 3, 12, 14)),
            ("contiguous", (3, 3, 16, 10)),
            ("channels_last", (2, 3, 9, 11)),
        ):
            x = tensor(size, device=device, view=view)
            assert_close(step(compiled, net, x), step(net, net, x))


class Residual(nn.Module):
    """Two layers with norms between; what comes in is added, and read by both."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


def pooled_net(device: str) -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
    layers = [stem, nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Residual(16), Residual(16)]
    return fastconv.convert(nn.Sequential(*layers).to(device))


def images_in(memory_format: torch.memory_format, code: str, batch: int) -> list[str]:
    """Sizes of images of this layout that Inductor's code allocates, or gets of ops."""
    image = r"\((\d+, \d+, \d+, \d+)\), \((\d+, \d+, \d+, \d+)\)"
    found = re.findall(rf"(?:empty_strided_\w+\(|assert_size_stride\(buf\d+, ){image}", code)
    sizes = [([int(n) for n in size.split(", ")], strides) for size, strides in found]
    return [
        str(tuple(size))
        for size, strides in sizes
        if size[0] == batch
        and min(size) > 1
        and strides == str(torch.empty(size, memory_format=memory_format).stride())[1:-1]
    ]


@pytest.fixture
def channels_last_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU too, and of float32."""
    from fastconv import _inductor

    monkeypatch.setattr(_inductor, "faster_in_channels_last", lambda *_: True)


@pytest.mark.usefixtures("channels_last_is_faster")
def test_compiled_layers_hand_on_channels_last(device: str) -> None:
    """No image between them is in NCHW, the layout of eager calls. The output is, and the input's gradient."""
    torch._dynamo.reset()
    net = pooled_net(device)
    compiled = torch.compile(net, fullgraph=True)
    x = tensor((2, 3, 33, 34), device=device)
    every_buffer = {"force_disable_caches": True, "allow_buffer_reuse": False}
    with fastconv.precision("ieee"), torch._inductor.config.patch(every_buffer):
        actual, codes = run_and_get_code(lambda: step(compiled, net, x))
        assert_close(actual, step(net, net, x))
    forward, backward = (code for code in codes if "fastconv" in code)
    assert images_in(torch.contiguous_format, forward, 2) == ["(2, 16, 9, 9)"]
    assert images_in(torch.contiguous_format, backward, 2) == ["(2, 3, 33, 34)"]


@pytest.mark.usefixtures("channels_last_is_faster")
def test_compiled_batch_norms_take_the_layout_of_convolutions(device: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = [
        fastconv.ConvBnAct2d(3, 16, 3, padding=1, activation="relu"),
        fastconv.ConvBnAct2d(16, 16, 3, padding=1, activation="silu"),
        nn.Conv2d(16, 4, 1),
    ]
    net = fastconv.convert(nn.Sequential(*layers)).to(device)
    other = copy.deepcopy(net)
    x = tensor((2, 3, 9, 10), device=device)
    every_buffer = {"force_disable_caches": True, "allow_buffer_reuse": False}
    with fastconv.precision("ieee"), torch._inductor.config.patch(every_buffer):
        actual, codes = run_and_get_code(lambda: step(torch.compile(net, fullgraph=True), net, x))
        assert_close(actual, step(other, other, x))
    torch.testing.assert_close([*net.buffers()], [*other.buffers()])
    forward, backward = (code for code in codes if "fastconv" in code)
    assert forward.count("fastconv._batch_norm_act.default(") == 2
    assert backward.count("fastconv._batch_norm_act_backward.default(") == 2
    assert images_in(torch.contiguous_format, forward, 2) == ["(2, 4, 9, 10)"]
    assert images_in(torch.contiguous_format, backward, 2) == ["(2, 3, 9, 10)"]


def as_before_torch_2_13(monkeypatch: pytest.MonkeyPatch) -> None:
    """is_compiling() is false while AOTAutograd traces."""
    monkeypatch.setattr(torch.compiler, "_compile_session_context", nullcontext, raising=False)


@pytest.mark.parametrize("flag", ["new", "old"])
def test_compiled_gradients_are_one_call_a_layer(device: str, flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if flag == "old":
        as_before_torch_2_13(monkeypatch)
    torch._dynamo.reset()
    net = small_net(device)
    with torch._inductor.config.patch(force_disable_caches=True):
        x = tensor((2, 3, 12, 14), device=device)
        _, codes = run_and_get_code(lambda: step(torch.compile(net, fullgraph=True), net, x))
    calls = [re.findall(r"torch\.ops\.fastconv\.(\w+)\.default\(", code) for code in codes if "fastconv" in code]
    assert calls == [["_conv2d"] * 3, ["_conv2d_backward"] * 3]


class Between(nn.Module):
    """Two layers, and `function` of the input, and of what both return."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = fastconv.Conv2d(3, 8, 3, padding=1), fastconv.Conv2d(8, 8, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        y = self.first(x).relu()
        return self.function(x, y, self.second(y))


def returned(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return z.view(z.shape[0], -1), z[:, ::2], y.view(y.shape[0], -1), y[:, 1:3]


def under_condition(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return (torch.cond(x.sum() > 0, lambda t: t.cos(), lambda t: t.sin(), (z,)).mean((2, 3)),)


def by_strides(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return (z[1:].as_strided((3, 4), (5, 1), 2) * 2,)


@pytest.mark.usefixtures("channels_last_is_faster")
@pytest.mark.parametrize(
    ("function", "dynamic"), [(returned, False), (returned, True), (under_condition, False), (by_strides, False)]
)
def test_what_knows_eagers_strides_gets_them(device: str, function: Callable[..., Any], dynamic: bool) -> None:
    """Views that are made after the call of outputs that the user does not see, subgraphs, as_strided."""
    torch._dynamo.reset()
    net = Between(function).to(device)
    compiled = torch.compile(net, fullgraph=True, dynamic=dynamic)
    with fastconv.precision("ieee"), torch._inductor.config.patch(force_disable_caches=True):
        for size in ((2, 3, 6, 7), (3, 3, 8, 5))[: 1 + dynamic]:
            x = tensor(size, device=device)
            results = []
            for call in (compiled, net):
                net.zero_grad()
                outputs = call(x)
                sum(output.square().sum() for output in outputs).backward()
                gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
                assert len(gradients) == 4
                results.append([*(output.detach() for output in outputs), *gradients])
            assert_close(*results)


@pytest.mark.usefixtures("channels_last_is_faster")
def test_layout_optimization_can_be_turned_off(device: str) -> None:
    """By Inductor's own option."""
    torch._dynamo.reset()
    net = pooled_net(device)
    compiled = torch.compile(net, fullgraph=True, options={"layout_optimization": False})
    with torch._inductor.config.patch(force_disable_caches=True):
        _, codes = run_and_get_code(lambda: step(compiled, net, tensor((2, 3, 33, 34), device=device)))
    forward, backward = (code for code in codes if "fastconv" in code)
    for code in (forward, backward):
        assert images_in(torch.contiguous_format, code, 2) and not images_in(torch.channels_last, code, 2)


def test_the_cpp_wrapper_trains(device: str) -> None:
    torch._dynamo.reset()
    net = fastconv.convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1, bias=False)).to(device))
    with fastconv.precision("ieee"), torch._inductor.config.patch(cpp_wrapper=True):
        compiled = torch.compile(net, fullgraph=True)
        x = tensor((2, 3, 9, 10), device=device)
        assert_close(step(compiled, net, x), step(net, net, x))


class Norms(nn.Module):
    """Of each activation, every other one behind a residual, one without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = fastconv.Conv2d(8, 8, 3, padding=1)
        norms = [fastconv.BatchNormAct2d(8, activation=name, affine=name != "relu6") for name in ACTIVATIONS]
        self.norms = nn.ModuleList(norms)
        for norm in norms:
            for values in (*norm.buffers(), *norm.parameters()):
                if values.is_floating_point():
                    nn.init.uniform_(values, 0.5, 2)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [norm(self.conv(x), residual=x if i % 2 else None) for i, norm in enumerate(self.norms)]


@sweeps.sweep(6)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_packages_of_aotinductor_need_no_python(
    device: str, dtype: torch.dtype, layout: torch.memory_format, tmp_path: Path
) -> None:
    """On the CPU the batch norms' kernel is Python. What runs one without it is examples/aot."""
    net = Norms().to(device, dtype).eval()
    x = tensor((3, 8, 6, 5), dtype, device).to(memory_format=layout)
    with torch.no_grad(), fastconv.precision("ieee"):
        program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "norms.pt2"))
        with zipfile.ZipFile(package) as files:
            called = "".join(files.read(name).decode() for name in files.namelist() if name.endswith(".json"))
        assert "fastconv::_conv2d" in called and ("_batch_norm_act" in called) == (device == "cuda")
        loaded = torch._inductor.aoti_load_package(package)
        for images in (x, x[:2]):
            for actual, expected in zip(loaded(images), net(images), strict=True):
                torch.testing.assert_close(actual, expected, check_stride=True)


@pytest.mark.parametrize("stride", [300, (1, 300)])
def test_arguments_that_cannot_be_packed_compile(device: str, stride: Any) -> None:
    torch._dynamo.reset()
    layers = [nn.Conv2d(3, 4, 1, stride=stride), nn.Conv2d(4, 4, 1)]
    net = fastconv.convert(nn.Sequential(*layers).to(device))
    x = tensor((1, 3, 301, 302), device=device)
    with fastconv.precision("ieee"):
        assert_close(step(torch.compile(net, fullgraph=True), net, x), step(net, net, x))


def test_a_penalty_on_gradients_is_compiled(device: str) -> None:
    """A gradient that is differentiated within the graph: its op must know how."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("this torch cannot trace it")
    torch._dynamo.reset()
    net = small_net(device)

    def penalty(x: Tensor) -> Tensor:
        y = net(x).square().sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return y + gradient.square().sum()

    x = tensor((2, 3, 8, 9), device=device)
    with fastconv.precision("ieee"), torch._dynamo.config.patch(trace_autograd_ops=True):
        compiled = torch.compile(penalty, fullgraph=True, backend="aot_eager")
        for actual, expected in zip(step(compiled, net, x), step(penalty, net, x), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("flag", ["new", "old"])
def test_compiled_tangents(device: str, flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if flag == "old":
        as_before_torch_2_13(monkeypatch)
    torch._dynamo.reset()
    w = tensor((4, 3, 3, 3), device=device, seed=1)

    def function(x: Tensor, dx: Tensor) -> Any:
        return torch.func.jvp(lambda x: fastconv.conv2d(x, w, precision="ieee").sin(), (x,), (dx,))

    x, dx = tensor((2, 3, 7, 8), device=device), tensor((2, 3, 7, 8), device=device, seed=2)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, dx), function(x, dx))


def test_packed_arguments_never_change_their_meaning() -> None:
    """Inductor keeps compiled code on disk, with these integers in it: another format needs other names of the ops."""
    from fastconv import ops

    arguments = (1, 2), (3, 4), (5, 6), 7, "tf32"
    assert ops.pack_or_none(arguments) == 0x1E060504030201
    assert ops.unpack(0x1E060504030201) == arguments


@pytest.mark.usefixtures("channels_last_is_faster")
def test_one_compiled_layer_keeps_its_layout(device: str) -> None:
    """Conversions would be kernels of their own."""
    torch._dynamo.reset()
    net = fastconv.Conv2d(3, 8, 3).to(device)
    compiled = torch.compile(net, fullgraph=True)
    x = tensor((2, 3, 9, 10), device=device)
    with fastconv.precision("ieee"), torch._inductor.config.patch(force_disable_caches=True):
        actual, codes = run_and_get_code(lambda: step(compiled, net, x))
        assert_close(actual, step(net, net, x))
    assert sum("fastconv" in code for code in codes) == 2
    assert not any("(270, 1, 30, 3)" in code or "(27, 1, 9, 3)" in code for code in codes)


@pytest.mark.usefixtures("channels_last_is_faster")
@pytest.mark.parametrize("between", [nn.Identity, nn.ReLU])
def test_a_few_compiled_layers_keep_their_layout(device: str, between: type[nn.Module]) -> None:
    """Where images would be converted as often as convolved, by kernels of their own."""
    torch._dynamo.reset()
    layers = nn.Conv2d(8, 8, 3, padding=1, groups=8), between(), nn.Conv2d(8, 16, 1)
    net = fastconv.convert(nn.Sequential(*layers)).to(device)
    compiled = torch.compile(net, fullgraph=True)
    x = tensor((2, 8, 9, 10), device=device)
    every_buffer = {"force_disable_caches": True, "allow_buffer_reuse": False}
    with fastconv.precision("ieee"), torch._inductor.config.patch(every_buffer):
        actual, codes = run_and_get_code(lambda: step(compiled, net, x))
        assert_close(actual, step(net, net, x))
    for code in codes:
        assert not images_in(torch.channels_last, code, 2)
    assert sum(bool(images_in(torch.contiguous_format, code, 2)) for code in codes) == 2


def test_tensor_cores_are_faster_in_channels_last() -> None:
    from fastconv._inductor import faster_in_channels_last

    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    for precision in ("allow_tf32", "ieee"):
        assert faster_in_channels_last(cuda, torch.float16, precision)
        assert faster_in_channels_last(cuda, torch.bfloat16, precision)
        assert faster_in_channels_last(cuda, torch.float32, precision) == (precision == "allow_tf32")
        assert not faster_in_channels_last(cuda, torch.float64, precision)
        assert not faster_in_channels_last(cpu, torch.float16, precision)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_compiled_steps_are_as_right_as_eager_ones(dtype: torch.dtype) -> None:
    """In the layout that is faster, whose kernels are others: against float64."""
    torch._dynamo.reset()
    net = pooled_net("cuda")
    x = tensor((4, 3, 65, 66), device="cuda")
    exact = copy.deepcopy(net).double()
    expected = step(exact, exact, x.double())
    errors = []
    for function in (net, torch.compile(net, fullgraph=True)):
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            actual = step(function, net, x)
        errors.append([float((a - e).norm() / e.norm()) for a, e in zip(actual, expected, strict=True)])
    assert max(errors[1]) < 2 * max(errors[0])


@pytest.mark.cuda
def test_cuda_graphs_of_varying_shapes_train() -> None:
    torch._dynamo.reset()
    net = pooled_net("cuda")
    compiled = torch.compile(net, mode="reduce-overhead", dynamic=False)
    with fastconv.precision("ieee"):
        for _ in range(3):  # the first calls warm up, the next record, the last replay
            for size in ((2, 3, 33, 34), (3, 3, 16, 20)):
                x = tensor(size, device="cuda")
                torch.compiler.cudagraph_mark_step_begin()
                actual = [t.clone() for t in step(compiled, net, x)]
                assert_close(actual, step(net, net, x))


def test_dynamic_shapes_compile_once(device: str) -> None:
    torch._dynamo.reset()
    net = small_net(device)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend=counter)
    for size in ((2, 3, 12, 14), (3, 3, 16, 11), (5, 3, 21, 10)):
        compiled(tensor(size, device=device))
    assert counter.frame_count == 1


def test_compiled_functions_keep_every_argument(device: str) -> None:
    torch._dynamo.reset()
    problem = CASES["dilated_strided"]
    o = operands(problem, torch.float32, device)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def function(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        with_op: Tensor = torch.ops.fastconv.conv2d(x, w, b, *problem.geometry, precision="ieee")
        return fastconv.conv2d(x, w, b, *problem.geometry, precision="ieee") + 2 * with_op

    expected = reference.output(o.input, o.weight, o.bias, *problem.geometry)
    reference.assert_right(function(o.input, o.weight, o.bias) / 3, expected)


def test_compile_under_autocast_and_the_precision_context(device: str) -> None:
    torch._dynamo.reset()
    net = small_net(device)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = tensor((2, 3, 8, 8), device=device)
    with torch.autocast(device, torch.bfloat16):
        assert compiled(x).dtype == torch.bfloat16
    with fastconv.precision("ieee"):
        torch.testing.assert_close(compiled(x), net(x))


def test_compiled_functions_are_guarded_by_the_precision() -> None:
    """The context's and torch's own: each value has its graph, and an old value finds the old one."""
    torch._dynamo.reset()
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(n.kwargs["precision"] for n in graph.graph.nodes if "fastconv" in str(n.target))
        return graph

    compiled = torch.compile(lambda x, w: fastconv.conv2d(x, w), fullgraph=True, backend=backend)
    x, w = tensor((1, 2, 5, 5)), tensor((3, 2, 3, 3))
    with torch.backends.cudnn.flags(allow_tf32=True):
        compiled(x, w)
    for _ in range(2):
        with fastconv.precision("bf16x3"):
            compiled(x, w)
        with torch.backends.cudnn.flags(allow_tf32=False):
            compiled(x, w)
        with torch.backends.cudnn.flags(allow_tf32=True):
            compiled(x, w)
    assert seen == ["allow_tf32", "bf16x3", "ieee"]


def test_a_precision_set_inside_a_compiled_function_holds_there() -> None:
    torch._dynamo.reset()
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(n.kwargs["precision"] for n in graph.graph.nodes if "fastconv" in str(n.target))
        return graph

    def function(x: Tensor, w: Tensor) -> Tensor:
        with fastconv.precision("bf16x3"):
            return fastconv.conv2d(x, w)

    torch.compile(function, backend=backend)(tensor((1, 2, 5, 5)), tensor((3, 2, 3, 3)))
    assert seen == ["bf16x3"]


@pytest.mark.parametrize("entry", ["conv2d_input", "conv2d_weight"])
def test_gradient_functions_are_traced(entry: str) -> None:
    x, w, g = tensor((2, 4, 8, 8)), tensor((6, 4, 3, 3)), tensor((2, 6, 6, 6))
    operands = (x.shape, w, g) if entry == "conv2d_input" else (x, w.shape, g)
    function = getattr(fastconv.grad, entry)
    torch._dynamo.reset()
    with fastconv.precision("ieee"):
        assert torch.equal(torch.compile(function, fullgraph=True, backend="eager")(*operands), function(*operands))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_batch_whose_size_depends_on_data_is_traced(device: str, backend: str, layout: str) -> None:
    torch._dynamo.reset()
    x, w = tensor((4, 3, 8, 9), device=device, view=layout), tensor((5, 3, 3, 3), device=device, seed=1)

    def function(x: Tensor, kept: Tensor) -> Tensor:
        return fastconv.conv2d(x[kept], w, padding=1)

    class Model(nn.Module):
        def forward(self, x: Tensor, kept: Tensor) -> Tensor:
            return function(x, kept)

    masks = [torch.tensor(kept, device=device) for kept in ([1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0])]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        program = torch.export.export(Model(), (x, masks[0].bool())).module()
    for kept in masks:
        expected = function(x, kept.bool())
        for actual in (compiled(x, kept.bool()), program(x, kept.bool())):
            assert torch.equal(actual, expected) and actual.stride() == expected.stride()


def test_an_image_whose_size_depends_on_data_is_traced(device: str) -> None:
    x, w = tensor((2, 3, 8, 9), device=device), tensor((5, 3, 3, 3), device=device, seed=1)

    def function(x: Tensor, rows: Tensor) -> Tensor:
        count = rows.item()
        torch._check(count >= 3)
        torch._check(count <= x.shape[2])
        return fastconv.conv2d(x.narrow(2, 0, count), w)  # type: ignore[arg-type]

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for rows in (5, 3, 8):
            assert torch.equal(compiled(x, torch.tensor(rows)), fastconv.conv2d(x[:, :, :rows], w))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_autograd(device: str, backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    net = small_net(device)
    x = tensor((2, 3, 12, 14), device=device)
    expected = step(net, net, x)
    with compiled_autograd._enable(torch.compile(backend=backend, fullgraph=True), dynamic=dynamic):
        assert_close(step(net, net, x), expected)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(compiled_autograd=True):
        assert_close(torch.compile(lambda x: step(net, net, x), backend=backend)(x), expected)


def test_compiled_vmap_and_grad(device: str) -> None:
    torch._dynamo.reset()
    w = tensor((4, 3, 3, 3), device=device, seed=1)

    def per_sample(xs: Tensor) -> Tensor:
        return torch.vmap(torch.func.grad(lambda x: fastconv.conv2d(x, w).square().sum()))(xs)

    xs = tensor((3, 3, 7, 7), device=device)
    compiled = torch.compile(per_sample, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(xs), per_sample(xs))


@pytest.mark.parametrize("strict", [False, True])
def test_export(device: str, strict: bool) -> None:
    net = small_net(device)
    x = tensor((2, 3, 12, 14), device=device)
    batch, height = torch.export.Dim("batch", min=1), torch.export.Dim("height", min=4, max=512)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: batch, 2: height},), strict=strict)
    targets = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert "fastconv.conv2d.default" in targets and not any("aten.conv" in t for t in targets)
    other = tensor((5, 3, 30, 14), device=device)
    assert torch.equal(program.module()(other), net(other))


def test_make_fx_traces_the_backward(device: str) -> None:
    x, w = tensor((2, 3, 8, 8), device=device), tensor((4, 3, 3, 3), device=device, seed=1)

    def gradients(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad(fastconv.conv2d(x, w).square().sum(), (x, w))

    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(gradients, tracing_mode=mode)(x, w)
        targets = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
        for op in ("conv2d", "conv2d_input", "conv2d_weight"):
            assert targets.count(f"fastconv.{op}.default") == 1
        torch.testing.assert_close(graph(x, w), gradients(x, w))


@pytest.mark.parametrize("name", ["plain_3x3", "grouped", "depthwise", "rgb_stem", "dilated_strided", "unbatched"])
def test_flops_are_counted_in_all_three_passes(name: str) -> None:
    problem = CASES[name]
    counts = []
    for convolve in (fastconv.conv2d, F.conv2d):
        o = operands(problem)
        x, w = o.input.requires_grad_(), o.weight.requires_grad_()
        with FlopCounterMode(display=False) as counter:
            convolve(x, w, o.bias, *problem.geometry).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == 3 * 2 * problem.products
    # torch forgets the groups in its backward formula and counts as if each filter saw all channels.
    assert counts[1] == counts[0] or problem.groups > 1


def test_the_op_is_in_the_graph_and_torchs_is_not(device: str) -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph

    torch.compile(small_net(device), fullgraph=True, backend=backend)(tensor((2, 3, 8, 8), device=device))
    assert sum("fastconv" in target for target in seen) == 3
    assert not any("conv2d" in target and "fastconv" not in target for target in seen)


def test_a_fake_bias_among_real_tensors(device: str) -> None:
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    bias = mode.from_tensor(torch.randn(3, device=device))
    assert isinstance(fastconv.conv2d(x, w, bias), FakeTensor)
