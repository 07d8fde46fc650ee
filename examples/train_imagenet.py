"""Trains an image classifier of torchvision or timm: on synthetic images or a folder's, on one GPU or on several.

    python examples/train_imagenet.py --model resnet50 --backend fastconv-fused --dtype bf16
    torchrun --nproc-per-node 8 examples/train_imagenet.py --data /data/imagenet --epochs 90 --parallel ddp
    torchrun --nproc-per-node 8 examples/train_imagenet.py --data /data/imagenet --epochs 90 --parallel ddp --resume
    python examples/train_imagenet.py --model resnet18 --image-size 32 --batch 4 --steps 3    on a CPU, to see it run

A folder holds train/CLASS/*.jpeg and val/CLASS/*.jpeg. Every epoch ends with a checkpoint, from which --resume goes on,
by DDP, FSDP2 or in one process. Of as many processes, the losses are those of a run that was not interrupted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, DistributedSampler
from tqdm import tqdm

import fastconv

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
RANK, LOCAL_RANK = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))  # as torchrun sets them
WORLD = int(os.environ.get("WORLD_SIZE", 1))
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)  # the same of DDP, of FSDP2 and of one process


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="resnet50", help="of torchvision, or else of timm")
    add("--backend", choices=("cudnn", "fastconv", "fastconv-fused"), default="fastconv-fused")
    add("--parallel", choices=("ddp", "fsdp"), default="ddp", help="under torchrun")
    add("--dtype", choices=DTYPES, default="bf16", help="of autocast; fp32: none")
    add("--nchw", action="store_true", help="instead of channels_last")
    add("--sync-bn", action="store_true", help="batch norms over all processes, which are not fused then; GPUs only")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--data", type=Path, help="a folder with train/ and val/; default: synthetic images")
    add("--classes", type=int, default=1000)
    add("--image-size", type=int, default=224)
    add("--workers", type=int, default=8, help="that load images, of each process")
    add("--batch", type=int, default=128, help="images of each process")
    add("--epochs", type=int, default=1)
    add("--steps", type=int, help="of an epoch; default: all images, of synthetic ones 100")
    add("--lr", type=float, default=0.1, help="for 256 images, and in proportion for the batches of all processes")
    add("--warmup", type=int, default=5, help="epochs, at most a fifth of all")
    add("--weight-decay", type=float, default=1e-4)
    add("--label-smoothing", type=float, default=0.1)
    add("--log-every", type=int, default=10, help="steps, of which one waits for the GPU")
    add("--seed", type=int, default=0)
    add("--output", type=Path, default=Path("build/train_imagenet"), help="folder of checkpoint and picture")
    add("--resume", action="store_true", help="from the output folder's checkpoint")
    return parser.parse_args()


# ---- model ----


def build_model(name: str, classes: int, sync_bn: bool) -> nn.Module:
    """torchvision's, or else timm's."""
    failures = []
    try:
        from torchvision.models import get_model

        model: nn.Module = get_model(name, num_classes=classes)
        return nn.SyncBatchNorm.convert_sync_batchnorm(model) if sync_bn else model
    except Exception as failure:  # not installed, made for another torch, or without such a model
        failures.append(f"torchvision: {failure}")
    try:
        from timm import create_model
        from timm.layers import convert_sync_batchnorm  # torch's would lose the activations of timm's norms

        model = create_model(name, num_classes=classes)
        return convert_sync_batchnorm(model) if sync_bn else model
    except Exception as failure:
        failures.append(f"timm: {failure}")
    sys.exit("\n".join([f"There is no model {name!r}; pip install torchvision timm?", *failures]))


def parallelize(model: nn.Module, how: str, device: torch.device) -> nn.Module:
    if how == "ddp":
        ids = [device] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    # Stage by stage, so that one's parameters are on their way while another computes. Not layer by layer: these are
    # small, and a convolution that gathers its own filters is not fused with its batch norm.
    for module in model.modules():
        if isinstance(module, nn.Dropout):  # often a stage's first layer, and none may change its input
            module.inplace = False
    for module in reversed(list(model.modules())):  # what lies within another one comes first, the model last
        is_stage = isinstance(module, nn.Sequential) and sum(p.numel() for p in module.parameters()) > 1e6
        if is_stage or module is model:
            fully_shard(module)
    return model


# ---- data ----


def synthetic(args: argparse.Namespace, device: torch.device, seed: int) -> list[tuple[Tensor, Tensor]]:
    """One batch again and again, on the device: images/s are the model's then, whatever the disk."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(args.batch, 3, args.image_size, args.image_size, generator=generator)
    labels = torch.randint(args.classes, (args.batch,), generator=generator)
    return [(images.to(device), labels.to(device))] * (args.steps or 100)


