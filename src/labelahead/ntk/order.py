"""Find operations that may reorder the samples of a batch.

A probe of a few samples determines the layout of rows (`layout`). A network that sorts its samples,
for example by length, may order real batches differently. Operations that can move samples, or sum over
them, are found here by their kinds and by the axes along which they work: those that grow with the
batch. One backward pass suffices if no operation does either; otherwise the engine compares two
(`Engine._compare_backwards`).
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from labelahead.ntk.capture import Trace, get_node_shapes

__all__ = ["find_movers", "keeps_order", "selects_rows"]

# These nodes work along the axes that they name and leave the others alone.
AXIS_NODES = re.compile(
    r"^(Cat|Stack|Flip|Roll|Gather|IndexSelect|Sort|Topk|Scatter|ScatterAdd|IndexAdd|IndexCopy|Softmax|LogSoftmax|"
    r"Cumsum|Cumprod|Cummax|Cummin|Logcumsumexp)Backward"
)
# These nodes never reorder samples: they work elementwise, over axes within a sample, or reshape. A
# kind that is not listed costs a second backward pass, nothing else.
ORDER_PRESERVING_NODES = re.compile(
    r"^(?:"
    # elementwise
    r"Abs|Acosh?|Add|Addcdiv|Addcmul|Asinh?|Atan2?|Atanh|Celu|Clamp|ClampMax|ClampMin|Clone|Cosh?|Div|Elu|Erf|Erfc|"
    r"Erfinv|Exp|Exp2|Expm1|Fmax|Fmin|Gelu|Hardshrink|Hardsigmoid|Hardswish|Hardtanh|Hypot|LeakyRelu|Lerp|Log|Log10|"
    r"Log1P|Log2|LogSigmoid|Logaddexp|Logaddexp2|MaskedFill|Maximum|Minimum|Mish|Mul|NanToNum|Neg|Pow|PreluKernel|"
    r"Reciprocal|Relu|Rsqrt|Rsub|Sgn|Sigmoid|Sign|Silu|Sinc?|Sinh|Softplus|Softshrink|Sqrt|Sub|Tanh?|Threshold|ToCopy|"
    r"Tril|Triu|Where|Xlogy|"
    # another shape, size or order of axes, which the probe detects
    r"Alias|Chunk|Copy|Diagonal|Expand|LiftFresh|NarrowCopy|Permute|PixelShuffle|PixelUnshuffle|ChannelShuffle|Repeat|"
    r"ReshapeAlias|ReshapeCopy|Select|Slice|Split|SplitWithSizes|Squeeze|T|Transpose|Unbind|Unfold|UnsafeSplit|"
    r"UnsafeSplitWithSizes|UnsafeView|Unsqueeze|View|ViewAsComplex|ViewAsReal|ConstantPadNd|ReflectionPad\dD|"
    r"ReplicationPad\dD|Upsample\w+?|Im2Col|Col2Im|"
    # sums within a sample: over the samples themselves, the result would not grow with the batch
    r"Amax|Amin|Glu|LinalgVectorNorm|Logsumexp|Max|Mean|Min|Norm|Std|Sum|Var|VarMean|StdMean|AdaptiveAvgPool\dD|"
    r"AdaptiveMaxPool\dD|AvgPool\dD|MaxPool\dD|MaxPool\dDWithIndices|FusedRmsNorm|NativeBatchNorm|NativeGroupNorm|"
    r"NativeLayerNorm|"
    # products: those that sum over samples are found by the length of the axis that they sum over
    r"Addmm|Baddbmm|Bmm|Convolution|Embedding|Index|Mm|ScaledDotProduct\w+?|Trilinear|WeightNormInterface"
    r")Backwards?\d*$"
)
# These nodes select entries by their values, for example the samples of an expert.
SELECTING_NODES = re.compile(
    r"^(Index|IndexSelect|IndexAdd|IndexCopy|IndexPut|Gather|Scatter|ScatterAdd|ScatterReduce|"
    r"MaskedSelect|MaskedScatter|Take|Put)Backward"
)
PRODUCT_OPERANDS = {
    "MmBackward0": ("_saved_self", "_saved_mat2"),
    "BmmBackward0": ("_saved_self", "_saved_mat2"),
    "AddmmBackward0": ("_saved_mat1", "_saved_mat2"),
    "BaddbmmBackward0": ("_saved_batch1", "_saved_batch2"),
}


def find_movers(
    one: Trace, other: Trace, fixed: Collection[int]
) -> Mapping[int, tuple[int, ...]] | None:
    """Find the nodes that may reorder samples, from passes over different numbers of samples.

    Args:
        one: A pass.
        other: A pass with the same nodes over another number of samples.
        fixed: Indices of nodes that depend on parameters alone.

    Returns:
        None if some operation may move samples or sum over them; a backward written in Python may
        do anything. Else index -> axes of the nodes that keep the order only if their indices along
        these axes count up (`keeps_order`).
    """
    if one.has_custom_backward:
        return None
    doubtful: dict[int, tuple[int, ...]] = {}
    for i, (p, q) in enumerate(zip(one.nodes, other.nodes, strict=True)):
        kind = type(p).__name__
        if i in fixed or not p.next_functions:  # parameter-only nodes, and leaves
            continue
        known = (
            ORDER_PRESERVING_NODES.match(kind)
            or AXIS_NODES.match(kind)
            or isinstance(p, BackwardCFunction)
        )  # our own: see `has_custom_backward`
        if (
            not known
            or get_node_shapes(p) == get_node_shapes(q)
            or _contracted_length(p) != _contracted_length(q)
            or _mixes_samples(p, q)
        ):
            return None
        if AXIS_NODES.match(kind):
            shape, twin = (tuple(node._input_metadata[0].shape) for node in (p, q))
            if len(shape) != len(twin) or any(
                shape[d] != twin[d] for d in _working_axes(p, len(shape))
            ):
                return None
        elif kind == "EmbeddingBackward0":  # The table may depend on the samples.
            if p._saved_weight_sym_argsize_0 != q._saved_weight_sym_argsize_0:
                return None
        elif kind == "IndexBackward0":
            sizes, twins = p._saved_self_sym_sizes, q._saved_self_sym_sizes
            if len(sizes) != len(twins):
                return None
            axes = [
                d
                for d, index in enumerate(p._saved_indices)
                if index is not None and sizes[d] != twins[d]
            ]
            if axes:
                doubtful[i] = tuple(axes)
    return doubtful


def keeps_order(graph: Trace, doubtful: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether the doubtful nodes of this pass index the samples in order."""
    for i, axes in doubtful.items():
        node = graph.nodes[i]
        sizes, indices = node._saved_self_sym_sizes, node._saved_indices
        for d in axes:
            index = indices[d]
            counting = torch.arange(sizes[d], device=index.device)
            if index.dtype != torch.int64 or not torch.equal(index.flatten(), counting):
                return False
    return True


