"""Plan how to differentiate a network, by a probe before the real work.

Two small batches that share samples pass through the network. They show (1) whether a sample's
output depends on that sample alone, (2) the sites of every parameter, and (3) the layout at each
site: which axis holds the samples, and whether other positions (tokens) are folded into it. A site
without a rule, or with an ambiguous layout, is left to `torch.func`, which is slower and always
right.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from labelahead.batching import (
    Batch,
    Inputs,
    count_samples,
    list_tensors,
    map_tensors,
    read_batch,
    take_samples,
)
from labelahead.errors import LabelaheadError, ModelError, NumericalError
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
    "LARGE_PROBE_SAMPLES",
    "MIN_CHECKED_BATCH",
    "MIXED_SAMPLES_MESSAGE",
    "Plan",
    "combine_factors",
    "get_plan",
    "is_first_time",
    "make_plan",
    "trace_probe",
]

log = logging.getLogger("labelahead")
# The last plan of each network, and the messages that were logged for it.
_plan_cache: "WeakKeyDictionary[nn.Module, CachedPlan]" = WeakKeyDictionary()
_logged: "WeakKeyDictionary[nn.Module, set[tuple[str, ...]]]" = WeakKeyDictionary()
MIXED_SAMPLES_MESSAGE = (
    "a sample's output changes with the other samples of its batch, so it has no gradient of "
    "its own: remove batch statistics and other interactions between samples from the forward"
)
MIN_CHECKED_BATCH = 8  # samples; in smaller batches the first sample is checked beside made-up ones
DEPENDENCE_BATCH = 256  # samples in a pass that asks whether any output depends on the parameters
NODES_PER_RECURRENCE_STEP = 10  # for estimating the cost of a pass
LARGE_PROBE_SAMPLES = 3  # samples in the larger probe


@dataclass(frozen=True)
class PlannedParameter:
    """A parameter and the indices of the sites where it enters by itself."""

    name: str
    shape: tuple[int, ...]
    sites: tuple[int, ...]


@dataclass(frozen=True)
class PulledGroup:
    """Sites of one expression of parameters alone, and the parameters it depends on."""

    sites: tuple[int, ...]
    parameters: tuple[str, ...]


Sizes = Sequence[tuple[int, ...]]
Graph = tuple[tuple[str, Sizes, Sizes], ...]
"""Each node's kind and its sizes, for two samples and for three."""


