"""How one network is to be differentiated: decided once, by a probe, before the real work.

Two small batches that share samples go through the network. They tell (1) whether a sample's output
depends on that sample alone, (2) the sites of every parameter, and (3) the layout at each site:
which axis holds the samples, and whether other positions (tokens) are folded around them. A site
that no rule knows, or whose layout stays in doubt, is handed to `torch.func`, which is slower and
always right.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from labelahead.batching import Batch, Inputs, count_samples, list_tensors, read_batch, take_samples
from labelahead.errors import ModelError, NumericalError
from labelahead.ntk.capture import (
    Site,
    Trace,
    compute_node_gradients,
    find_parameter_only_nodes,
    find_reshaped_parameters,
    get_node_shapes,
    pull_back_gradients,
    trace,
)
from labelahead.ntk.factors import (
    Factor,
    OuterFactor,
    PlainFactor,
    join_factors,
    keep_reached_position,
    make_factor,
)
from labelahead.ntk.fallback import compute_gradients
from labelahead.ntk.layout import (
    GraphChangedError,
    Layout,
    LayoutCache,
    find_layout,
    is_close,
    sample_norms,
)
from labelahead.ntk.order import find_movers
from labelahead.ntk.premises import check_numbers, copy_batch, get_parts
from labelahead.ntk.rules import Broadcast, apply_rule

__all__ = [
    "MIXED_SAMPLES_MESSAGE",
    "Plan",
    "combine_factors",
    "get_plan",
    "is_first_time",
    "make_plan",
]

log = logging.getLogger("labelahead")
_plan_cache: "WeakKeyDictionary[nn.Module, CachedPlan]" = (
    WeakKeyDictionary()
)  # the last of each network
_logged: "WeakKeyDictionary[nn.Module, dict[str, tuple[str, ...]]]" = (
    WeakKeyDictionary()
)  # once a network
MIXED_SAMPLES_MESSAGE = (
    "a sample's output changes with the other samples of its batch, so it has no gradient of "
    "its own: take batch statistics and other exchange between samples out of the forward"
)
NODES_PER_RECURRENCE_STEP = 10  # nodes that a step of a recurrence counts for
LARGE_PROBE_SAMPLES = 3  # samples in the larger probe


@dataclass(frozen=True)
class PlannedParameter:
    """A parameter and the sites, by their place in the list of sites, where it enters by itself."""

    name: str
    shape: tuple[int, ...]
    sites: tuple[int, ...]


@dataclass(frozen=True)
class PulledGroup:
    """Sites where something made of parameters alone enters, and the parameters that its gradient
    goes back to.
    """

    sites: tuple[int, ...]
    parameters: tuple[str, ...]


Sizes = Sequence[tuple[int, ...]]
Graph = tuple[tuple[str, Sizes, Sizes], ...]
"""Each node's kind and its sizes, for two samples and for three."""


