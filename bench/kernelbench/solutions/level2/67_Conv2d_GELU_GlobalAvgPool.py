"""KernelBench, level 2, problem 67: gelu is the convolution's."""

import torch
import torch.nn.functional as F
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = fastconv.Conv2d(in_channels, out_channels, kernel_size, activation="gelu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        x = F.adaptive_avg_pool2d(x, 1)
        return x.squeeze(-1).squeeze(-1)
