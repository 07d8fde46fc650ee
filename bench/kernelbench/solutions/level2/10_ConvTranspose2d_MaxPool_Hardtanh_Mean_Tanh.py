"""KernelBench, level 2, problem 10: transposed: pooling, hardtanh, mean, tanh."""

import torch
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int,
        padding: int,
        maxpool_kernel_size: int,
        maxpool_stride: int,
        hardtanh_min: float,
        hardtanh_max: float,
    ) -> None:
        super().__init__()
        self.conv_transpose = fastconv.ConvTranspose2d(in_channels, out_channels, kernel_size, stride, padding)
        self.maxpool = nn.MaxPool2d(maxpool_kernel_size, maxpool_stride)
        self.hardtanh = nn.Hardtanh(hardtanh_min, hardtanh_max)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_transpose(x)
        x = self.maxpool(x)
        x = self.hardtanh(x)
        x = torch.mean(x, dim=(2, 3), keepdim=True)
        return torch.tanh(x)
