"""KernelBench, level 2, problem 32: scaling, least channel."""

import torch
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, scale_factor: float) -> None:
        super().__init__()
        self.conv = fastconv.Conv2d(in_channels, out_channels, kernel_size)
        self.scale_factor = scale_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        x = x * self.scale_factor
        return torch.min(x, dim=1, keepdim=True)[0]
