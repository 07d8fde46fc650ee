"""Calls of torch's conv2d that fastconv computes: within replace_conv2d, and in modules served by convert."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import pickle
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import fastconv
from own_forwards import (
    Blur,
    ByDefault,
    ByKeyword,
    Conditional,
    ImportsAs,
    ImportsForOthers,
    ImportsFrom,
    ImportsFunction,
    ImportsModule,
    InAttribute,
    Low,
    NamesNone,
    OnClass,
    OwnConvForward,
    Same,
    Standardised,
    convolutions,
    graph_targets,
    own_forwards,
)
from shapes import tensor

OURS = {"fastconv": 5}
TORCHS = {"aten": 5}


def image(device: str = "cpu") -> Tensor:
    return tensor((2, 3, 9, 8), device=device)


def step(function: Callable[[Tensor], Tensor], net: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and every gradient."""
    net.zero_grad()
    x = x.detach().requires_grad_()
    y = function(x)
    y.square().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in net.parameters() if p.grad is not None)]


def assert_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


def served(device: str = "cpu", **options: Any) -> nn.Sequential:
    return fastconv.convert(own_forwards().to(device), functional=True, **options)


# ---- the context manager ----


@pytest.mark.usefixtures("no_tf32")
def test_within_the_block_fastconv_computes(device: str) -> None:
    net, x = own_forwards().to(device), image(device)
    expected = step(net, net, x)
    assert convolutions(net, x) == TORCHS
    with fastconv.replace_conv2d():
        assert convolutions(net, x) == OURS
        assert_close(step(net, net, x), expected)
    assert convolutions(net, x) == TORCHS


def test_plain_layers_are_served_too_and_the_block_ends_with_an_exception() -> None:
    layer, x = nn.Conv2d(3, 4, 3, padding_mode="circular", padding=1), image()
    with pytest.raises(RuntimeError, match="channels"), fastconv.replace_conv2d():
        assert convolutions(layer, x) == {"fastconv": 1}
        layer(x[:, :2])
    assert convolutions(layer, x) == {"aten": 1}


@pytest.mark.parametrize("padding", [1, (2, 1), "same", "valid"])
def test_every_argument_arrives(padding: Any) -> None:
    x, w, b = tensor((2, 4, 9, 8)), tensor((6, 2, 4, 3), seed=1), tensor((6,), seed=2)
    for call in (
        lambda: F.conv2d(x, w, b, 1, padding, (1, 2), 2),
        lambda: F.conv2d(input=x, weight=w, bias=b, padding=padding, groups=2),
        lambda: torch.conv2d(x[0], w, padding=padding, groups=2),
        lambda: torch.convolution(x, w, b, [2], [1], [1], False, [0], 2),
    ):
        expected = call()
        with fastconv.replace_conv2d():
            assert convolutions(call) == {"fastconv": 1}
            torch.testing.assert_close(call(), expected)


def test_precision_is_that_of_the_innermost_block() -> None:
    x, w = image(), tensor((4, 3, 3, 3), seed=1)
    with pytest.raises(ValueError, match="precision"):
        fastconv.replace_conv2d(precision="half")  # type: ignore[arg-type]
    with fastconv.replace_conv2d(precision="tf32"):
        assert precisions(lambda: F.conv2d(x, w)) == ["tf32"]
        with fastconv.replace_conv2d(precision="bf16x3"):
            assert precisions(lambda: F.conv2d(x, w)) == ["bf16x3"]
        with fastconv.replace_conv2d(), fastconv.precision("ieee"):
            assert precisions(lambda: F.conv2d(x, w)) == ["ieee"]
        assert precisions(lambda: fastconv.conv2d(x, w, precision="ieee")) == ["ieee"]