@dataclass(frozen=True)
class Plan:
    """What the engine needs about a network besides its numbers."""

    # Indices and kinds of the nodes that depend on parameters alone; None: decided by their kinds.
    fixed: Mapping[int, str] | None
    signature: tuple[object, ...]  # of the sites, to notice a graph that depends on the data
    nodes: tuple[int, ...]  # per site, the index of its node among the distinct nodes
    layouts: tuple[Layout | None, ...]  # per site
    # Sites with a gradient at one position per sample (`factors.keep_reached_position`).
    single_position_sites: frozenset[int]
    ruled: tuple[PlannedParameter, ...]  # parameters whose every site has a rule and a layout
    pulled: tuple[PulledGroup, ...]  # expressions of some of those
    fallback: tuple[str, ...]  # the other parameters, except those without any effect
    fallback_reasons: Mapping[str, str]  # the module and operations of each, for the log
    # Factors of the ruled parameters for three samples and one direction: shapes without numbers.
    examples: Mapping[str, Factor]
    biases: Mapping[str, str]  # weight -> bias of the same matrix products and no others
    outputs: int  # C
    sample: Tensor  # (C,) outputs of the first sample, to compare with those in larger batches
    gradient_norms: tuple[float, ...]  # per site, the largest norm of a sample's gradient
    probabilities: bool  # whether the outputs sum to one
    eps: float  # of the coarsest dtype in the computation
    # Whether the backward runs backward passes of its own, so that gradients are only in `.grad`.
    accumulate: bool
    movers: Mapping[int, tuple[int, ...]] | None  # nodes that may reorder samples (see `order`)
    mutates_input: bool  # whether the network overwrites its input (an in-place first layer)
    bytes_per_sample: int  # of the activations and gradients that a capture keeps
    max_site_bytes: int  # of those, at a single site
    node_count: int  # nodes of the graph
    uses_fast_layers: bool  # whether some nodes come from `layers`
    graph: Graph | None  # the whole graph, if another call may use this plan (`get_plan`)
    # The graph's sizes by numbers of samples.
    expected_graphs: dict[int, list[tuple[str, Sizes]]] = field(default_factory=dict)
    forms: dict[tuple[object, ...], Any] = field(default_factory=dict)  # cache of `terms`
    # Batches, beginning with the first sample, that the network was found not to mix.
    checked_batches: set[tuple[float, ...]] = field(default_factory=set)

    def matches_graph(self, nodes: Sequence[Any], n: int) -> bool:
        """Whether a pass over n samples has the probe's graph, with sizes extrapolated to n."""
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

    Args:
        model: The network.
        x: Samples.
        chosen: The parameters to differentiate by.
        rules: False leaves every parameter to torch.func.
        keep_all_positions: Never restrict a site to one position per sample
            (`factors.keep_reached_position`), whatever the probe shows.
    """
    one, other, first, mutates = _trace_probes(model, x, chosen)
    eps = _coarsest_epsilon(model, one)
    _check_outputs(model, first, one.out, other.out, eps)
    if count_samples(x) < MIN_CHECKED_BATCH:
        _check_first_sample(model, first, one.out, eps)
    if one.out.grad_fn is None:
        # Some experts, for example, are used by few samples.
        rules = False
        _check_dependence(model, x, chosen, mutates)
    accumulate = _hides_parameters(model, first, one, chosen, eps)
    fixed = find_parameter_only_nodes(one, other)
    # A backward would free what the nodes saved, so movers are found before it.
    moving = None if fixed is None else find_movers(one, other, fixed)
    parameter_only = [find_reshaped_parameters(t) if fixed is None else fixed for t in (one, other)]
    sites, twins = one.sites(parameter_only[0]), other.sites(parameter_only[1])
    signature = tuple(s.signature for s in sites)
    factors: list[Factor | None] = [None] * len(sites)
    layouts: list[Layout | None] = [None] * len(sites)
    arrived: list[float] = []
    few: frozenset[int] = frozenset()
    rules = rules and not accumulate and signature == tuple(s.signature for s in twins)
    if rules:
        layouts, factors, arrived = _probe_sites(one.out, other.out, sites, twins, eps)
    if not keep_all_positions:
        factors, few = _keep_reached_positions(factors)
    sources = _group_sources(one, parameter_only[0], sites)
    ruled, pulled, fallback = _assign_parameters(chosen, sites, sources, factors, rules)
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
        fallback_reasons=_explain_fallback(model, fallback, sites, layouts, sources),
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
        node_count=_count_nodes(one),
        uses_fast_layers=one.uses_fast_layers,
        graph=_describe_graph(one, other)
        if ruled and fixed is not None and not one.has_custom_backward
        else None,
    )


def _trace_probes(
    model: nn.Module, x: Inputs, chosen: Mapping[str, nn.Parameter]
) -> tuple[Trace, Trace, Batch, bool]:
    """Trace two small batches; also return the first one, and whether the network modifies it."""
    names = {p: k for k, p in chosen.items()}
    first, second = _probe_batches(x)
    one = trace(model, first, names)
    mutates = any(t._version for t in list_tensors(first))
    if mutates:  # Later passes need the input as the caller gave it.
        first, second = _probe_batches(x)
    return one, trace(model, second, names), first, mutates


def trace_probe(model: nn.Module, x: Inputs) -> Tensor:
    """Return the outputs of the smaller probe: those of the first sample, and of another one."""
    return trace(model, copy_batch(_probe_batches(x)[0]), {}).out


def _count_nodes(traced: Trace) -> int:
    """Number of nodes, with the steps of recurrent ones."""
    steps = [int(node.steps) for node in traced.nodes if hasattr(node, "steps")]
    return len(traced.nodes) + sum(NODES_PER_RECURRENCE_STEP * n for n in steps)


def _keep_reached_positions(
    factors: Sequence[Factor | None],
) -> tuple[list[Factor | None], frozenset[int]]:
    """Restrict factors to the one position with a gradient where possible; also return where."""
    restricted = {
        i: c for i, f in enumerate(factors) if f is not None and (c := keep_reached_position(f))
    }
    return [restricted.get(i, f) for i, f in enumerate(factors)], frozenset(restricted)


def _describe_graph(one: Trace, other: Trace) -> Graph | None:
    """Kinds and sizes of all nodes; None if the number of dimensions depends on the samples."""
    found = tuple(
        (type(p).__name__, get_node_shapes(p), get_node_shapes(q))
        for p, q in zip(one.nodes, other.nodes, strict=True)
    )
    alike = all([len(a) for a in p] == [len(b) for b in q] for _, p, q in found)
    return found if alike else None


class PlanKey(NamedTuple):
    """What a plan is made for."""

    structure: tuple[object, ...]  # modules, shapes and dtypes
    versions: tuple[object, ...]  # of the numbers in parameters and buffers


@dataclass(frozen=True)
class CachedPlan:
    """A plan, and the network state and sample that it was made for."""

    plan: Plan
    key: "PlanKey"
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
    """Return the cached plan of this network if its state is the same, or a new one.

    A cached plan saves the probe, also if only numbers in parameters and buffers have changed.
    Changes that leave no trace in the state (an attribute that the forward reads) are found on the
    first batch, which must have the same graph and give the known output of its first sample. If it
    does not, the caller probes again with `reuse_plan=False`.

    Returns:
        The plan, and whether it comes from the cache.
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
        return _move_plan(old.plan, model, x), True
    check_numbers(chosen)  # The parameters of a cached plan have been checked.
    if (
        reuse_plan
        and old is not None
        and key is not None
        and old.key.structure == key.structure
        and count_samples(x) >= MIN_CHECKED_BATCH
    ):
        # Another checkpoint has the same plan, unless the first batch shows that it has not.
        plan = _move_plan(old.plan, model, x)
        _plan_cache[model] = CachedPlan(plan, key, first)
        return plan, True
    plan = make_plan(model, x, chosen, rules=rules, keep_all_positions=keep_all_positions)
    _plan_cache.pop(model, None)
    if key is not None and plan.graph is not None:
        _plan_cache[model] = CachedPlan(plan, key, first)
    return plan, False


