"""Tracing: what torch.compile, torch.export, make_fx, opcheck and the FLOP counter see of fastconv."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import fastconv
import reference
import sweeps
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
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)
        assert a.stride() == e.stride()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_trains_without_a_graph_break(device: str, backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    net = small_net(device)
    compiled = torch.compile(net, fullgraph=True, dynamic=dynamic, backend=backend)
    for view, size in (
        ("contiguous", (2, 3, 12, 14)),
        ("contiguous", (3, 3, 16, 10)),
        ("channels_last", (2, 3, 9, 11)),
    ):
        x = tensor(size, device=device, view=view)
        assert_close(step(compiled, net, x), step(net, net, x))


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
