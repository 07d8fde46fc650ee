"""What ``torch.onnx.export`` needs to know of fastconv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The ``custom_translation_table`` with which ``torch.onnx.export`` knows a converted model.

    Returns:
        A table that makes ONNX's ``Conv`` of ``fastconv::conv2d``. Its precision is the runtime's then. bfloat16, which
        ``Conv`` does not take before opset 22, is computed in float32 and rounded once.

    Raises:
        ImportError: no onnxscript, which ``torch.onnx.export(dynamo=True)`` needs itself.

    >>> model, args = fastconv.Conv2d(3, 8, 3).eval(), (torch.randn(1, 3, 16, 16),)
    >>> table = fastconv.onnx.translation_table()
    >>> program = torch.onnx.export(model, args, dynamo=True, verbose=False, custom_translation_table=table)
    """
    from onnxscript import ir, opset18

    op: Any = opset18

    def conv2d(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        precision: str | None = None,
    ) -> Any:
        operands = [input, weight] if bias is None else [input, weight, bias]
        dtype, unbatched = input.dtype, len(input.shape) == 3
        if dtype == ir.DataType.BFLOAT16:
            operands = [op.Cast(operand, to=ir.DataType.FLOAT) for operand in operands]
        if unbatched:
            operands[0] = op.Unsqueeze(operands[0], op.Constant(value_ints=[0]))
        output = op.Conv(*operands, strides=stride, pads=[*padding, *padding], dilations=dilation, group=groups)
        if unbatched:
            output = op.Squeeze(output, op.Constant(value_ints=[0]))
        return op.Cast(output, to=dtype) if dtype == ir.DataType.BFLOAT16 else output

    return {torch.ops.fastconv.conv2d.default: conv2d}