def _move_plan(plan: Plan, model: nn.Module, x: Inputs) -> Plan:
    """Return the plan for other weights, or for other samples."""
    return replace(plan, sample=trace_probe(model, x)[0].detach(), checked_batches=set())


def _make_cache_key(
    model: nn.Module, x: Inputs, chosen: Mapping[str, nn.Parameter], rules: bool
) -> PlanKey | None:
    """Describe what a plan is made for; None if a change of the weights could not be detected."""
    modules, parameters, buffers = get_parts(model)
    numbers = [*parameters, *buffers]
    sample = read_batch(take_samples(x, slice(0, 1)))
    if any(t.is_inference() for t in numbers):
        return None
    structure = (
        rules,
        tuple(chosen),
        tuple((t.shape, t.dtype) for t in numbers),
        tuple((type(m), getattr(m, "training", False)) for m in modules),
        tuple(sample) if isinstance(sample, Mapping) else type(sample),
        tuple((t.shape, t.dtype, t.device) for t in list_tensors(sample)),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )
    return PlanKey(structure, tuple((t._version, t.data_ptr()) for t in numbers))


def _assign_parameters(
    chosen: Mapping[str, nn.Parameter],
    sites: Sequence[Site],
    sources: Sequence[PulledGroup],
    factors: Sequence[Factor | None],
    rules: bool,
) -> tuple[tuple[PlannedParameter, ...], tuple[PulledGroup, ...], tuple[str, ...]]:
    """Divide the parameters into those with rules, groups to pull back to, and the fallback."""
    uses = {name: [i for i, s in enumerate(sites) if s.parameter == name] for name in chosen}
    used_names = {name for group in sources for name in group.parameters} | {
        name for name, own in uses.items() if own
    }
    unknown = {i for i, f in enumerate(factors) if f is None}
    lost = {name for group in sources if unknown & set(group.sites) for name in group.parameters}
    ruled = tuple(
        PlannedParameter(name, tuple(chosen[name].shape), tuple(own))
        for name, own in uses.items()
        if name in used_names - lost and not unknown & set(own)
    )
    known = {p.name for p in ruled}
    pulled = tuple(
        PulledGroup(group.sites, own)
        for group in sources
        if (own := tuple(k for k in group.parameters if k in known))
    )
    # Without rules, a parameter that the probe did not use may still be used by other samples.
    rest = tuple(k for k in chosen if k not in known and (k in used_names or not rules))
    return ruled, pulled, rest


