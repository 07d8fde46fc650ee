"""The contenders: fastconv, and what PyTorch has. Each turns a problem into a function of one set of data."""

from __future__ import annotations

import os
from collections.abc import Callable

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
    return text.splitlines()[1:]  # the first line repeats the problem


def host_calls(problem: Problem, what: str, device: torch.device) -> dict[str, Callable[[], object]]:
    """Calls whose cost to the host is compared, `what` being 'no grad', 'grad' or 'grad + backward'."""
    import fastconv

    needs_grad = what != "no grad"
    x = torch.randn(problem.input, device=device, requires_grad=needs_grad)
    w = torch.randn(problem.weight, device=device, requires_grad=needs_grad)
    dy = torch.randn(problem.output, device=device)
    args = problem.conv_args
    contenders: dict[str, Callable[[], torch.Tensor]] = {
        "F.conv2d": lambda: F.conv2d(x, w, None, *args),
        "fastconv.conv2d": lambda: fastconv.conv2d(x, w, None, *args),
        "torch.ops.fastconv.conv2d": lambda: torch.ops.fastconv.conv2d(x, w, None, *args),
    }
    if what != "grad + backward":
        return dict(contenders)

    def with_backward(forward: Callable[[], torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(forward(), (x, w), dy)

    return {name: with_backward(forward) for name, forward in contenders.items()}
