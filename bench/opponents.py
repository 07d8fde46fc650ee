"""The contenders: fastconv, and what PyTorch has. Each turns a problem into a function of one set of data."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from bench.errors import Tensors, convolution_backward
from bench.modes import Mode
from bench.suites import Problem

Run = Callable[[Tensors], torch.Tensor]
Contender = Callable[[Problem, str, Mode, str], Run]  # problem, pass, mode, layout


def fastconv_run(problem: Problem, pass_: str, mode: Mode, layout: str) -> Run:
    ops = torch.ops.fastconv
    precision = mode.precision
    channels_last = layout == "nhwc"
    if pass_ == "fprop":
        return lambda t: ops.conv2d(t.x, t.w, None, *problem.conv_args, precision=precision)
    if pass_ == "dgrad":
        return lambda t: ops.conv2d_input(
            problem.input, t.w, t.dy, *problem.conv_args, precision=precision, channels_last=channels_last
        )
    return lambda t: ops.conv2d_weight(
        t.x, problem.weight, t.dy, *problem.conv_args, precision=precision, channels_last=channels_last
    )


def torch_run(problem: Problem, pass_: str, mode: Mode, layout: str) -> Run:
    """cuDNN on CUDA, oneDNN on the CPU; `bench.timing.tf32_allowed` says in which precision."""
    if pass_ == "fprop":
        return lambda t: F.conv2d(t.x, t.w, None, *problem.conv_args)
    return lambda t: convolution_backward(problem, t.x, t.w, t.dy, pass_)


def compiled_run(problem: Problem, pass_: str, mode: Mode, layout: str) -> Run:
    """torch.compile with autotuning of the function above."""
    # Every problem compiles the same code objects again, and past the recompile limit torch falls back to eager.
    torch._dynamo.reset()
    compiled: Run = torch.compile(
        torch_run(problem, pass_, mode, layout), mode="max-autotune-no-cudagraphs", dynamic=False
    )
    return compiled


CONTENDERS: dict[str, Contender] = {"fastconv": fastconv_run, "torch": torch_run, "compile": compiled_run}
OPPONENTS = ("torch", "compile")


def display_name(contender: str, device: torch.device) -> str:
    if contender == "torch":
        return "cuDNN" if device.type == "cuda" else "oneDNN"
    return "torch.compile" if contender == "compile" else contender


def kernel_names() -> list[str]:
    """Of every kernel in fastconv's table, whatever it runs on."""
    import fastconv  # noqa: F401  (registers the ops)

    return [line.split("\t")[0] for line in torch.ops.fastconv._kernels().splitlines()]


def force_kernel(names: str | None) -> None:
    """Restricts fastconv to kernels, by name; read at every call. None: no longer."""
    if names:
        os.environ["FASTCONV_KERNEL"] = names
    else:
        os.environ.pop("FASTCONV_KERNEL", None)


def explain(problem: Problem, pass_: str, mode: Mode, layout: str, device: torch.device) -> str:
    """The planner's choice, as fastconv words it: the kernel's name, then its parameters."""
    return explain_all(problem, pass_, mode, layout, device)[0].removeprefix("plan: ")


def explain_all(problem: Problem, pass_: str, mode: Mode, layout: str, device: torch.device) -> list[str]:
    """The same, then a line for each other kernel."""
    import fastconv

    text = fastconv.explain(
        problem.input,
        problem.weight,
        None,
        *problem.conv_args,
        pass_=pass_,
        precision=mode.precision or "ieee",
        dtype=mode.torch_dtype,
        channels_last=layout == "nhwc",
        device=device,
    )
    return text.splitlines()[2:]  # the first lines repeat the problem and the device


HOST_WORK = ("no grad", "grad", "grad + backward")
HOST_MODES = ("fp32", "autocast")  # to bfloat16
HOST_LAYERS = 24  # one behind the other, each with a weight of its own


def host_calls(
    problem: Problem, what: str, mode: str, channels_last: bool, device: torch.device
) -> dict[str, Callable[[], object]]:
    """Networks of HOST_LAYERS such layers, whose cost to the host is compared: of HOST_WORK in a HOST_MODES."""
    import fastconv

    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    needs_grad, args = what != "no grad", problem.conv_args

    def random(size: Sequence[int]) -> torch.Tensor:
        return torch.randn(size, device=device).to(memory_format=memory_format).requires_grad_(needs_grad)

    x, dy = random(problem.input), random(problem.output).detach()
    weights = [random(problem.weight) for _ in range(HOST_LAYERS)]

    def network(conv2d: Callable[..., torch.Tensor]) -> Callable[[], object]:
        def forward() -> torch.Tensor:
            y = x
            with torch.autocast(device.type, torch.bfloat16, enabled=mode == "autocast"):
                for weight in weights:
                    y = conv2d(y, weight, None, *args)
            return y

        if what != "grad + backward":
            return forward
        grad = dy.to(torch.bfloat16) if mode == "autocast" else dy
        return lambda: torch.autograd.grad(forward(), (x, *weights), grad)

    return {
        "F.conv2d": network(F.conv2d),
        "fastconv.conv2d": network(fastconv.conv2d),
        "torch.ops.fastconv.conv2d": network(torch.ops.fastconv.conv2d),
    }


def host_pieces(device: torch.device) -> dict[str, Callable[[], object]]:
    """What a call is made of. From the op on each has what the one before it has: differences are the pieces' own."""
    import fastconv

    args = (1, 1, 1, 1)
    x, none = torch.randn(1, 8, 8, 8, device=device), torch.randn(0, 8, 8, 8, device=device)
    w = torch.randn(8, 8, 3, 3, device=device)
    leaf, dy = w.clone().requires_grad_(), torch.randn(1, 8, 8, 8, device=device)
    packed = fastconv.ops.pack((1, 1, 1, 1, 1, 1), 1, "ieee")
    op = torch.ops.fastconv._conv2d.default._op

    def backward() -> object:
        return torch.autograd.grad(fastconv.conv2d(x, leaf, None, *args), leaf, dy)

    pieces: dict[str, Callable[[], object]] = {
        "torch.empty": lambda: torch.empty((1, 8, 8, 8), device=device),
        "op, no images: dispatcher, checks, output": lambda: op(none, w, None, packed),
        "op: plan, launch": lambda: op(x, w, None, packed),
        "fastconv.conv2d: Python": lambda: fastconv.conv2d(x, w, None, *args),
        "with grad: node": lambda: fastconv.conv2d(x, leaf, None, *args),
        "and backward, weight alone": backward,
    }
    if device.type == "cuda":
        pieces = {"a launch": lambda: torch.cuda._sleep(1), **pieces}
    return pieces
