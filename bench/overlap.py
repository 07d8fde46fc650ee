"""Steps of several GPUs: what of the exchange of gradients is hidden behind the backward pass.

    torchrun --nproc-per-node 2 -m bench.overlap                        a ResNet-50 by DistributedDataParallel
    torchrun --nproc-per-node 2 -m bench.overlap --setting tf32 --model unet
    torchrun --nproc-per-node 2 -m bench.overlap --quick --device cpu --model unet      by gloo, to see that it runs

Contenders, models and settings are those of bench.models. Each takes its steps with all-reduce and, by `no_sync`,
without. The difference is what a step waits for others; the all-reduce of as many bytes is timed by itself, too, and
what of that is not waited for is hidden. fastconv's kernels with grid barriers need all of their blocks at once, and
NCCL's take some of the GPU meanwhile: if one waits for the other, the difference is larger than cuDNN's.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench import models, report, table_run, timing
from bench.__main__ import choices

BUCKET_MIB = 25  # DDP's default
BURST = 4  # calls that are timed as one


def main(arguments: Sequence[str] | None = None) -> int:
    parser = table_run.parser("overlap", __doc__, seconds=1.0)
    add = parser.add_argument
    add(
        "--model",
        type=choices(),
        default=["resnet50"],
        help=f"names or shell patterns, of {', '.join(models.WORKLOADS)}",
    )
    add(
        "--contender",
        type=choices(aliases={"fused": models.FUSED}),
        default=list(models.CONTENDERS),
        help="torch,fused",
    )
    add("--setting", type=choices(list(models.SETTINGS)), default=models.DEFAULT_SETTINGS, help="tf32,bf16,fp16")
    add("--batch", type=int, help="images of each process; default: as many as keep a large GPU busy")
    options = parser.parse_args(arguments)
    if "LOCAL_RANK" not in os.environ:
        parser.error("to be started by torchrun --nproc-per-node 2 -m bench.overlap")
    options.model = models.matching(parser, "model", list(models.WORKLOADS), options.model)
    options.contender = models.matching(parser, "contender", models.CONTENDERS, options.contender)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device(options.device)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    try:
        settings = {
            "cudnn.benchmark": True,
            "quick": options.quick,
            "processes": dist.get_world_size(),
            "backend": dist.get_backend(),
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if options.device == "cuda" else None,
        }
        title = f"Steps of {dist.get_world_size()} processes by DDP"
        rows = functools.partial(_rows, options)
        status = table_run.run(
            "overlap", title, rows, functools.partial(markdown, device=device), options, settings=settings
        )
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return status


def _rows(options: argparse.Namespace, device: torch.device) -> Iterator[table_run.Row]:
    """Of the first process, which reports."""
    for name in options.model:
        for setting in options.setting:
            workload = models.WORKLOADS[name]
            workload = replace(workload, batch=options.batch) if options.batch else workload
            workload = workload.shrunk() if options.quick else workload
            burst = 1 if options.quick else BURST
            row = measure(workload, models.SETTINGS[setting], device, options.seconds, burst, options.contender)
            if dist.get_rank() == 0:
                yield row


def measure(
    workload: models.Workload,
    setting: models.Setting,
    device: torch.device,
    seconds: float,
    burst: int,
    contenders: Sequence[str],
) -> table_run.Row:
    """Milliseconds of steps with all-reduce and without, and of the all-reduce alone: each those of the slowest
    process."""
    torch.manual_seed(0)  # the same model in all processes
    model = workload.build().to(device)
    model.to(memory_format=setting.memory_format)  # type: ignore[call-overload]  # which torch documents
    torch.manual_seed(dist.get_rank())
    x = torch.randn(workload.batch, *workload.size, device=device).to(memory_format=setting.memory_format)
    ids = [torch.cuda.current_device()] if device.type == "cuda" else None
    calls: dict[tuple[str, str], Callable[[], None]] = {("all-reduce", ""): functools.partial(_reduce, _buckets(model))}
    trainers = []
    for name in contenders:
        parallel = DistributedDataParallel(models.built(name, model), device_ids=ids, gradient_as_bucket_view=True)
        trainers.append(models.Trainer(parallel, x, setting, workload.one_layer))
        calls["step", name] = functools.partial(_step, trainers[-1])
        calls["no_sync", name] = functools.partial(_step_apart, trainers[-1], parallel)
    difference = models.apart(*trainers)
    if not difference < models.MAX_DIFFERENCE:
        raise RuntimeError(f"the outputs of the contenders are {difference:.1e} apart")
    timed = {key: _agreed(timing.prepare_bursts(call, device, burst), device) for key, call in calls.items()}
    names = {" ".join(key): key for key in timed}
    times = timing.time_in_turns({name: timed[key] for name, key in names.items()}, device, seconds)
    row: table_run.Row = {
        "model": workload.name,
        "batch": workload.batch,
        "setting": setting.name,
        "difference": difference,
        "gradient_mib": sum(p.nbytes for p in model.parameters()) / 2**20,
        **{what: {} for what in ("all-reduce", "step", "no_sync")},
    }
    for name, (what, contender) in names.items():
        ms, spread = _slowest([times[name].ms, times[name].spread], device)
        row[what][contender] = {"ms": ms, "spread": spread}
    row["all-reduce"] = row["all-reduce"][""]
    return row


def _buckets(model: nn.Module) -> list[torch.Tensor]:
    """As many bytes as the gradients have, in pieces as large as DDP's."""
    like = next(model.parameters())
    numbers = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=like.dtype, device=like.device)
    return list(numbers.split((BUCKET_MIB << 20) // like.element_size()))


def _reduce(buckets: Sequence[torch.Tensor]) -> None:
    for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
        work.wait()


def _step(trainer: models.Trainer) -> None:
    trainer.step()


def _step_apart(trainer: models.Trainer, parallel: DistributedDataParallel) -> None:
    with parallel.no_sync():
        trainer.step()


def _slowest(values: Sequence[float], device: torch.device) -> list[float]:
    numbers = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    found: list[float] = numbers.tolist()
    return found


def _agreed(timed: timing.Timed, device: torch.device) -> timing.Timed:
    """It is repeated as often in all processes: one would wait for another's step that does not come."""
    return replace(timed, sample_ms=_slowest([timed.sample_ms], device)[0])


def hidden(row: table_run.Row, contender: str) -> float:
    """The share of the all-reduce that a step does not wait for: 1 is all of it; below 0 it costs more than alone."""
    waited = row["step"][contender]["ms"] - row["no_sync"][contender]["ms"]
    return 1 - waited / float(row["all-reduce"]["ms"])


def markdown(rows: Sequence[table_run.Row], device: torch.device) -> str:
    header = ["model", "batch", "setting", "contender", "step ms", "spread", "without all-reduce", "spread"]
    header += ["difference", "all-reduce alone", "hidden"]
    lines = []
    for row in rows:
        for name, step in row["step"].items():
            apart = row["no_sync"][name]
            line = [row["model"], str(row["batch"]), row["setting"], models.display_name(name, device)]
            for time in (step, apart):
                line += [report.number(time["ms"]), f"{time['spread']:.0%}"]
            line += [f"{step['ms'] - apart['ms']:.3f}", report.number(row["all-reduce"]["ms"])]
            lines.append([*line, f"{hidden(row, name):.0%}"])
    return report.table(header, lines, left=4)


if __name__ == "__main__":
    sys.exit(main())
