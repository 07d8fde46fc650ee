"""KernelBench, level 2, problem 11: transposed: batch norm is fastconv's."""

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
        groups: int,
        num_groups: int,
    ) -> None:
        super().__init__()
        self.conv_transpose = fastconv.ConvTranspose2d(in_channels, out_channels, kernel_size, stride, padding)
        self.batch_norm = fastconv.BatchNormAct2d(out_channels)
        self.max_pool = nn.MaxPool2d(kernel_size=2, stride=2)
        self.group_norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_transpose(x)
        x = self.batch_norm(x)
        x = torch.tanh(x)
        x = self.max_pool(x)
        return self.group_norm(x)
