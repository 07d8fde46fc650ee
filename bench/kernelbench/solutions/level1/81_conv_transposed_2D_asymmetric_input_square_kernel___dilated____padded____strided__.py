"""KernelBench, level 1, problem 81: transposed, square kernel, strided, padded, dilated."""

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
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv_transpose2d = fastconv.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride, padding, bias=bias, dilation=dilation
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose2d(x)
