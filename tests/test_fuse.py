"""fastconv.fuse: batch norms of a model as one op with what follows them."""

from __future__ import annotations

import copy
import importlib
import logging
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastconv

fusing: Any = importlib.import_module("fastconv.fuse")  # the name is a function, too


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The fused calls, each by its activation and whether it adds something. On the CPU too."""
    made: list[str] = []
    original = fusing.norm_module

    def counted(norm: nn.BatchNorm2d, x: Tensor, activation: str | None, residual: Tensor | None, *conv: Any) -> Tensor:
        made.append(f"{'+' if residual is not None else ''}{activation}{'*' * len(conv)}")
        return original(norm, x, activation, residual, *conv)

    takes = fusing._takes
    monkeypatch.setattr(fusing, "norm_module", counted)
    monkeypatch.setattr(fusing, "_takes", lambda x, residual: takes(x, residual, everywhere=True))
    yield made


class Bottleneck(nn.Module):
    """As torchvision writes it."""

    def __init__(self, channels: int, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Dense(nn.Module):
    """As torchvision's DenseNet: normalised before the convolution, of one tensor or of several."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act, self.conv = nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, input: Tensor | list[Tensor]) -> Tensor:
        tensors = [input] if isinstance(input, Tensor) else input
        return self.conv(self.act(self.norm(torch.cat(tensors, 1))))


class Functional(nn.Module):
    """Activations as functions, the shortcut first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.last = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8, momentum=0.3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor, scale: float = 1.0, skip: Tensor | None = None) -> Tensor:
        y = x + F.silu(self.bn(self.conv(x)))
        return y if skip is not None else torch.add(y * scale, self.last(y)).relu_()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.Hardswish())
        shortcut = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8, affine=False))
        self.blocks = nn.Sequential(Bottleneck(8), Bottleneck(8, shortcut))
        self.dense, self.functional = Dense(), Functional()
        self.head = nn.Sequential(nn.BatchNorm2d(8, track_running_stats=False), nn.GELU(), nn.AdaptiveAvgPool2d(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        x = self.dense([x[:, :4], x[:, 4:]]) + self.dense(x)
        return self.head(self.functional(x)).flatten(1)


CALLS = ["hardswish", "relu", "+relu", "relu", "+relu", "None", "relu", "relu", "silu", "+relu", "gelu"]
INPUT = (4, 3, 17, 19)


def train(model: nn.Module, steps: int = 2, device: str = "cpu") -> list[Tensor]:
    """Outputs, then parameters and buffers after some steps, in float64."""
    model = model.double().to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    outputs = []
    for _ in range(steps):
        y = model(torch.randn(INPUT, generator=generator, dtype=torch.float64).to(device))
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(y.detach())
    model.eval()
    outputs.append(model(torch.randn(INPUT, generator=generator, dtype=torch.float64).to(device)).detach())
    return [*outputs, *(value.clone() for value in model.state_dict().values())]


def test_trains_alike(device: str, calls: list[str]) -> None:
    model = Net()
    expected = train(copy.deepcopy(model), device=device)
    assert not calls
    torch.testing.assert_close(train(fastconv.fuse(model), device=device), expected)
    forward = sorted(CALLS)
    assert sorted(calls[: len(CALLS)]) == forward and len(calls) == 3 * len(CALLS)


def test_the_model_stays_the_same_object(caplog: pytest.LogCaptureFixture) -> None:
    model = Net()
    parameters, keys, text = list(model.parameters()), list(model.state_dict()), repr(model)
    modules = list(model.modules())
    seen: list[int] = []
    model.blocks.get_submodule("0").register_forward_hook(lambda *_: seen.append(1))
    with caplog.at_level(logging.INFO, "fastconv"):
        assert fastconv.fuse(model) is model
    assert "5 Sequential" not in caplog.text and "2 Bottleneck" in caplog.text and "1 Dense" in caplog.text
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    assert list(model.state_dict()) == keys and repr(model) == text
    model.load_state_dict(Net().state_dict())
    train(model, 1)
    assert len(seen) == 2
    assert isinstance(model.blocks[0], Bottleneck) and type(model.blocks[0]) is not Bottleneck
    fastconv.unfuse(model)
    assert type(model.blocks[0]) is Bottleneck and type(model.stem) is nn.Sequential
    assert not any(name.startswith("_fastconv") for module in model.modules() for name in vars(module))


def test_unfused_it_is_as_before(calls: list[str]) -> None:
    model = Net()
    expected = train(copy.deepcopy(model))
    torch.testing.assert_close(train(fastconv.unfuse(fastconv.fuse(model))), expected, rtol=0, atol=0)
    assert not calls


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_fused(copied: Callable[[nn.Module], nn.Module], calls: list[str]) -> None:
    model = Net()
    expected = train(copy.deepcopy(model))
    torch.testing.assert_close(train(copied(fastconv.fuse(model))), expected)
    assert len(calls) == 3 * len(CALLS)


def test_fused_twice_is_fused_once(calls: list[str]) -> None:
    model = fastconv.fuse(fastconv.fuse(Net()))
    train(model, 1)
    assert len(calls) == 2 * len(CALLS)
    assert type(fastconv.unfuse(model).stem) is nn.Sequential


def test_with_convolutions_converted(calls: list[str]) -> None:
    model = Net()
    expected = train(copy.deepcopy(model))
    fused = fastconv.fuse(fastconv.convert(model))
    torch.testing.assert_close(train(fused), expected)
    assert len(calls) == 3 * len(CALLS)
    fastconv.revert(fused)
    assert type(fused.stem[0]) is nn.Conv2d


def test_an_activation_behind_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a batch norm between them; in place, with a hook, of what others read too."""

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act = nn.Conv2d(8, 8, 1), nn.Hardswish()

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.act(y) + y + F.gelu(self.conv(x))

    seen: list[Any] = []
    original = fusing.conv2d

    def counted(*args: Any, **options: Any) -> Tensor:
        seen.append(options["activation"])
        return original(*args, **options)

    monkeypatch.setattr(fusing, "conv2d", counted)
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), Reads(), nn.Conv2d(8, 8, 3, padding="same"), nn.SiLU()]
    model: Any = nn.Sequential(*layers, nn.Conv2d(8, 8, 3), nn.ReLU6())
    expected = train(copy.deepcopy(model))
    fused = fastconv.fuse(fastconv.convert(model))
    torch.testing.assert_close(train(fused), expected)
    assert seen == ["relu", "gelu", "relu6"] * 3
    seen.clear()
    fused[0].register_forward_hook(lambda *_: None)
    fused[5].activation = "relu"  # and not "relu6" of that
    fused(torch.randn(INPUT, dtype=torch.float64))
    assert seen == ["gelu"]
    assert type(fastconv.unfuse(fused)) is nn.Sequential


