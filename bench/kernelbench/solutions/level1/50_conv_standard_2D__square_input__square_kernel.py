"""KernelBench, level 1, problem 50: the first layer of AlexNet, 11x11, stride 4."""

import torch
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = fastconv.Conv2d(3, 96, kernel_size=11, stride=4, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1(x)
