"""The torch-free half of fastconv as Python sees it, for tests only. Built by CMake into build/cmake."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Quad = tuple[int, int, int, int]

class ConvProblem:
    """A legal convolution. Sizes N C H W and K C/groups R S; strides are dense unless given, alignment is in bytes."""

    def __init__(
        self,
        input: Sequence[int],
        weight: Sequence[int],
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        *,
        pass_: str = "fprop",
        dtype: str = "float32",
        precision: str = "ieee",
        bias: bool = False,
        channels_last: bool = False,
        x_strides: Sequence[int] | None = None,
        w_strides: Sequence[int] | None = None,
        y_strides: Sequence[int] | None = None,
        align: int = 128,
    ) -> None:
        """Raises ValueError with validate()'s sentence if the convolution is not legal."""
    pass_: str
    dtype: str
    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    p: int
    q: int
    groups: int
    c_per_group: int
    k_per_group: int
    x_strides: Quad
    w_strides: Quad
    y_strides: Quad
    flops: float
    compulsory_bytes: float

GPUS: list[str]

class DeviceSpec:
    is_cuda: bool
    arch: int
    sm_count: int
    smem_optin_bytes: int
    threads: int
    clock_mhz: float
    memory_gbps: float
    l2_bytes: int
    @staticmethod
    def cpu(threads: int = 1) -> DeviceSpec: ...
    @staticmethod
    def cuda(arch: int, sm_count: int, smem_optin_bytes: int) -> DeviceSpec: ...
    @staticmethod
    def gpu(name_or_arch: str) -> DeviceSpec: ...
    def acting_as(self, other: DeviceSpec) -> DeviceSpec: ...

def arch_of_code(archs: str, arch: int) -> int: ...
def why_not_with_driver(runtime_version: int, driver_version: int) -> str: ...

class Plan:
    """What make_plan chose. An empty `kernel` means that nothing runs the problem; `reason` then says why."""

    kernel: str
    grid: int
    block_threads: int
    smem_bytes: int
    split: int
    workspace_bytes: int
    cost_us: float
    inner: tuple[ConvProblem, Plan] | None
    others: Plan | None
    reason: str

class PlanCache:
    """Keeps up to `most` plans; `made`: how many were not known."""

    made: int
    def __init__(self, most: int = 4096) -> None: ...
    def plan(self, problem: ConvProblem, device: DeviceSpec, force: str = "") -> Plan: ...

class Kernel:
    name: str
    pass_: str
    family: str
    is_cuda: bool
    least_arch: int
    tile: tuple[int, int, int]
    def why_not(self, problem: ConvProblem, device: DeviceSpec) -> str | None: ...

class FastDivmod:
    """Exact for dividends in [0, 2^31) and divisors in [1, 2^31)."""

    def __init__(self, divisor: int) -> None: ...
    def div(self, dividend: int) -> int: ...
    def divmod(self, dividend: int) -> tuple[int, int]: ...