def _group_sources(
    graph: Trace, fixed: Collection[int], sites: Sequence[Site]
) -> tuple[PulledGroup, ...]:
    """Group the sites of expressions of parameters by expression."""
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
    """Combine the factors of all sites of a parameter, and of expressions with it, into one."""
    own = {p.name: [parts[i] for i in p.sites] for p in ruled}
    together: dict[tuple[str, ...], list[PulledGroup]] = {}
    for group in pulled:  # Several layers that use one table are pulled back together.
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
    """Weight -> bias with one entry per output (a broadcast bias has another gradient)."""

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
    """Samples (0, j) and (j, 0, k), where j differs from sample 0 if any sample does.

    A batch of one is avoided, because some operations treat it differently.
    """
    n = count_samples(x)
    first = list_tensors(read_batch(take_samples(x, slice(0, 64))))
    unlike = (i for i in range(1, min(n, 64)) if any(not torch.equal(t[0], t[i]) for t in first))
    j = next(unlike, n - 1)
    k = min(n - 1, j + 1)
    pick = [torch.tensor(i, device=first[0].device) for i in ([0, j], [j, 0, k])]
    return read_batch(take_samples(x, pick[0])), read_batch(take_samples(x, pick[1]))


def _coarsest_epsilon(model: nn.Module, graph: Trace) -> float:
    """The machine epsilon of the coarsest dtype in the computation of the outputs."""
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
    if is_close(out[[1, 0]], twin[:2], 0.0, eps):
        return
    if not is_close(trace(model, first, {}).out, out, 0.0, eps):
        raise ModelError(
            "two passes over the same samples gave different outputs: the forward is random; "
            "call model.eval() and remove noise, augmentation or sampling from it"
        )
    raise ModelError(MIXED_SAMPLES_MESSAGE)


def _check_dependence(
    model: nn.Module, x: Inputs, chosen: Mapping[str, nn.Parameter], mutates: bool
) -> None:
    """Raise if the outputs of no sample depend on the chosen parameters."""
    for start in range(0, count_samples(x), DEPENDENCE_BATCH):
        part = read_batch(take_samples(x, slice(start, start + DEPENDENCE_BATCH)))
        if trace(model, copy_batch(part) if mutates else part, {}).out.grad_fn is not None:
            return
    raise ModelError(
        "the outputs of no sample depend on the chosen parameters: does forward() detach them, run "
        "under no_grad(), or send no sample to them?"
    )