def selects_rows(graph: Trace) -> bool:
    """Whether some node selects entries by index or mask."""
    return any(SELECTING_NODES.match(type(node).__name__) for node in graph.nodes)


def _working_axes(node: Any, rank: int) -> list[int]:
    """The axes along which a node of `AXIS_NODES` works; autograd stores them unsigned."""
    dims = node._saved_dims if hasattr(node, "_saved_dims") else (node._saved_dim,)
    return [d - (1 << 64) if d >> 63 == 1 else d for d in dims] or list(range(rank))


def _mixes_samples(one: Any, other: Any) -> bool:
    """Whether a node combines samples: two axes grow with the batch, or one that it works across."""
    kind = type(one).__name__
    sizes, twins = get_node_shapes(one), get_node_shapes(other)
    if list(map(len, sizes)) != list(
        map(len, twins)
    ):  # One of the passes has samples as separate nodes.
        return True
    pairs = list(zip(sizes, twins, strict=True))
    if kind.startswith("Convolution"):
        pairs.append((tuple(one._saved_input.shape), tuple(other._saved_input.shape)))
    for shape, twin in pairs:
        growing = [d for d, (a, b) in enumerate(zip(shape, twin, strict=True)) if a != b]
        across = (
            len(shape) - 2
            if kind.startswith("ScaledDotProduct")
            else 1
            if kind.startswith("Convolution")
            else None
        )
        if len(growing) > 1 or (across is not None and any(d >= across for d in growing)):
            return True
    return False


def _contracted_length(node: Any) -> int:
    """The length of the axis that a matrix product sums over; 0 for other nodes."""
    names = PRODUCT_OPERANDS.get(type(node).__name__)
    if names is None:
        return 0
    left, right = (getattr(node, name) for name in names)
    if isinstance(left, Tensor):
        return int(left.shape[-1])
    return int(right.shape[-2]) if isinstance(right, Tensor) else 0
