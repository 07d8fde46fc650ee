"""torch.onnx.export of converted models: ONNX Runtime computes what fastconv does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastconv
from own_forwards import own_forwards
from shapes import tensor

LAYERS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "pairs": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)},
    "no_bias": {"kernel_size": 2, "bias": False},
    "depthwise": {"kernel_size": 3, "groups": 4, "padding": 1},
    "same": {"kernel_size": (4, 3), "padding": "same"},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
}


def export(model: nn.Module, x: Tensor, path: Path, **options: Any) -> Callable[[Tensor], Tensor]:
    """What computes the exported model."""
    table = fastconv.onnx.translation_table()
    torch.onnx.export(model, (x,), path, dynamo=True, custom_translation_table=table, verbose=False, **options)
    return runner(path)


def runner(path: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime  # here, as the GPU machine lacks it

    session = onnxruntime.InferenceSession(path)
    return lambda x: torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    layer, x = fastconv.Conv2d(4, 8, **LAYERS[name]), tensor((2, 4, 9, 8))
    run = export(layer, x, tmp_path / "layer.onnx")
    torch.testing.assert_close(run(x), layer(x).detach(), rtol=1e-5, atol=1e-5)


def test_without_a_batch(tmp_path: Path) -> None:
    layer, x = fastconv.Conv2d(4, 8, 3), tensor((4, 9, 8))
    torch.testing.assert_close(export(layer, x, tmp_path / "layer.onnx")(x), layer(x).detach(), rtol=1e-5, atol=1e-5)


def test_half_precision(tmp_path: Path) -> None:
    layer, x = fastconv.Conv2d(4, 8, 3, dtype=torch.float16), tensor((2, 4, 9, 8), torch.float16)
    torch.testing.assert_close(export(layer, x, tmp_path / "layer.onnx")(x), layer(x).detach(), rtol=2e-3, atol=2e-3)


def test_bfloat16(tmp_path: Path) -> None:
    """Behind a cast, because NumPy has no such numbers."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = fastconv.Conv2d(4, 8, 3, dtype=torch.bfloat16)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.bfloat16()).float()

    net, x = Net(), tensor((2, 4, 9, 8))
    torch.testing.assert_close(export(net, x, tmp_path / "net.onnx")(x), net(x).detach(), rtol=8e-3, atol=8e-3)


@pytest.mark.parametrize("training", [False, True])
def test_a_model_of_any_size(training: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 4, 3, padding="same", groups=2))
    fastconv.convert(net).train(training)
    sizes = {0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=5, max=99)}
    run = export(net, tensor((2, 3, 12, 11)), tmp_path / "net.onnx", dynamic_shapes=(sizes,))
    x = tensor((5, 3, 21, 11))
    torch.testing.assert_close(run(x), net(x).detach(), rtol=1e-5, atol=1e-5)


def test_served_modules(tmp_path: Path) -> None:
    net, x = fastconv.convert(own_forwards(), functional=True).eval(), tensor((2, 3, 9, 8))
    torch.testing.assert_close(export(net, x, tmp_path / "net.onnx")(x), net(x).detach(), rtol=1e-4, atol=1e-5)


def test_the_older_exporter_needs_revert(tmp_path: Path) -> None:
    net, x = fastconv.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())), tensor((2, 3, 9, 8))
    expected, path = net(x).detach(), tmp_path / "net.onnx"
    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError, match=re.escape("fastconv::conv2d")):
        torch.onnx.export(net, (x,), path, dynamo=False)
    torch.onnx.export(fastconv.revert(net), (x,), path, dynamo=False)
    torch.testing.assert_close(runner(path)(x), expected, rtol=1e-5, atol=1e-5)
