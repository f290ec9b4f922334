"""One forward and one backward: where every parameter enters, with what, and what comes back.

The autograd graph itself is read, not hooks on modules. Each parameter's leaf node is followed to the nodes that
consume it (a `Site`): those hold what the layer saw, already padded, and the gradient that arrives at them is asked of
autograd as a `GradientEdge`. So a functional call, a tied weight, a module used twice or `nn.MultiheadAttention`'s
output projection are seen like any other, in-place activations do no harm, and a use that no rule knows cannot go
unnoticed. Weight gradients are never computed: autograd runs only the nodes between the outputs and the sites.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from labelahead.inputs import Batch, tensors
from labelahead.tangent.premises import copied, forward

__all__ = ["Site", "Trace", "differentiable", "gradients_at", "trace"]

# Nodes that only rearrange a parameter's entries: inner products pass through unchanged.
VIEWS = frozenset(
    f"{name}Backward{i}"
    for name in ("T", "View", "UnsafeView", "ReshapeAlias", "Alias", "Unsqueeze", "Squeeze")
    for i in (0, 1)
)


# Nodes that can put samples in another order, one that depends on the data.
REARRANGING = re.compile(
    r"^(Index|IndexSelect|Gather|Take|Sort|Topk|MaskedSelect|MaskedScatter|PackPaddedSequence|"
    r"Scatter|IndexAdd|IndexPut|IndexCopy)"
)


@dataclass(frozen=True)
class Site:
    """One place where a parameter enters the computation."""

    parameter: str
    node: Any  # a torch.autograd graph node
    argument: int  # which of the node's inputs the parameter is
    views: tuple[Any, ...]  # rearrangements on the way, the parameter's side first

    @property
    def kind(self) -> str:
        """The node's name in autograd, e.g. AddmmBackward0."""
        return type(self.node).__name__

    @property
    def signature(self) -> tuple[str, str, int, tuple[str, ...]]:
        """What must be equal for two graphs to have the same structure here."""
        return self.parameter, self.kind, self.argument, tuple(type(v).__name__ for v in self.views)


@contextmanager
def differentiable(model: nn.Module, chosen: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """The chosen parameters, and they alone, take gradients; all is as it was afterwards.

    Inside, gradients are recorded only where a forward asks for it (`trace`).
    """
    before = [(p, p.requires_grad) for p in model.parameters()]
    ids = {id(p) for p in chosen.values()}
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if any(isinstance(m, (nn.LSTM, nn.RNN, nn.GRU)) for m in model.modules()):
            # The fused recurrent kernels are one opaque node; unfused they are plain products.
            stack.enter_context(_unfused_recurrence())
        stack.enter_context(_unfused_attention())
        try:
            for p, _ in before:
                p.requires_grad_(id(p) in ids)
            yield
        finally:
            for p, flag in before:
                p.requires_grad_(flag)


@contextmanager
def _unfused_recurrence() -> Iterator[None]:
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
def _unfused_attention() -> Iterator[None]:
    """Without gradients a transformer layer is one opaque call; forward mode needs its parts."""
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@dataclass(frozen=True)
class Trace:
    """One forward pass: outputs (n, C) with their graph, and every use of a parameter in it."""

    out: Tensor
    sites: list[Site]
    rearranges: bool  # an operation may have put the samples in another order

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for passes that took the same way through the network."""
        return tuple(s.signature for s in self.sites)


def trace(model: nn.Module, x: Batch, names: Mapping[nn.Parameter, str]) -> Trace:
    """Run the network on `x` and find the sites of the parameters in `names`.

    They come in an order fixed by the graph.
    """
    if any(t.is_inference() for t in tensors(x)):  # such tensors cannot be saved for a backward
        x = copied(x)
    with torch.enable_grad():
        out = forward(model, x)
    if out.grad_fn is None:
        return Trace(out, [], False)
    rearranges = False
    consumers: dict[Any, list[tuple[Any, int]]] = {}
    leaves: list[Any] = []
    seen = {out.grad_fn}
    stack: list[Any] = [out.grad_fn]
    while stack:
        node = stack.pop()
        for argument, (source, _) in enumerate(node.next_functions):
            if source is None:
                continue
            consumers.setdefault(source, []).append((node, argument))
            if source not in seen:
                seen.add(source)
                stack.append(source)
                rearranges |= REARRANGING.match(type(source).__name__) is not None
                if getattr(source, "variable", None) in names:
                    leaves.append(source)
    sites: list[Site] = []
    for leaf in leaves:
        name = names[leaf.variable]
        todo: list[tuple[Any, tuple[Any, ...]]] = [(leaf, ())]
        while todo:
            source, views = todo.pop()
            for node, argument in consumers.get(source, []):
                if type(node).__name__ in VIEWS:
                    todo.append((node, (*views, node)))
                else:
                    sites.append(Site(name, node, argument, views))
    return Trace(out, sites, rearranges)


def gradients_at(
    out: Tensor, nodes: Sequence[Any], cotangents: Sequence[Tensor], *, keep: bool = False
) -> list[Tensor]:
    """For each node, the gradients (K, ...) arriving at it, one per cotangent (n, C).

    The graph is freed unless it is to be kept.
    """
    if not nodes:
        return []
    edges = [GradientEdge(node, 0) for node in nodes]
    runs = [
        torch.autograd.grad(out, edges, grad_outputs=v, retain_graph=keep or k + 1 < len(cotangents), allow_unused=True)
        for k, v in enumerate(cotangents)
    ]
    return [_stacked(node, arriving) for node, arriving in zip(nodes, zip(*runs, strict=True), strict=True)]


def _stacked(node: Any, arriving: Sequence[Tensor | None]) -> Tensor:
    """(K, ...), zero where a cotangent does not reach the node (another head of the network)."""
    if len(arriving) == 1 and arriving[0] is not None:
        return arriving[0].detach()[None]
    meta = node._input_metadata[0]
    zero = torch.zeros(tuple(meta.shape), dtype=meta.dtype, device=meta.device)
    return torch.stack([zero if g is None else g.detach() for g in arriving])