def folder(args: argparse.Namespace, train: bool) -> DataLoader:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    size = args.image_size
    random_crop = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    crop = random_crop if train else [v2.Resize(size * 8 // 7), v2.CenterCrop(size)]
    to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    normalize = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    dataset = ImageFolder(args.data / ("train" if train else "val"), v2.Compose([*crop, *to_tensor, normalize]))
    sampler: Any = DistributedSampler(dataset, WORLD, RANK, shuffle=train, seed=args.seed)
    pin = args.device == "cuda"
    return DataLoader(dataset, args.batch, sampler=sampler, num_workers=args.workers, pin_memory=pin, drop_last=train)


# ---- training ----


def total(value: Tensor) -> float:
    """Over all processes."""
    if WORLD > 1:
        dist.all_reduce(value)
    return value.item()


class Trainer:
    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        torch.manual_seed(args.seed)  # the same parameters in all processes
        model = build_model(args.model, args.classes, args.sync_bn)
        self.memory_format = torch.contiguous_format if args.nchw else torch.channels_last
        model = model.to(device)
        if WORLD == 1 or args.parallel == "ddp":  # FSDP2 refuses parameters in channels_last; images in it are enough
            model = model.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        if args.backend != "cudnn":  # in this order: convert, fuse, DDP or FSDP2
            fastconv.convert(model)
        if args.backend == "fastconv-fused":
            fastconv.fuse(model)
        self.model = parallelize(model, args.parallel, device) if WORLD > 1 else model

        self.train_data: Any = folder(args, train=True) if args.data else synthetic(args, device, 2 * RANK)
        self.val_data: Any = folder(args, train=False) if args.data else synthetic(args, device, 2 * RANK + 1)
        self.steps = min(args.steps or len(self.train_data), len(self.train_data))
        steps = args.epochs * self.steps
        warmup = max(1, min(args.warmup * self.steps, steps // 5))
        self.criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
        lr = args.lr * args.batch * WORLD / 256
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr, momentum=0.9, weight_decay=args.weight_decay)
        rise = LinearLR(self.optimizer, 0.01, 1, warmup)
        fall = CosineAnnealingLR(self.optimizer, max(1, steps - warmup))
        self.schedule = SequentialLR(self.optimizer, [rise, fall], [warmup])
        self.scaler = torch.amp.GradScaler(device.type, enabled=args.dtype == "fp16")
        self.history: dict[str, list[float]] = {"step": [], "loss": [], "images/s": [], "top-1": []}

    def forward(self, images: Tensor) -> Tensor:
        images = images.to(self.device, memory_format=self.memory_format, non_blocking=True)
        with torch.autocast(self.device.type, DTYPES[self.args.dtype], enabled=self.args.dtype != "fp32"):
            return self.model(images)

    def train(self, epoch: int) -> None:
        # Of augmentation and dropout: a resumed epoch draws the numbers that it would have drawn.
        torch.manual_seed(self.args.seed + 1 + epoch * WORLD + RANK)
        if self.args.data:
            self.train_data.sampler.set_epoch(epoch)
        self.model.train()
        begin, images_done = time.perf_counter(), 0
        progress = tqdm(islice(self.train_data, self.steps), f"epoch {epoch + 1}", self.steps, disable=RANK != 0)
        for step, (images, labels) in enumerate(progress, epoch * self.steps + 1):
            loss = self.criterion(self.forward(images).float(), labels.to(self.device, non_blocking=True))
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            images_done += len(images) * WORLD
            if step % self.args.log_every == 0 or step == (epoch + 1) * self.steps:
                mean, now = total(loss.detach()) / WORLD, time.perf_counter()
                rate, begin, images_done = images_done / (now - begin), now, 0
                for name, value in (("step", step), ("loss", mean), ("images/s", rate)):
                    self.history[name].append(value)
                progress.set_postfix({"loss": f"{mean:.3f}", "images/s": f"{rate:.0f}"})

    @torch.no_grad()
    def validate(self) -> float:
        self.model.eval()
        hits = torch.cat([self.forward(images).argmax(1) == labels.to(self.device) for images, labels in self.val_data])
        if self.args.data:  # the sampler repeats the first images where processes would get fewer than others
            hits = hits[: len(range(RANK, len(self.val_data.dataset), WORLD))]
        return total(hits.sum()) / total(torch.tensor(len(hits), device=self.device))

    def run(self) -> None:
        checkpoint = self.args.output / "checkpoint.pt"
        for epoch in range(self.load(checkpoint) if self.args.resume else 0, self.args.epochs):
            self.train(epoch)
            if WORLD > 1:
                for buffer in self.model.buffers():  # batch norms have seen other images in each process
                    dist.broadcast(buffer, 0)
            self.history["top-1"].append(self.validate())
            self.save(checkpoint, epoch + 1)

    # ---- checkpoint ----

    def save(self, path: Path, epochs: int) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer, options=WHOLE)  # of all, on rank 0
        if RANK == 0:
            state = {"epochs": epochs, "model": model, "optimizer": optimizer, "history": self.history}
            state |= {"schedule": self.schedule.state_dict(), "scaler": self.scaler.state_dict()}
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)  # never half a file

    def load(self, path: Path) -> int:
        """The number of epochs that are done."""
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer, options=WHOLE)
        self.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        self.history = state["history"]
        return int(state["epochs"])


def draw(path: Path, history: dict[str, list[float]], title: str) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    figure.suptitle(title)
    for axis, name in zip(axes, ("loss", "images/s"), strict=True):
        axis.plot(history["step"], history[name])
        axis.set(xlabel="step", ylabel=name)
    axes[1].set_ylim(bottom=0)
    figure.savefig(path, dpi=120)


def main() -> None:
    args = parse()
    device = torch.device(args.device, LOCAL_RANK) if args.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True  # of --backend cudnn; fastconv tunes nothing
    if WORLD > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    args.output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(args, device)
    trainer.run()
    if RANK == 0:
        history, picture = trainer.history, args.output / "training.png"
        layout = "NCHW" if args.nchw else "channels_last"
        by = f"{WORLD} x {args.device}" + (f", {args.parallel}" if WORLD > 1 else "")
        draw(picture, history, f"{args.model}, {args.backend}, {args.dtype}, {layout}, {by}")
        print(f"loss {history['loss'][-1]:.4f}, top-1 {history['top-1'][-1]:.1%},", end=" ")
        print(f"{statistics.median(history['images/s']):.0f} images/s; picture in {picture}")
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