def precisions(function: Callable[[], Any]) -> list[str]:
    """Those of the convolutions that a call makes."""
    graph = torch.fx.experimental.proxy_tensor.make_fx(function)()
    return [node.kwargs["precision"] for node in graph.graph.nodes if "fastconv.conv2d" in str(node.target)]


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.conv2d(torch.ones(1, 2, 4, 4, dtype=torch.int64), torch.ones(3, 2, 3, 3, dtype=torch.int64)),
        lambda: F.conv2d(torch.randn(1, 2, 4, 4).to_mkldnn(), torch.ones(3, 2, 3, 3)).to_dense(),
        lambda: torch.convolution(torch.ones(1, 2, 4), torch.ones(2, 3, 3), None, [1], [0], [1], True, [0], 1),
        lambda: F.conv_transpose1d(torch.ones(1, 2, 4), torch.ones(2, 3, 3)),
        lambda: F.conv3d(torch.ones(1, 2, 4, 4, 4), torch.ones(3, 2, 3, 3, 3)),
    ],
    ids=["integers", "mkldnn", "one_dimension_transposed", "conv_transpose1d", "conv3d"],
)
def test_what_fastconv_does_not_compute_is_left_to_torch(call: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    expected = call()
    with fastconv.replace_conv2d():
        torch.manual_seed(0)
        assert torch.equal(call(), expected)
        assert "fastconv" not in convolutions(call)


def test_the_block_is_that_of_one_thread() -> None:
    layer, x, seen = nn.Conv2d(3, 4, 3), image(), []
    with fastconv.replace_conv2d():
        thread = threading.Thread(target=lambda: seen.append(convolutions(layer, x)))
        thread.start()
        thread.join()
    assert seen == [{"aten": 1}]


def test_a_block_around_and_in_a_compiled_function(device: str) -> None:
    net, x = own_forwards().to(device), image(device)

    def inside(x: Tensor) -> Tensor:
        with fastconv.replace_conv2d(precision="ieee"):
            y: Tensor = net(x)
        return y + 1

    for targets in (graph_targets(inside, x, fullgraph=True), outside(net, x)):
        (graph,) = targets
        assert graph.count("fastconv.conv2d.default") == 5
        assert not any("conv" in target and "fastconv" not in target for target in graph)

    def broken(x: Tensor) -> Tensor:
        with fastconv.replace_conv2d():
            y = net[0](x)
            torch._dynamo.graph_break()
            return net[1](y)

    assert [graph.count("fastconv.conv2d.default") for graph in graph_targets(broken, x)] == [1, 1]


def outside(net: nn.Module, x: Tensor) -> list[list[str]]:
    with fastconv.replace_conv2d():
        return graph_targets(net, x, fullgraph=True)


def test_a_compiled_function_knows_whether_it_runs_in_a_block() -> None:
    torch._dynamo.reset()
    layer, x, ran = nn.Conv2d(3, 4, 3), image(), []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        ours = any("fastconv" in str(node.target) for node in graph.graph.nodes)

        def run(*args: Any) -> Any:
            ran.append(ours)
            return graph(*args)

        return run

    compiled = torch.compile(layer, backend=backend)
    for _ in range(2):
        compiled(x)
        with fastconv.replace_conv2d():
            compiled(x)
    assert ran == [False, True, False, True]


def test_checkpoint_computes_again_as_its_context_says() -> None:
    net, x = own_forwards(), image()

    def contexts() -> tuple[Any, Any]:
        return contextlib.nullcontext(), fastconv.replace_conv2d()

    with fastconv.replace_conv2d():
        expected = step(net, net, x)
        actual = step(lambda x: checkpoint(net, x, use_reentrant=False, context_fn=contexts), net, x)
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a, e)


# ---- modules ----


