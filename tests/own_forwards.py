"""Layers that call torch's conv2d in a forward of their own, as those of popular model collections do."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import conv2d as torchs_conv2d
from torch.utils._python_dispatch import TorchDispatchMode

import fastconv


class Standardised(nn.Conv2d):
    """Weights of zero mean and unit variance (BiT's ResNets, NFNets with a gain)."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def same_conv2d(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """TensorFlow's padding: by the size of the input, more on the right."""
    pads: list[int] = []
    for axis in (1, 0):
        step, size = layer.stride[axis], x.shape[2 + axis]
        span = layer.dilation[axis] * (layer.kernel_size[axis] - 1) + 1
        total = max((-(-size // step) - 1) * step + span - size, 0)
        pads += [total // 2, total - total // 2]
    return torch.conv2d(F.pad(x, pads), layer.weight, layer.bias, layer.stride, 0, layer.dilation, layer.groups)


class Same(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return same_conv2d(x, self)


class Conditional(nn.Module):
    """Filters mixed for each sample, which become groups (CondConv)."""

    def __init__(self, in_channels: int, out_channels: int, experts: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, out_channels * in_channels * 9) / 10)
        self.routing = nn.Linear(in_channels, experts)
        self.out_channels = out_channels

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        filters = (self.routing(x.mean((2, 3))).sigmoid() @ self.weight).view(n * self.out_channels, c, 3, 3)
        y = torchs_conv2d(x.reshape(1, n * c, h, w), filters, None, 1, "same", 1, n)
        return y.view(n, self.out_channels, h, w)


def _decorated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Tensor:
        return function(*args)

    return wrapper


class Blur(nn.Module):
    """A fixed filter that is a buffer."""

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.ones(3, 3) / 9)

    def forward(self, x: Tensor) -> Tensor:
        return self._depthwise(x)

    @_decorated
    def _depthwise(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        return (lambda k: F.conv2d(x, k, padding=1, groups=channels))(self.kernel.expand(channels, 1, 3, 3))


class Low(nn.Module):
    """By the function under torch's conv2d."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3) / 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.convolution(x, self.weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


class NamesNone(nn.Module):
    """Has `conv2d` in its code, but not torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv2d = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv2d(x))


class ByDefault(nn.Module):
    def forward(self, x: Tensor, op: Callable[..., Tensor] = F.conv2d) -> Tensor:
        return op(x, x)


class ByKeyword(nn.Module):
    def forward(self, x: Tensor, *, op: Callable[..., Tensor] = F.conv2d) -> Tensor:
        return op(x, x)


class ImportsModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        import torch.nn.functional

        return torch.nn.functional.conv2d(x, x)


class ImportsAs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        import torch.nn.functional as functional

        return functional.conv2d(x, x)


class ImportsFrom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.conv2d(x, x)


class ImportsFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        from torch.nn.functional import conv2d

        return conv2d(x, x)


class InAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.op = F.conv2d

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x, x)


class OnClass(nn.Module):
    op = functools.partial(F.conv2d, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x, x)


class OwnConvForward(fastconv.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(input, weight, bias)


class ImportsForOthers(nn.Module):
    """Imports what has a conv2d, and calls another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv2d = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        import torch.nn.functional as functional

        return functional.relu(self.conv2d(x))


def own_forwards() -> nn.Sequential:
    torch.manual_seed(11)
    return nn.Sequential(Standardised(3, 4, 3), Same(4, 4, 3, stride=2), Conditional(4, 4), Blur(), Low())


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) in ("fastconv.conv2d.default", "aten.convolution.default"):
            self.seen[func.namespace] += 1
        return func(*args, **(kwargs or {}))


def convolutions(function: Callable[..., Any], *args: Any) -> dict[str, int]:
    """How many forward convolutions a call makes, by who computes them."""
    with _Recorder() as recorder:
        function(*args)
    return dict(recorder.seen)


def graph_targets(function: Callable[..., Any], *args: Any, **options: Any) -> list[list[str]]:
    """What torch.compile finds in a call, graph by graph."""
    torch._dynamo.reset()
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    torch.compile(function, backend=backend, **options)(*args)
    return graphs
