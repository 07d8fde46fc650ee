"""Runs fastconv on a problem and holds every number to the float64 reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import fastconv
import reference
from fastconv.activation import ACTIVATIONS
from shapes import Operands, Problem, operands

MODES = ["ieee", "bf16x3", "tf32"]


@dataclass(frozen=True)
class Kernel:
    name: str
    pass_: str
    device: str


KERNELS = [Kernel(*line.split("\t")) for line in torch.ops.fastconv._kernels().splitlines()]


def poison(device: str, *tensors: Tensor) -> None:
    """Makes the next allocations of these tensors' sizes find NaN.

    torch's CUDA allocator hands a freed block of a fitting size out again with its contents. Several are freed, since a
    workspace or a second result may take the first one. On the CPU conftest.py has seen to it.
    """
    if device == "cuda":
        for t in tensors:
            blocks = [torch.full((max(1, t.nbytes),), 0xFF, dtype=torch.uint8, device=device) for _ in range(3)]
            del blocks


def run_pass(pass_: str, o: Operands, problem: Problem, precision: str = "ieee", *, poisons: bool = True) -> Tensor:
    """One of the three ops, below autograd's front end."""
    ops = torch.ops.fastconv
    mode = {"precision": precision}
    result = {"fprop": o.grad_output, "dgrad": o.input, "wgrad": o.weight}[pass_]
    if poisons:
        poison(result.device.type, result)
    if pass_ == "fprop":
        return ops.conv2d(o.input, o.weight, o.bias, *problem.geometry, **mode)
    if pass_ == "dgrad":
        return ops.conv2d_input(problem.input_size, o.weight, o.grad_output, *problem.geometry, **mode)
    return ops.conv2d_weight(o.input, problem.weight_size, o.grad_output, *problem.geometry, **mode)


def run_forced(
    kernel: Kernel, o: Operands, problem: Problem, precision: str = "ieee", *, poisons: bool = True
) -> Tensor | None:
    """What this kernel computes; None if the planner says that it refuses the problem. A failed launch is an error."""
    with fastconv.force_kernel(kernel.name):
        try:
            return run_pass(kernel.pass_, o, problem, precision, poisons=poisons)
        except RuntimeError as error:
            if not all(text in str(error) for text in ("no kernel for ", f"\n  {kernel.name} ")):
                raise
            return None


def run_activated(
    kernel: Kernel, o: Operands, problem: Problem, activation: str, precision: str = "ieee"
) -> Tensor | None:
    """The forward pass with an activation that cuts off; a bias of 16 bits is given in float32. None for arguments that
    do not pack."""
    packed = fastconv.ops.pack_or_none((*problem.geometry, precision))
    if packed is None:
        return None
    bias = o.bias.float() if o.bias is not None and o.bias.itemsize == 2 else o.bias
    poison(o.input.device.type, o.grad_output)
    index = ACTIVATIONS.index(activation)
    with fastconv.force_kernel(kernel.name):
        output: Tensor = torch.ops.fastconv._conv2d_act(o.input, o.weight, bias, None, packed, index, False)[0]
    return output


def expect_pass(pass_: str, o: Operands, problem: Problem) -> reference.Expected:
    if pass_ == "fprop":
        return reference.output(o.input, o.weight, o.bias, *problem.geometry)
    gradients = reference.gradients(o.input, o.weight, o.grad_output, *problem.geometry)
    return gradients.input if pass_ == "dgrad" else gradients.weight


def check_pass(pass_: str, o: Operands, problem: Problem) -> None:
    reference.assert_right(run_pass(pass_, o, problem), expect_pass(pass_, o, problem), pass_)


def check_training_step(o: Operands, problem: Problem) -> None:
    """Output and all gradients, as a training loop gets them."""
    x, w = o.input.detach().requires_grad_(), o.weight.detach().requires_grad_()
    b = None if o.bias is None else o.bias.detach().requires_grad_()
    poison(o.input.device.type, o.input, o.weight, o.grad_output)
    y = fastconv.conv2d(x, w, b, *problem.geometry, precision="ieee")
    reference.assert_right(y, reference.output(x, w, b, *problem.geometry))
    y.backward(o.grad_output)
    expected = reference.gradients(x, w, o.grad_output, *problem.geometry)
    assert x.grad is not None and w.grad is not None
    reference.assert_right(x.grad, expected.input, "input.grad")
    reference.assert_right(w.grad, expected.weight, "weight.grad")
    if b is not None:
        assert b.grad is not None
        reference.assert_right(b.grad, expected.bias, "bias.grad")


def check_problem(problem: Problem, dtype: torch.dtype, device: str, seed: int = 0, **kwargs: Any) -> None:
    check_training_step(operands(problem, dtype, device, seed, **kwargs), problem)


def is_poisoned(t: Tensor) -> bool:
    """Whether no element is one that a right result would have."""
    return not bool((t.abs() < math.sqrt(torch.finfo(t.dtype).max)).any())