def test_hooks_of_a_batch_norm_are_called(calls: list[str]) -> None:
    model = fastconv.fuse(Net())
    seen: list[str] = []
    model.get_submodule("blocks.0.bn1").register_forward_hook(lambda *_: seen.append("bn1"))
    model.get_submodule("blocks.0.relu").register_forward_pre_hook(lambda *_: seen.append("relu"))
    train(model, 1)
    assert seen == ["bn1", "relu", "relu"] * 2
    assert len(calls) == 2 * (len(CALLS) - 2)


def test_hooks_of_all_modules_are_called(calls: list[str]) -> None:
    model = fastconv.fuse(Net())
    seen: list[type] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        train(model, 1)
    finally:
        handle.remove()
    assert seen.count(nn.BatchNorm2d) == 2 * len(CALLS) and not calls


def test_a_layer_that_is_replaced_is_seen(calls: list[str]) -> None:
    model: Any = fastconv.fuse(Net())
    model.blocks[0].bn1 = nn.Identity()
    model.stem[1] = nn.GroupNorm(2, 8)
    model.blocks[1].downsample = None
    model(torch.randn(INPUT))
    assert len(calls) == len(CALLS) - 6  # these three modules' four, and the shortcut's
    calls.clear()
    fused = train(copy.deepcopy(fastconv.fuse(model)))
    assert len(calls) == 3 * (len(CALLS) - 3)
    torch.testing.assert_close(train(fastconv.unfuse(model)), fused)