def _check_first_sample(model: nn.Module, first: Batch, out: Tensor, eps: float) -> None:
    """Raise if the first sample has another output beside samples that are made of it.

    So few samples may not contain the one that affects the others, such as the largest.
    """
    for factor in (0.5, 1.5):

        def make_second(t: Tensor, factor: float = factor) -> Tensor:
            if t.dtype is torch.bool:
                return t
            floating = t.is_floating_point() or t.is_complex()
            # A whole number may be an index into a table, which ends somewhere.
            return torch.cat([t[:1], t[:1] * factor if floating else t[:1] // 2])

        try:
            beside = trace(model, map_tensors(first, make_second), {}).out
        except (LabelaheadError, RuntimeError):  # the made-up sample may be no valid input
            continue
        if not bool(torch.isfinite(beside).all()):
            continue
        if not is_close(beside[0].detach(), out[0].detach(), 0.0, eps):
            raise ModelError(MIXED_SAMPLES_MESSAGE)


def _hides_parameters(
    model: nn.Module, first: Batch, graph: Trace, chosen: Mapping[str, nn.Parameter], eps: float
) -> bool:
    """Whether autograd's graph lacks some gradients that a training step would collect.

    A backward written in Python, or a hook, can run a backward of its own (re-entrant checkpoints,
    reversible blocks), whose gradients reach `.grad` but are in no graph. So the gradients of a
    training step are compared with those of the graph, if such nodes exist or if parameters outside
    the graph affect the outputs.
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
    except ModelError:  # Re-entrant checkpoints do not support torch.autograd.grad.
        return True
    scale = max(
        [float(g.abs().amax()) for g in collected if g is not None and g.numel()], default=0.0
    )
    for p, g, h in zip(parameters, collected, shown, strict=True):
        zero = torch.zeros_like(p)
        if not is_close(zero if g is None else g, zero if h is None else h, scale, eps):
            return True
    if any(g is not None for k, g in zip(chosen, shown, strict=True) if k not in visible):
        return True  # The walk along the graph missed a use of a parameter.
    if moving and is_first_time(model, "detached", tuple(unseen)):
        named = [k for k in unseen if _affects_outputs(model, first, graph.out, [chosen[k]])]
        log.warning(
            "%d parameter(s) affect the outputs but have no gradient (detached, or used under "
            "no_grad), so the kernel leaves them out: %s",
            len(named),
            ", ".join(named),
        )
    return False


def _affects_outputs(
    model: nn.Module, first: Batch, out: Tensor, parameters: Sequence[nn.Parameter]
) -> bool:
    """Whether the outputs change when these parameters are perturbed."""
    generator = torch.Generator().manual_seed(0)
    before = [p.data for p in parameters]
    try:
        for p in parameters:
            noise = torch.randn(p.shape, generator=generator).to(p)
            p.data = p.data + (0.1 + p.data.abs().mean()) * noise
        moved = trace(model, copy_batch(first), {}).out
    finally:
        for p, data in zip(parameters, before, strict=True):
            p.data = data
    return not torch.equal(moved, out)


def _uneven_weights(out: Tensor) -> Tensor:
    """Unequal weights for the outputs: with equal ones a softmax would have zero gradients."""
    weights = torch.linspace(0.5, 1.5, out.shape[1], dtype=out.dtype, device=out.device)
    return weights.expand_as(out)


def _probe_sites(
    out: Tensor, twin: Tensor, sites: Sequence[Site], twins: Sequence[Site], eps: float
) -> tuple[list[Layout | None], list[Factor | None], list[float]]:
    """Per site: the layout, the factor of the larger probe, the norm of the gradient."""
    ones, others = [apply_rule(s) for s in sites], [apply_rule(s) for s in twins]
    g, h = (
        compute_node_gradients(t, [s.node for s in found], [_uneven_weights(t)])
        for t, found in ((out, sites), (twin, twins))
    )
    layout_cache: LayoutCache = {}
    layouts: list[Layout | None] = [None] * len(sites)
    at_node: dict[Any, Layout] = {}
    # A bias receives the same gradient as its weight, whose inputs identify the layout better, so
    # weights come first.
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
        except GraphChangedError:  # The rule does not cover this use after all.
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
    """Whether this message has not been logged for the network before."""
    logged = _logged.setdefault(model, set())
    first = (what, *names) not in logged
    logged.add((what, *names))
    return first


def _bytes_per_sample(f: Factor | None) -> int:
    """Bytes per sample of a factor."""
    parts = [t for t in vars(f).values() if isinstance(t, Tensor)] if f is not None else []
    return sum(t.numel() * t.element_size() for t in parts) // LARGE_PROBE_SAMPLES


def _explain_fallback(
    model: nn.Module,
    fallback: tuple[str, ...],
    sites: Sequence[Site],
    layouts: Sequence[Layout | None],
    pulled: Sequence[PulledGroup],
) -> dict[str, str]:
    """Name the module and the operations without a rule of each parameter of the fallback."""
    modules = dict(model.named_modules()) if fallback else {}
    reasons = {}
    for name in fallback:
        owner = type(modules.get(name.rpartition(".")[0], model)).__name__
        own = {i for i, s in enumerate(sites) if s.parameter == name}
        own |= {i for group in pulled if name in group.parameters for i in group.sites}
        kinds = sorted({sites[i].kind for i in own if layouts[i] is None})
        reasons[name] = ": ".join(filter(None, (owner, ", ".join(kinds))))
    return reasons
