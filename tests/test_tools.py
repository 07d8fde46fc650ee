"""Tools that look for nn.Conv2d: torch.fx keeps the layer whole, the others know it after revert."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.ao.nn import intrinsic, quantized
from torch.ao.quantization import quantize_fx
from torch.fx.experimental import optimization

import fastconv
from own_forwards import Standardised
from shapes import tensor


def model() -> Any:
    torch.manual_seed(3)
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
    return fastconv.convert(nn.Sequential(*layers).eval())


def image() -> Tensor:
    return tensor((2, 3, 9, 8))


def kinds(net: nn.Module) -> list[type]:
    return [type(module) for module in net.modules()]


def test_fx_keeps_the_layer_whole() -> None:
    net, x = model(), image()
    graph: Any = torch.fx.symbolic_trace(net)
    assert [node.op for node in graph.graph.nodes] == ["placeholder", *["call_module"] * 4, "output"]
    assert graph.get_submodule("0") is net[0] and torch.equal(graph(x), net(x))
    assert type(fastconv.revert(graph).get_submodule("3")) is nn.Conv2d
    torch.testing.assert_close(graph(x), net(x))


def test_fx_keeps_parametrized_lazy_and_derived_layers_whole() -> None:
    class Derived(nn.Conv2d):
        pass

    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), Derived(4, 4, 1), nn.LazyConv2d(2, 1)
    )
    fastconv.convert(net)(image())
    assert [n.target for n in torch.fx.symbolic_trace(net).graph.nodes if n.op == "call_module"] == ["0", "1", "2"]


def test_fx_traces_through_a_layer_that_is_the_root_or_has_hooks() -> None:
    layer, x = fastconv.Conv2d(3, 4, 3), image()
    assert torch.equal(torch.fx.symbolic_trace(layer)(x), layer(x))
    net: Any = model()
    net[0].register_forward_pre_hook(lambda module, args: (2 * args[0],))
    net[3].register_forward_hook(lambda module, args, y: y + 1)
    graph = torch.fx.symbolic_trace(net)
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["1", "2"]
    assert torch.equal(graph(x), net(x))

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, fastconv.Conv2d) or super().is_leaf_module(m, module_qualified_name)

    graph = torch.fx.GraphModule(net, Tracer().trace(net))
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["0", "1", "2", "3"]
    assert torch.equal(graph(x), net(x))


def test_fx_traces_through_a_served_module() -> None:
    net, x = fastconv.convert(nn.Sequential(Standardised(3, 4, 3)), functional=True), image()
    for traced in (net, net[0]):
        graph = torch.fx.symbolic_trace(traced)
        assert fastconv.conv2d in [node.target for node in graph.graph.nodes]
        assert torch.equal(graph(x), net(x))


def fused(net: nn.Module) -> Any:
    return optimization.fuse(net)


def fused_eagerly(net: nn.Module) -> Any:
    return quantization.fuse_modules(net, [["0", "1", "2"]])


def test_fusion_after_revert() -> None:
    x = image()
    expected = model()(x)
    assert nn.BatchNorm2d in kinds(fused(model())), "optimization.fuse knows the layer now: revert is not needed"
    with pytest.raises(AssertionError, match="fuser method"):
        fused_eagerly(model())
    for fuse, kind in ((fused, nn.Conv2d), (fused_eagerly, intrinsic.ConvReLU2d)):
        net = fuse(fastconv.revert(model()))
        assert nn.BatchNorm2d not in kinds(net) and kind in kinds(net)
        torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-4)
        fastconv.convert(net)
        assert nn.Conv2d not in kinds(net) and fastconv.Conv2d in kinds(net)
        torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-4)


def quantized_by_fx(net: nn.Module) -> Any:
    prepared = quantize_fx.prepare_fx(net, quantization.get_default_qconfig_mapping("x86"), (image(),))
    prepared(image())
    return quantize_fx.convert_fx(prepared)


def quantized_eagerly(net: nn.Module) -> Any:
    wrapped: Any = quantization.QuantWrapper(net)
    wrapped.qconfig = quantization.get_default_qconfig("x86")
    prepared = quantization.prepare(wrapped)
    prepared(image())
    return quantization.convert(prepared)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("quantize", [quantized_by_fx, quantized_eagerly])
def test_quantisation_after_revert(quantize: Callable[[nn.Module], Any]) -> None:
    assert quantized.Conv2d not in kinds(quantize(model())), "quantisation knows the layer now: revert is not needed"
    net = quantize(fastconv.revert(model()))
    assert quantized.Conv2d in kinds(net) and nn.Conv2d not in kinds(net)
    if quantize is quantized_by_fx:
        expected = model()(image())
        error = (net(image()) - expected).norm() / expected.norm()
        assert error < 0.05, "8 bits"


def test_torchscript_after_revert() -> None:
    net, x = model(), image()
    with pytest.raises(RuntimeError, match=r"fastconv.revert\(model\) first"):
        torch.jit.script(net)
    script = torch.jit.script(fastconv.revert(copy.deepcopy(net)))
    torch.testing.assert_close(script(x), net(x))
