"""Capture one forward and one backward pass: each parameter's inputs and arriving gradients.

The autograd graph is read directly, without module hooks. Each parameter's leaf node is followed to
the nodes where it is combined with the samples (a `Site`), by itself or as part of an expression of
parameters alone. Those nodes hold the layer's input, already padded, and autograd returns the
gradient that arrives at them for a `GradientEdge`. So functional calls, tied weights, modules used
twice and `nn.MultiheadAttention`'s output projection need no special treatment, in-place
activations do no harm, and a use that no rule covers is always noticed. Weight gradients are never
computed: autograd runs only the nodes between the outputs and the sites.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, filterfalse, islice
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from labelahead.batching import Batch, list_tensors
from labelahead.ntk.layers import FAST_LAYER_FUNCTIONS, fast_layers
from labelahead.ntk.premises import cache_parts, copy_batch, get_parts, run_forward
from labelahead.ntk.recurrence import RECURRENCE_FUNCTIONS, UnfusedRecurrence

__all__ = [
    "Site",
    "Trace",
    "are_parameter_only",
    "compute_node_gradients",
    "enable_gradients",
    "find_parameter_only_nodes",
    "find_reshaped_parameters",
    "get_node_shapes",
    "pull_back_gradients",
    "restore_attributes",
    "trace",
]

# Nodes that only reshape a parameter, and nodes that transpose a matrix: neither changes inner
# products.
RESHAPING_NODES = frozenset(
    f"{name}Backward{i}"
    for name in ("View", "UnsafeView", "ReshapeAlias", "Alias", "Unsqueeze", "Squeeze", "Clone")
    for i in range(3)
)
TRANSPOSING_NODES = frozenset({"TBackward0", "TransposeBackward0", "PermuteBackward0"})
CONTAINER_TYPES = (dict, list, set)  # module attributes whose contents are restored
# Networks with these layers run faster with the functions of `layers`.
IMAGE_LAYER_TYPES = (nn.Conv2d, nn.MaxPool2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Arguments of nodes whose rules handle transposed matrices.
TRANSPOSABLE_ARGUMENTS = frozenset({("AddmmBackward0", 2), ("MmBackward0", 1)})


@dataclass(frozen=True)
class Site:
    """A node at which a parameter, or an expression of parameters alone, meets the samples."""

    node: Any  # a torch.autograd graph node
    argument: int  # index among the node's inputs
    source: GradientEdge  # a parameter's leaf, or a node that depends on parameters alone
    # The parameter, if `source` only reshapes or transposes it; None for an expression of
    # parameters (`Trace.find_parameters_below`).
    parameter: str | None
    is_transposed: bool = False  # whether the parameter, as a matrix, enters transposed

    @property
    def kind(self) -> str:
        """The name of the autograd node, such as AddmmBackward0."""
        return type(self.node).__name__

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter or expression, before it was transposed."""
        if hasattr(self.source.node, "variable"):
            return tuple(self.source.node.variable.shape)
        shape = tuple(self.source.node._input_metadata[self.source.output_nr].shape)
        return shape[::-1] if self.is_transposed else shape

    @property
    def signature(self) -> tuple[object, ...]:
        """Values that are equal if two graphs have the same structure at this site."""
        source = self.parameter or type(self.source.node).__name__
        return source, self.kind, self.argument, self.source.output_nr, self.is_transposed


