"""KernelBench, level 1, problem 84: depthwise, square kernel, wide image."""

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
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv2d = fastconv.Conv2d(
            in_channels, out_channels, kernel_size, stride, padding, groups=in_channels, bias=bias
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)
