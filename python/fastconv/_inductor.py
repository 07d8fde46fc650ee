"""What Inductor makes of fastconv's ops: calls without Python around them, of tensors in the layout that is faster.

A traced graph has eager's strides. Inductor then chooses its own for what lies between ops that want some: a conversion
becomes part of the kernel that writes the tensor, and outputs of the graph have eager's strides again. aten's own
convolution asks for channels_last in the same way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._guards import TracingContext
from torch._inductor import config, ir, lowering
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx

from . import ops
from .activation import activated

_aten = torch.ops.aten
# conv2d_input and conv2d_weight are called where filters are frozen, and by fastconv.grad.
_LAYERS = (ops.conv2d, ops.conv2d_input, ops.conv2d_weight, ops.conv2d_backward)
# Of these a result of four dimensions need not be images whose channels come second.
_OTHER_SHAPES = (_aten.permute, _aten.transpose, _aten.view, _aten.expand, _aten.bmm)
_BY_STRIDES = (_aten.as_strided, _aten.as_strided_scatter)


def faster_in_channels_last(device: torch.device | None, dtype: torch.dtype, precision: str | None) -> bool:
    """Whether fastconv's kernels take less time for channels_last than for NCHW."""
    tensor_cores = dtype in (torch.float16, torch.bfloat16) or (
        dtype == torch.float32 and precision in ("allow_tf32", "tf32")
    )
    return device is not None and device.type == "cuda" and tensor_cores


# ---- calls ----


def _conv2d(
    input: ir.TensorBox,
    weight: ir.TensorBox,
    bias: ir.TensorBox | None = None,
    stride: ops.Ints = (1, 1),
    padding: ops.Ints = (0, 0),
    dilation: ops.Ints = (1, 1),
    groups: int = 1,
    *,
    precision: str | None = None,
) -> Any:
    packed = ops.pack_or_none((stride, padding, dilation, groups, precision))
    if packed is None:
        return _call(ops.conv2d, input, weight, bias, stride, padding, dilation, groups, precision=precision)
    return _call(torch.ops.fastconv._conv2d.default, input, weight, bias, packed)


def _conv2d_backward(
    input: ir.TensorBox, weight: ir.TensorBox, grad_output: ir.TensorBox, packed: int, needs: int
) -> Any:
    if not V.graph.cpp_wrapper:
        return _call(ops.conv2d_backward, input, weight, grad_output, packed, needs)
    # The C++ wrapper misreads results of type `Tensor?` (torch 2.13).
    *geometry, precision = ops.unpack(packed)
    node = V.graph.current_node
    grad_input, grad_weight, _ = node.meta["val"]
    converted = _asks_for_channels_last(node)
    if needs & 1:
        options = {"precision": precision, "channels_last": converted or ops.is_channels_last(grad_input)}
        grad_input = _call(ops.conv2d_input, input.get_size(), weight, grad_output, *geometry, **options)
    if needs & 2:
        options = {"precision": precision, "channels_last": converted or ops.is_channels_last(grad_weight)}
        grad_weight = _call(ops.conv2d_weight, input, weight.get_size(), grad_output, *geometry, **options)
    return grad_input, grad_weight, None


def _conv2d_bias(grad_output: ir.TensorBox) -> Any:
    """A sum, which becomes part of the kernel that writes the tensor."""
    if grad_output.get_dtype().is_complex:
        return _call(ops.conv2d_bias, grad_output)
    images = [0] if len(grad_output.get_size()) == 4 else []
    return lowering.lowerings[_aten.sum.dim_IntList](grad_output, [*images, -2, -1])


def _batch_norm_act(*args: Any) -> Any:
    """Of inference on the CPU torch's ops, if AOTInductor compiles: its packages run without Python, which the op's CPU
    kernel is written in."""
    *tensors, _, training, _, eps, activation, trains = args
    if not V.graph.aot_mode or tensors[0].get_device().type != "cpu" or training or trains:
        return _fallback_of_norm(*args)

    def decomposed(
        input: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
    ) -> Tensor:
        wide = torch.promote_types(input.dtype, torch.float32)  # rounded once, as by the op
        residual, weight, bias = (t if t is None else t.to(wide) for t in (residual, weight, bias))
        z = F.batch_norm(input.to(wide), mean.to(wide), var.to(wide), weight, bias, False, 0.0, eps)
        return activated(activation, z, residual).to(input.dtype)

    values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in V.graph.current_node.args[: len(tensors)]]
    with V.fake_mode:
        graph = make_fx(decomposed, decomposition_table=select_decomp_table())(*values)
    return _Lowered(graph).run(*tensors), None, None  # the statistics and the mask are for the backward pass


class _Lowered(fx.Interpreter):
    """A graph of Inductor's own, in place of one call."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return lowering.lowerings[target](*args, **kwargs)


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    return lowering.fallback_handler(op, add_to_fallback_set=False)(*args, **kwargs)


# ---- layout ----


def _constrain(node: fx.Node, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not _asks_for_channels_last(node):
        constrained: tuple[tuple[Any, ...], dict[str, Any]] = lowering.constrain_to_fx_strides(node, *args, **kwargs)
        return constrained
    if node not in V.graph.nodes_prefer_channels_last:
        V.graph.nodes_prefer_channels_last.update(_around_layers(node.graph) - _bases(node.graph))
    if node.target in (ops.conv2d_input, ops.conv2d_weight):
        kwargs["channels_last"] = True
    return tuple(_channels_last(arg) for arg in args), kwargs


def _constrain_norm(node: fx.Node, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Of batch norms: the layout of the convolutions around them."""
    if any(layer.target in _LAYERS and _asks_for_channels_last(layer) for layer in node.graph.nodes):
        return tuple(_channels_last(arg) for arg in args), kwargs
    constrained: tuple[tuple[Any, ...], dict[str, Any]] = lowering.constrain_to_fx_strides(node, *args, **kwargs)
    return constrained