def test_a_sequential_that_grows_is_seen(calls: list[str]) -> None:
    model = fastconv.fuse(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()))
    x = torch.randn(2, 3, 4, 4)
    for change in (
        lambda: model.append(nn.Conv2d(3, 5, 1)),
        lambda: model.insert(0, nn.Conv2d(3, 3, 1)),
        lambda: model.pop(2),
        lambda: model.__delitem__(0),
        lambda: model.extend([nn.BatchNorm2d(5), nn.SiLU()]),
    ):
        change()
        plain = fastconv.unfuse(copy.deepcopy(model))
        torch.testing.assert_close(model(x), plain(x))
    assert not calls
    fastconv.fuse(model)(x)
    assert calls == ["None", "silu"]


def test_a_list_that_grows_is_seen(calls: list[str]) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.steps = nn.BatchNorm2d(3), nn.ModuleList([nn.ReLU()])

        def forward(self, x: Tensor) -> Tensor:
            x = self.bn(x)
            for step in self.steps:
                x = step(x)
            return x

    model = fastconv.fuse(Steps())
    x = torch.randn(2, 3, 4, 4)
    model(x)
    assert calls == ["relu"]
    model.steps.append(nn.Hardtanh(0, 0.5))
    assert model(x).max() <= 0.5 and calls == ["relu"]


def test_parameters_are_live(calls: list[str]) -> None:
    """Eval, training, eval; and weights that are loaded afterwards."""
    model, other = fastconv.fuse(Net()).eval(), Net().eval()
    x = torch.randn(INPUT)
    for change in (
        lambda m: None,
        lambda m: train(m.float(), 1) and m.float().eval(),
        lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
        lambda m: m.stem[1].requires_grad_(False),
    ):
        change(model), change(other)
        torch.testing.assert_close(model(x), other(x))
    assert calls


