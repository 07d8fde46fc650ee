"""timm's usual training loop, with fastconv in it: the lines marked with it are all there is to add.

python examples/timm_loop.py --model resnet50 --data FOLDER     trains on a folder with a folder of images a class
python examples/timm_loop.py --model resnet18 --steps 5 --batch-size 4 --image-size 64      on noise, without a GPU too
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import fastconv  # <- fastconv

try:
    import timm
    from timm.data import create_dataset, create_transform, resolve_model_data_config
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import AverageMeter, NativeScaler, accuracy
except (ImportError, RuntimeError) as error:  # torchvision raises the latter if it was built for another torch
    sys.exit(f"this example needs timm and the torchvision that fits torch {torch.__version__}: {error}")


def noise(batch_size: int, image_size: int, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield torch.randn(batch_size, 3, image_size, image_size), torch.randint(classes, (batch_size,))


def images_of(folder: str, model: nn.Module, batch_size: int, image_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    config = resolve_model_data_config(model) | {"input_size": (3, image_size, image_size)}
    dataset = create_dataset("", folder, transform=create_transform(**config, is_training=True))
    workers = min(8, os.cpu_count() or 1)
    while True:
        yield from torch.utils.data.DataLoader(dataset, batch_size, shuffle=True, drop_last=True, num_workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--data", help="a folder with a folder of images a class; default: noise")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--amp", choices=["float16", "bfloat16", "none"], default="bfloat16")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = timm.create_model(args.model, num_classes=args.classes)
    model = model.to(device, memory_format=torch.channels_last)
    fastconv.convert(model, functional=True)  # <- fastconv; functional: layers that call F.conv2d too
    fastconv.fuse(model)  # <- fastconv; each convolution with its batch norm and activation
    for name, kind, reason in fastconv.unconverted(model):  # <- fastconv
        print(f"{name}: {kind.__name__} is left to torch, as {reason}")

    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = CosineLRScheduler(optimizer, t_initial=args.steps, warmup_t=args.steps // 10, t_in_epochs=False)
    scaler = NativeScaler() if args.amp == "float16" and device == "cuda" else None
    loss_of = nn.CrossEntropyLoss()
    losses, top1, seconds = AverageMeter(), AverageMeter(), AverageMeter()
    sizes = args.batch_size, args.image_size
    batches = images_of(args.data, model, *sizes) if args.data else noise(*sizes, args.classes)

    model.train()
    start = time.perf_counter()
    for step in range(args.steps):
        images, labels = next(batches)
        images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        with torch.autocast(device, getattr(torch, args.amp, None), enabled=args.amp != "none"):
            output = model(images)
            loss = loss_of(output, labels)
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler(loss, optimizer)
        scheduler.step_update(step + 1)

        losses.update(loss.item(), len(images))  # waits for the GPU, so the times below are those of whole steps
        top1.update(accuracy(output.detach(), labels, topk=(1,))[0].item(), len(images))
        seconds.update(time.perf_counter() - start)
        start = time.perf_counter()
        if step % 10 == 0 or step == args.steps - 1:
            rate = args.batch_size / seconds.val
            print(f"step {step}: loss {losses.val:.4f} ({losses.avg:.4f}), top-1 {top1.avg:.2f}%, {rate:.1f} images/s")


if __name__ == "__main__":
    main()
