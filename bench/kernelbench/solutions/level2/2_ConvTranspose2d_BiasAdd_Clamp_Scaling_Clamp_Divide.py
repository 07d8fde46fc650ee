"""KernelBench, level 2, problem 2: transposed: the bias that is added joins the convolution's."""

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
        output_padding: int,
        bias_shape: tuple[int, ...],
        scaling_factor: float,
    ) -> None:
        super().__init__()
        self.geometry = stride, padding, output_padding
        self.conv_transpose = fastconv.ConvTranspose2d(in_channels, out_channels, kernel_size, *self.geometry)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.scaling_factor = scaling_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv_transpose
        assert conv.bias is not None
        bias = conv.bias + self.bias.flatten()
        x = fastconv.conv_transpose2d(x, conv.weight, bias, *self.geometry)
        x = torch.clamp(x, min=0.0, max=1.0)
        x = x * self.scaling_factor
        x = torch.clamp(x, min=0.0, max=1.0)
        return x / self.scaling_factor