class Odd(nn.Module):
    """Does something else than computing."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.bn, self.what, self.kept = nn.BatchNorm2d(3), what, None

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(x)
        if self.what == "keeps":
            self.kept = y
        if self.what == "draws" and random.random() < 0.5:
            return y
        if self.what == "looks" and y.mean() > 1e9:
            return y
        if self.what == "makes":
            y = y * torch.full((3, 1, 1), 2.0)
        if self.what == "asks" and not isinstance(y, Tensor):
            return y
        return y.relu()


@pytest.mark.parametrize("what", ["keeps", "draws", "looks", "makes", "asks"])
def test_what_does_more_than_compute_is_left(what: str, caplog: pytest.LogCaptureFixture, calls: list[str]) -> None:
    model = Odd(what)
    with caplog.at_level(logging.INFO, "fastconv"):
        fastconv.fuse(model)
    assert type(model) is Odd and "fused: nothing; left: 1 Odd (" in caplog.text
    model(torch.randn(2, 3, 4, 4))
    assert model.kept is not None or what != "keeps"


KEPT: list[Any] = []
ELSEWHERE: dict[str, Callable[[Tensor], None]] = {
    "a value": KEPT.append,
    "a size": lambda y: KEPT.append(y.shape),
    "in a function": lambda y: KEPT.append(lambda: y),
    "in a cycle": lambda y: KEPT.append(cycle(y)),
}


def cycle(value: Any) -> list[Any]:
    found = [value]
    found.append(found)
    return found


class Keeps(nn.Module):
    def __init__(self, keep: Callable[[Tensor], Any], training: bool | None = None) -> None:
        super().__init__()
        self.bn, self.keep, self.mode = nn.BatchNorm2d(3), keep, training

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(x)
        if self.mode in (None, self.training):
            self.keep(y)
        return F.relu(y)


@pytest.mark.parametrize("what", ELSEWHERE)
def test_what_keeps_values_elsewhere_is_left(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """It would keep what was traced, and nothing of later calls."""
    model = Keeps(ELSEWHERE[what])
    with caplog.at_level(logging.INFO, "fastconv"):
        fastconv.fuse(model)
    assert type(model) is Keeps and "1 Keeps (its forward keeps values in other places)" in caplog.text
    KEPT.clear()
    model(torch.randn(2, 3, 4, 4))
    assert len(KEPT) == 1
    KEPT.clear()


def test_what_keeps_values_in_training_is_left_in_training(calls: list[str]) -> None:
    model, x = fastconv.fuse(Keeps(KEPT.append, training=True)), torch.randn(2, 3, 4, 4)
    KEPT.clear()
    model(x)
    assert not calls and len(KEPT) == 1 and type(KEPT.pop()) is Tensor
    model.eval()(x)
    assert calls == ["relu"] and not KEPT


def test_what_keeps_a_value_for_itself_is_fused(calls: list[str]) -> None:
    """In a cycle, which the collector has yet to find."""
    model = fastconv.fuse(Keeps(cycle))
    model(torch.randn(2, 3, 4, 4))
    assert calls == ["relu"]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad * ctx.saved_tensors[0]


def no_grad(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = m.relu(m.bn(x))
    return m.other(x)


def reads_statistics(m: Any, x: Tensor) -> Tensor:
    y = m.bn(m.conv(x))
    mean: Tensor = m.bn.running_mean.clone()
    return m.relu(y) + mean[:, None, None]


def in_bfloat16(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return m.conv(m.relu(m.bn(x)))


def counts(m: Any, x: Tensor) -> Tensor:
    m.steps += 1
    return m.relu(m.bn(x)) * m.steps


def collects(m: Any, x: Tensor) -> Tensor:
    m.seen.append(len(m.seen))
    return m.relu(m.bn(x)) + len(m.seen)


def asks_for_grad_mode(m: Any, x: Tensor) -> Tensor:
    return m.relu(m.bn(x)) if torch.is_grad_enabled() else m.bn(x)


def asks_a_child(m: Any, x: Tensor) -> Tensor:
    return m.relu(m.bn(x)) if m.bn.training else m.bn(x)


def hides_an_error(m: Any, x: Tensor) -> Tensor:
    try:
        large = bool(x.abs().max() > 0)
    except Exception:
        large = False
    return m.relu(m.bn(x)) if large else m.bn(x)


def changes_its_input(m: Any, x: Tensor) -> Tensor:
    y = m.bn(x)
    x.add_(1)
    return m.relu(y) + x


def changes_it_later(m: Any, x: Tensor) -> Tensor:
    z = x * 1.0
    y = m.bn(z)
    return m.relu(y + m.conv(m.in_place(z)))


def twice(m: Any, x: Tensor) -> Tensor:
    return m.relu(m.bn(x) + m.bn(x * 2))


def calls_add(m: Any, x: Tensor) -> Tensor:
    return m.relu(m.add(m.bn(x), x))


def powers(m: Any, x: Tensor) -> Tensor:
    y = m.bn(x)
    z = y
    y **= 2
    return m.relu(y) + z


def of_several(m: Any, x: Any) -> Tensor:
    return m.relu(m.bn(x)) if isinstance(x, Tensor) else torch.cat([m.relu(m.bn(t)) for t in x])


class Weighted(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + 2 * b


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.relu(m.bn(Square.apply(x))),
        no_grad,
        in_bfloat16,
        counts,
        collects,
        asks_for_grad_mode,
        asks_a_child,
        hides_an_error,
        changes_its_input,
        changes_it_later,
        twice,
        calls_add,
        powers,
        of_several,
        reads_statistics,
    ],
    ids=lambda function: function.__name__,
)
def test_whatever_a_forward_does_it_does_fused(function: Callable[..., Tensor], calls: list[str]) -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.bn, self.other, self.conv = nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)
            self.relu, self.in_place, self.add = nn.ReLU(), nn.ReLU(inplace=True), Weighted()
            self.register_buffer("steps", torch.zeros(()))
            self.seen: list[int] = []

        def forward(self, x: Any) -> Tensor:
            return function(self, x)

    plain, fused = Module().double(), fastconv.fuse(Module().double())
    x = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    differentiable = function not in (changes_its_input, changes_it_later)  # by torch, either
    inputs: list[Any] = [x, x, [x, x + 1]] if function is of_several else [x, x]
    for mode in (True, False, True):
        for input in inputs:
            results = []
            for model in (plain, fused):
                model.train(mode)
                model.zero_grad()
                with torch.set_grad_enabled(differentiable):
                    y = model([t.clone() for t in input] if isinstance(input, list) else input.clone())
                if differentiable:
                    y.double().square().sum().backward()
                with torch.no_grad():
                    z = model(x.clone())
                grads = [p.grad is not None for p in model.parameters()]
                results.append(([y, z, *(p.grad for p in model.parameters() if p.grad is not None)], grads))
            torch.testing.assert_close(*results)
    torch.testing.assert_close(plain.state_dict(), fused.state_dict())
    assert plain.seen == fused.seen


@pytest.mark.parametrize(
    "mode",
    [
        lambda: fastconv.precision("ieee"),
        lambda: torch.autograd.graph.save_on_cpu(),
        lambda: torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
    ],
    ids=["precision", "saved tensors", "torch's flags"],
)
def test_a_forward_that_sets_a_mode_is_left(mode: Any) -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            with mode():
                return F.relu(self.bn(x))

    model = Module()
    fastconv.fuse(model)
    assert type(model) is Module


class Uses(nn.Module):
    """A batch norm's output in more than one place."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.act = nn.BatchNorm2d(3), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(x)
        z = self.act(y) + y
        x = x * 1.0
        x += self.bn(z)
        return x