@dataclass(frozen=True)
class Plan:
    """Everything the engine needs to know of a network besides its numbers."""

    fixed: (
        Mapping[int, str] | None
    )  # nodes that no sample reaches: place and kind; None: where kinds tell
    signature: tuple[object, ...]  # of the sites, to notice a graph that changes with the data
    nodes: tuple[int, ...]  # per site, which of the distinct nodes it is at
    layouts: tuple[Layout | None, ...]  # per site
    single_position_sites: frozenset[
        int
    ]  # the sites that gradients reach at one position of each sample (`factors.keep_reached_position`)
    ruled: tuple[PlannedParameter, ...]  # parameters whose every site has a rule and a layout
    pulled: tuple[PulledGroup, ...]  # what leads to some of those
    fallback: tuple[str, ...]  # the others; parameters without any effect are in neither
    examples: Mapping[
        str, Factor
    ]  # of the ruled, for three samples and one direction: shapes without numbers
    biases: Mapping[str, str]  # weight -> bias entering the same matrix products and no others
    outputs: int  # C
    sample: Tensor  # (C,) outputs of the first sample, to hold against those in larger batches
    gradient_norms: tuple[
        float, ...
    ]  # per site, the largest norm of the gradients that the probe sent there
    probabilities: bool  # outputs that sum to one
    eps: float  # of the coarsest dtype on the way
    accumulate: (
        bool  # the backward runs backward passes of its own: only training's way sees all gradients
    )
    movers: (
        Mapping[int, tuple[int, ...]] | None
    )  # what may put samples in another order (see `order`)
    mutates_input: bool  # the network overwrites its input (an in-place first layer)
    bytes_per_sample: (
        int  # bytes a sample of the activations and gradients that a capture keeps alive
    )
    max_site_bytes: int  # of them at a single site
    node_count: int  # nodes of the graph
    # some of them from `layers`: a network without such need not be searched for them again
    uses_fast_layers: bool
    graph: Graph | None  # all of it, where another call may go by this plan (`get_plan`)
    expected_graphs: dict[int, list[tuple[str, Sizes]]] = field(
        default_factory=dict
    )  # the same by numbers of samples
    forms: dict[tuple[object, ...], Any] = field(
        default_factory=dict
    )  # what `terms` has made of it

    def matches_graph(self, nodes: Sequence[Any], n: int) -> bool:
        """Whether a pass over n samples has the very graph that the probe had, grown by the
        samples.
        """
        if self.graph is None or len(nodes) != len(self.graph):
            return False
        grown = self.expected_graphs.get(n)
        if grown is None:
            grown = self.expected_graphs[n] = [
                (
                    kind,
                    [
                        tuple(a + (n - 2) * (b - a) for a, b in zip(*both, strict=True))
                        for both in zip(two, three, strict=True)
                    ],
                )
                for kind, two, three in self.graph
            ]
        return grown == [(type(node).__name__, get_node_shapes(node)) for node in nodes]


def make_plan(
    model: nn.Module,
    x: Inputs,
    chosen: Mapping[str, nn.Parameter],
    *,
    rules: bool = True,
    keep_all_positions: bool = False,
) -> Plan:
    """Probe the network with a few samples of `x`. Gradients must be enabled for `chosen`.

    `rules=False` hands every parameter to torch.func; `keep_all_positions`: no site is `condensed`, whatever the
    probe shows.
    """
    names = {p: k for k, p in chosen.items()}
    first, second = _probe_batches(x)
    one = trace(model, first, names)
    mutates = any(
        t._version for t in list_tensors(first)
    )  # written to, if only with what was there
    if mutates:  # for what follows, as the caller gave it
        first, second = _probe_batches(x)
    other = trace(model, second, names)
    eps = _coarsest_epsilon(model, one)
    _check_outputs(model, first, one.out, other.out, eps)
    accumulate = _hides_parameters(model, first, one, chosen, eps)
    fixed = find_parameter_only_nodes(one, other)
    moving = (
        None if fixed is None else find_movers(one, other, fixed)
    )  # before a backward frees what nodes saved
    places = [find_reshaped_parameters(t) if fixed is None else fixed for t in (one, other)]
    sites, twins = one.sites(places[0]), other.sites(places[1])
    signature = tuple(s.signature for s in sites)
    factors: list[Factor | None] = [None] * len(sites)
    layouts: list[Layout | None] = [None] * len(sites)
    arrived: list[float] = []
    rules = rules and not accumulate and signature == tuple(s.signature for s in twins)
    if rules:
        layouts, factors, arrived = _probe_sites(one.out, other.out, sites, twins, eps)
    factors, few = (
        (factors, frozenset()) if keep_all_positions else _keep_reached_positions(factors)
    )
    sources = _group_sources(one, places[0], sites)
    ruled, pulled, fallback = _assign_parameters(chosen, sites, sources, factors, rules)
    _log_fallback(model, fallback, sites, layouts, sources)
    distinct = {node: i for i, node in enumerate(dict.fromkeys(s.node for s in sites))}
    nodes = tuple(distinct[s.node] for s in sites)
    examples = combine_factors(
        ruled, pulled, chosen, {i: f for i, f in enumerate(factors) if f}, twins
    )
    return Plan(
        fixed=None if fixed is None else {i: type(one.nodes[i]).__name__ for i in fixed},
        signature=signature,
        nodes=nodes,
        layouts=tuple(layouts),
        single_position_sites=few,
        ruled=ruled,
        pulled=pulled,
        fallback=fallback,
        examples={name: f.to_meta() for name, f in examples.items()},
        biases=_match_biases(ruled, sites, nodes, examples),
        outputs=one.out.shape[1],
        sample=one.out[0].detach(),
        gradient_norms=tuple(arrived),
        probabilities=_are_probabilities(one.out) and _are_probabilities(other.out),
        eps=eps,
        accumulate=accumulate,
        movers=moving,
        mutates_input=mutates,
        bytes_per_sample=max(1, sum(map(_bytes_per_sample, factors))),
        max_site_bytes=max(1, *map(_bytes_per_sample, factors), 1),
        node_count=len(one.nodes)
        + sum(
            NODES_PER_RECURRENCE_STEP * node.steps for node in one.nodes if hasattr(node, "steps")
        ),
        uses_fast_layers=one.uses_fast_layers,
        graph=_describe_graph(one, other)
        if ruled and fixed is not None and not one.has_custom_backward
        else None,
    )


