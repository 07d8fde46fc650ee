"""fastconv.fuse on models of torchvision and timm, where both are installed."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastconv

torchvision: Any = pytest.importorskip("torchvision")
timm: Any = pytest.importorskip("timm")
fusing: Any = importlib.import_module("fastconv.fuse")  # the name is a function, too

MODELS = {
    "torchvision": """resnet18 resnet50 resnext50_32x4d mobilenet_v2 mobilenet_v3_small efficientnet_b0
        efficientnet_v2_s densenet121 regnet_y_400mf shufflenet_v2_x1_0 googlenet mnasnet1_0 vgg11_bn convnext_tiny""",
    "timm": """resnet50 seresnet50 resnetv2_50 efficientnet_b0 mobilenetv3_large_100 densenet121 regnety_004
        ghostnet_100 repvgg_a0 res2net50_26w_4s skresnet18 hrnet_w18_small dla34 cspresnet50""",
}
# Batch norms that stay as they are: behind conditions on values, in forwards that are called with what they have
# defaults for, before an activation that has no kernel. Some versions of timm have fewer of these.
LEFT = {"hrnet_w18_small": 2, "dla34": 18, "cspresnet50": 38}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[nn.Module]]:
    """The batch norms of fused calls; on the CPU too."""
    made: list[nn.Module] = []
    original, takes = fusing.norm_module, fusing._takes

    def counted(norm: nn.BatchNorm2d, *args: Any) -> Tensor:
        made.append(norm)
        result: Tensor = original(norm, *args)
        return result

    monkeypatch.setattr(fusing, "norm_module", counted)
    monkeypatch.setattr(fusing, "_takes", lambda x, residual: takes(x, residual, everywhere=True))
    yield made


def build(library: str, name: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module
    if library == "timm":
        model = timm.create_model(name, pretrained=False, num_classes=10)
    else:
        model = torchvision.models.get_model(name, num_classes=10)
    return model


def train(model: nn.Module, device: str) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Output, gradients, and what the state_dict is afterwards."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, 64, 64, generator=generator, dtype=torch.float64)
    torch.manual_seed(3)  # of dropout and stochastic depth
    y = model(x.to(device))
    y = y if isinstance(y, Tensor) else y[0]
    y.square().mean().backward()
    return y.detach(), [p.grad for p in model.parameters() if p.grad is not None], model.state_dict()


def close(actual: Tensor, expected: Tensor, scale: float, what: str) -> None:
    assert (actual - expected).double().norm() <= 1e-6 * (expected.double().norm() + scale), what


@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library, names in MODELS.items() for name in names.split()]
)
def test_a_fused_model_trains_alike(device: str, library: str, name: str, calls: list[nn.Module]) -> None:
    plain = build(library, name).double().to(device).train()
    fused = fastconv.fuse(copy.deepcopy(plain))
    assert repr(fused) == repr(plain) and list(fused.state_dict()) == list(plain.state_dict())
    fused = fastconv.fuse(fastconv.convert(fastconv.unfuse(fused)))
    expected, actual = train(plain, device), train(fused, device)
    close(actual[0], expected[0], 0, "output")
    largest = max(float(grad.norm()) for grad in expected[1])
    for i, (a, e) in enumerate(zip(actual[1], expected[1], strict=True)):
        close(a, e, largest, f"gradient {i}")
    for key, value in expected[2].items():
        close(actual[2][key], value, 1, key)
    norms = [module for module in fused.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) - len(set(map(id, calls))) <= LEFT.get(name, 0)
    fastconv.revert(fastconv.unfuse(fused)).load_state_dict(plain.state_dict())
    assert [type(module) for module in fused.modules()] == [type(module) for module in plain.modules()]
