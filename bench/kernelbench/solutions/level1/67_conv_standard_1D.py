"""KernelBench, level 1, problem 67: 1-D, long signal."""

import torch
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv1d = fastconv.Conv1d(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1d(x)