def _keep_reached_positions(
    factors: Sequence[Factor | None],
) -> tuple[list[Factor | None], frozenset[int]]:
    """The factors, condensed where they can be, and where that is."""
    few = {i: c for i, f in enumerate(factors) if f is not None and (c := keep_reached_position(f))}
    return [few.get(i, f) for i, f in enumerate(factors)], frozenset(few)


def _describe_graph(one: Trace, other: Trace) -> Graph | None:
    """None where the number of dimensions itself changes with the samples."""
    found = tuple(
        (type(p).__name__, get_node_shapes(p), get_node_shapes(q))
        for p, q in zip(one.nodes, other.nodes, strict=True)
    )
    alike = all([len(a) for a in p] == [len(b) for b in q] for _, p, q in found)
    return found if alike else None


@dataclass(frozen=True)
class CachedPlan:
    """A plan, and all that it was made for."""

    plan: Plan
    key: tuple[object, ...]
    first: tuple[Tensor, ...]  # the sample whose output the plan has


def get_plan(
    model: nn.Module,
    x: Inputs,
    chosen: Mapping[str, nn.Parameter],
    *,
    rules: bool = True,
    reuse_plan: bool = True,
    keep_all_positions: bool = False,
) -> tuple[Plan, bool]:
    """The plan that this network had for such samples while its numbers were these, or a new one;
    whether it is old.

    An old one saves the probe. What may have changed unseen (an attribute that the forward goes by)
    is found out on the first batch, which must have the same graph and give the output that is
    known of its first sample. `reuse_plan=False`: it did not, so probe. `keep_all_positions`: see `make_plan`.
    """
    key, first = (
        _make_cache_key(model, x, chosen, rules),
        tuple(t[0].clone() for t in list_tensors(read_batch(take_samples(x, slice(0, 1))))),
    )
    old = _plan_cache.get(model)
    if (
        reuse_plan
        and old is not None
        and key is not None
        and old.key == key
        and count_samples(x) > 1
    ):
        if all(torch.equal(a, b) for a, b in zip(first, old.first, strict=True)):
            return old.plan, True
        out = trace(model, copy_batch(_probe_batches(x)[0]), {}).out
        return replace(old.plan, sample=out[0].detach()), True
    check_numbers(chosen)  # those of an old plan were, and are the same
    plan = make_plan(model, x, chosen, rules=rules, keep_all_positions=keep_all_positions)
    _plan_cache.pop(model, None)
    if key is not None and plan.graph is not None:
        _plan_cache[model] = CachedPlan(plan, key, first)
    return plan, False


