"""Trains a small network of fastconv.Conv2d layers on scikit-learn's handwritten digits: 1,797 images of 8x8 pixels.

The same network with nn.Conv2d is trained from the same seeds on the same batches, so the two loss curves should lie on
each other. Fails if the test accuracy is below 97%.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from tqdm import tqdm

import fastconv

BATCH_SIZE = 64
LEAST_ACCURACY = 0.97


@dataclass
class Data:
    train_images: Tensor  # (N, 1, 8, 8), float32 in [0, 1]
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_data(device: torch.device) -> Data:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = train_test_split(torch.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0)
    return Data(*(part.to(device) for part in (images[train], labels[train], images[test], labels[test])))


def make_model(conv: type[nn.Conv2d]) -> nn.Sequential:
    return nn.Sequential(
        *(conv(1, 32, 3, padding="same", bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(conv(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        *(
            conv(64, 64, 3, padding=1, groups=64, bias=False),
            conv(64, 64, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        ),
        conv(64, 10, 4),
        nn.Flatten(),
    )


def train(conv: type[nn.Conv2d], name: str, data: Data, epochs: int) -> tuple[nn.Sequential, list[float]]:
    """The trained model and its mean loss in each epoch."""
    torch.manual_seed(0)
    model = make_model(conv).to(data.train_images.device)
    steps = epochs * -(-len(data.train_labels) // BATCH_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    losses = []
    with tqdm(total=steps, desc=f"{name:16}", unit="batch", mininterval=1) as progress:
        for _ in range(epochs):
            total = 0.0
            order = torch.randperm(len(data.train_labels))
            for batch in order.split(BATCH_SIZE):
                loss = F.cross_entropy(model(data.train_images[batch]), data.train_labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.item() * len(batch)
                progress.update()
            losses.append(total / len(order))
            progress.set_postfix(loss=f"{losses[-1]:.4f}")
    return model.eval(), losses


def draw(path: Path, curves: dict[str, list[float]], images: Tensor, labels: Tensor, predicted: Tensor) -> None:
    figure = plt.figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[1, 1.2])[0]
    axes = left.subplots()
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axes.semilogy(range(1, len(losses) + 1), losses, style, label=name, linewidth=2)
    axes.set(xlabel="epoch", ylabel="training loss", title="Same seeds, same batches")
    axes.legend()
    right.suptitle("Test images and predictions (wrong ones first, in red)")
    order = torch.argsort((predicted == labels).int(), stable=True)
    for axis, i in zip(right.subplots(4, 7).flat, order.tolist(), strict=False):
        axis.imshow(images[i, 0], cmap="gray_r")
        axis.set_title(str(predicted[i].item()), color="black" if predicted[i] == labels[i] else "red", fontsize=9)
        axis.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("build/train_digits.png"))
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_data(device)
    print(f"{len(data.train_labels)} training and {len(data.test_labels)} test images, on {device}")
    model, losses = train(fastconv.Conv2d, "fastconv.Conv2d", data, args.epochs)
    _, reference_losses = train(nn.Conv2d, "nn.Conv2d", data, args.epochs)

    with torch.no_grad():
        predicted = model(data.test_images).argmax(1)
    accuracy = (predicted == data.test_labels).float().mean().item()
    curves = {"fastconv.Conv2d": losses, "nn.Conv2d": reference_losses}
    draw(args.output, curves, data.test_images.cpu(), data.test_labels.cpu(), predicted.cpu())
    print(f"final training loss: fastconv.Conv2d {losses[-1]:.5f}, nn.Conv2d {reference_losses[-1]:.5f}")
    print(f"test accuracy {accuracy:.1%}; picture in {args.output}")
    if accuracy < LEAST_ACCURACY:
        print(f"the test accuracy should be at least {LEAST_ACCURACY:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
