"""KernelBench, level 1, problem 83: depthwise, kernel of one column."""

import torch
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv2d = fastconv.Conv2d(
            in_channels, in_channels, (kernel_size, 1), stride, padding, dilation, in_channels, bias
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)