@pytest.mark.usefixtures("no_tf32")
def test_served_modules_compute_with_fastconv(device: str) -> None:
    net, x = own_forwards().to(device), image(device)
    parameters, keys, plain = dict(net.named_parameters()), list(net.state_dict()), copy.deepcopy(net)
    assert fastconv.convert(net) is net and convolutions(net, x) == TORCHS
    assert fastconv.convert(net, functional=True) is net and convolutions(net, x) == OURS
    assert fastconv.unconverted(net) == []
    assert_close(step(net, net, x), step(plain, plain, x))
    assert list(net.state_dict()) == keys
    assert all(p is parameters[name] for name, p in net.named_parameters())
    for ours, theirs in zip(net, plain, strict=True):
        assert isinstance(ours, type(theirs)) and type(ours).__name__ == type(theirs).__name__
        assert repr(ours) == f"fastconv.{theirs!r}"
        assert inspect.signature(ours.forward) == inspect.signature(theirs.forward)
    assert convolutions(fastconv.revert(net), x) == TORCHS
    assert [type(m) for m in net.modules()] == [type(m) for m in plain.modules()]
    assert [sorted(vars(m)) for m in net.modules()] == [sorted(vars(m)) for m in plain.modules()]


def test_only_the_modules_that_call_it_are_served() -> None:
    net: Any = served()
    net.append(NamesNone())
    kind = type(net[-1])
    fastconv.convert(net, functional=True)
    assert type(net) is nn.Sequential and type(net[2].routing) is nn.Linear and type(net[-1]) is kind
    assert type(net[-1].conv2d) is fastconv.Conv2d
    for module, original in zip(net, (Standardised, Same, Conditional, Blur, Low), strict=False):
        assert type(module) is not original and isinstance(module, original)


@pytest.mark.parametrize(
    "make",
    [
        ByDefault,
        ByKeyword,
        ImportsModule,
        ImportsAs,
        ImportsFrom,
        ImportsFunction,
        InAttribute,
        OnClass,
        lambda: OwnConvForward(3, 4, 3),
    ],
)
def test_other_ways_to_call_it_are_seen(make: Callable[[], nn.Module]) -> None:
    net, x = make(), image()
    assert "calls" in fastconv.unconverted(fastconv.convert(net))[0].reason and convolutions(net, x) == {"aten": 1}
    assert fastconv.unconverted(fastconv.convert(net, functional=True)) == []
    assert convolutions(net, x) == {"fastconv": 1}


def test_an_import_alone_is_no_call() -> None:
    net = ImportsForOthers()
    assert fastconv.unconverted(fastconv.convert(net, functional=True)) == [] and type(net) is ImportsForOthers


