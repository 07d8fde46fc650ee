"""fastconv.Conv2d is an nn.Conv2d in every way but who computes."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastconv
from shapes import tensor

ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "pairs": {"kernel_size": (3, 5), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)},
    "no_bias": {"kernel_size": 2, "bias": False},
    "grouped": {"kernel_size": 3, "groups": 2},
    "same": {"kernel_size": (4, 3), "padding": "same"},
    "valid": {"kernel_size": 3, "padding": "valid"},
    "zeros": {"kernel_size": 3, "padding": 1, "padding_mode": "zeros"},
    "reflect": {"kernel_size": 3, "padding": (1, 2), "padding_mode": "reflect"},
    "replicate": {"kernel_size": 5, "padding": 2, "padding_mode": "replicate", "stride": 2},
    "circular": {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    "circular_same": {"kernel_size": 4, "padding": "same", "padding_mode": "circular"},
    "float64": {"kernel_size": 3, "dtype": torch.float64},
}
arguments = pytest.mark.parametrize("name", ARGUMENTS)


def pair(name: str, device: str = "cpu") -> tuple[nn.Conv2d, nn.Conv2d]:
    """Ours and torch's, from the same seed."""
    layers = []
    for kind in (fastconv.Conv2d, nn.Conv2d):
        torch.manual_seed(3)
        layers.append(kind(4, 6, **{"device": device, **ARGUMENTS[name]}))
    return layers[0], layers[1]


def test_the_constructor_has_the_arguments_of_nn_conv2d() -> None:
    values: tuple[Any, ...] = (4, 6, (3, 2), 2, 1, (1, 2), 2, False, "circular", "cpu", torch.float64)
    names = list(inspect.signature(nn.Conv2d).parameters)
    by_position, by_name = nn.Conv2d(*values), dict(zip(names, values, strict=True))
    some = {name: by_name[name] for name in names[3:]}
    for layer in (fastconv.Conv2d(*values), fastconv.Conv2d(**by_name), fastconv.Conv2d(*values[:3], **some)):
        assert isinstance(layer, nn.Conv2d) and repr(layer) == f"fastconv.{by_position!r}"
        assert layer.weight.dtype == torch.float64
    with pytest.raises(TypeError):
        fastconv.Conv2d(*values, "ieee")  # type: ignore[call-arg]  # precision goes by name, so that torch may add arguments


@arguments
def test_initialisation_output_and_gradients_are_torchs(device: str, name: str) -> None:
    ours, theirs = pair(name, device)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
    ours, theirs = ours.double(), theirs.double()
    x = tensor((2, 4, 11, 12), torch.float64, device)
    ys = [layer(x) for layer in (ours, theirs)]
    torch.testing.assert_close(ys[0], ys[1], rtol=1e-12, atol=1e-12)
    dy = tensor(ys[0].shape, torch.float64, device, 1)
    for y in ys:
        y.backward(dy)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)


@arguments
def test_state_dict_goes_both_ways(name: str) -> None:
    ours, theirs = pair(name)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for source, target in ((ours, theirs), (theirs, ours)):
        with torch.no_grad():
            source.weight.normal_()
        target.load_state_dict(source.state_dict())
        assert torch.equal(target.weight, source.weight)


@arguments
def test_copies_compute_the_same(device: str, name: str, tmp_path: Path) -> None:
    layer, _ = pair(name, device)
    layer.requires_grad_(False).eval()
    torch.save(layer, tmp_path / "layer.pt")
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    loaded = pair(name, device)[0]
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    copies = [
        copy.deepcopy(layer),
        copy.copy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(tmp_path / "layer.pt", weights_only=False),
        loaded,
    ]
    x = tensor((2, 4, 11, 12), layer.weight.dtype, device)
    for other in copies:
        assert type(other) is fastconv.Conv2d and repr(other) == repr(layer)
        assert torch.equal(other(x), layer(x))


