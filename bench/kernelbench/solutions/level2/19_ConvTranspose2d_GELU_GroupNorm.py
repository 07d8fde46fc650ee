"""KernelBench, level 2, problem 19: transposed: gelu is the convolution's."""

import torch
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int, groups: int, num_groups: int
    ) -> None:
        super().__init__()
        self.conv_transpose = fastconv.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride, activation="gelu"
        )
        self.group_norm = nn.GroupNorm(num_groups, out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_transpose(x)
        return self.group_norm(x)