def wrapped_around(self: nn.Conv2d, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(F.pad(input, (1,) * 4, mode="circular"), weight, bias)


def test_a_conv_forward_set_on_the_instance_is_served() -> None:
    layer, x = nn.Conv2d(3, 4, 3), image()
    layer._conv_forward = types.MethodType(wrapped_around, layer)  # type: ignore[method-assign]
    expected = layer(x)
    assert type(fastconv.convert(layer)) is nn.Conv2d
    assert "functional=True" in fastconv.unconverted(layer)[0].reason
    fastconv.convert(layer, functional=True)
    assert fastconv.unconverted(layer) == [] and convolutions(layer, x) == {"fastconv": 1}
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
    assert type(fastconv.revert(layer)) is nn.Conv2d


@pytest.mark.parametrize("decorate", [lambda layer: lambda f: f, lambda layer: functools.wraps(layer.forward)])
@pytest.mark.parametrize("make", [nn.Conv2d, fastconv.Conv2d, Standardised])
def test_a_forward_set_on_the_instance_is_left_and_listed(make: Any, decorate: Any) -> None:
    layer, x = make(3, 4, 3), image()
    layer.forward = decorate(layer)(lambda x: F.conv2d(x, layer.weight))
    assert_only_the_block_serves(layer, x, "set on the instance")


def test_a_method_set_on_a_converted_layer_is_listed() -> None:
    layer = fastconv.convert(nn.Conv2d(3, 4, 3))
    layer._conv_forward = types.MethodType(wrapped_around, layer)  # type: ignore[method-assign]
    assert_only_the_block_serves(layer, image(), "set on the instance")


def test_generated_code_is_left_and_listed() -> None:
    graph = torch.fx.symbolic_trace(Standardised(3, 4, 3))
    assert_only_the_block_serves(graph, image(), "torch.fx")
    assert fastconv.unconverted(torch.fx.symbolic_trace(nn.Sequential(fastconv.Conv2d(3, 4, 3)))) == []


def assert_only_the_block_serves(module: nn.Module, x: Tensor, why: str) -> None:
    kind = type(module)
    fastconv.convert(module, functional=True)
    (left,) = fastconv.unconverted(module)
    assert type(module) is kind and why in left.reason and "replace_conv2d" in left.reason
    assert convolutions(module, x) == {"aten": 1}
    with fastconv.replace_conv2d():
        assert convolutions(module, x) == {"fastconv": 1}


def test_a_forward_set_on_the_instance_that_calls_the_layers_own_is_no_hindrance() -> None:
    """As accelerate's hooks are."""
    for layer in (nn.Conv2d(3, 4, 3), fastconv.convert(Standardised(3, 4, 3), functional=True)):
        old = layer.forward
        layer.forward = functools.wraps(old)(lambda x, old=old: old(x))  # type: ignore[assignment]
        assert fastconv.unconverted(fastconv.convert(layer)) == [] and convolutions(layer, image()) == {"fastconv": 1}


def test_an_attribute_of_fastconvs_name_is_the_reason() -> None:
    layer = nn.Conv2d(3, 4, 3)
    layer.precision = "int8"  # type: ignore[assignment]
    (left,) = fastconv.unconverted(fastconv.convert(layer))
    assert "`precision`" in left.reason and "functional=True" in left.reason
    fastconv.convert(layer, functional=True)
    assert convolutions(layer, image()) == {"fastconv": 1} and layer.precision == "int8"
    assert type(fastconv.revert(layer)) is nn.Conv2d and layer.precision == "int8"


def test_served_modules_are_copied_and_pickled() -> None:
    net, x = served(precision="ieee"), image()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert [type(m) for m in other] == [type(m) for m in net]
        assert convolutions(other, x) == OURS and torch.equal(other(x), net(x))
        assert [type(m) for m in fastconv.revert(other)] == [type(m) for m in own_forwards()]
    replica: Any = net[0]._replicate_for_data_parallel()
    replica.weight, replica.bias = net[0].weight, net[0].bias  # as replicate sets them
    assert convolutions(replica, x) == {"fastconv": 1}


def test_served_modules_have_a_precision() -> None:
    assert precisions(lambda: served(precision="bf16x3")(image())) == ["bf16x3"] * 5
    assert not any("precision" in vars(module) for module in served(precision="bf16x3"))


def test_a_forward_pass_that_raises_leaves_nothing_behind() -> None:
    net, layer, x = served(), nn.Conv2d(3, 4, 3), image()
    with pytest.raises(RuntimeError):
        net[0](x[:, :2])
    assert convolutions(layer, x) == {"aten": 1}


def test_other_convolutions_in_a_served_module_are_served_with_it() -> None:
    """One that calls a layer of its own goes to fastconv, too, whatever its class."""

    class Two(Blur):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(super().forward(x))

    net = Two()
    fastconv.convert(net, functional=True)
    assert convolutions(net, tensor((1, 4, 5, 5))) == {"fastconv": 2}


def test_parametrized_modules_are_served() -> None:
    torch.manual_seed(1)
    layer: Any = parametrizations.weight_norm(Standardised(3, 4, 3).double())
    x, before = image().double(), copy.deepcopy(layer)
    fastconv.convert(layer, functional=True)
    assert parametrize.is_parametrized(layer, "weight") and convolutions(layer, x) == {"fastconv": 1}
    assert_close(step(layer, layer, x), step(before, before, x))
    parametrize.remove_parametrizations(fastconv.revert(layer), "weight")
    assert type(layer) is Standardised


def test_lazy_layers_are_served_once_they_know_their_size() -> None:
    class Lazy(nn.LazyConv2d):
        cls_to_become = Standardised

    for kind in (Lazy, LazyWithOwnForward):
        layer: Any = kind(4, 3)
        assert type(fastconv.convert(layer)) is kind
        assert convolutions(fastconv.convert(layer, functional=True), image()) == {"fastconv": 1}
        assert fastconv.unconverted(layer) == [] and layer.in_channels == 3
        assert isinstance(layer, kind.cls_to_become) and not isinstance(layer, kind)
        assert convolutions(layer, image()) == {"fastconv": 1}
        assert type(fastconv.revert(layer)) is kind.cls_to_become


class LazyWithOwnForward(nn.LazyConv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias)


def test_subclasses_of_fastconvs_layer_are_served() -> None:
    class Mine(fastconv.Conv2d):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # no residual
            return F.conv2d(x, self.weight - self.weight.mean(), self.bias)

    layer = Mine(3, 4, 3, precision="ieee")
    assert len(fastconv.unconverted(layer)) == 1
    fastconv.convert(layer, functional=True, precision="bf16x3")
    assert fastconv.unconverted(layer) == [] and convolutions(layer, image()) == {"fastconv": 1}
    assert type(fastconv.revert(layer)) is Mine and layer.precision == "ieee"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_of_served_modules(reentrant: bool) -> None:
    """Computed once more in the backward pass, which is in no block."""
    net, x = served(), image()
    expected = step(net, net, x)
    actual = step(lambda x: checkpoint(net, x, use_reentrant=reentrant), net, x)
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a, e)


