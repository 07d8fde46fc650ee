"""What a user writes. A line that ends with "error" in a comment is one that type checkers have to refuse."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fastconv
from fastconv.precision import Precision

x, w = torch.randn(1, 3, 8, 8), torch.randn(8, 3, 3, 3)
chosen: Precision = "ieee"

layer = fastconv.Conv2d(3, 8, (3, 5), stride=2, padding=(1, 2), bias=False, dtype=torch.float16, precision=chosen)
fastconv.Conv2d(3, 8, 3, padding="same", padding_mode="circular", device="cpu")
as_torchs: nn.Conv2d = layer
nn.Conv2d(3, 8)  # error
fastconv.Conv2d(3, 8)  # error
nn.Conv2d("3", 8, 3)  # error
fastconv.Conv2d("3", 8, 3)  # error
nn.Conv2d(3, 8, 3, stride="2")  # error
fastconv.Conv2d(3, 8, 3, stride="2")  # error
nn.Conv2d(3, 8, (3, 3, 3))  # error
fastconv.Conv2d(3, 8, (3, 3, 3))  # error
nn.Conv2d(3, 8, 3, group=1)  # error
fastconv.Conv2d(3, 8, 3, group=1)  # error
nn.Conv2d(3, 8, 3, padding_mode="mirror")  # error
fastconv.Conv2d(3, 8, 3, padding_mode="mirror")  # error
fastconv.Conv2d(3, 8, 3, padding="full")  # error
fastconv.Conv2d(3, 8, 3, precision="fp32")  # error
fastconv.Conv2d(3, 8, 3, 1, 0, 1, 1, True, "zeros", None, None, "ieee")  # error

y: Tensor = fastconv.conv2d(x, w, None, 1, "same", precision="tf32")
fastconv.conv2d(x, w, None, (1, 2), [0, 1], dilation=2, groups=1)
fastconv.conv2d(x)  # error
fastconv.conv2d(x, w, 1)  # error
fastconv.conv2d(x, w, stride=1.5)  # error
fastconv.conv2d(x, w, padding="full")  # error
fastconv.conv2d(x, w, precision="half")  # error
gradient: Tensor = fastconv.grad.conv2d_input(x.shape, w, y, precision="bf16x3")
fastconv.grad.conv2d_weight(x, w.shape, y, precision="bf16")  # error

net: nn.Sequential = fastconv.revert(fastconv.convert(nn.Sequential(layer), functional=True, precision=None))
other: nn.Linear = fastconv.convert(net)  # error
fastconv.convert(net, precision="exact")  # error
name: str = fastconv.unconverted(net)[0].name
with fastconv.precision("ieee"), fastconv.replace_conv2d(precision="tf32"):
    text: str = fastconv.explain(x, w, precision=chosen)
fastconv.precision("exact")  # error
fastconv.replace_conv2d(precision="exact")  # error
fastconv.explain(x, w, precision="exact")  # error