def validate(
    input: Sequence[int],
    weight: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> str:
    """Empty if legal, otherwise why not."""

def validate_bias(
    input: Sequence[int],
    weight: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    bias: Sequence[int],
) -> str: ...
def validate_grad_output(
    input: Sequence[int],
    weight: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    grad_output: Sequence[int],
) -> str: ...
def output_size(
    input: Sequence[int],
    weight: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> list[int]:
    """[N, K, P, Q], or [] if the geometry is not legal."""

def products(problem: ConvProblem, method: str) -> npt.NDArray[np.int64]:
    """Every multiply-add that the index maths of conv_coords.cuh forms for output channel 0 of group 0.

    As element offsets (source, filter, target), in no particular order: x, w, y for fprop and wgrad; dy, w, dx for
    dgrad.
    Method: "direct", "direct_channels_inner" or "im2col".
    """

def depthwise_any_products(
    problem: ConvProblem, kernel: Kernel, device: DeviceSpec, tiling: tuple[int, ...] | None = None
) -> npt.NDArray[np.int64]:
    """As products(), by a depthwise kernel for any filter, its own tiling or another one (the members of its struct).
    Raises ValueError if the kernel refuses."""

def grouped_pixels(width: int, step: int, first: int, count: int) -> list[tuple[int, int]]:
    """Row and column of every `step`th pixel from `first` on, found one from the other."""

def grouped_products(
    problem: ConvProblem,
    kernel: Kernel,
    device: DeviceSpec,
    group: int = 0,
    tiling: tuple[int, int, int, int] | None = None,
) -> npt.NDArray[np.int64]:
    """As products(), by a kernel for narrow groups, its own tiling or another one (rows and columns of pixels, groups,
    sets stored together); of another group as if it were group 0. Raises ValueError if the kernel refuses."""

def grouped_wgrad_products(
    problem: ConvProblem,
    kernel: Kernel,
    device: DeviceSpec,
    group: int = 0,
    tiling: tuple[int, int, int, int] | None = None,
) -> npt.NDArray[np.int64]:
    """As grouped_products(), by a weight gradient: the other tiling has at most the plan's groups, and parts instead of
    sets."""

def grouped_wgrad_chain(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> int:
    """The most pixels that one sum adds up before others are added to it. Raises ValueError if the kernel refuses."""

def mma_chunk(along_rows: bool, is_b: bool, line: int, chunk: int, length: int) -> int:
    """Where a chunk of 16 bytes of a line of `length` elements lies in a stage of the mma family, in chunks."""

def stem_products(
    problem: ConvProblem, kernel: Kernel, device: DeviceSpec, tiling: tuple[int, int, int, int, int] | None = None
) -> npt.NDArray[np.int64]:
    """As products(), by a kernel for images of few channels, its own tiling or another one (rows and columns of pixels,
    sets, of which at most the plan's are taken, stages, walkers). Raises ValueError if the kernel refuses."""

def quads_products(
    problem: ConvProblem, kernel: Kernel, device: DeviceSpec, tiling: tuple[int, int, int, int] | None = None
) -> npt.NDArray[np.int64]:
    """The same of 16 bits and TF32; the tiling is rows of pixels, runs of 16 bytes of columns, sets and walkers."""

def quads_accesses(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> float:
    """How often shared memory is accessed for a tile's first 32 pixels, over the least for so many bytes."""

def embed_products(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> npt.NDArray[np.int64]:
    """The same of patch embeddings."""

def stem_neighbours(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> tuple[int, int]: ...
def run_column(run: int, product: int, column: int) -> int: ...
def stem_wgrad_products(
    problem: ConvProblem, kernel: Kernel, device: DeviceSpec, tiling: tuple[int, int, int, int, int] | None = None
) -> npt.NDArray[np.int64]: ...
def depthwise_products(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> npt.NDArray[np.int64]: ...
def depthwise_banded_products(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> npt.NDArray[np.int64]: ...
def depthwise_diagonal_products(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> npt.NDArray[np.int64]: ...
def depthwise_cross_products(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> npt.NDArray[np.int64]: ...
def depthwise_pairs_products(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> npt.NDArray[np.int64]: ...
def halo_products(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> npt.NDArray[np.int64]:
    """As products(), by the plan of a kernel of the halo engine. Raises ValueError if the kernel refuses."""

def halo_copy_warps(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> int:
    """Producer warps that start the copies of a halo; 0 if TMA does not stage it so."""

def halo_tiles(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> tuple[int, list[tuple[int, list[int]]]]:
    """Blocks of the grid and, in their order, its tiles: phase, and group, filter tile, share and first pixel."""

def halo_blocks(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> list[tuple[int, int, int]]:
    """Blocks of the reduction: of channels, part of the input and part of the filter."""

def line_stores(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> list[tuple[int, int]]:
    """First byte and number of bytes of what a kernel that stores lines writes. Raises ValueError if it refuses."""

def pixel_rows(
    vector: int, together: int, block_k: int, element_bytes: int, narrow: bool, across_log2: int
) -> tuple[list[tuple[int, int]], int]:
    """What each sum that is stored should be, and which it is; and turns that the slowest access to shared memory
    takes. ValueError if that is not compiled.
    """

def channel_rows(block_k: int, element_bytes: int) -> tuple[list[tuple[int, int]], int]:
    """As pixel_rows()."""

def stream_turns(plane: int, element_bytes: int) -> int: ...
def reorder(size: Quad, align: int, to_planes: bool) -> tuple[list[int], list[int], int, str]: ...

SplitElements = list[tuple[int | None, int] | None]

def split(
    size: Quad,
    strides: Quad,
    groups: int,
    align: int,
    operand: str,
    parts: int,
    unit_rows: int = 0,
) -> tuple[SplitElements, int]:
    """The workspace, each element as an element of the tensor (None: zero) and its part, None where nothing is written;
    and how many lanes use a bank of shared memory at once.

    `size` with the channels of one group. `unit_rows`: of a unit, instead of the plan's. Raises IndexError if an
    element is written twice, or an access is not aligned.
    """

def split_plan(
    size: Quad,
    strides: Quad,
    groups: int,
    align: int,
    operand: str,
    parts: int,
) -> tuple[str, int, int, int, int]:
    """Direction of reading, values at once; channels and rows of a unit, and units."""

def split_strides(size: Quad, groups: int, operand: str, parts: int) -> Quad: ...
def filter_split(problem: ConvProblem, operand: str, parts: int, unit_rows: int = 0) -> tuple[SplitElements, int]:
    """As split()."""

def operand_maps(
    problem: ConvProblem, kernel: Kernel, device: DeviceSpec
) -> dict[str, tuple[list[int], list[int], SplitElements]]:
    """The tensor maps of a kernel for float32 on tensor cores, by the tensor that they hold values of: x, w or y.

    Sizes and strides, of elements from the innermost dimension, and the workspace where the map begins, as split();
    nothing if the tensor itself is read. Raises ValueError if the kernel refuses, IndexError if an operand is written
    beyond its room in the workspace.
    """

def split_parts(values: list[int], parts: int) -> list[list[int]]:
    """Bits of each bf16 part of float32 values, given as bits; as many as a multiple of 8."""

def half_parts(values: list[float], scale: float, parts: int) -> list[list[int]]:
    """The same of fp16, of values that are first multiplied by `scale`."""

def measure(values: list[float]) -> Quad:
    """Of values that follow each other in memory: bits of the largest magnitude and of the least of groups' largest,
    how many are not zero, how many of those are small beside their group's largest."""

def operand_range(first: Quad, second: Quad, *, parts: int = 1) -> tuple[bool, list[float], list[float]]:
    """Whether two measured tensors fit fp16, their scales, and what undoes both."""

def to_tf32(values: list[int]) -> list[int]:
    """Bits of float32 values rounded to TF32, given as bits."""

def halo_packed_filter(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> tuple[list[int], list[int]]:
    """Elements of the packed filter as elements of the filter, -1 for zeros: as its kernel packs them, and as used."""

def patch_moves(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> list[tuple[int, int]]:
    """Every element of the image that is read or written, with that of the patches that it goes to or comes from, -1 if
    with none. Raises ValueError if the kernel refuses, IndexError if a vector is not aligned or out of bounds."""

def subpixel_products(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> npt.NDArray[np.int64]:
    """As products(), of all channels: by the inner problem, the filter that is written for it, and how its outputs are
    moved. Raises ValueError if the kernel refuses."""

def check_copies(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> None:
    """Raises IndexError if the plan has a copy that TMA does not make."""

def check_streaming(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> None:
    """For weight gradients that stream x. Raises IndexError if shared memory has no place for that, if a tile may be
    staged before its pixels are there, or if all tiles wait for all pixels; ValueError if x is not streamed."""

def tap_vector_bytes(problem: ConvProblem, kernel: Kernel, device: DeviceSpec) -> list[int]:
    """Bytes that a kernel of several taps stores at once, of each phase. Raises ValueError if it refuses."""

def wgrad_products(
    problem: ConvProblem, kernel: Kernel, device: DeviceSpec, filter: int = 0, product: int = 0
) -> npt.NDArray[np.int64]:
    """As products(), by the plan of a kernel of the sm_90a weight gradient. Raises ValueError if it refuses.

    `filter`: where rows or planes of dy are copied, of that filter, its offsets in dy counted from its first.
    `product`: of the parts of float32 tensors; IndexError if there is none, or if other parts are multiplied.
    """

def split_products(parts: int, beyond: int = 0) -> list[tuple[int, int]]:
    """The parts of both operands that are multiplied, in order; and what so many products behind the last are."""

def make_plan(problem: ConvProblem, device: DeviceSpec, force: str = "") -> Plan: ...
def explain(problem: ConvProblem, device: DeviceSpec, force: str = "") -> str: ...
def kernel_table() -> list[Kernel]: ...
def costs() -> dict[str, list[float]]:
    """The constants of costs.def, as "group.name"."""

def set_cost(name: str, index: int, value: float) -> None: ...
def expected_us(questions: Sequence[tuple[Kernel, ConvProblem, DeviceSpec]]) -> list[float]:
    """What plans are expected to take, infinite where a kernel refuses."""