@contextmanager
def enable_gradients(
    model: nn.Module, chosen: Mapping[str, nn.Parameter], *, keep_others: bool = False
) -> Iterator[None]:
    """Let the chosen parameters require gradients; restore the model afterwards.

    Others require none, unless they do already and `keep_others`. Inside, gradients are recorded
    only by `trace`, and hooks of parameters are disabled: they change gradients in training, not
    the outputs.
    """
    modules, parameters, buffers = parts = get_parts(model)
    before = [(p, p.requires_grad, p.grad) for p in parameters]
    ids = {*map(id, chosen.values())}
    kinds = {*map(type, modules)}
    with ExitStack() as stack:
        stack.enter_context(cache_parts(model, parts))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        recurrent: tuple[type[nn.Module], ...] = (nn.LSTM, nn.RNN, nn.GRU)
        if any(p.device.type != "cpu" for p in parameters):
            recurrent += (nn.RNNCellBase,)  # On a GPU, cells are fused as well.
        if any(issubclass(kind, recurrent) for kind in kinds):
            # A fused recurrent kernel is one opaque node; unfused it is a graph of products.
            stack.enter_context(_disable_fused_recurrence())
            stack.enter_context(UnfusedRecurrence())
        stack.enter_context(fast_layers(any(issubclass(kind, IMAGE_LAYER_TYPES) for kind in kinds)))
        stack.enter_context(_disable_fused_attention())
        stack.enter_context(_restore_buffers(buffers))
        stack.enter_context(
            _clear_cached_results(
                model, [m for m in modules if type(m).train is not nn.Module.train]
            )
        )
        stack.enter_context(_disable_hooks(parameters))
        try:
            for p, flag, _ in before:
                wanted = id(p) in ids or (flag and keep_others)
                if flag != wanted:
                    p.requires_grad_(wanted)
            yield
        finally:
            for p, flag, grad in before:
                if p.requires_grad != flag:
                    p.requires_grad_(flag)
                if p.grad is not grad:
                    p.grad = grad