def test_outputs_with_several_uses_are_right(calls: list[str]) -> None:
    model = Uses().double()
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    expected = copy.deepcopy(model)(x)
    torch.testing.assert_close(fastconv.fuse(model)(x), expected)
    assert calls == ["None", "None"]


def test_other_arguments_take_the_old_way(calls: list[str]) -> None:
    model = fastconv.fuse(Functional()).double()
    x = torch.randn(2, 8, 4, 4, dtype=torch.float64)
    expected = copy.deepcopy(fastconv.unfuse(copy.deepcopy(model)))
    for call in (lambda m: m(x), lambda m: m(x, 2.0), lambda m: m(x, skip=x), lambda m: m(x=x)):
        torch.testing.assert_close(call(model), call(expected))
    assert calls == ["silu", "+relu"]


def test_sync_batch_norm_is_left_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()))
    with caplog.at_level(logging.INFO, "fastconv"):
        fastconv.fuse(model)
    assert "SyncBatchNorm" in caplog.text and type(model) is nn.Sequential


def test_what_is_fused_already_is_not_left(caplog: pytest.LogCaptureFixture) -> None:
    norm = fastconv.BatchNormAct2d(4, activation="relu")
    model = nn.Sequential(fastconv.ConvBnAct2d(3, 4, 3, activation="relu"), norm)
    with caplog.at_level(logging.INFO, "fastconv"):
        fastconv.fuse(model)
        fastconv.fuse(norm)
    assert caplog.text.count("fused: nothing; left: nothing") == 2
    assert type(model[0]) is fastconv.ConvBnAct2d and type(norm) is fastconv.BatchNormAct2d


def test_lazy_layers_are_left_until_the_first_batch(caplog: pytest.LogCaptureFixture, calls: list[str]) -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.LazyBatchNorm2d())
    with caplog.at_level(logging.INFO, "fastconv"):
        fastconv.fuse(fastconv.convert(model))
    for name in ("Sequential", "LazyConv2d", "LazyBatchNorm2d"):
        assert f"1 {name} (parameters come with the first batch: fuse after that)" in caplog.text
    x = torch.randn(2, 3, 8, 8)
    model(x)
    assert not calls
    fastconv.fuse(fastconv.convert(model))(x)
    assert calls == ["relu*", "None*"]


def test_another_lazy_layer_is_no_hindrance(calls: list[str]) -> None:
    head = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
    model: nn.Module = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), head)
    fastconv.fuse(model)(torch.randn(2, 3, 4, 4))
    assert calls == ["relu"]


