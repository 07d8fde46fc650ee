"""KernelBench, level 2, problem 87: what is subtracted joins the convolution's bias.

cuDNN rounds nothing to TF32 here.
"""

import torch
import torch.nn.functional as F
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, subtract_value_1: float, subtract_value_2: float
    ) -> None:
        super().__init__()
        self.conv = fastconv.Conv2d(in_channels, out_channels, kernel_size)
        self.subtract_value_1 = subtract_value_1
        self.subtract_value_2 = subtract_value_2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.conv.bias is not None
        bias = self.conv.bias - (self.subtract_value_1 + self.subtract_value_2)
        x = fastconv.conv2d(x, self.conv.weight, bias, precision="ieee")
        return F.mish(x)
