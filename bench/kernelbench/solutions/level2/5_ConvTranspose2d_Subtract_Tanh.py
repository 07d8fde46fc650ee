"""KernelBench, level 2, problem 5: transposed: the bias that is subtracted joins the convolution's."""

import torch
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        bias_shape: tuple[int, ...],
        stride: int = 2,
        padding: int = 1,
        output_padding: int = 1,
    ) -> None:
        super().__init__()
        self.geometry = stride, padding, output_padding
        self.conv_transpose = fastconv.ConvTranspose2d(in_channels, out_channels, kernel_size, *self.geometry)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv_transpose
        assert conv.bias is not None
        bias = conv.bias - self.bias.flatten()
        x = fastconv.conv_transpose2d(x, conv.weight, bias, *self.geometry)
        return torch.tanh(x)
