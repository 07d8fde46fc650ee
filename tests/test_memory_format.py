"""Outputs and gradients have the memory format that torch's have."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import fastconv
from shapes import CASES, VIEWS, Problem, operands, tensor

LAYOUTS = ["contiguous", "channels_last"]
SIZES = {
    "usual": Problem(2, 6, 9, 8, 4, 3, 3, padding=(1, 1)),
    "unbatched": Problem(None, 6, 9, 8, 4, 3, 3),
    # Strides of these are both formats at once, and torch has a rule for which of them counts.
    "pointwise": Problem(2, 6, 9, 8, 4, 1, 1),
    "one_channel": Problem(2, 1, 9, 8, 1, 3, 3),
    "one_pixel": Problem(3, 6, 1, 1, 4, 1, 1),
    "one_image_one_pixel": Problem(1, 6, 1, 1, 4, 1, 1),
    "one_row": Problem(2, 6, 1, 8, 4, 1, 3),
    "depthwise": Problem(2, 6, 9, 8, 6, 3, 3, groups=6),
    "empty_batch": Problem(0, 6, 9, 8, 4, 3, 3),
}
sizes = pytest.mark.parametrize("name", SIZES)


def format_of(t: Tensor) -> str:
    return "channels_last" if t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) else "contiguous"


def rule(x: Tensor, w: Tensor) -> torch.memory_format:
    """cudnn_conv_suggest_memory_format: channels_last if one of the operands is."""
    either = any(t.dim() == 4 and torch._prims_common.suggest_memory_format(t) == torch.channels_last for t in (x, w))
    return torch.channels_last if either else torch.contiguous_format


@sizes
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, LAYOUTS)), ids=str)
def test_output_format(device: str, name: str, layouts: tuple[str, str]) -> None:
    problem = SIZES[name]
    o = operands(problem, torch.float32, device, views=(*layouts, "contiguous"))
    y = fastconv.conv2d(o.input, o.weight, None, *problem.geometry)
    if problem.n is None:
        # A (C, H, W) tensor has no memory format of its own; torch's view of it as a batch of one has.
        assert y.stride() == fastconv.conv2d(o.input[None], o.weight, None, *problem.geometry)[0].stride()
    else:
        # A batch of none is contiguous, as torch's is.
        expected = rule(o.input, o.weight) if problem.n else torch.contiguous_format
        assert y.stride() == torch.empty(y.shape, memory_format=expected).stride()


@pytest.mark.cuda
@sizes
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, LAYOUTS)), ids=str)
def test_output_format_is_cudnns(cuda: str, name: str, layouts: tuple[str, str]) -> None:
    problem = SIZES[name]
    o = operands(problem, torch.float32, cuda, views=(*layouts, "contiguous"))
    ours, theirs = (f(o.input, o.weight, None, *problem.geometry) for f in (fastconv.conv2d, F.conv2d))
    assert ours.stride() == theirs.stride()


@sizes
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, LAYOUTS, LAYOUTS)), ids=str)
def test_gradient_formats(device: str, name: str, layouts: tuple[str, str, str]) -> None:
    """weight.grad has the strides of weight, whatever the other operands have: DDP's buckets rely on it."""
    problem = SIZES[name]
    o = operands(problem, torch.float32, device, views=layouts)
    x, w = o.input.requires_grad_(), o.weight.requires_grad_()
    # Not .grad: torch copies a leaf's gradient into the leaf's own strides.
    dx, dw = torch.autograd.grad(fastconv.conv2d(x, w, None, *problem.geometry), (x, w), o.grad_output)
    assert dw.stride() == w.stride()
    if problem.n is not None:
        assert dx.stride() == torch.empty(x.shape, memory_format=rule(x, w)).stride()


@pytest.mark.parametrize("view", [v for v in VIEWS if v.startswith("same")])
def test_gradients_of_expanded_operands_are_dense(device: str, view: str) -> None:
    """A gradient with the operand's stride 0 would be written twice."""
    problem = SIZES["usual"]
    o = operands(problem, torch.float32, device, views=(view, view, "contiguous"))
    x, w = o.input.requires_grad_(), o.weight.requires_grad_()
    dx, dw = torch.autograd.grad(fastconv.conv2d(x, w, None, *problem.geometry), (x, w), o.grad_output)
    for t in (dx, dw):
        assert t.is_contiguous() or t.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("wanted", [None, False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_ops_obey_channels_last(device: str, layout: str, wanted: bool | None) -> None:
    problem = SIZES["usual"]
    o = operands(problem, torch.float32, device, views=(layout, "contiguous", "contiguous"))
    dw = torch.ops.fastconv.conv2d_weight(
        o.input, problem.weight_size, o.grad_output, *problem.geometry, channels_last=wanted
    )
    o = operands(problem, torch.float32, device, views=("contiguous", layout, "contiguous"))
    dx = torch.ops.fastconv.conv2d_input(
        problem.input_size, o.weight, o.grad_output, *problem.geometry, channels_last=wanted
    )
    expected = layout if wanted is None else "channels_last" if wanted else "contiguous"
    assert format_of(dw) == format_of(dx) == expected


def test_a_channels_last_model_stays_channels_last(device: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1)
    )
    net = fastconv.convert(net).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    formats: list[str] = []
    for module in net:
        module.register_forward_hook(lambda m, a, y: formats.append(format_of(y)))
        module.register_full_backward_hook(lambda m, gi, go: formats.append(format_of(go[0])))
    x = tensor((2, 3, 10, 10), device=device, view="channels_last").requires_grad_()
    net(x).square().sum().backward()
    assert formats == ["channels_last"] * 10
    assert x.grad is not None and format_of(x.grad) == "channels_last"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ddp_copies_no_gradient(device: str, layout: str) -> None:
    """DDP warns when a gradient's strides are not its bucket's, and then copies at every step."""
    # Nothing is sent: what is asked here happens before that, and gloo has hung in CI, once in a few runs.
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 1, 1))
        net = fastconv.convert(net).to(device)
        if layout == "channels_last":
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        parallel = DistributedDataParallel(net)
        parallel.register_comm_hook(None, noop_hook)
        x = tensor((2, 3, 10, 10), device=device, view=layout)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                parallel(x).square().sum().backward()
        assert all(p.grad is not None and p.grad.stride() == p.stride() for p in net.parameters())
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["one_element", "pointwise", "single_channel"])
def test_values_do_not_depend_on_the_format(device: str, name: str) -> None:
    problem = CASES[name]
    results = []
    for layout in LAYOUTS:
        o = operands(problem, torch.float64, device, views=(layout, layout, layout))
        results.append(fastconv.conv2d(o.input, o.weight, o.bias, *problem.geometry))
    torch.testing.assert_close(results[0], results[1], rtol=1e-13, atol=1e-13)
