"""What fastconv would run and why, and what this installation is."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _library, ops
from .conv1d import one
from .functional import Padding, _pad, integer, integers, pair
from .ops import Ints
from .precision import Precision, resolve

PASSES = ("fprop", "dgrad", "wgrad")


class Device(NamedTuple):
    """What the planner knows of a GPU; ``arch`` of :func:`fastconv.explain`.

    Args:
        arch: compute capability times 10.
        sm_count: its SMs.
        smem_optin_bytes: most shared memory that a block may have.
        clock_mhz: of its SMs, at most.
        memory_gbps: 10^9 bytes a second, by the memory's clock.
        l2_bytes: its L2 cache.

    >>> from fastconv.explain import gpu
    >>> half = gpu("h200")._replace(sm_count=66)
    >>> print(fastconv.explain((8, 64, 56, 56), (64, 64, 3, 3), arch=half))  # doctest: +ELLIPSIS
    fprop float32 ...
    """

    arch: int
    sm_count: int
    smem_optin_bytes: int
    clock_mhz: int
    memory_gbps: int
    l2_bytes: int


def gpu(arch: int | str) -> Device:
    """What a GPU's data sheet says.

    Args:
        arch: its name ("v100", "t4", "a100", "a10", "rtx3090", "l4", "rtx4090", "h200", "h100", "b200", "rtx5090"), in
            any case, or a compute capability (80, "8.0", "sm_80"), for which the first of these stands that has it.

    Returns:
        A :class:`Device`.

    Raises:
        RuntimeError: none of these.

    >>> from fastconv.explain import gpu
    >>> gpu("a100").sm_count
    108
    """
    name = re.sub(r"(?:sm_)?(\d+)\.?(\d)", r"\1\2", str(arch).lower())
    return Device(*torch.ops.fastconv._gpu(name))


H200 = gpu("h200")  # planned for where no device is given or present
H100 = gpu("h100")


def explain(
    input: Tensor | Sequence[int],
    weight: Tensor | Sequence[int],
    bias: Tensor | bool | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    pass_: str = "fprop",
    precision: Precision | None = None,
    dtype: torch.dtype | None = None,
    channels_last: bool | None = None,
    device: torch.device | str | None = None,
    arch: int | str | Device | None = None,
    refusals: bool = False,
) -> str:
    """Says which kernel a convolution gets, with what plan, and what the others would cost, cheapest first.

    Nothing is computed, and the device need not be present.

    Args:
        input, weight: tensors, or their sizes as for :func:`fastconv.conv2d` or :func:`fastconv.conv1d`. Of
            :func:`fastconv.conv_transpose2d` its output's in place of the input's, and "dgrad".
        bias: a tensor or True if there is one.
        stride, padding, dilation, groups, precision: as for :func:`fastconv.conv2d`.
        pass_: "fprop" (forward), "dgrad" (input gradient) or "wgrad" (weight gradient).
        dtype, channels_last, device: those of the tensors if tensors are given; otherwise float32, False and "cuda".
        arch: the GPU to plan for: its name or compute capability ("a100", 80, "8.0", ...), or all that the planner
            knows of one (``from fastconv.explain import Device, gpu``). None: the device's own, or what the
            environment variable FASTCONV_ARCH names in its place; an H200's where there is neither.
        refusals: whether to say of each kernel that cannot compute this why not, and not their number alone.

    Returns:
        Lines of text: the problem, what was planned for, the plan, and the other kernels. ``cost_us`` is the time that
        the planner expects, in microseconds: the estimate of a model, not a measurement.

    Raises:
        RuntimeError: not a legal convolution, or no such GPU.
        ValueError: unknown ``pass_``, ``precision``, ``device`` or string for ``padding``; ``arch`` for the CPU.
        NotImplementedError: a dtype that fastconv does not compute.

    >>> print(fastconv.explain((8, 64, 512, 256), (128, 64, 5, 7), arch=90))  # doctest: +ELLIPSIS
    fprop float32 ...
    """
    if pass_ not in PASSES:
        raise ValueError(f"pass_ must be 'fprop', 'dgrad' or 'wgrad', but got {pass_!r}")
    if len(_size("weight", weight)) == 3:
        return explain(
            _row(input),
            _row(weight),
            bias,
            (1, one("stride", stride)),
            padding if isinstance(padding, str) else (0, one("padding", padding)),
            (1, one("dilation", dilation)),
            groups,
            pass_=pass_,
            precision=precision,
            dtype=dtype,
            channels_last=channels_last,
            device=device,
            arch=arch,
            refusals=refusals,
        )
    tensors = [operand for operand in (input, weight) if isinstance(operand, Tensor)]
    if dtype is None:
        dtype = tensors[0].dtype if tensors else torch.float32
    if dtype not in ops.DTYPES:
        raise NotImplementedError(f"dtype must be {ops.dtype_names()}, but got {dtype}")
    if channels_last is None:
        channels_last = any(ops.is_channels_last(tensor) for tensor in tensors if tensor.dim() in (3, 4))
    there = [tensor.device for tensor in tensors if not tensor.is_meta]
    place = torch.device(device) if device is not None else there[0] if there else torch.device("cuda")
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, but got {place}")
    planned_for, whose = _planned_for(place, arch)
    input_size, weight_size = _size("input", input), _size("weight", weight)
    if isinstance(padding, str):
        meta_input, meta_weight = (torch.empty(size, device="meta") for size in (input_size, weight_size))
        padded, padding = _pad(meta_input, meta_weight, pair("stride", stride), padding, pair("dilation", dilation))
        input_size = list(padded.shape)
    geometry = integers(stride, padding, dilation, groups)
    ops.output_size(input_size, weight_size, *geometry)
    if dtype.is_complex:  # what ops/complex.h makes of it
        dtype = dtype.to_real()
        input_size[-3] *= 2
        weight_size = [2 * extent for extent in weight_size[:2]] + weight_size[2:]
    problem, rest = torch.ops.fastconv._explain(
        input_size,
        weight_size,
        *geometry,
        dtype=str(dtype).removeprefix("torch."),
        pass_=pass_,
        precision=resolve(precision),
        channels_last=channels_last,
        bias=bias is not None and bias is not False,
        cuda=place.type == "cuda",
        **planned_for._asdict(),
        refusals=refusals,
    ).split("\n", 1)
    return f"{problem}\nplanned for {whose}; costs are estimates\n{rest}"


def _row(operand: Tensor | Sequence[int]) -> Tensor | Sequence[int]:
    """A sequence as an image of one row."""
    return operand.unsqueeze(-2) if isinstance(operand, Tensor) else [*operand[:-1], 1, *operand[-1:]]


def _size(name: str, operand: Tensor | Sequence[int]) -> list[int]:
    return [integer(name, extent) for extent in (operand.shape if isinstance(operand, Tensor) else operand)]


def _planned_for(place: torch.device, arch: int | str | Device | None) -> tuple[Device, str]:
    """What the planner is told, and that in words."""
    if place.type == "cpu":
        if arch is not None:
            raise ValueError(f"arch is a GPU to plan for, but the device is the CPU, not 'cuda': got {arch!r}")
        return H200, f"the CPU, {torch.get_num_threads()} threads"
    device, whose = _device(place) if arch is None else (arch if isinstance(arch, Device) else gpu(arch), "")
    words = f"compute capability {device.arch // 10}.{device.arch % 10}, {device.sm_count} SMs"
    return device, f"{words}, {device.clock_mhz} MHz, {device.memory_gbps} GB/s{whose and f' ({whose})'}"


def _device(place: torch.device) -> tuple[Device, str]:
    acts_as = os.environ.get("FASTCONV_ARCH")
    if not torch.cuda.is_available():
        return _acting_as(acts_as) if acts_as else (H200, "an H200's, as torch sees no GPU")
    if _library.cuda_error is None:
        index = torch.cuda.current_device() if place.index is None else place.index
        return Device(*torch.ops.fastconv._cuda_device(index)), "FASTCONV_ARCH" if acts_as else ""
    properties = torch.cuda.get_device_properties(place)
    own = H200._replace(
        arch=properties.major * 10 + properties.minor,
        sm_count=properties.multi_processor_count,
        smem_optin_bytes=_smem_optin_bytes(properties),
    )
    return own, "clock and memory an H200's, as the CUDA library is not loaded"


def _acting_as(name: str) -> tuple[Device, str]:
    try:  # as on a GPU, where the library reads it, which does not know as many spellings as gpu() does
        return Device(*torch.ops.fastconv._gpu(name)), "FASTCONV_ARCH"
    except RuntimeError as error:
        raise RuntimeError(str(error).replace("arch", "FASTCONV_ARCH", 1)) from None


def _smem_optin_bytes(properties: Any) -> int:
    return int(properties.shared_memory_per_block_optin)


def cuda_error(device: torch.device | str | int | None = None) -> str | None:
    """Why fastconv cannot compute on a GPU, or None if it can.

    Args:
        device: a CUDA device. None: torch's current one.

    Returns:
        A sentence, which says that the library is not in this build, torch has no CUDA, or no device, the driver is too
        old, the kernels are not compiled for the device, or FASTCONV_ARCH names none; or it has the loader's own words.

    Raises:
        RuntimeError: ``device`` is none that torch knows.

    >>> device = "cpu" if fastconv.cuda_error() else "cuda"
    """
    if _library.cuda_error is not None:
        return _library.cuda_error
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    index = device if isinstance(device, int) else torch.device("cuda" if device is None else device).index
    try:
        torch.ops.fastconv._cuda_device(torch.cuda.current_device() if index is None else index)
    except RuntimeError as error:
        said = re.search(r"fastconv: (.*)", str(error))
        return said[1] if said else str(error)
    return None


def info(*, kernels: bool = False) -> str:
    """Versions, libraries and how they were built, devices; if CUDA cannot be used, exactly why.

    Args:
        kernels: whether to list every kernel, with pass and device, and not their number alone.

    Returns:
        Lines of text. Never raises.

    >>> print(fastconv.info())  # doctest: +ELLIPSIS
    fastconv ...
    """
    from . import __version__

    lines = [
        f"fastconv {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        f"CPU library: {_library.CPU_LIBRARY}",
        *_table(torch.ops.fastconv._cpu_build()),
    ]
    if _library.cuda_error is None:
        lines += [f"CUDA library: {_library.CUDA_LIBRARY}", *_table(torch.ops.fastconv._cuda_build())]
    else:
        lines.append(f"CUDA library: not loaded: {_library.cuda_error}")
    lines += _devices()
    listed = torch.ops.fastconv._kernels()
    counts = Counter(line.rpartition("\t")[2] for line in listed.splitlines())
    lines.append(f"planner: knows {counts['cpu']} kernels for CPUs and {counts['cuda']} for GPUs")
    if kernels:
        lines += _table(listed)
    return "\n".join(lines)


def _table(text: str) -> list[str]:
    rows = [line.split("\t") for line in text.splitlines()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _devices() -> list[str]:
    if not torch.cuda.is_available():
        return ["CUDA device: none visible to torch"]
    lines = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        lines.append(
            f"CUDA device {index}: {properties.name}, sm_{properties.major}{properties.minor}, "
            f"{properties.multi_processor_count} SMs, {_smem_optin_bytes(properties) >> 10} KiB shared memory"
        )
        error = cuda_error(index) if _library.cuda_error is None else None
        if error:
            lines.append(f"  cannot be used: {error}")
    if (acts_as := os.environ.get("FASTCONV_ARCH")) and not error:
        lines.append(f"FASTCONV_ARCH: kernels of {acts_as} run in place of the devices' own")
    return lines


@contextmanager
def force_kernel(name: str) -> Iterator[None]:
    """Within the block every convolution that a kernel of this name can serve is computed by it. For tests.

    Args:
        name: a kernel's name as ``info(kernels=True)`` lists it, or several separated by commas (one for each pass).
            Passes of which none is named choose freely.

    Raises:
        RuntimeError: by each convolution in the block, if the name is unknown or the kernel refuses it.

    The setting is the environment variable FASTCONV_KERNEL, hence that of the process, not of the thread.

    >>> with fastconv.force_kernel("cpu_gemm_fprop"):
    ...     y = fastconv.conv2d(torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3))
    """
    previous = os.environ.get("FASTCONV_KERNEL")
    os.environ["FASTCONV_KERNEL"] = name
    try:
        yield
    finally:
        if previous is None:
            del os.environ["FASTCONV_KERNEL"]
        else:
            os.environ["FASTCONV_KERNEL"] = previous
