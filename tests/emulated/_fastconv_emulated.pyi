"""CUDA kernels on the CPU, thread by thread, for tests only. Built by CMake into build/cmake."""

from _fastconv_native import ConvProblem, DeviceSpec

def is_compiled(kernel: str, dtype: str) -> bool:
    """Of the two types of 16 bits one is left out unless CMake is given FASTCONV_EMULATE_BOTH."""

def runs(kernel: str, problem: ConvProblem, device: DeviceSpec) -> bool:
    """Whether all kernels are compiled that its plan has."""

def run(
    kernel: str,
    problem: ConvProblem,
    device: DeviceSpec,
    *,
    x: int,
    w: int,
    y: int,
    bias: int = 0,
    activation: int = 0,
    wide_bias: bool = False,
    haste: bool = False,
) -> int:
    """Plans and launches as on a device. Returns how many columns of outputs were computed by definition, once for each
    thread that did.

    x, w, y, bias: addresses. activation: of the output, one that cuts off, by its number. wide_bias: in float32. haste:
    another order of threads and of asynchronous copies, see emulated/block.h. Raises ValueError if the kernel refuses,
    RuntimeError for what a GPU leaves undefined.
    """

class NormProblem:
    """Images without gaps of a dtype: n, c, and pixels of each."""

    def __init__(self, *, dtype: str, channels_last: bool, n: int, c: int, pixels: int) -> None: ...

def norm_vector(problem: NormProblem) -> int:
    """Elements that a thread reads at once."""

def activate(dtype: str, count: int, activation: int, addresses: dict[str, int]) -> None:
    """Of z and residual y; of grad_y, kept and residual grad_z. See norm/activate.h."""

def fold_norm(
    dtype: str, filters_type: str, count: int, values: int, wide: bool, eps: float, addresses: dict[str, int]
) -> None:
    """A batch norm into filters and a bias. wide: parameters in the type of sums. See norm/fold.h."""

def cast(from_type: str, to_type: str, from_: int, to: int, count: int) -> None:
    """Values side by side in another type."""

def run_together(together: bool) -> None:
    """Whether launches whose blocks may run at once are granted that from now on."""

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
