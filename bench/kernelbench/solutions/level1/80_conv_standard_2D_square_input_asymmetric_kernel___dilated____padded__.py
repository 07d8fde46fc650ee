"""KernelBench, level 1, problem 80: 5x9 kernel, dilated and padded."""

import torch
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, int],
        stride: int = 1,
        padding: tuple[int, int] = (0, 0),
        dilation: tuple[int, int] = (1, 1),
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv2d = fastconv.Conv2d(in_channels, out_channels, kernel_size, stride, padding, dilation, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)
