"""KernelBench, level 2, problem 93: transposed: what is added joins the convolution's bias."""

import torch
import torch.nn.functional as F
from torch import nn

import fastconv


class ModelNew(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int,
        add_value: float,
        multiply_value: float,
    ) -> None:
        super().__init__()
        self.conv_transpose = fastconv.ConvTranspose2d(in_channels, out_channels, kernel_size, stride)
        self.add_value = add_value
        self.multiply_value = multiply_value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv = self.conv_transpose
        assert conv.bias is not None
        x = fastconv.conv_transpose2d(x, conv.weight, conv.bias + self.add_value, conv.stride)
        x = torch.min(x, torch.tensor(0.0, device=x.device))
        x = F.gelu(x)
        return x * self.multiply_value