class ChecksItself(nn.Module):
    """Its convolutions are computed once more in the backward pass, which is not within its forward."""

    def __init__(self, reentrant: bool, trained: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, 3, 3) / 5, requires_grad=trained)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.body, x, use_reentrant=self.reentrant)
        z: Tensor = checkpoint(self.fixed, y, self.weight, use_reentrant=self.reentrant)
        return z

    def body(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight).tanh()

    @staticmethod
    def fixed(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight).tanh()


class ChecksItsBase(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return y.tanh()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_served_modules_that_checkpoint_their_methods(reentrant: bool, trained: bool) -> None:
    assert_computes_again(ChecksItself(reentrant, trained), {"fastconv": 4})


@pytest.mark.parametrize("trained", [False, True])
def test_served_modules_that_checkpoint_their_bases_forward(trained: bool) -> None:
    assert_computes_again(ChecksItsBase(3, 4, 3).requires_grad_(trained), {"fastconv": 2})


def assert_computes_again(net: nn.Module, expected: dict[str, int]) -> None:
    x, plain = image(), copy.deepcopy(net)
    fastconv.convert(net, functional=True)
    assert convolutions(lambda: step(net, net, x)) == expected
    assert_close(step(net, net, x), step(plain, plain, x))


def test_autocast_reaches_served_modules(device: str) -> None:
    net = served(device)
    with torch.autocast(device, torch.bfloat16):
        assert net(image(device)).dtype == torch.bfloat16


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_served_modules_are_one_graph(device: str, dynamic: bool) -> None:
    net, x = served(device), image(device)
    (graph,) = graph_targets(net, x, fullgraph=True, dynamic=dynamic)
    assert graph.count("fastconv.conv2d.default") == 5
    torch._dynamo.reset()
    assert_close(
        step(torch.compile(net, fullgraph=True, dynamic=dynamic, backend="aot_eager"), net, x), step(net, net, x)
    )


@pytest.mark.parametrize("strict", [False, True])
def test_exported_served_modules(strict: bool) -> None:
    net, x = served(), image()
    program = torch.export.export(net, (x,), strict=strict)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert targets.count("fastconv.conv2d.default") == 5 and not any("aten.conv" in target for target in targets)


def test_functional_transforms_of_served_modules() -> None:
    net, x = served().eval(), image()
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(net, weights, (x[None],))
        return y.square().sum()

    gradients = torch.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    for i, sample in enumerate(x):
        single = torch.func.grad(loss)(weights, sample)
        for name, value in single.items():
            torch.testing.assert_close(gradients[name][i], value, rtol=1e-4, atol=1e-4)
