"""KernelBench, level 2, problem 54: scaling, leaky relu, gelu."""

import torch
import torch.nn.functional as F
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, multiplier_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.conv = fastconv.Conv2d(in_channels, out_channels, kernel_size)
        self.multiplier = nn.Parameter(torch.randn(multiplier_shape))
        self.leaky_relu = nn.LeakyReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        x = x * self.multiplier
        x = self.leaky_relu(x)
        return F.gelu(x)
