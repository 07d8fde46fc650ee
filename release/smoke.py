"""What users of the wheel do first, on the CPU: compute, train, compile, export. The CUDA library is loaded.

python release/smoke.py TORCH [FASTCONV]     the versions that have to be installed
"""

from __future__ import annotations

import importlib.metadata
import sys

import torch
import torch.nn.functional as F

import fastconv


def errors(dtype: torch.dtype, channels_last: bool, groups: int) -> list[float]:
    """Of the output and three gradients, normwise, against float64."""
    shapes = [(2, 8, 15, 13), (6, 8 // groups, 3, 5), (6,)]
    operands = [torch.randn(shape).to(dtype) for shape in shapes]
    if channels_last:
        operands[:2] = [operand.to(memory_format=torch.channels_last) for operand in operands[:2]]
    results = []
    for conv2d, as_dtype in ((fastconv.conv2d, dtype), (F.conv2d, torch.float64)):
        x, w, bias = (operand.detach().to(as_dtype).requires_grad_() for operand in operands)
        y = conv2d(x, w, bias, (2, 1), (1, 2), 1, groups)
        results.append([y.detach(), *torch.autograd.grad(y, (x, w, bias), torch.ones_like(y))])
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(*results, strict=True)]


def compute() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        bound = 8 * torch.finfo(dtype).eps
        for channels_last in (False, True):
            for groups in (1, 2):
                found = errors(dtype, channels_last, groups)
                assert max(found) <= bound, (dtype, channels_last, groups, found)


def train() -> None:
    model = torch.nn.Sequential(fastconv.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 1, 3, groups=1))
    fastconv.convert(model)
    x = torch.randn(4, 3, 12, 12)
    target = x.mean(1, keepdim=True)[..., 2:-2, 2:-2]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = F.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, losses

    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), model(x))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(torch.autograd.grad(compiled(x).square().sum(), list(model.parameters())), expected)


def tell(torch_version: str, wanted: str | None = None) -> None:
    version = importlib.metadata.version("fastconv")
    first = fastconv.info().splitlines()[0]
    assert torch.__version__.partition("+")[0] == torch_version, torch.__version__
    assert version == fastconv.__version__ and version in first and torch.__version__ in first, first
    assert wanted in (None, version), version
    if "+cu" in version and torch.version.cuda is not None:
        # The library is loaded; whether there is a GPU is another matter.
        assert fastconv.cuda_error() in (None, "torch sees no CUDA device"), fastconv.cuda_error()
        assert "architectures" in fastconv.info()
    else:
        assert fastconv.cuda_error()


if __name__ == "__main__":
    torch.manual_seed(0)
    checks = [compute, train, lambda: tell(*sys.argv[1:])]
    for check in checks:
        check()
    print(f"smoke test: {len(checks)} passed, 0 failed")
