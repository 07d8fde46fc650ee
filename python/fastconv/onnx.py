"""What ``torch.onnx.export`` needs to know of fastconv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The ``custom_translation_table`` with which ``torch.onnx.export`` knows a converted model.

    Returns:
        A table that makes ONNX's ``Conv`` of ``fastconv::conv2d``, and ``ConvTranspose`` of its input gradient, which a
        transposed convolution is. Their precision is the runtime's then. bfloat16, which they do not take before opset
        22, is computed in float32 and rounded once.

    Raises:
        ImportError: no onnxscript, which ``torch.onnx.export(dynamo=True)`` needs itself.

    >>> model, args = fastconv.Conv2d(3, 8, 3).eval(), (torch.randn(1, 3, 16, 16),)
    >>> table = fastconv.onnx.translation_table()
    >>> program = torch.onnx.export(model, args, dynamo=True, verbose=False, custom_translation_table=table)
    """
    from onnxscript import ir, opset18

    op: Any = opset18

    def of_images(function: Callable[..., Any], images: Any, *others: Any) -> Any:
        """function(images, *others), with what ONNX asks of them: a batch, and dtypes that it takes."""
        operands = [images, *(operand for operand in others if operand is not None)]
        dtype, unbatched = images.dtype, len(images.shape) == 3
        if dtype == ir.DataType.BFLOAT16:
            operands = [op.Cast(operand, to=ir.DataType.FLOAT) for operand in operands]
        if unbatched:
            operands[0] = op.Unsqueeze(operands[0], op.Constant(value_ints=[0]))
        output = function(*operands)
        if unbatched:
            output = op.Squeeze(output, op.Constant(value_ints=[0]))
        return op.Cast(output, to=dtype) if dtype == ir.DataType.BFLOAT16 else output

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
        attributes = {"strides": stride, "pads": [*padding, *padding], "dilations": dilation, "group": groups}
        return of_images(lambda *operands: op.Conv(*operands, **attributes), input, weight, bias)

    def conv2d_input(
        input_size: Any,
        weight: Any,
        grad_output: Any,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        precision: str | None = None,
        channels_last: bool | None = None,
    ) -> Any:
        attributes = {"strides": stride, "pads": [*padding, *padding], "dilations": dilation, "group": groups}

        def transposed(images: Any, weight: Any) -> Any:
            # As many rows and columns as a stride may leave over, and of those what the size says.
            larger = op.ConvTranspose(images, weight, output_padding=[step - 1 for step in stride], **attributes)
            sizes = [
                op.Constant(value_ints=[size])
                if isinstance(size, int)
                else op.Reshape(size, op.Constant(value_ints=[1]))
                for size in input_size[-2:]
            ]
            return op.Slice(
                larger, op.Constant(value_ints=[0, 0]), op.Concat(*sizes, axis=0), op.Constant(value_ints=[2, 3])
            )

        return of_images(transposed, grad_output, weight)

    return {
        torch.ops.fastconv.conv2d.default: conv2d,
        torch.ops.fastconv.conv2d_input.default: conv2d_input,
    }