def _make_cache_key(
    model: nn.Module, x: Inputs, chosen: Mapping[str, nn.Parameter], rules: bool
) -> tuple[object, ...] | None:
    """What a plan was made for; None where changes of the numbers would leave no trace."""
    modules, parameters, buffers = get_parts(model)
    numbers = [*parameters, *buffers]
    sample = read_batch(take_samples(x, slice(0, 1)))
    if any(t.is_inference() for t in numbers):
        return None
    return (
        rules,
        tuple(chosen),
        tuple((t._version, t.data_ptr(), t.shape, t.dtype) for t in numbers),
        tuple((type(m), m.training) for m in modules),
        tuple(sample) if isinstance(sample, Mapping) else type(sample),
        tuple((t.shape, t.dtype, t.device) for t in list_tensors(sample)),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )


def _assign_parameters(
    chosen: Mapping[str, nn.Parameter],
    sites: Sequence[Site],
    sources: Sequence[PulledGroup],
    factors: Sequence[Factor | None],
    rules: bool,
) -> tuple[tuple[PlannedParameter, ...], tuple[PulledGroup, ...], tuple[str, ...]]:
    """Which parameters the rules do by themselves, which are pulled back from where they meet
    samples, and the rest.
    """
    uses = {name: [i for i, s in enumerate(sites) if s.parameter == name] for name in chosen}
    met = {name for group in sources for name in group.parameters} | {
        name for name, own in uses.items() if own
    }
    unknown = {i for i, f in enumerate(factors) if f is None}
    lost = {name for group in sources if unknown & set(group.sites) for name in group.parameters}
    ruled = tuple(
        PlannedParameter(name, tuple(chosen[name].shape), tuple(own))
        for name, own in uses.items()
        if name in met - lost and not unknown & set(own)
    )
    known = {p.name for p in ruled}
    pulled = tuple(
        PulledGroup(group.sites, own)
        for group in sources
        if (own := tuple(k for k in group.parameters if k in known))
    )
    # Without rules a parameter that the probe did not meet may yet be used by other samples.
    rest = tuple(k for k in chosen if k not in known and (k in met or not rules))
    return ruled, pulled, rest


def _group_sources(
    graph: Trace, fixed: Collection[int], sites: Sequence[Site]
) -> tuple[PulledGroup, ...]:
    """What is made of parameters alone and meets the samples."""
    below = graph.find_parameters_below(fixed)
    groups: dict[GradientEdge, list[int]] = {}
    for i, s in enumerate(sites):
        if s.parameter is None:
            groups.setdefault(s.source, []).append(i)
    return tuple(PulledGroup(tuple(own), below[source.node]) for source, own in groups.items())


def combine_factors(
    ruled: Sequence[PlannedParameter],
    pulled: Sequence[PulledGroup],
    chosen: Mapping[str, nn.Parameter],
    parts: Mapping[int, Factor],
    sites: Sequence[Site],
) -> dict[str, Factor]:
    """One factor a parameter, from those of its sites and of what it is a part of."""
    own = {p.name: [parts[i] for i in p.sites] for p in ruled}
    together: dict[tuple[str, ...], list[PulledGroup]] = {}
    for group in pulled:  # what several layers take from one table goes back to it at once
        together.setdefault(group.parameters, []).append(group)
    for names, groups in together.items():
        D = [join_factors([parts[i] for i in group.sites]).gradient() for group in groups]
        n, K = D[0].shape[:2]
        sources = [sites[group.sites[0]].source for group in groups]
        back = pull_back_gradients(
            sources, [d.flatten(0, 1) for d in D], [chosen[k] for k in names]
        )
        for name, v in zip(names, back, strict=True):
            own[name].append(PlainFactor(v.reshape(n, K, -1), tuple(v.shape[1:])))
    return {name: join_factors(factors) for name, factors in own.items()}


def _match_biases(
    ruled: tuple[PlannedParameter, ...],
    sites: list[Site],
    nodes: tuple[int, ...],
    examples: Mapping[str, Factor],
) -> dict[str, str]:
    """Weight -> bias with one entry an output (a broadcast one has another gradient)."""

    def entering(p: PlannedParameter, argument: int) -> tuple[int, ...] | None:
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
    n = count_samples(x)
    first = list_tensors(read_batch(take_samples(x, slice(0, 64))))
    unlike = (i for i in range(1, min(n, 64)) if any(not torch.equal(t[0], t[i]) for t in first))
    j = next(unlike, n - 1)
    k = min(n - 1, j + 1)
    pick = [torch.tensor(i, device=first[0].device) for i in ([0, j], [j, 0, k])]
    return read_batch(take_samples(x, pick[0])), read_batch(take_samples(x, pick[1]))


