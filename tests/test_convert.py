"""convert() and revert() change who computes, and nothing else."""

from __future__ import annotations

import copy
import logging
import pickle
import re
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import fastconv
from own_forwards import Blur, convolutions
from shapes import tensor


class Own(nn.Conv2d):
    """A subclass that fastconv does not know: its forward may be anything."""

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


class Initialised(nn.Conv2d):
    """A subclass that computes what its base does."""

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 0.5)

    def extra_repr(self) -> str:
        return f"mine, {super().extra_repr()}"


class OwnPrecision(nn.Conv2d):
    precision = "int8"


class Registered(nn.Conv2d):
    """Its subclasses give a key, and each name once."""

    names: list[str] = []

    def __init_subclass__(cls, *, key: str) -> None:
        assert cls.__name__ not in cls.names
        cls.names.append(cls.__name__)


class Keyed(Registered, key="k"):
    pass


class KeyedOwn(Registered, key="o"):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


class LazyInitialised(nn.LazyConv2d):
    cls_to_become = Initialised


def model(device: str = "cpu") -> Any:
    torch.manual_seed(5)
    shared = nn.Conv2d(8, 8, 3, padding=1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.Conv2d(8, 8, 3, padding="same", groups=4, padding_mode="reflect"),
        nn.ModuleDict({"inner": nn.Conv2d(8, 4, 1)})["inner"],
    ).to(device)


@pytest.mark.usefixtures("no_tf32")
def test_every_conv2d_is_swapped_in_place(device: str) -> None:
    net = model(device)
    parameters, keys, before = dict(net.named_parameters()), list(net.state_dict()), copy.deepcopy(net)
    assert fastconv.convert(net) is net
    assert {type(m) for m in net.modules() if isinstance(m, nn.Conv2d)} == {fastconv.Conv2d}
    assert list(net.state_dict()) == keys
    assert all(p is parameters[name] for name, p in net.named_parameters())
    assert net[2][0] is net[2][2], "a shared module is shared no longer"
    x = tensor((2, 3, 16, 16), device=device)
    torch.testing.assert_close(net(x), before(x), rtol=1e-4, atol=1e-4)


def test_a_model_that_is_a_conv2d() -> None:
    layer = nn.Conv2d(3, 4, 3)
    weight = layer.weight
    converted = fastconv.convert(layer)
    assert type(converted) is fastconv.Conv2d and converted.weight is weight
    reverted = fastconv.revert(converted)
    assert type(reverted) is nn.Conv2d and reverted.weight is weight


def test_an_optimizer_made_before_still_trains() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    fastconv.convert(net)
    before = net[0].weight.detach().clone()
    net(tensor((2, 3, 16, 16))).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, net[0].weight)


def test_revert_undoes_convert() -> None:
    net = model()
    x, before = tensor((2, 3, 16, 16)), copy.deepcopy(net)
    assert fastconv.revert(fastconv.convert(net)) is net
    assert [type(m) for m in net.modules()] == [type(m) for m in before.modules()]
    assert repr(net) == repr(before)
    assert [sorted(m.__dict__) for m in net.modules()] == [sorted(m.__dict__) for m in before.modules()]
    assert torch.equal(net(x), before(x))


def test_convert_twice_and_revert_of_nothing() -> None:
    net = fastconv.convert(fastconv.convert(model()))
    assert {type(m) for m in net.modules() if isinstance(m, nn.Conv2d)} == {fastconv.Conv2d}
    plain = nn.Sequential(nn.Linear(2, 2))
    assert fastconv.revert(fastconv.convert(plain)) is plain


def test_unknown_subclasses_and_other_convolutions_are_left_alone() -> None:
    net = nn.Sequential(
        Own(3, 4, 3), nn.Conv3d(4, 4, 3), nn.ConvTranspose1d(4, 4, 3), OwnPrecision(4, 4, 3), nn.Conv2d(4, 4, 1)
    )
    kinds = [type(m) for m in net]
    fastconv.convert(net)
    assert [type(m) for m in net] == [*kinds[:-1], fastconv.Conv2d]
    fastconv.revert(net)
    assert [type(m) for m in net] == kinds


@pytest.mark.usefixtures("no_tf32")
def test_subclasses_that_compute_as_their_base_are_converted(device: str) -> None:
    net: Any = nn.Sequential(Initialised(3, 4, 3), Initialised(4, 4, 3, padding_mode="reflect", padding=1)).to(device)
    x, before = tensor((2, 3, 9, 9), device=device), copy.deepcopy(net)
    fastconv.convert(net, precision="ieee")
    assert type(net[0]) is type(net[1]) and net[0].precision == "ieee"
    assert isinstance(net[0], Initialised) and isinstance(net[0], fastconv.Conv2d)
    assert (type(net[0]).__name__, type(net[0]).__module__) == (Initialised.__name__, Initialised.__module__)
    assert repr(net[0]) == "fastconv.Initialised(mine, 3, 4, kernel_size=(3, 3), stride=(1, 1), precision='ieee')"
    assert convolutions(net, x) == {"fastconv": 2}
    torch.testing.assert_close(net(x), before(x), rtol=1e-4, atol=1e-4)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert [type(m) for m in other] == [type(m) for m in net] and other[0].precision == "ieee"
        assert torch.equal(other(x), net(x))
        assert {type(m) for m in fastconv.revert(other)} == {Initialised}
    fastconv.revert(net)
    assert {type(m) for m in net} == {Initialised} and repr(net) == repr(before)
    assert "precision" not in vars(net[0])