@contextmanager
def _disable_hooks(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Empty the tables of hooks in place, because autograd keeps references to the tables."""
    tables = [
        t for p in parameters for t in (p._backward_hooks, p._post_accumulate_grad_hooks) if t
    ]
    before = [dict(t) for t in tables]
    try:
        for table in tables:
            table.clear()
        yield
    finally:
        for table, hooks in zip(tables, before, strict=True):
            table.update(hooks)


@contextmanager
def _restore_buffers(buffers: Sequence[Tensor]) -> Iterator[None]:
    """Restore buffers that the forward pass updates, such as counters and running averages."""
    before = [(b, b.clone()) for b in buffers if not b.is_inference() and not b.is_meta]
    try:
        yield
    finally:
        for (
            buffer,
            values,
        ) in before:  # by value: running statistics are written past the version counter
            if not torch.equal(buffer, values):
                buffer.copy_(values)


@contextmanager
def restore_attributes(model: nn.Module) -> Iterator[None]:
    """Restore the modules' attributes and the contents of their lists and dictionaries.

    Used around every pass: a result that the network stores for the next pass would refer to a
    graph that has been freed.
    """
    attributes = [vars(m) for m in get_parts(model)[0]]
    names, values, sizes = _flatten_tables(attributes)
    kinds = CONTAINER_TYPES
    containers = [v for v in values if isinstance(v, kinds)]
    full: list[Any] = [*filter(None, containers)]
    empty: list[Any] = [*filterfalse(None, containers)]
    contents = [v.copy() for v in full]
    try:
        yield
    finally:
        now = _flatten_tables(attributes)
        if now[2] != sizes or now[0] != names or not all(map(is_, now[1], values)):
            given = iter(zip(names, values, strict=True))
            for table, size in zip(attributes, sizes, strict=True):
                _restore_container(table, dict(islice(given, size)))
        if any(empty):
            for container in empty:
                container.clear()
        for container, content in zip(full, contents, strict=True):
            _restore_container(container, content)


def _flatten_tables(tables: Sequence[dict[str, Any]]) -> tuple[list[str], list[Any], list[int]]:
    """Keys and values of all tables as two long lists, which compare much faster, and the sizes."""
    values = [*chain.from_iterable(map(dict.values, tables))]
    return [*chain.from_iterable(tables)], values, [*map(len, tables)]


def _restore_container(container: Any, content: Any) -> None:
    """Restore the same objects, in the same order, in a list, dictionary or set."""
    if isinstance(container, list):
        if len(container) != len(content) or not all(map(is_, container, content)):
            container[:] = content
    elif isinstance(container, set):
        if container != content:
            container.clear()
            container.update(content)
    elif [*container] != [*content] or not all(map(is_, container.values(), content.values())):
        container.clear()
        container.update(content)


@contextmanager
def _clear_cached_results(model: nn.Module, modules: Sequence[nn.Module]) -> Iterator[None]:
    """Clear results that modules cache in eval mode until train() is called (LeViT)."""

    def keeps(module: nn.Module) -> bool:
        tables = (
            v
            for k, v in vars(module).items()
            if isinstance(v, dict) and k not in _MODULE_ATTRIBUTES
        )
        return any(isinstance(t, Tensor) for d in tables for t in d.values())

    keeping = [m for m in modules if keeps(m)]
    with ExitStack() as stack:
        if keeping:
            stack.enter_context(restore_attributes(model))
        for module in keeping:
            modes = [(m, getattr(m, "training", False)) for m in module.modules()]
            module.train()
            for m, mode in modes:
                m.training = mode
        yield


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # attributes of every module


@contextmanager
def _disable_fused_recurrence() -> Iterator[None]:
    backends: list[Any] = [torch.backends.mkldnn, torch.backends.cudnn]
    before = [backend.enabled for backend in backends]
    try:
        for backend in backends:
            backend.enabled = False
        yield
    finally:
        for backend, enabled in zip(backends, before, strict=True):
            backend.enabled = enabled


@contextmanager
def _disable_fused_attention() -> Iterator[None]:
    """Disable the fast path of transformer layers, which is one opaque call."""
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@dataclass(frozen=True)
class Trace:
    """One forward pass: outputs (n, C) and their graph."""

    out: Tensor
    nodes: list[Any]  # of the graph, sources first
    leaves: Mapping[Any, str]  # nodes of parameters -> their names

    @property
    def has_custom_backward(self) -> bool:
        """Whether some node has a backward written in Python, which may do anything."""
        return any(
            isinstance(node, BackwardCFunction)
            and getattr(node, "_forward_cls", None)
            not in (*RECURRENCE_FUNCTIONS, *FAST_LAYER_FUNCTIONS)
            for node in self.nodes
        )

    @property
    def uses_fast_layers(self) -> bool:
        """Whether some node comes from `layers`."""
        return any(
            getattr(node, "_forward_cls", None) in FAST_LAYER_FUNCTIONS for node in self.nodes
        )

    @property
    def dtypes(self) -> set[torch.dtype]:
        """Dtypes of all intermediate results."""
        return {m.dtype for node in self.nodes for m in node._input_metadata}

    def sites(self, fixed: Collection[int]) -> list[Site]:
        """Find the nodes where leaves and `fixed` (parameter-only) nodes meet the samples.

        Their order is determined by the graph.
        """
        plain: dict[Any, tuple[str, bool] | None] = {
            leaf: (name, False) for leaf, name in self.leaves.items()
        }
        sites = []
        for i, node in enumerate(self.nodes):
            if i in fixed:
                plain[node] = _find_carried_parameter(node, plain)
                continue
            for argument, (source, output) in enumerate(node.next_functions):
                if source in plain:
                    name, transposed = plain[source] or (None, False)
                    if transposed and (type(node).__name__, argument) not in TRANSPOSABLE_ARGUMENTS:
                        name, transposed = None, False  # Its gradient is pulled back to the leaf.
                    sites.append(
                        Site(node, argument, GradientEdge(source, output), name, transposed)
                    )
        return sites

    def find_parameters_below(self, fixed: Collection[int]) -> dict[Any, tuple[str, ...]]:
        """For each of the `fixed` (parameter-only) nodes, the parameters that it depends on."""
        names: dict[Any, tuple[str, ...]] = {leaf: (name,) for leaf, name in self.leaves.items()}
        for i in sorted(fixed):
            sources = [source for source, _ in self.nodes[i].next_functions if source is not None]
            names[self.nodes[i]] = tuple(
                dict.fromkeys(name for source in sources for name in names[source])
            )
        return names


def _find_carried_parameter(
    node: Any, plain: Mapping[Any, tuple[str, bool] | None]
) -> tuple[str, bool] | None:
    """The parameter that the node only reshapes or transposes, and whether it is transposed."""
    sources = [source for source, _ in node.next_functions if source is not None]
    origin = plain.get(sources[0]) if len(sources) == 1 else None
    if origin is None:
        return None
    kind, rank = type(node).__name__, len(node._input_metadata[0].shape)
    if kind in RESHAPING_NODES and not origin[1]:
        return origin
    if kind in TRANSPOSING_NODES and rank == 2:
        swaps = kind != "PermuteBackward0" or tuple(node._saved_dims) in (
            (1, 0),
            (-1, -2),
            (1, -2),
            (-1, 0),
        )
        return origin[0], origin[1] ^ swaps
    return None


def find_reshaped_parameters(graph: Trace) -> frozenset[int]:
    """Find nodes that only reshape or transpose a parameter, by their kinds."""
    plain: dict[Any, tuple[str, bool] | None] = {
        leaf: (name, False) for leaf, name in graph.leaves.items()
    }
    fixed = set()
    for i, node in enumerate(graph.nodes):
        if node not in plain and (origin := _find_carried_parameter(node, plain)):
            plain[node] = origin
            fixed.add(i)
    return frozenset(fixed)


def find_parameter_only_nodes(one: Trace, other: Trace) -> frozenset[int] | None:
    """Find nodes that depend on parameters alone: their size is the same for both batches.

    If such a node did depend on a sample, that sample would affect all others. None if the passes,
    over different numbers of samples, do not have the same nodes.
    """
    if len(one.nodes) != len(other.nodes):
        return None
    fixed: set[int] = set()
    known = set(one.leaves)
    for i, (p, q) in enumerate(zip(one.nodes, other.nodes, strict=True)):
        if type(p) is not type(q):
            return None
        sources = [source for source, _ in p.next_functions if source is not None]
        if (
            p not in known
            and sources
            and all(source in known for source in sources)
            and get_node_shapes(p) == get_node_shapes(q)
        ):
            known.add(p)
            fixed.add(i)
    return frozenset(fixed)


def are_parameter_only(graph: Trace, fixed: Mapping[int, str]) -> bool:
    """Whether the graph has nodes of these kinds at these indices, reached by parameters alone."""
    known = set(graph.leaves)
    for i, kind in sorted(fixed.items()):
        if i >= len(graph.nodes) or type(graph.nodes[i]).__name__ != kind:
            return False
        if any(
            source is not None and source not in known
            for source, _ in graph.nodes[i].next_functions
        ):
            return False
        known.add(graph.nodes[i])
    return True


def get_node_shapes(node: Any) -> list[tuple[int, ...]]:
    """Shapes of the gradients that arrive at a node."""
    return [tuple(m.shape) for m in node._input_metadata]


def trace(model: nn.Module, x: Batch, names: Mapping[nn.Parameter, str]) -> Trace:
    """Run the network on `x` and walk the graph of its outputs to the parameters in `names`."""
    if any(
        t.is_inference() for t in list_tensors(x)
    ):  # such tensors cannot be saved for a backward
        x = copy_batch(x)
    with torch.enable_grad(), restore_attributes(model):
        out = run_forward(model, x)
    nodes: dict[Any, None] = {}  # in topological order, sources first
    leaves: dict[Any, str] = {}
    met: set[Any] = set()
    stack: list[Any] = [out.grad_fn] if out.grad_fn is not None else []
    while stack:
        node = stack[-1]
        if node in met:
            nodes[stack.pop()] = None
            continue
        met.add(node)
        sources = node.next_functions
        if not sources:
            name = names.get(getattr(node, "variable", None))  # type: ignore[arg-type]
            if name is not None:
                leaves[node] = name
        for source, _ in sources:
            if source is not None and source not in met:
                stack.append(source)
    return Trace(out, list(nodes), leaves)


def pull_back_gradients(
    sources: Sequence[GradientEdge], D: Sequence[Tensor], parameters: Sequence[nn.Parameter]
) -> list[Tensor]:
    """Pull gradients D (m, *shape) at `sources` back to the parameters: (m, *shape) each."""
    tables = _find_lookup_tables(sources, parameters)
    # Stop at table lookups, which are then done for all rows at once: torch does one row at a time.
    ends: Any = [GradientEdge(tables[p], 0) if p in tables else p for p in parameters]

    def back(g: Sequence[Tensor], batched: bool) -> list[Tensor]:
        found = torch.autograd.grad(
            sources, ends, g, is_grads_batched=batched, retain_graph=True, allow_unused=True
        )
        shapes = [
            p.shape if p not in tables else tuple(tables[p]._input_metadata[0].shape)
            for p in parameters
        ]
        like = [
            p.new_zeros(*([len(g[0])] if batched else []), *s)
            for p, s in zip(parameters, shapes, strict=True)
        ]
        return [zero if v is None else v for zero, v in zip(like, found, strict=True)]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Torch warns if it batches an operation by a loop.
            arrived = back(D, True)
    except RuntimeError:  # Some operations cannot be batched.
        rows = [back(g, False) for g in zip(*D, strict=True)]
        arrived = [torch.stack(column) for column in zip(*rows, strict=True)]
    return [
        _scatter_to_rows(tables[p], g, p) if p in tables else g
        for p, g in zip(parameters, arrived, strict=True)
    ]


def _find_lookup_tables(
    sources: Sequence[GradientEdge], parameters: Sequence[nn.Parameter]
) -> dict[nn.Parameter, Any]:
    """Parameters that the sources use only by one lookup of rows -> the node of that lookup."""
    wanted, users = set(parameters), dict[nn.Parameter, list[Any]]()
    seen: set[Any] = set()
    stack = [source.node for source in sources]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for argument, (below, _) in enumerate(node.next_functions):
            if below is None:
                continue
            stack.append(below)
            leaf = getattr(below, "variable", None)
            if leaf is not None and leaf in wanted:
                users.setdefault(leaf, []).append(
                    node if argument == 0 and _is_row_lookup(node) else None
                )
    direct = {getattr(source.node, "variable", None) for source in sources}
    return {
        p: own[0]
        for p, own in users.items()
        if len(own) == 1 and own[0] is not None and p not in direct
    }


def _is_row_lookup(node: Any) -> bool:
    """Whether the node selects rows along the first axis by integer indices."""
    if type(node).__name__ == "EmbeddingBackward0":
        return not node._saved_scale_grad_by_freq and not node._saved_sparse
    if type(node).__name__ != "IndexBackward0":
        return False
    first, *others = node._saved_indices
    return (
        first is not None and first.dtype == torch.int64 and all(index is None for index in others)
    )


def _scatter_to_rows(node: Any, g: Tensor, table: nn.Parameter) -> Tensor:
    """Add gradients (m, ...) of looked-up rows to the rows of the table: (m, *shape of the table)."""
    rows, padding = table.shape[0], -1
    if type(node).__name__ == "EmbeddingBackward0":
        index = node._saved_indices
        padding = int(node._saved_padding_idx) if 0 <= int(node._saved_padding_idx) < rows else -1
    else:
        index = node._saved_indices[0] % rows  # counted from the end where negative
    m = g.shape[0]
    values = g.reshape(m, index.numel(), -1).transpose(0, 1).reshape(index.numel(), -1)
    found = torch.ops.aten.embedding_dense_backward(values, index.flatten(), rows, padding, False)
    together: Tensor = found.view(rows, m, -1).transpose(0, 1).reshape(m, *table.shape)
    return together


def compute_node_gradients(
    out: Tensor, nodes: Sequence[Any], cotangents: Sequence[Tensor], *, keep: bool = False
) -> list[Tensor]:
    """Compute the gradients (K, ...) arriving at each node, one per cotangent (n, C).

    The graph is freed unless `keep`.
    """
    if not nodes:
        return []
    edges = [GradientEdge(node, 0) for node in nodes]
    runs = [
        torch.autograd.grad(
            out,
            edges,
            grad_outputs=v,
            retain_graph=keep or k + 1 < len(cotangents),
            allow_unused=True,
        )
        for k, v in enumerate(cotangents)
    ]
    return [
        _stack_gradients(node, arriving)
        for node, arriving in zip(nodes, zip(*runs, strict=True), strict=True)
    ]


def _stack_gradients(node: Any, arriving: Sequence[Tensor | None]) -> Tensor:
    """Stack to (K, ...), zero where a cotangent does not reach the node (another output head)."""
    if len(arriving) == 1 and arriving[0] is not None:
        return arriving[0].detach()[None]
    meta = node._input_metadata[0]
    zero = torch.zeros(tuple(meta.shape), dtype=meta.dtype, device=meta.device)
    return torch.stack([zero if g is None else g.detach() for g in arriving])