def _asks_for_channels_last(node: fx.Node) -> bool:
    """Not of one layer alone, nor of as many conversions as layers, and not in graphs that know eager's strides."""
    others = [other.target for other in node.graph.nodes if other is not node]
    image: Any = node.args[2] if node.target is ops.conv2d_input else node.args[0]
    value = image.meta["val"]
    packed: Any = node.args[3] if node.target is ops.conv2d_backward else None
    precision: Any = node.kwargs.get("precision") if packed is None else ops.unpack(packed)[-1]
    return (
        config.layout_optimization
        and value.dim() == 4
        and faster_in_channels_last(value.device, value.dtype, precision)
        and node.target in others
        and _has_few_conversions(node.graph)
        and not any(_packet(target) in _BY_STRIDES or _has_subgraphs(target) for target in others)
    )


def _has_few_conversions(graph: fx.Graph) -> bool:
    """Fewer than convolutions, of those that are kernels of their own: images that come into the graph and that a layer
    reads, and those that leave it as a layer made them."""
    layers = [node for node in graph.nodes if node.target in _LAYERS]
    (output,) = graph.find_nodes(op="output")
    seen = {output.args[0][i] for i in output.meta.get("user_visible_output_idxs", ())}  # others keep their layout
    read = {image for layer in layers for image in _images_read(layer) if image.op == "placeholder"}
    made = {image for layer in layers for image in _images_made(layer) if image in seen}
    values = [image.meta["val"] for image in (*read, *made)]
    converted = [x for x in values if x.dim() == 4 and not x.is_contiguous(memory_format=torch.channels_last)]
    return len(converted) < sum(2 if layer.target is ops.conv2d_backward else 1 for layer in layers)


def _images_read(layer: fx.Node) -> list[Any]:
    if layer.target is ops.conv2d_input:
        return [layer.args[2]]
    return [layer.args[0]] if layer.target is ops.conv2d else [layer.args[0], layer.args[2]]


def _images_made(layer: fx.Node) -> list[fx.Node]:
    if layer.target is ops.conv2d_backward:
        return [user for user in layer.users if user.args[1] == 0]
    return [] if layer.target is ops.conv2d_weight else [layer]


def _around_layers(graph: fx.Graph) -> set[fx.Node]:
    """Layers, what they read and write, and images that are computed of these or these of them. Of those Inductor keeps
    some for the backward pass, and others because many read them: in channels_last, and not in eager's strides."""
    reached = {node for node in graph.nodes if node.target in _LAYERS}
    ahead = list(reached)
    while ahead:
        node = ahead.pop()
        for other in (*node.all_input_nodes, *node.users):
            if other not in reached and _is_image(other):
                reached.add(other)
                ahead.append(other)
    return reached


def _bases(graph: fx.Graph) -> set[fx.Node]:
    """Outputs that the user does not see, of which views are made after the call, by eager's strides."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None or V.graph.is_backward:
        return set()
    (output,) = graph.find_nodes(op="output")
    first = metadata.num_mutated_inp_runtime_indices + metadata.num_outputs
    return set(output.args[0][first : first + metadata.num_intermediate_bases])


def _is_image(node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    computed = node.op == "call_function" and _packet(node.target) not in _OTHER_SHAPES
    return computed and any(isinstance(value, torch.Tensor) and value.dim() == 4 for value in values)


def _packet(target: Any) -> Any:
    return target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target


def _has_subgraphs(target: Any) -> bool:
    return isinstance(target, torch._ops.HigherOrderOperator)


def _channels_last(arg: Any) -> Any:
    if not isinstance(arg, ir.TensorBox) or len(arg.get_size()) != 4 or arg.get_size()[2:] == [1, 1]:
        return arg
    return ir.ExternKernel.require_channels_last(arg)


_norm = torch.ops.fastconv._batch_norm_act.default
for _op in (_norm, torch.ops.fastconv._batch_norm_act_backward.default):
    lowering.make_fallback(_op, _constrain_norm, warn=False)
    lowering.add_needs_realized_inputs(_op)
_fallback_of_norm = lowering.lowerings[_norm]
lowering.register_lowering(_norm, type_promotion_kind=None)(_batch_norm_act)
for _op, _lower in ((ops.conv2d, _conv2d), (ops.conv2d_backward, _conv2d_backward), (ops.conv2d_bias, _conv2d_bias)):
    lowering.register_lowering(_op, type_promotion_kind=None)(_lower)
for _op in (ops.conv2d_input, ops.conv2d_weight):
    lowering.make_fallback(_op, warn=False)
for _op in _LAYERS:
    lowering.add_needs_realized_inputs(_op)
    lowering.add_layout_constraint(_op, _constrain)
