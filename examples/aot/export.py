"""Makes a package of a convolutional network that runs without Python: run.cpp loads it.

python export.py FOLDER     writes model.pt2 and input.pt there, prints what the network computes of the latter
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import fastconv


def make_model() -> nn.Module:
    layers = [
        *(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Conv2d(64, 10, 4), nn.Flatten()),
    ]
    layers.insert(3, fastconv.ConvBnAct2d(32, 32, 5, padding="same", groups=32, activation="silu"))
    return fastconv.convert(nn.Sequential(*layers)).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = make_model().to(args.device)
    images = torch.randn(4, 1, 8, 8).to(args.device)
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.save(images, args.folder / "input.pt")
    # The graph keeps the precision that holds now, see docs/precision.md.
    with torch.no_grad(), fastconv.precision("ieee"):
        program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch._inductor.aoti_compile_and_package(program, package_path=str(args.folder / "model.pt2"))
        for row in model(images).tolist():
            print(*(f"{value:.9g}" for value in row))


if __name__ == "__main__":
    main()
