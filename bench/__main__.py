"""Command line: `python -m bench`."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from bench import environment, opponents, report, timing
from bench.modes import DTYPES, LONG, PRECISIONS, Mode, modes_of
from bench.runner import Plan, measure
from bench.suites import LAYOUTS, PASSES, Problem, Suite, load_suite, sample, select, suite_names

QUICK_FLOPS = 2e9


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    if args.render:
        return show(report.Report.from_json(args.render.read_text()), args.render.with_suffix(""))
    try:
        import fastconv  # noqa: F401  (registers the ops)
    except ImportError as missing:
        sys.exit(f"bench needs fastconv ({missing}): install it, or set PYTHONPATH=python after a build in place")

    device = torch.device(args.device)
    timing.use_device(device)
    if args.arch:
        os.environ["FASTCONV_ARCH"] = args.arch
    if args.kernel:
        opponents.force_kernel(args.kernel)
    modes = modes_of(args.dtype, args.precision)
    measured = environment.measure_ceilings(device, modes)
    plan = Plan(
        device=device,
        modes=modes,
        layouts=args.layout,
        passes=args.pass_,
        opponents=args.opponent,
        ceilings=environment.ceilings_for(device, measured),
        seconds=args.seconds,
        kernel_forced=args.kernel is not None,
    )
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    suites = [load_suite(name) for name in args.suite]
    if args.host and not suites:
        suites = [Suite("host", load_suite("host").about, ())]
    worst = 0
    for suite in suites:
        result = report.Report(
            suite=suite.name,
            about=suite.about,
            date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            command=shlex.join(["python", "-m", "bench", *(sys.argv[1:] if arguments is None else arguments)]),
            settings={
                "seconds": args.seconds,
                "quick": args.quick,
                "kernel": args.kernel,
                **({"sample": args.sample, "seed": args.seed} if args.sample else {}),
                "cudnn.benchmark": torch.backends.cudnn.benchmark,
            },
            machine=environment.machine(device),
            versions=environment.versions(device),
            build=environment.build(),
            names={name: opponents.display_name(name, device) for name in ("fastconv", *args.opponent)},
            ceilings=plan.ceilings,
            measured=measured,
        )
        stem = args.out / f"{suite.name}-{environment.slug(device)}-{stamp}"
        problems = sample(select(suite.problems, args.problem), args.sample, args.seed)
        if args.host:
            result.host = measure_host(device)
        try:
            with report.sigterm_exits():
                run(result, [quick(problem) for problem in problems] if args.quick else problems, plan, stem)
        finally:
            worst = max(worst, show(result, stem))
    return worst


def run(result: report.Report, problems: Sequence[Problem], plan: Plan, stem: Path) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(problems) * plan.rows_per_problem, unit="row", disable=not problems) as bar:
        for problem in problems:
            bar.set_description(problem.name)
            for row in measure(problem, plan):
                result.rows.append(row)
                bar.update()
            # A run that is cut short leaves what it had.
            Path(f"{stem}.json").write_text(result.to_json())
            if plan.device.type == "cuda":
                torch.cuda.empty_cache()


def show(result: report.Report, stem: Path) -> int:
    """Prints and writes a report; 1 if a result in it is wrong."""
    sections = [report.table_of_rows(result)] if result.rows else []
    sections += [report.summary(result), report.losses(result), report.totals(result), report.host_table(result)]
    print("\n\n".join(section for section in sections if section))
    print("\nwrote " + ", ".join(str(path) for path in result.write(stem)))
    return int(result.failed)


def quick(problem: Problem) -> Problem:
    """The problem with so few images, and if one is too much so few rows, that a CPU does it in no time."""
    n, c, h, w = problem.input
    problem = problem.with_input((max(1, min(n, int(QUICK_FLOPS / (problem.flops / n)))), c, h, w))
    while problem.flops > QUICK_FLOPS and h // 2 > problem.dilation[0] * (problem.weight[2] - 1):
        h //= 2
        problem = problem.with_input((1, c, h, w))
    return problem


def measure_host(device: torch.device) -> list[timing.HostTime]:
    """Of a layer, microseconds; and of what a call is made of."""
    pieces = timing.host_times(opponents.host_pieces(device), device, burst=100)
    found = [timing.HostTime("a call", name, {"fastconv.conv2d": time}) for name, time in pieces.items()]
    for problem in tqdm(load_suite("host").problems, desc="host time"):
        for what, mode, layout in itertools.product(opponents.HOST_WORK, opponents.HOST_MODES, LAYOUTS):
            calls = opponents.host_calls(problem, what, mode, layout == "nhwc", device)
            times = timing.host_times(calls, device, bursts=9, burst=4, seconds=2.0)
            layer = {name: time / opponents.HOST_LAYERS for name, time in times.items()}
            found.append(timing.HostTime(problem.name, f"{what}, {mode} {layout}", layer))
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Time and error of fastconv against PyTorch's convolutions. Lists are separated by commas.",
    )
    cuda = torch.cuda.is_available()
    add = parser.add_argument
    add("--suite", type=choices(suite_names()), help=f"of {', '.join(suite_names())}; default: public")
    add("--problem", type=choices(), default=[], help="names or shell patterns; default: all of the suite")
    add_sample_options(parser)
    add("--pass", dest="pass_", type=choices(PASSES, {"fwd": "fprop"}), default=list(PASSES), help="fwd,dgrad,wgrad")
    add("--dtype", type=choices(list(DTYPES), LONG), help="default: fp32,fp16 on CUDA, fp32 on the CPU")
    add("--precision", type=choices(PRECISIONS), default=["ieee"], help="of fp32: ieee,bf16x3,tf32; default: ieee")
    add("--layout", type=choices(LAYOUTS), default=list(LAYOUTS), help="default: nchw,nhwc")
    add("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")
    add("--opponent", type=choices((*opponents.OPPONENTS, "none")), default=["torch"], help="torch,compile or none")
    add("--kernel", metavar="NAME", help="force fastconv kernels by name; those that refuse a problem are reported")
    add("--arch", metavar="GPU", help="fastconv takes the kernels of another GPU: a100, 80, ... (FASTCONV_ARCH)")
    add("--host", action="store_true", help="time per call on the host; without --suite only that")
    add("--quick", action="store_true", help="shrunk problems and short measurements: to see that everything runs")
    add("--seconds", type=float, help="per measurement after warm-up; default 0.1, with --quick 0.02")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="default: bench/results")
    add("--render", type=Path, metavar="JSON", help="print, and write again, the table and picture of an earlier run")
    args = parser.parse_args(arguments)
    if args.device == "cuda" and not cuda:
        parser.error("--device cuda: torch sees no GPU")
    if args.suite is None:
        args.suite = [] if args.host else ["public"]
    if args.dtype is None:
        args.dtype = ["float32", "float16"] if args.device == "cuda" else ["float32"]
    if args.seconds is None:
        args.seconds = 0.02 if args.quick else 0.1
    args.opponent = [name for name in args.opponent if name != "none"]
    return args


def choices(allowed: Sequence[str] | None = None, aliases: dict[str, str] | None = None) -> Callable[[str], list[str]]:
    """A comma-separated list, each item one of `allowed` or an alias of one."""

    def convert(text: str) -> list[str]:
        items = [(aliases or {}).get(item, item) for item in text.split(",") if item]
        for item in items:
            if allowed is not None and item not in allowed:
                raise argparse.ArgumentTypeError(f"{item!r} is none of {', '.join((*allowed, *(aliases or ())))}")
        return list(dict.fromkeys(items))

    return convert


def add_sample_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--sample", type=int, metavar="COUNT", help="of a suite's problems so many at random")
    add("--seed", type=int, default=random.randrange(2**31), help="of --sample; default: another each time")


def add_case_options(parser: argparse.ArgumentParser) -> None:
    """Which cases a comparison of kernels or builds is of; `cases` lists them."""
    cuda = torch.cuda.is_available()
    add = parser.add_argument
    add("--suite", default="public")
    add("--problem", type=choices(), default=[], help="names or shell patterns; default: all of the suite")
    add_sample_options(parser)
    add("--pass", dest="pass_", type=choices(PASSES), default=list(PASSES), help="fprop,dgrad,wgrad")
    add("--layout", type=choices(LAYOUTS), default=list(LAYOUTS), help="default: nchw,nhwc")
    add("--dtype", type=choices(list(DTYPES), LONG), default=["float16" if cuda else "float32"], help="fp32,fp16,bf16")
    add("--precision", type=choices(PRECISIONS), default=["ieee"], help="of fp32: ieee,bf16x3,tf32; default: ieee")
    add("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")


def cases(options: argparse.Namespace) -> Iterator[tuple[Problem, str, Mode, str]]:
    """Problem, layout, mode and pass."""
    return itertools.product(
        sample(select(load_suite(options.suite).problems, options.problem), options.sample, options.seed),
        options.layout,
        modes_of(options.dtype, options.precision),
        options.pass_,
    )


if __name__ == "__main__":
    sys.exit(main())
