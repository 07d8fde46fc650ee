"""KernelBench, level 2, problem 35: what is subtracted joins the convolution's bias, hardswish is the convolution's."""

import torch
import torch.nn.functional as F
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, subtract_value: float, pool_kernel_size: int
    ) -> None:
        super().__init__()
        self.conv = fastconv.Conv2d(in_channels, out_channels, kernel_size)
        self.subtract_value = subtract_value
        self.pool = nn.MaxPool2d(pool_kernel_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.conv.bias is not None
        x = fastconv.conv2d(x, self.conv.weight, self.conv.bias - self.subtract_value, activation="hardswish")
        x = self.pool(x)
        return F.mish(x)