def test_checkpointing(calls: list[str]) -> None:
    model = fastconv.convert(Net())
    expected = train(copy.deepcopy(model))

    class Checkpointed(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(self.model, x, use_reentrant=False)

    once = train(fastconv.fuse(copy.deepcopy(model)))
    torch.testing.assert_close(train(Checkpointed(fastconv.fuse(model)))[:2], once[:2])
    torch.testing.assert_close(once, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(device: str, dtype: torch.dtype, calls: list[str]) -> None:
    """Images of 16 bits, parameters and statistics of float32, as torch has them; a scaler for the gradients."""
    results = []
    for fused in (False, True):
        model: Any = fastconv.convert(Net())
        model.to(device, memory_format=torch.channels_last)
        if fused:
            fastconv.fuse(model)
        x = torch.randn(INPUT, generator=torch.Generator().manual_seed(1)).to(device)
        scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with torch.autocast(device, dtype):
            y = model(x)
        scaler.scale(y.float().square().mean()).backward()
        scaler.unscale_(optimizer)
        grads = [p.grad.double() for p in model.parameters() if p.grad is not None]
        scaler.step(optimizer)
        scaler.update()
        results.append((y, grads, model.blocks[0].bn1.running_mean))
    assert len(calls) == len(CALLS)
    (y, grads, mean), (fused_y, fused_grads, fused_mean) = results
    assert fused_y.dtype == y.dtype and fused_mean.dtype == torch.float32
    eps = torch.finfo(dtype).eps
    assert (fused_y - y).double().norm() < 8 * eps * y.double().norm()
    assert (fused_mean - mean).norm() < 8 * eps * mean.norm()
    largest = max(grad.norm() for grad in grads)
    for a, b in zip(fused_grads, grads, strict=True):
        assert (a - b).norm() < 32 * eps * (b.norm() + 0.01 * largest)


def test_distributed(calls: list[str], tmp_path: Path) -> None:
    """Under DDP and FSDP2, of one process: hooks, buckets and sharded parameters find what they look for."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model = fastconv.convert(Net().double())
    expected = train(copy.deepcopy(model), 2)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(fastconv.fuse(copy.deepcopy(model)))
        torch.testing.assert_close(train(parallel, 2), expected)
        assert len(calls) == 3 * len(CALLS)
        sharded: Any = fastconv.fuse(copy.deepcopy(model))
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        for block in (*sharded.blocks, sharded):
            fully_shard(block, mesh=mesh)
        values = [v.full_tensor() if hasattr(v, "full_tensor") else v for v in train(sharded, 2)]
        torch.testing.assert_close(values, expected)
        assert len(calls) == 6 * len(CALLS)
    finally:
        dist.destroy_process_group()


@pytest.mark.cuda
def test_a_cuda_graph_trains() -> None:
    model = fastconv.fuse(fastconv.convert(Net())).cuda()
    other = copy.deepcopy(model)
    x = torch.randn(INPUT, device="cuda")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]

    def step(m: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        m(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(model, optimizers[0])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(model, optimizers[0])
    for _ in range(3):
        graph.replay()
    for _ in range(4):
        step(other, optimizers[1])
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_compiles_without_a_graph_break(device: str) -> None:
    torch._dynamo.reset()
    model = Net()
    expected = train(copy.deepcopy(model), device=device)
    fused = fastconv.fuse(model)
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    results = []
    fused.double().to(device).train()
    optimizer = torch.optim.SGD(fused.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        y = compiled(torch.randn(INPUT, generator=generator, dtype=torch.float64).to(device))
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        results.append(y.detach())
    torch.testing.assert_close(results, expected[:2])


def test_what_is_compiled_itself_is_fused(calls: list[str]) -> None:
    """torch.compile sets an attribute of it."""
    torch._dynamo.reset()
    model: Any = fastconv.fuse(nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()))
    x = torch.randn(2, 3, 4, 4)
    expected = model(x)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected)
    assert "relu" in calls and "_fastconv_forwards" in vars(model)
    torch._dynamo.reset()
    model[1] = nn.SiLU()
    y = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(y, model(x))
    assert "silu" not in calls and len(calls) == 2
    fastconv.fuse(model)(x)
    assert calls[-1] == "silu"


@pytest.mark.parametrize("what", [fastconv.fuse, fastconv.unfuse])
def test_what_is_no_module_is_refused(what: Any) -> None:
    with pytest.raises(TypeError, match="must be a torch.nn.Module"):
        what(3)