@pytest.mark.parametrize("kind", [nn.LazyConv2d, LazyInitialised])
def test_lazy_layers_become_fastconvs(kind: Any) -> None:
    net: Any = fastconv.convert(nn.Sequential(kind(4, 3), nn.ReLU(), kind(5, 3)), precision="bf16x3")
    assert isinstance(net[0], nn.LazyConv2d) and "fastconv" in repr(net[0])
    copies = [net, copy.deepcopy(net), pickle.loads(pickle.dumps(net)), fastconv.revert(copy.deepcopy(net))]
    assert type(copies.pop()[0]) is kind
    for other in copies:
        assert convolutions(other, tensor((2, 3, 9, 9))) == {"fastconv": 2}
        assert other[0].in_channels == 3 and other[0].precision == "bf16x3"
        for layer in (other[0], other[2]):
            assert isinstance(layer, fastconv.Conv2d) and isinstance(layer, kind.cls_to_become)
        assert type(fastconv.revert(other)[0]) is kind.cls_to_become


def test_what_is_left_is_logged_once_and_listed(caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), Own(4, 4, 3), nn.ReLU(), nn.ConvTranspose3d(4, 3, 3), Blur()
    )
    assert [(item.name, item.type.__name__) for item in fastconv.unconverted(net)] == [
        ("0", "Conv2d"),
        ("1", "Conv2d"),
        ("2", "Own"),
        ("4", "ConvTranspose3d"),
        ("5", "Blur"),
    ]
    with caplog.at_level(logging.INFO, logger="fastconv"):
        fastconv.convert(net)
        left = fastconv.unconverted(net)
        assert [item.name for item in left] == ["2", "4", "5"]
        assert "functional=True" in left[0].reason and "transposed" in left[1].reason
        assert "calls" in left[2].reason and "functional=True" in left[2].reason
        (record,) = caplog.records
        assert "converted: 2 Conv2d; left: 1 Own (" in record.getMessage()
        assert all(f"1 {item.type.__name__} ({item.reason})" in record.getMessage() for item in left)
        fastconv.convert(net, functional=True)
        assert [item.name for item in fastconv.unconverted(net)] == ["4"]
        assert "converted: 1 Own, 1 Blur; left: 1 ConvTranspose3d (" in caplog.records[1].getMessage()
        fastconv.convert(nn.ReLU())
        assert "converted: nothing; left: nothing" in caplog.records[2].getMessage()


def test_torchscript_is_left_and_listed() -> None:
    traced = torch.jit.trace(nn.Conv2d(3, 3, 1), torch.randn(1, 3, 4, 4))
    net = nn.Sequential(nn.Conv2d(3, 3, 3), torch.jit.script(nn.ReLU()), traced)
    kinds = [type(m) for m in net]
    fastconv.convert(net, functional=True)
    assert [type(m) for m in net] == [fastconv.Conv2d, *kinds[1:]]
    left = fastconv.unconverted(net)
    assert [item.name for item in left] == ["1", "2"] and all("TorchScript" in item.reason for item in left)
    assert [type(m) for m in fastconv.revert(net)] == kinds


lazy = types.ModuleType("lazy")


class NamesLazy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return lazy.kernel(x)


