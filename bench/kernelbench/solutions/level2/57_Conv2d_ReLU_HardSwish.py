"""KernelBench, level 2, problem 57: relu is the convolution's; x * clamp((x + 3) / 6, 0, 1) is hardswish.

cuDNN rounds nothing to TF32 here.
"""

import torch
import torch.nn.functional as F
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = fastconv.Conv2d(in_channels, out_channels, kernel_size, activation="relu", precision="ieee")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return F.hardswish(x)
