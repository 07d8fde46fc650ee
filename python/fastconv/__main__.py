"""python -m fastconv [info]; python -m fastconv explain --input 8,64,512,256 --weight 128,64,5,7."""

from __future__ import annotations

import argparse
import signal
import sys

import torch

from . import __version__, ops
from .explain import PASSES, explain, info
from .precision import PRECISIONS


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _padding(text: str) -> str | tuple[int, ...]:
    return text if text in ("same", "valid") else _ints(text)


def _pair(values: tuple[int, ...]) -> tuple[int, ...]:
    return values * 2 if len(values) == 1 else values


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fastconv", description="fastconv: what is installed, what it runs")
    parser.add_argument("--version", action="version", version=f"fastconv {__version__}")
    commands = parser.add_subparsers(dest="command")
    parser.set_defaults(command="info", kernels=False)
    about = commands.add_parser("info", help="versions, libraries, devices, and why CUDA cannot be used (the default)")
    about.add_argument("--kernels", action="store_true", help="and every kernel")
    plan = commands.add_parser("explain", help="the plan of a convolution, and what other kernels would cost")
    plan.add_argument("--input", type=_ints, required=True, metavar="N,C,H,W")
    plan.add_argument("--weight", type=_ints, required=True, metavar="K,C/groups,R,S")
    plan.add_argument("--bias", action="store_true")
    plan.add_argument("--stride", type=_ints, default=(1, 1), metavar="H,W")
    plan.add_argument("--padding", type=_padding, default=(0, 0), metavar="H,W|same|valid")
    plan.add_argument("--dilation", type=_ints, default=(1, 1), metavar="H,W")
    plan.add_argument("--groups", type=int, default=1)
    dtypes = [str(dtype).removeprefix("torch.") for dtype in ops.DTYPES]
    plan.add_argument("--dtype", choices=dtypes, default="float32")
    plan.add_argument("--pass", dest="pass_", choices=PASSES, default="fprop")
    plan.add_argument("--precision", choices=PRECISIONS, help="of float32 products (default: torch's setting)")
    plan.add_argument("--channels-last", action="store_true")
    plan.add_argument("--device", default="cuda", metavar="cuda|cpu", help="need not be present (default: cuda)")
    plan.add_argument("--arch", help="a GPU, or a compute capability: a100, 8.0 (default: the device's, else h200)")
    plan.add_argument("--refusals", action="store_true", help="and why each kernel that cannot compute it refuses")
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.command == "info":
        print(info(kernels=arguments.kernels))
        return 0
    padding = arguments.padding
    try:
        text = explain(
            arguments.input,
            arguments.weight,
            arguments.bias,
            _pair(arguments.stride),
            _pair(padding) if isinstance(padding, tuple) else padding,
            _pair(arguments.dilation),
            arguments.groups,
            pass_=arguments.pass_,
            precision=arguments.precision,
            dtype=getattr(torch, arguments.dtype),
            channels_last=arguments.channels_last,
            device=arguments.device,
            arch=arguments.arch,
            refusals=arguments.refusals,
        )
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as other commands do when `head` has read enough
    sys.exit(main())