def _coarsest_epsilon(model: nn.Module, graph: Trace) -> float:
    """The machine epsilon that the outputs are known to."""
    dtypes = graph.dtypes | {p.dtype for p in model.parameters()} | {graph.out.dtype}
    return max(torch.finfo(d).eps for d in dtypes if d.is_floating_point)


def _are_probabilities(out: Tensor) -> bool:
    sums = out.detach().sum(1)
    return out.shape[1] > 1 and bool((out >= 0).all()) and is_close(sums, torch.ones_like(sums))


def _check_outputs(model: nn.Module, first: Batch, out: Tensor, twin: Tensor, eps: float) -> None:
    if not bool(torch.isfinite(out).all() & torch.isfinite(twin).all()):
        raise NumericalError(
            "the network's outputs hold NaN or infinity: check the scale of the inputs and "
            "whether training diverged"
        )
    if out.grad_fn is None:
        raise ModelError(
            "the outputs do not depend on any of the chosen parameters: does forward() detach "
            "them or run under no_grad()?"
        )
    if is_close(out[[1, 0]], twin[:2], 0.0, eps):
        return
    if not is_close(trace(model, first, {}).out, out, 0.0, eps):
        raise ModelError(
            "two passes over the same samples gave different outputs: the forward is random; "
            "call model.eval() and remove noise, augmentation or sampling from it"
        )
    raise ModelError(MIXED_SAMPLES_MESSAGE)


def _hides_parameters(
    model: nn.Module, first: Batch, graph: Trace, chosen: Mapping[str, nn.Parameter], eps: float
) -> bool:
    """Whether autograd's graph lacks some of what training would see.

    A backward written in Python, or a hook, can run a backward of its own (re-entrant checkpoints,
    reversible blocks): its gradients reach `.grad` and are in no graph. So what a training step
    collects is held against what the graph has. Looked into where nodes are of that kind, and where
    parameters that the graph does not have move the outputs.
    """
    visible = set(graph.leaves.values())
    unseen = [k for k in chosen if k not in visible]
    moving = bool(unseen) and _affects_outputs(model, first, graph.out, [chosen[k] for k in unseen])
    if not moving and not graph.has_custom_backward:
        return False
    parameters = list(chosen.values())
    weights = _uneven_weights(graph.out)
    again = trace(model, copy_batch(first), {}).out
    collected = compute_gradients(again, parameters, weights, accumulate=True)
    try:
        shown = compute_gradients(graph.out, parameters, weights, keep=True)
    except ModelError:  # re-entrant checkpoints refuse to be asked
        return True
    scale = max(
        [float(g.abs().amax()) for g in collected if g is not None and g.numel()], default=0.0
    )
    for p, g, h in zip(parameters, collected, shown, strict=True):
        zero = torch.zeros_like(p)
        if not is_close(zero if g is None else g, zero if h is None else h, scale, eps):
            return True
    if any(g is not None for k, g in zip(chosen, shown, strict=True) if k not in visible):
        return True  # a use that the walk along the graph does not reach
    if moving and is_first_time(model, "detached", tuple(unseen)):
        named = [k for k in unseen if _affects_outputs(model, first, graph.out, [chosen[k]])]
        log.warning(
            "%d parameter(s) change the outputs but take no gradient (detached, or used under "
            "no_grad), "
            "so the kernel leaves them out: %s",
            len(named),
            ", ".join(named),
        )
    return False


