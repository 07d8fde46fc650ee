"""CUDA kernels on the CPU, thread by thread, for tests only. Built by CMake into build/cmake."""

from _fastconv_native import ConvProblem, DeviceSpec

def is_compiled(kernel: str, dtype: str) -> bool:
    """Of the two types of 16 bits one is left out unless CMake is given FASTCONV_EMULATE_BOTH."""

def runs(kernel: str, problem: ConvProblem, device: DeviceSpec) -> bool:
    """Whether all kernels are compiled that its plan has."""

def run(
    kernel: str, problem: ConvProblem, device: DeviceSpec, *, x: int, w: int, y: int, bias: int = 0, haste: bool = False
) -> int:
    """Plans and launches as on a device. Returns how many columns of outputs were computed by definition, once for each
    thread that did.

    x, w, y, bias: addresses. haste: another order of threads and of asynchronous copies, see emulated/block.h. Raises
    ValueError if the kernel refuses, RuntimeError for what a GPU leaves undefined.
    """

class NormProblem:
    """Images without gaps of a dtype: n, c, and pixels of each."""

    def __init__(self, *, dtype: str, channels_last: bool, n: int, c: int, pixels: int) -> None: ...

def norm_vector(problem: NormProblem) -> int:
    """Elements that a thread reads at once."""

def batch_norm_forward(
    problem: NormProblem,
    device: DeviceSpec,
    *,
    activation: int,
    training: bool,
    momentum: float,
    eps: float,
    wide: bool,
    addresses: dict[str, int],
) -> None:
    """Launches as on a device. wide: parameters and statistics are float32. addresses: of x, y, ... as
    norm/batch_norm.h names them; what there is not is left out."""

def batch_norm_backward(
    problem: NormProblem,
    device: DeviceSpec,
    *,
    activation: int,
    training: bool,
    wide: bool,
    addresses: dict[str, int],
) -> None: ...