def test_precision_survives_copying() -> None:
    layer = fastconv.Conv2d(4, 6, 3, precision="bf16x3")
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.precision == "bf16x3"


def test_a_pickle_of_torchs_layer_turned_into_ours_still_has_a_precision() -> None:
    """__setstate__ of a state saved before `precision` existed."""
    layer, old = fastconv.Conv2d(4, 6, 3), nn.Conv2d(4, 6, 3)
    layer.__setstate__(old.__dict__)
    assert layer.precision is None
    layer(tensor((1, 4, 5, 5)))


@arguments
def test_repr_is_torchs_and_says_whose_it_is(name: str) -> None:
    ours, theirs = pair(name)
    assert repr(ours) == f"fastconv.{theirs!r}"


def test_the_signature_is_that_of_nn_conv2d() -> None:
    """Editors and torch.nn.utils.skip_init read it."""
    ours, theirs = (inspect.signature(kind).parameters.values() for kind in (fastconv.Conv2d, nn.Conv2d))
    assert [(p.name, p.kind, p.default) for p in ours][:-2] == [(p.name, p.kind, p.default) for p in theirs]
    layer = torch.nn.utils.skip_init(fastconv.Conv2d, 4, 6, kernel_size=3, precision="ieee", dtype=torch.float64)
    assert layer.weight.shape == (6, 4, 3, 3) and layer.weight.device.type == "cpu"
    layer.reset_parameters()
    assert torch.isfinite(layer(tensor((1, 4, 5, 5), torch.float64))).all()


def test_moving_a_module(device: str) -> None:
    layer = fastconv.Conv2d(4, 6, 3).to(device=device, dtype=torch.bfloat16).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    y = layer(tensor((2, 4, 9, 8), torch.bfloat16, device))
    assert y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=torch.channels_last)


def test_on_the_meta_device_and_back(device: str) -> None:
    layer = fastconv.Conv2d(4, 6, 3, device="meta")
    assert layer(torch.empty(2, 4, 9, 8, device="meta")).shape == (2, 6, 7, 6)
    layer = layer.to_empty(device=device)
    layer.reset_parameters()
    assert torch.isfinite(layer(tensor((2, 4, 9, 8), device=device))).all()


def test_unbatched_and_empty_inputs(device: str) -> None:
    layer, theirs = pair("plain", device)
    for size in ((4, 9, 8), (0, 4, 9, 8)):
        assert layer(tensor(size, device=device)).shape == theirs(tensor(size, device=device)).shape


@pytest.mark.usefixtures("no_tf32")
def test_functional_call_with_other_weights(device: str) -> None:
    layer, theirs = pair("grouped", device)
    other = {name: torch.randn_like(p) for name, p in layer.named_parameters()}
    x = tensor((2, 4, 9, 8), device=device)
    ours, expected = (torch.func.functional_call(m, other, x) for m in (layer, theirs))
    torch.testing.assert_close(ours, expected)


def test_bad_constructor_arguments_are_torchs_errors() -> None:
    for bad in (
        {"groups": 3},
        {"padding": "full"},
        {"padding_mode": "mirror"},
        {"padding": "same", "stride": 2},
        {"groups": 0},
    ):
        for kind in (nn.Conv2d, fastconv.Conv2d):
            with pytest.raises(ValueError, match=next(iter(bad))):
                kind(4, 6, 3, **bad)


@pytest.mark.usefixtures("no_tf32")
def test_a_subclass_can_override_the_filter(device: str) -> None:
    """The usual way of weight standardisation: through _conv_forward."""

    class Standardised(fastconv.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # no residual
            return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)

    layer = Standardised(4, 6, 3, padding=1, device=device)
    x = tensor((2, 4, 9, 8), device=device)
    expected = nn.functional.conv2d(x, layer.weight - layer.weight.mean(), layer.bias, padding=1)
    torch.testing.assert_close(layer(x), expected)