class NamesLazyAndConv2d(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            return lazy.kernel(x)
        except ImportError:
            return F.conv2d(x, x)


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_modules_that_name_what_cannot_be_imported(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> object:
        raise error("not installed")

    monkeypatch.setattr(lazy, "__getattr__", refuse, raising=False)
    net = nn.Sequential(nn.Conv2d(3, 3, 3), NamesLazy(), NamesLazyAndConv2d())
    fastconv.convert(net, functional=True)
    assert type(net[1]) is NamesLazy and isinstance(net[0], fastconv.Conv2d)
    (left,) = fastconv.unconverted(net)
    assert left.name == "1" and "lazy.kernel: not installed" in left.reason


def test_a_loop_of_wrappers_is_followed_once() -> None:
    class Looped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, x)

        forward.__wrapped__ = forward  # type: ignore[attr-defined]

    net = nn.Sequential(Looped())
    assert [item.name for item in fastconv.unconverted(net)] == ["0"]
    assert fastconv.unconverted(fastconv.convert(net, functional=True)) == []


def test_a_registry_of_subclasses_is_not_told() -> None:
    net: Any = nn.Sequential(Keyed(3, 4, 3), KeyedOwn(4, 4, 3))
    names, before = list(Registered.names), copy.deepcopy(net)
    fastconv.convert(net, functional=True)
    assert convolutions(net, tensor((1, 3, 9, 9))) == {"fastconv": 2} and fastconv.unconverted(net) == []
    assert isinstance(pickle.loads(pickle.dumps(net))[0], Keyed)
    assert [type(m) for m in fastconv.revert(net)] == [type(m) for m in before]
    assert Registered.names == names


def test_a_failure_leaves_the_model_as_it_was() -> None:
    class Final(type):
        def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> None:
            if any(isinstance(base, Final) for base in bases):
                raise TypeError("final")

    class Last(nn.Conv2d, metaclass=Final):
        pass

    net = nn.Sequential(nn.Conv2d(3, 4, 3), Last(4, 4, 3))
    with pytest.raises(TypeError, match="final"):
        fastconv.convert(net)
    assert [type(m) for m in net] == [nn.Conv2d, Last] and "precision" not in vars(net[0])


def test_hooks_fire_as_before() -> None:
    layer, calls = nn.Conv2d(3, 4, 3), []
    layer.register_forward_pre_hook(lambda m, a: calls.append("pre"))
    layer.register_forward_hook(lambda m, a, y: calls.append("post"))
    layer.register_forward_hook(lambda m, a, kw, y: calls.append("post with kwargs"), with_kwargs=True)
    layer.register_full_backward_hook(lambda m, gi, go: calls.append("backward"))
    layer.register_state_dict_post_hook(lambda *a: calls.append("state_dict"))
    handle = layer.register_forward_hook(lambda m, a, y: calls.append("removed"))
    net = nn.Sequential(layer)
    expected: list[str] = []
    for convert in (lambda m: m, fastconv.convert, fastconv.revert):
        convert(net)
        calls.clear()
        net(tensor((1, 3, 5, 5)).requires_grad_()).sum().backward()
        net.state_dict()
        expected = expected or list(calls)
        assert calls == expected and "removed" in calls
    handle.remove()
    calls.clear()
    net(tensor((1, 3, 5, 5)))
    assert calls and "removed" not in calls


@pytest.mark.parametrize(
    "kind", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
)
def test_parametrizations_are_kept(kind: object) -> None:
    torch.manual_seed(1)
    net: Any = nn.Sequential(kind(nn.Conv2d(3, 4, 3)).eval())  # type: ignore[operator]
    x, before = tensor((2, 3, 6, 6)), copy.deepcopy(net)
    keys = list(net.state_dict())
    fastconv.convert(net)
    assert isinstance(net[0], fastconv.Conv2d) and parametrize.is_parametrized(net[0], "weight")
    assert list(net.state_dict()) == keys
    torch.testing.assert_close(net(x), before(x), rtol=1e-4, atol=1e-5)
    net(x).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    fastconv.revert(net)
    assert isinstance(net[0], nn.Conv2d) and not isinstance(net[0], fastconv.Conv2d)
    assert torch.equal(net(x), before(x))
    parametrize.remove_parametrizations(net[0], "weight")
    assert type(net[0]) is nn.Conv2d


def test_a_parametrization_of_a_converted_layer_can_be_removed() -> None:
    net: Any = fastconv.convert(nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3))))
    parametrize.remove_parametrizations(net[0], "weight")
    assert type(net[0]) is fastconv.Conv2d


def test_requires_grad_training_mode_and_attributes_are_kept() -> None:
    net = model().eval()
    net[0].requires_grad_(False)
    net[0].tag = "mine"
    fastconv.convert(net)
    assert not net[0].weight.requires_grad and net[3].weight.requires_grad
    assert not any(m.training for m in net.modules()) and net[0].tag == "mine"


def test_precision_is_given_to_every_layer() -> None:
    net = fastconv.convert(model(), precision="bf16x3")
    assert {m.precision for m in net.modules() if isinstance(m, fastconv.Conv2d)} == {"bf16x3"}
    with pytest.raises(ValueError, match="precision"):
        fastconv.convert(model(), precision="half")  # type: ignore[arg-type]


def test_layout_and_device_are_kept(device: str) -> None:
    net = fastconv.convert(model(device).to(memory_format=torch.channels_last).to(torch.bfloat16))
    assert net[2][0].weight.is_contiguous(memory_format=torch.channels_last)
    y = net(tensor((2, 3, 16, 16), torch.bfloat16, device, view="channels_last"))
    assert y.device.type == device and y.is_contiguous(memory_format=torch.channels_last)


def test_state_moves_between_converted_and_plain_models() -> None:
    net, plain = fastconv.convert(model()), model()
    with torch.no_grad():
        net[0].weight.normal_()
    plain.load_state_dict(net.state_dict())
    assert torch.equal(plain[0].weight, net[0].weight)


@pytest.mark.parametrize("function", [fastconv.convert, fastconv.revert, fastconv.unconverted])
@pytest.mark.parametrize(("model", "name"), [("x", "str"), (None, "NoneType"), (nn.Conv2d, "the class Conv2d")])
def test_what_is_no_module_is_refused(function: Any, model: Any, name: str) -> None:
    message = f"{function.__name__}(): model must be a torch.nn.Module, but got {name}"
    with pytest.raises(TypeError, match=re.escape(message)):
        function(model)
