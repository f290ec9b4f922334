"""How one network is to be differentiated: decided once, by a probe, before the real work.

Two small batches that share samples go through the network. They tell (1) whether a sample's
output depends on that sample alone, (2) the sites of every parameter, and (3) the layout at each
site: which axis holds the samples, and whether other positions (tokens) are folded around them.
A site that no rule knows, or whose layout stays in doubt, is handed to `torch.func`, which is slower and always right.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from labelahead.errors import ModelError, NumericalError
from labelahead.inputs import Batch, Inputs, batch_of, length, take, tensors
from labelahead.tangent.capture import Site, Trace, gradients_at, trace
from labelahead.tangent.factors import Factor, OuterFactor, factor, joined
from labelahead.tangent.layout import GraphChangedError, Layout, close, find_layout
from labelahead.tangent.premises import forward
from labelahead.tangent.rules import read

__all__ = ["MIXED", "Plan", "make_plan"]

log = logging.getLogger("labelahead")
_SAID: "WeakKeyDictionary[nn.Module, tuple[str, ...]]" = WeakKeyDictionary()  # once a network
MIXED = (
    "a sample's output changes with the other samples of its batch, so it has no gradient of "
    "its own: take batch statistics and other exchange between samples out of the forward"
)
PROBES = 3  # samples in the larger probe


@dataclass(frozen=True)
class Planned:
    """A parameter and the sites, by their place in the list of sites, that make its gradient."""

    name: str
    shape: tuple[int, ...]
    sites: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Everything the engine needs to know of a network besides its numbers."""

    signature: tuple[object, ...]  # of the sites, to notice a graph that changes with the data
    nodes: tuple[int, ...]  # per site, which of the distinct nodes it is at
    layouts: tuple[Layout | None, ...]  # per site
    ruled: tuple[Planned, ...]  # parameters whose every site has a rule and a layout
    fallback: tuple[str, ...]  # the others; parameters without any effect are in neither
    examples: Mapping[str, Factor]  # of the ruled, for three samples and one direction
    biases: Mapping[str, str]  # weight -> bias entering the same matrix products and no others
    outputs: int  # C
    sample: Tensor  # (C,) outputs of the first sample, to hold against those in larger batches
    mutates: bool  # the network overwrites its input (an in-place first layer)
    held: int  # bytes a sample of the activations and gradients that a capture keeps alive
    largest: int  # of them at a single site


def make_plan(model: nn.Module, x: Inputs, chosen: Mapping[str, nn.Parameter], *, rules: bool = True) -> Plan:
    """Probe the network with a few samples of `x`. Gradients must be enabled for `chosen`.

    `rules=False` hands every parameter to torch.func.
    """
    names = {p: k for k, p in chosen.items()}
    first, second = _probe_batches(x)
    one = trace(model, first, names)
    mutates = any(t._version for t in tensors(first))  # written to, if only with what was there
    if mutates:  # for what follows, as the caller gave it
        first, second = _probe_batches(x)
    other = trace(model, second, names)
    _check_outputs(model, first, one.out, other.out)
    _check_unseen(one, chosen)
    sites = one.sites
    factors: list[Factor | None] = [None] * len(sites)
    layouts: list[Layout | None] = [None] * len(sites)
    rules = rules and one.signature == other.signature
    if rules:
        layouts, factors = _probed(one, other, chosen)
    uses = {name: [i for i, s in enumerate(sites) if s.parameter == name] for name in chosen}
    ruled = tuple(
        Planned(name, tuple(chosen[name].shape), tuple(own))
        for name, own in uses.items()
        if own and all(factors[i] is not None for i in own)
    )
    known = {p.name for p in ruled}
    # Without rules a parameter that the probe did not meet may yet be used by other samples.
    fallback = tuple(k for k, own in uses.items() if k not in known and (own or not rules))
    _say(model, fallback, sites, layouts)
    distinct = {node: i for i, node in enumerate(dict.fromkeys(s.node for s in sites))}
    nodes = tuple(distinct[s.node] for s in sites)
    examples = {p.name: joined([f for i in p.sites if (f := factors[i])]) for p in ruled}
    return Plan(
        signature=one.signature,
        nodes=nodes,
        layouts=tuple(layouts),
        ruled=ruled,
        fallback=fallback,
        examples=examples,
        biases=_biases(ruled, sites, nodes, examples),
        outputs=one.out.shape[1],
        sample=one.out[0].detach(),
        mutates=mutates,
        held=max(1, sum(map(_bytes, factors))),
        largest=max(1, *map(_bytes, factors), 1),
    )


def _biases(
    ruled: tuple[Planned, ...], sites: list[Site], nodes: tuple[int, ...], examples: Mapping[str, Factor]
) -> dict[str, str]:
    """Weight -> bias with one entry an output (a broadcast one has another gradient)."""

    def entering(p: Planned, argument: int) -> tuple[int, ...] | None:
        own = [sites[i] for i in p.sites]
        if any(s.kind != "AddmmBackward0" or s.argument != argument for s in own):
            return None
        return tuple(sorted(nodes[i] for i in p.sites))

    added = {at: p for p in ruled if (at := entering(p, 0))}
    biases = {}
    for p in ruled:
        f, bias = examples[p.name], added.get(entering(p, 2) or ())
        if bias is not None and isinstance(f, OuterFactor) and bias.shape == (f.g.shape[-1],):
            biases[p.name] = bias.name
    return biases