def _affects_outputs(
    model: nn.Module, first: Batch, out: Tensor, parameters: Sequence[nn.Parameter]
) -> bool:
    """Whether the outputs are others when these parameters are."""
    generator = torch.Generator().manual_seed(0)
    before = [p.data for p in parameters]
    try:
        for p in parameters:  # new numbers in new places: the old ones stay as the graph saved them
            noise = torch.randn(p.shape, generator=generator).to(p)
            p.data = p.data + (0.1 + p.data.abs().mean()) * noise
        moved = trace(model, copy_batch(first), {}).out
    finally:
        for p, data in zip(parameters, before, strict=True):
            p.data = data
    return not torch.equal(moved, out)


def _uneven_weights(out: Tensor) -> Tensor:
    """Unequal weights for the outputs: with equal ones a softmax layer would send back nothing."""
    weights = torch.linspace(0.5, 1.5, out.shape[1], dtype=out.dtype, device=out.device)
    return weights.expand_as(out)


def _probe_sites(
    out: Tensor, twin: Tensor, sites: Sequence[Site], twins: Sequence[Site], eps: float
) -> tuple[list[Layout | None], list[Factor | None], list[float]]:
    """Per site: the layout, the factor of the larger probe, the size of what arrived."""
    ones, others = [apply_rule(s) for s in sites], [apply_rule(s) for s in twins]
    g, h = (
        compute_node_gradients(t, [s.node for s in found], [_uneven_weights(t)])
        for t, found in ((out, sites), (twin, twins))
    )
    layout_cache: LayoutCache = {}
    layouts: list[Layout | None] = [None] * len(sites)
    at_node: dict[Any, Layout] = {}
    # A bias receives the very gradient of its weight, whose inputs may tell more: weights come
    # first.
    for i in sorted(range(len(sites)), key=lambda i: isinstance(ones[i], Broadcast)):
        if ones[i] is not None:
            known = at_node.get(sites[i].node)
            layouts[i] = layout = known or find_layout(
                ones[i], others[i], g[i][0], h[i][0], eps, layout_cache
            )
            if layout is not None:
                at_node[sites[i].node] = layout
    factors: list[Factor | None] = []
    for s, rule, q, layout in zip(twins, others, h, layouts, strict=True):
        try:
            if rule is None or layout is None:
                factors.append(None)
            else:
                factors.append(make_factor(rule, q, layout, LARGE_PROBE_SAMPLES, s.shape))
        except GraphChangedError:  # a use that the rule does not cover after all
            factors.append(None)
    return (
        layouts,
        factors,
        [
            float(sample_norms(q, layout, LARGE_PROBE_SAMPLES).amax())
            for q, layout in zip(h, layouts, strict=True)
        ],
    )


def is_first_time(model: nn.Module, what: str, names: tuple[str, ...]) -> bool:
    """Whether this has not been said of the network before."""
    said = _logged.setdefault(model, {})
    before, said[what] = said.get(what), names
    return before != names


def _bytes_per_sample(f: Factor | None) -> int:
    """Bytes a sample of a factor."""
    parts = [t for t in vars(f).values() if isinstance(t, Tensor)] if f is not None else []
    return sum(t.numel() * t.element_size() for t in parts) // LARGE_PROBE_SAMPLES


def _log_fallback(
    model: nn.Module,
    fallback: tuple[str, ...],
    sites: Sequence[Site],
    layouts: Sequence[Layout | None],
    pulled: Sequence[PulledGroup],
) -> None:
    """One log line that names the modules without a rule, so that slowness has an explanation."""
    if not fallback or not is_first_time(model, "fallback", fallback):
        return
    modules = dict(model.named_modules())
    reasons = []
    for name in fallback:
        owner = type(modules.get(name.rpartition(".")[0], model)).__name__
        own = {i for i, s in enumerate(sites) if s.parameter == name}
        own |= {i for group in pulled if name in group.parameters for i in group.sites}
        kinds = {sites[i].kind for i in own if layouts[i] is None}
        reasons.append(f"{name} ({owner}: {', '.join(sorted(kinds))})")
    log.warning(
        "no rule for %d parameter(s), differentiated by torch.func instead (exact, slower): %s",
        len(fallback),
        "; ".join(reasons),
    )