def _probe_batches(x: Inputs) -> tuple[Batch, Batch]:
    """Samples (0, j) and (j, 0, k), with j unlike sample 0 where there is such a sample.

    Never a batch of one, for which some operations take other paths than for many.
    """
    n = length(x)
    first = tensors(batch_of(take(x, slice(0, 64))))
    unlike = (i for i in range(1, min(n, 64)) if any(not torch.equal(t[0], t[i]) for t in first))
    j = next(unlike, n - 1)
    k = min(n - 1, j + 1)
    pick = [torch.tensor(i, device=first[0].device) for i in ([0, j], [j, 0, k])]
    return batch_of(take(x, pick[0])), batch_of(take(x, pick[1]))


def _check_outputs(model: nn.Module, first: Batch, out: Tensor, twin: Tensor) -> None:
    if not bool(torch.isfinite(out).all() & torch.isfinite(twin).all()):
        raise NumericalError(
            "the network's outputs hold NaN or infinity: check the scale of the inputs and whether training diverged"
        )
    if out.grad_fn is None:
        raise ModelError(
            "the outputs do not depend on any of the chosen parameters: does forward() detach "
            "them or run under no_grad()?"
        )
    if close(out[[1, 0]], twin[:2]):
        return
    if not close(forward(model, first), out):
        raise ModelError(
            "two passes over the same samples gave different outputs: the forward is random; "
            "call model.eval() and remove noise, augmentation or sampling from it"
        )
    raise ModelError(MIXED)


def _check_unseen(seen: Trace, chosen: Mapping[str, nn.Parameter]) -> None:
    """Parameters without a site must truly have no gradient: a custom node may hide them."""
    unseen = [k for k in chosen if k not in {s.parameter for s in seen.sites}]
    if not unseen:
        return
    out = seen.out
    try:
        grads = torch.autograd.grad(
            out, [chosen[k] for k in unseen], torch.ones_like(out), allow_unused=True, retain_graph=True
        )
    except RuntimeError as error:
        raise ModelError(
            f"autograd cannot differentiate this network ({error}): re-entrant checkpointing "
            "hides parameters; use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        ) from error
    hidden = [k for k, g in zip(unseen, grads, strict=True) if g is not None]
    if hidden:
        raise ModelError(f"parameters {hidden} act through a graph that cannot be read")


def _probed(
    one: Trace, other: Trace, chosen: Mapping[str, nn.Parameter]
) -> tuple[list[Layout | None], list[Factor | None]]:
    shapes = [tuple(chosen[s.parameter].shape) for s in one.sites]
    ones = [read(s, shape) for s, shape in zip(one.sites, shapes, strict=True)]
    others = [read(s, shape) for s, shape in zip(other.sites, shapes, strict=True)]
    # Unequal weights for the outputs: with equal ones a softmax layer would send back nothing.
    weights = torch.linspace(0.5, 1.5, one.out.shape[1], dtype=one.out.dtype)
    g, h = (gradients_at(t.out, [s.node for s in t.sites], [weights.to(t.out).expand_as(t.out)]) for t in (one, other))
    layouts = [find_layout(reading, twin, p[0], q[0]) for reading, twin, p, q in zip(ones, others, g, h, strict=True)]
    factors: list[Factor | None] = []
    for reading, q, layout, shape in zip(others, h, layouts, shapes, strict=True):
        try:
            known = reading is not None and layout is not None
            factors.append(factor(reading, q, layout, PROBES, shape) if known else None)  # type: ignore[arg-type]
        except GraphChangedError:  # a use that the rule does not cover after all
            factors.append(None)
    return layouts, factors


def _bytes(f: Factor | None) -> int:
    """Bytes a sample of a factor."""
    parts = [t for t in vars(f).values() if isinstance(t, Tensor)] if f is not None else []
    return sum(t.numel() * t.element_size() for t in parts) // PROBES


def _say(model: nn.Module, fallback: tuple[str, ...], sites: list[Site], layouts: list[Layout | None]) -> None:
    """One log line that names the modules without a rule, so that slowness has an explanation."""
    if not fallback or _SAID.get(model) == fallback:
        return
    _SAID[model] = fallback
    modules = dict(model.named_modules())
    reasons = []
    for name in fallback:
        owner = type(modules.get(name.rpartition(".")[0], model)).__name__
        kinds = {s.kind for s, w in zip(sites, layouts, strict=True) if s.parameter == name and w is None}
        reasons.append(f"{name} ({owner}: {', '.join(sorted(kinds))})")
    log.warning(
        "no rule for %d parameter(s), differentiated by torch.func instead (exact, slower): %s",
        len(fallback),
        "; ".join(reasons),
    )
