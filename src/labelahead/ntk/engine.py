"""Run a plan: capture batches of samples as factors of their gradients."""

import logging
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from labelahead.batching import Batch, Inputs, count_samples, list_tensors, read_batch, take_samples
from labelahead.devices import exact_float32, to_float64
from labelahead.errors import InputError, ModelError, NumericalError, VerificationError
from labelahead.ntk.capture import (
    Site,
    Trace,
    are_parameter_only,
    compute_node_gradients,
    enable_gradients,
    find_reshaped_parameters,
    restore_attributes,
    trace,
)
from labelahead.ntk.factors import (
    Factor,
    OuterFactor,
    PlainFactor,
    keep_reached_position,
    make_factor,
)
from labelahead.ntk.fallback import compute_gradients, compute_per_sample_gradients
from labelahead.ntk.layers import (
    NestedDerivativeError,
    fast_layers,
    only_torch_layers,
    replaces_layers,
)
from labelahead.ntk.layout import GraphChangedError, SpreadOutError, is_close, sample_norms
from labelahead.ntk.limits import buffer_scale, working_memory
from labelahead.ntk.order import keeps_order, selects_rows
from labelahead.ntk.plan import (
    LARGE_PROBE_SAMPLES,
    MIN_CHECKED_BATCH,
    MIXED_SAMPLES_MESSAGE,
    Plan,
    combine_factors,
    get_plan,
    is_first_time,
    trace_probe,
)
from labelahead.ntk.premises import (
    ConstantParameterError,
    ParamFilter,
    check_inputs,
    check_model,
    choose_parameters,
    copy_batch,
    get_parts,
    is_finite,
    run_forward,
    unwrap_compiled,
)
from labelahead.ntk.rules import LayerRule, apply_rule

__all__ = [
    "Engine",
    "build_directions",
    "check_cotangents",
    "check_result",
    "open_engine",
    "run_with_engine",
    "should_verify",
]

# Bytes of activations and gradients per capture: of one layer, which should fit into the CPU cache,
# and of all layers. Small batches pay for calls, large ones for page faults. See `buffer_scale`.
MAX_LAYER_BYTES, MAX_BATCH_BYTES = 6 << 20, 64 << 20
MAX_CHECKED_SAMPLES = 48  # of a batch that a network divides among its parts
BATCHES_PER_MEMORY = 8  # a pass holds several times the activations of its batch (measured)
SMALL_GRAPH_NODES = 500  # Larger graphs get larger batches.
log = logging.getLogger("labelahead")
HALF_PRECISIONS = {torch.float16, torch.bfloat16}
KERNEL_KINDS = ("pseudo", "full", "single", "trace")


def build_directions(kind: str, outputs: int, like: Tensor) -> Tensor:
    """Build the combinations of outputs that the kernel differentiates: (K, C).

    See docs/method.md, Kernels.
    """
    eye: Tensor = torch.eye(outputs, dtype=like.dtype, device=like.device)
    if kind == "pseudo":
        return eye.sum(0, keepdim=True) / math.sqrt(outputs)  # (PN-2)
    if kind == "single":
        return eye[:1]  # (LA §3)
    if kind == "trace":
        return eye / math.sqrt(outputs)
    if kind == "full":
        return eye  # (PN-1)
    raise InputError(f"kind is {kind!r}, expected one of {', '.join(KERNEL_KINDS)}")


class Engine:
    """Differentiates one network; created by `open_engine`, which prepares and restores it."""

    def __init__(
        self,
        model: nn.Module,
        chosen: Mapping[str, nn.Parameter],
        plan: Plan,
        plan_confirmed: bool = True,
        shrink: int = 1,
    ) -> None:
        self.model = model
        self.chosen = chosen
        self.plan = plan
        self.plan_confirmed = plan_confirmed  # whether the plan holds for the present network
        self.names = {p: k for k, p in chosen.items()}
        first = next(iter(chosen.values())).detach()
        dtypes = {p.dtype for p in chosen.values()}
        # The kernel has the finest dtype of all parameters, but sums need float32 at least.
        self.like = first.new_empty(0, dtype=reduce(torch.promote_types, dtypes, torch.float32))
        # Layers in half precision, or of a network that is spread over devices.
        self._converts_factors = bool(dtypes & HALF_PRECISIONS) or any(
            p.device != first.device for p in chosen.values()
        )
        # Divides batches and working memory, after the device ran out of memory.
        self.shrink = shrink
        self.hooked: tuple[str, ...] = ()  # parameters whose hooks are ignored
        # Whether the gradients may be rounding noise alone.
        self.gradients_vanish = not plan.ruled

    def capture_factors(
        self,
        x: Inputs,
        cotangents: Tensor,
        *,
        chunk: int | None = None,
        check: bool = False,
        starts_with_probe: bool = True,
    ) -> Iterator[tuple[slice, dict[str, Factor]]]:
        """Iterate over batches: which samples, and the factors of each parameter with an effect.

        Args:
            x: n samples.
            cotangents: (n, K, C); cotangents[i, k]·f(x_i) is differentiated.
            chunk: Samples per batch; default from the size of the activations.
            check: Compare with autograd's gradients.
            starts_with_probe: Whether `x` begins with the sample of the plan's probe, whose output
                is known.
        """
        if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
            raise InputError(f"chunk is {chunk!r}, expected a whole number of samples, or None")
        for rows in self.split_batches(cotangents.shape[0], cotangents.shape[1], chunk):
            part, v = read_batch(take_samples(x, rows)), cotangents[rows]
            if v.shape[0] == 1:  # Some operations treat a batch of one differently: double it.
                twice = torch.zeros(2, dtype=torch.long, device=v.device)
                factors = self._compute_factors(
                    take_samples(part, twice),
                    v.expand(2, -1, -1),
                    starts_with_probe and rows.start == 0,
                )
                factors = {k: f.select_samples(slice(0, 1)) for k, f in factors.items()}
            else:
                factors = self._compute_factors(part, v, starts_with_probe and rows.start == 0)
            if check:
                self._verify(part, v, factors)
            yield rows, factors

    def split_batches(self, n: int, K: int, chunk: int | None) -> Iterator[slice]:
        """Split n samples into batches of even sizes, without a small last one."""
        size = self._batch_size(K, chunk)
        count = -(-n // size)
        edges = [round(i * n / count) for i in range(count + 1)]
        yield from (slice(a, b) for a, b in pairwise(edges) if b > a)

    def limit_batch(self, memory: int | None, chunk: int | None) -> int | None:
        """Samples per batch, so that their activations take a part of the memory that was asked for."""
        if memory is None or chunk is not None:
            return chunk
        fits = memory // (BATCHES_PER_MEMORY * self.plan.bytes_per_sample)
        default = self._batch_size(1, None) * self.shrink
        return None if fits >= default else max(2, fits)

    def fits_one_batch(self, n: int, K: int, chunk: int | None) -> bool:
        """Whether n samples are processed as one batch."""
        return n <= self._batch_size(K, chunk)

    def _batch_size(self, K: int, chunk: int | None) -> int:
        if chunk is not None:
            return max(1, chunk // self.shrink)
        more = (1 + K) / 2  # K gradients for every activation
        scale = buffer_scale(self.like.device)
        # The cost of many small operations (a recurrence) is per pass, not per sample.
        fits = (
            min(
                scale * MAX_LAYER_BYTES / self.plan.max_site_bytes,
                scale * MAX_BATCH_BYTES / self.plan.bytes_per_sample,
            )
            / more
        )
        fits *= min(4.0, max(1.0, self.plan.node_count / SMALL_GRAPH_NODES))
        return max(2, min(2048, int(fits)) // self.shrink)

    def working_memory(self, memory: int | None) -> int:
        """Return the bytes of working memory: as wanted, or what suits the device."""
        memory = working_memory(self.like.device) if memory is None else memory
        return max(1, memory // self.shrink)

    def _compute_factors(
        self, x: Batch, cotangents: Tensor, starts_with_probe: bool = False
    ) -> dict[str, Factor]:
        """Compute the factors by one forward, and one backward per direction."""
        plan, n = self.plan, count_samples(x)
        factors: dict[str, Factor] = {}
        way = ""
        if plan.ruled:
            sites, rules_by_site, grads = self._capture_graph(x, cotangents, starts_with_probe)
            parts: dict[int, Factor] = {}
            for i, rule in rules_by_site.items():
                layout = plan.layouts[i]
                if rule is None or layout is None:
                    raise GraphChangedError
                found: Factor | None = make_factor(
                    rule, grads[plan.nodes[i]], layout, n, sites[i].shape
                )
                if found is not None and i in plan.single_position_sites:
                    found = keep_reached_position(found)
                if found is None:
                    raise SpreadOutError
                parts[i] = found
            joint = combine_factors(plan.ruled, plan.pulled, self.chosen, parts, sites)
            factors = {name: self._check_as_planned(name, f) for name, f in joint.items()}
        if not plan.ruled:
            graph = trace(self.model, self.copy_if_mutated(x), {})
            if selects_rows(graph) and not self._are_outputs_independent(
                x, graph.out.detach(), starts_with_probe, divides=True
            ):
                raise ModelError(MIXED_SAMPLES_MESSAGE)
        if plan.fallback:
            rest, way = compute_per_sample_gradients(
                self.model,
                x,
                self.chosen,
                plan.fallback,
                cotangents,
                accumulate=plan.accumulate,
                eps=plan.eps,
            )
            for name, v in rest.items():
                factors[name] = PlainFactor(v.reshape(n, v.shape[1], -1), tuple(v.shape[2:]))
        self._log_summary(way)
        if self._converts_factors:
            return {name: f.convert_to(self.like) for name, f in factors.items()}
        return factors

    def _log_summary(self, way: str) -> None:
        """Log how each parameter was differentiated, in one line, once per network."""
        ruled, fallback = [p.name for p in self.plan.ruled], self.plan.fallback
        if not is_first_time(self.model, "summary", (way, *ruled, "", *self.hooked)):
            return
        reasons = self.plan.fallback_reasons
        parts = [f"{len(ruled)} by rules"] if ruled else []
        if fallback:
            named = [f"{k} ({reasons[k]})" if k in reasons else k for k in fallback]
            parts.append(f"{len(fallback)} without a rule, by {way}: {', '.join(named)}")
        if self.hooked:
            parts.append(
                "hooks, which change gradients in training but not the outputs, are ignored: "
                + ", ".join(self.hooked)
            )
        owner = type(self.model).__name__
        log.info("gradients of the parameters of %s: %s", owner, "; ".join(parts))

    def _capture_graph(
        self, x: Batch, cotangents: Tensor, starts_with_probe: bool
    ) -> tuple[list[Site], dict[int, LayerRule | None], dict[int, Tensor]]:
        """Run both passes: the sites, the rule of each site, the gradients (K, ...) of each node."""
        plan = self.plan
        graph = trace(self.model, self.copy_if_mutated(x), self.names)
        expected = plan.matches_graph(graph.nodes, count_samples(x))
        if not self.plan_confirmed and not expected:
            raise GraphChangedError
        sites = graph.sites(self._find_parameter_only_nodes(graph, expected))
        if tuple(s.signature for s in sites) != plan.signature:
            raise GraphChangedError
        divides = not expected and selects_rows(graph)
        if not self._are_outputs_independent(x, graph.out.detach(), starts_with_probe, divides):
            if not self.plan_confirmed:
                raise GraphChangedError
            raise ModelError(MIXED_SAMPLES_MESSAGE)
        self.plan_confirmed = True
        # Rules read the inputs before the backward, which frees what autograd saved.
        used = [i for p in plan.ruled for i in p.sites] + [i for p in plan.pulled for i in p.sites]
        rules_by_site = {i: apply_rule(sites[i]) for i in used}
        at = {plan.nodes[i]: i for i in used}
        cotangents = cotangents.to(graph.out)
        # Nodes that the probe did not have may reorder the samples of any batch.
        if not expected or plan.movers is None or not keeps_order(graph, plan.movers):
            return sites, rules_by_site, self._compare_backwards(graph.out, sites, at, cotangents)
        grads = compute_node_gradients(
            graph.out, [sites[i].node for i in at.values()], list(cotangents.unbind(1))
        )
        if starts_with_probe:
            self._record_gradient_sizes(at, grads, len(cotangents))
        return sites, rules_by_site, dict(zip(at, grads, strict=True))

    def _are_outputs_independent(
        self, x: Batch, out: Tensor, starts_with_probe: bool, divides: bool
    ) -> bool:
        """Whether samples of a batch have the same outputs in a small one.

        Experts with a limited capacity, for example, drop the last samples of large batches only.

        Args:
            x: The batch.
            out: Its outputs.
            starts_with_probe: Whether the output of its first sample is known.
            divides: Whether the network sends samples to different parts, in another way than it
                sent the probe's: then every batch is checked, and more samples of it.
        """
        n, plan = len(out), self.plan
        if starts_with_probe and not is_close(out[0], plan.sample, 0.0, plan.eps):
            return False
        checked: list[Tensor] = []
        if divides:
            every = torch.arange(n - 1, -1, -max(1, -(-n // MAX_CHECKED_SAMPLES)))
            checked = list(torch.split(every, LARGE_PROBE_SAMPLES))
        elif starts_with_probe and n >= MIN_CHECKED_BATCH:
            # The first sample and the weights are those of the plan; the sums stand for the rest.
            content = (n, *(float(t.sum()) for t in list_tensors(x)))
            if content in plan.checked_batches:
                return True
            plan.checked_batches.add(content)
            checked = [torch.tensor([n - 1, n - 2, n - 3, 3 * n // 4 - 1, n // 2, n // 4])]
        for some in checked:
            some = some.to(self.like.device)
            with torch.no_grad(), restore_attributes(self.model):
                alone = run_forward(self.model, self.copy_if_mutated(take_samples(x, some)))
            if not is_close(out[some], alone.detach(), 0.0, plan.eps):
                plan.checked_batches.clear()
                return False
        return True

    def _find_parameter_only_nodes(self, graph: Trace, expected: bool) -> Collection[int]:
        """Nodes that depend on parameters alone, as the probe found them."""
        plan = self.plan
        if plan.fixed is None:
            return find_reshaped_parameters(graph)
        if not expected and not are_parameter_only(graph, plan.fixed):
            raise GraphChangedError
        return plan.fixed.keys()

    def _check_as_planned(self, name: str, f: Factor) -> Factor:
        """Raise if sizes differ from the probe's, for which the forms were chosen."""
        example = self.plan.examples[name]
        if isinstance(f, OuterFactor) and (
            not isinstance(example, OuterFactor)
            or f.sizes != example.sizes
            or f.geometry != example.geometry
        ):
            raise GraphChangedError
        return f

    def copy_if_mutated(self, x: Batch) -> Batch:
        """Copy the input if the network overwrites it."""
        return copy_batch(x) if self.plan.mutates_input else x

    def _compare_backwards(
        self, out: Tensor, sites: Sequence[Site], at: Mapping[int, int], cotangents: Tensor
    ) -> dict[int, Tensor]:
        """Compute the gradients (K, ...) of each node, checking that samples kept their order.

        A second backward scales each sample's cotangent by its own factor. It must scale that
        sample's rows by the same factor, else the layout is wrong. `at` maps nodes to sites.
        """
        nodes = [sites[i].node for i in at.values()]
        grads = compute_node_gradients(out, nodes, list(cotangents.unbind(1)), keep=True)
        n = cotangents.shape[0]
        # A random order makes a swap of any two samples visible.
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
        scale = (1 + order / n).to(cotangents)
        scaled = compute_node_gradients(
            out, nodes, [v * scale[:, None] for v in cotangents.unbind(1)]
        )
        for i, g, h in zip(at.values(), grads, scaled, strict=True):
            layout = self.plan.layouts[i]
            if layout is None:
                continue
            rows, want = layout.split(h, n, lead=1), layout.split(g, n, lead=1)
            if not is_close(rows, want * scale.view(n, *[1] * (want.ndim - 1)), 0.0, self.plan.eps):
                raise GraphChangedError
        self._record_gradient_sizes(at, grads, n)
        return dict(zip(at, grads, strict=True))

    def _record_gradient_sizes(
        self, at: Mapping[int, int], grads: Sequence[Tensor], n: int
    ) -> None:
        """Record whether all gradients (K, ...) are negligible compared with the probe's."""
        sizes = [
            float(sample_norms(g, self.plan.layouts[i], n).amax())
            for i, g in zip(at.values(), grads, strict=True)
        ]
        least = min(0.03, 1e3 * self.plan.eps)
        before = [self.plan.gradient_norms[i] for i in at.values()]
        self.gradients_vanish = all(s <= least * b for s, b in zip(sizes, before, strict=True))

    def _verify(self, x: Batch, cotangents: Tensor, factors: Mapping[str, Factor]) -> None:
        """Raise unless the factors add up to autograd's gradient, of one sample and of several."""
        n, k = cotangents.shape[0], cotangents.shape[1] - 1
        # Use at least two samples, some with weight zero: a batch of one may be special.
        some = torch.randperm(n, generator=torch.Generator().manual_seed(n))[:4]
        several = len(some)
        samples = (some if several > 1 else some.expand(2)).tolist()
        index = torch.tensor(samples, device=cotangents.device)
        parameters = list(self.chosen.values())
        for count in {1, several}:
            counted = (torch.arange(len(index), device=index.device) < count)[:, None]
            with only_torch_layers():
                out = trace(self.model, self.copy_if_mutated(take_samples(x, index)), {}).out
            weights = (cotangents[index, k] * counted).to(out)
            expected = compute_gradients(out, parameters, weights, accumulate=self.plan.accumulate)
            scale = max(
                [float(w.abs().amax()) for w in expected if w is not None and w.numel()],
                default=0.0,
            )
            for (name, p), want in zip(self.chosen.items(), expected, strict=True):
                gradient = torch.zeros_like(p)
                if name in factors:
                    parts = [
                        factors[name]
                        .select_samples(slice(i, i + 1))
                        .gradient()[0, k]
                        .reshape(p.shape)
                        for i in samples[:count]
                    ]
                    gradient = torch.stack(parts).sum(0).to(p)
                want = torch.zeros_like(p) if want is None else want
                if is_close(gradient, want, scale, self.plan.eps):
                    continue
                # Gradients of the outputs that cancel in the sum leave their rounding errors.
                parts_scale = self._measure_gradient_parts(take_samples(x, index), weights)
                if is_close(gradient, want, max(scale, parts_scale), self.plan.eps):
                    continue
                noise = self._measure_batch_noise(take_samples(x, index[:count]), weights, p, want)
                if float((gradient - want).abs().amax()) > 10 * noise:
                    self._explain_mismatch(
                        name, count, take_samples(x, index), weights, gradient - want, gradient
                    )

    def _measure_gradient_parts(self, x: Batch, weights: Tensor) -> float:
        """Return the largest entry of gradients of the weighted outputs with random signs.

        It is the size of the terms that `weights` adds up, also where they cancel.
        """
        generator, sizes = torch.Generator().manual_seed(0), [0.0]
        for _ in range(2):
            signs = 2 * torch.randint(2, weights.shape, generator=generator) - 1
            with only_torch_layers():
                out = trace(self.model, self.copy_if_mutated(x), {}).out
            found = compute_gradients(
                out,
                list(self.chosen.values()),
                weights * signs.to(weights),
                accumulate=self.plan.accumulate,
            )
            sizes += [float(g.abs().amax()) for g in found if g is not None and g.numel()]
        return max(sizes)

    def _measure_batch_noise(
        self, x: Batch, weights: Tensor, p: nn.Parameter, want: Tensor
    ) -> float:
        """Return how far autograd's gradient of a batch is from the sum over its samples.

        Rounding errors flow through what the samples share, such as the maximum that a softmax
        subtracts. A saturated softmax passes little else.
        """
        alone = torch.zeros_like(want)
        for i in range(count_samples(x)):
            twice = take_samples(x, torch.tensor([i, i], device=want.device))
            with only_torch_layers():
                out = trace(self.model, self.copy_if_mutated(twice), {}).out
            only_first = torch.stack([weights[i], torch.zeros_like(weights[i])])
            (own,) = compute_gradients(out, [p], only_first, accumulate=self.plan.accumulate)
            alone += 0.0 if own is None else own
        return float((alone - want).abs().amax())

    def _explain_mismatch(
        self, name: str, count: int, x: Batch, weights: Tensor, gap: Tensor, ours: Tensor
    ) -> None:
        """Decide by finite differences whether our gradient or autograd's is wrong.

        Logs a warning if autograd's is wrong, raises otherwise.
        """
        p = self.chosen[name]
        way = gap / gap.norm()
        step = (torch.finfo(p.dtype).eps ** (1 / 3)) * (1 + float(p.detach().norm()))
        before, values = p.data, []
        try:
            for side in (1, -1):
                p.data = before + side * step * way
                out = trace(self.model, self.copy_if_mutated(x), {}).out.detach()
                values.append(float((to_float64(out) * weights.to(to_float64(out).device)).sum()))
        finally:
            p.data = before
        slope = (values[0] - values[1]) / (2 * step)
        mine, theirs = float((ours * way).sum()), float(((ours - gap) * way).sum())
        if abs(slope - mine) < 0.2 * abs(slope - theirs):
            if is_first_time(self.model, "autograd", (name,)):
                log.warning(
                    "torch's own gradient of %r is wrong in this network (finite differences of "
                    "its outputs agree with labelahead's): verify=True cannot check it, and "
                    "rules=False would use the wrong one",
                    name,
                )
            return
        if abs(slope - theirs) < 0.2 * abs(slope - mine):
            raise VerificationError(
                f"the gradient of {name!r} over {count} sample(s) differs from autograd's: "
                "a defect of labelahead, please report the network; rules=False avoids it"
            )
        raise VerificationError(
            f"the gradient of {name!r} over {count} sample(s) differs from autograd's, and finite "
            "differences of the outputs agree with neither: a later layer has a wrong backward "
            "(of torch, or written by hand)"
        )


@dataclass(frozen=True)
class Attempt:
    """How to run a network, changed if the first attempt fails.

    Attributes:
        rules: False differentiates everything by torch.func.
        own_layers: Whether our layers replace torch's.
        other_parameters: Whether parameters that were not chosen keep `requires_grad`, which a
            forward that differentiates by them needs.
        shrink: Divides batches and working memory, after the device ran out of memory.
    """

    rules: bool = True
    own_layers: bool = True
    other_parameters: bool = False
    shrink: int = 1


@contextmanager
def open_engine(
    model: nn.Module,
    chosen: Mapping[str, nn.Parameter],
    x: Inputs,
    *,
    rules: bool = True,
    reuse_plan: bool = True,
    keep_all_positions: bool = False,
    attempt: Attempt | None = None,
) -> Iterator[Engine]:
    """Open an engine for the network; gradients and flags are restored afterwards.

    Args:
        model: The network.
        chosen: The parameters to differentiate by.
        x: Samples for the probe.
        rules: False differentiates everything by torch.func.
        reuse_plan: Use the plan of an earlier call if there is one.
        keep_all_positions: See `make_plan`.
        attempt: How to run the network; its `rules` count only here: see `rules`.
    """
    attempt = attempt or Attempt()
    hooked = tuple(
        k for k, p in chosen.items() if p._backward_hooks or p._post_accumulate_grad_hooks
    )
    device = next(iter(chosen.values())).device
    as_given = _compute_output_as_given(model, chosen, x, attempt)
    others = attempt.other_parameters
    with exact_float32(device), enable_gradients(model, chosen, keep_others=others):
        if any(p.is_inference() for p in chosen.values()):
            raise ModelError(
                "the network was built under torch.inference_mode(), so autograd cannot "
                "differentiate it: build or load it outside of that"
            )
        plan, old = get_plan(
            model,
            x,
            chosen,
            rules=rules,
            reuse_plan=reuse_plan,
            keep_all_positions=keep_all_positions,
        )
        if as_given is not None and not is_close(as_given, plan.sample, 0.0, plan.eps):
            raise ConstantParameterError
        # Where torch's own layers run, that of one pixel wide images needs a remedy (`layers`).
        with fast_layers(plan.uses_fast_layers or not replaces_layers()):
            engine = Engine(model, chosen, plan, not old, attempt.shrink)
            engine.hooked = hooked
            yield engine


def _compute_output_as_given(
    model: nn.Module, chosen: Mapping[str, nn.Parameter], x: Inputs, attempt: Attempt
) -> Tensor | None:
    """The output (C,) of the first sample while all trainable parameters require gradients.

    A forward that differentiates by its parameters may leave out those that do not require a
    gradient, and so have other outputs. None if no parameter changes its flag.
    """
    parameters = get_parts(model)[1]
    ids = {*map(id, chosen.values())}
    if attempt.other_parameters or all(id(p) in ids or not p.requires_grad for p in parameters):
        return None
    with enable_gradients(model, chosen, keep_others=True):
        return trace_probe(model, x).detach()[0]


def run_with_engine(
    model: nn.Module,
    x: Inputs,
    params: ParamFilter,
    run: Callable[[Engine], Tensor],
    *,
    rules: bool = True,
) -> Tensor:
    """Check the premises, open an engine and call `run` with it.

    If a cached plan does not hold, the network is probed again; if no plan holds, everything is
    differentiated by torch.func. Layers of torch are replaced by faster ones, except without
    `rules`, and in networks where these cannot be used. If the device runs out of memory, all is
    tried again, once, in batches and working memory of half the size.
    """
    model = unwrap_compiled(model)
    check_model(model)
    chosen = choose_parameters(model, params)
    check_inputs(x, chosen)
    attempt = Attempt(rules, own_layers=rules)
    while True:
        try:
            with nullcontext() if attempt.own_layers else only_torch_layers():
                return _run_with_plans(model, x, chosen, run, attempt)
        except (
            CheckpointError,
            ConstantParameterError,
            ModelError,
            NestedDerivativeError,
            torch.OutOfMemoryError,
        ) as error:
            attempt = _change_attempt(attempt, error)
        if attempt.shrink > 1 and torch.cuda.is_available():
            torch.cuda.empty_cache()


def _change_attempt(attempt: Attempt, error: Exception) -> Attempt:
    """Choose what to try after this error; raise it if nothing is left to try."""
    if isinstance(error, torch.OutOfMemoryError) and attempt.shrink == 1:
        log.warning("the device ran out of memory: trying again with batches of half the size")
        return replace(attempt, shrink=2)
    if isinstance(error, ConstantParameterError) and not attempt.other_parameters:
        return replace(attempt, other_parameters=True)
    # A checkpoint runs the forward again during the backward, where no layer is replaced.
    cause = error.__cause__ or error
    if isinstance(cause, CheckpointError | NestedDerivativeError) and attempt.own_layers:
        return replace(attempt, own_layers=False)
    if isinstance(error, ConstantParameterError) and error.args:
        raise error.args[0] from error.__cause__
    raise error


def _run_with_plans(
    model: nn.Module,
    x: Inputs,
    chosen: Mapping[str, nn.Parameter],
    run: Callable[[Engine], Tensor],
    attempt: Attempt,
) -> Tensor:
    old = keep_all_positions = False
    for reuse_plan in (True, False, False):
        try:
            with open_engine(
                model,
                chosen,
                x,
                rules=attempt.rules,
                reuse_plan=reuse_plan,
                keep_all_positions=keep_all_positions,
                attempt=attempt,
            ) as engine:
                old = not engine.plan_confirmed
                return run(engine)
        except SpreadOutError:
            keep_all_positions = True
        except GraphChangedError:
            if not old:
                break
    # The graph depends on the data: only sample-by-sample differentiation is safe.
    with open_engine(model, chosen, x, rules=False, attempt=attempt) as engine:
        return run(engine)


def should_verify(check: bool | None) -> bool:
    """Whether to compare with autograd: the argument, or LABELAHEAD_VERIFY if it is None."""
    return os.environ.get("LABELAHEAD_VERIFY", "") not in ("", "0") if check is None else check


def check_cotangents(cotangents: Tensor, x: Inputs, engine: Engine) -> Tensor:
    """Check cotangents (n, C) and return them in the network's dtype."""
    n, C = count_samples(x), engine.plan.outputs
    if not isinstance(cotangents, Tensor):
        raise InputError(f"cotangents are a {type(cotangents).__name__}, expected a tensor (n, C)")
    if tuple(cotangents.shape) != (n, C):
        raise InputError(
            f"cotangents have shape {tuple(cotangents.shape)}, expected (n, C) = {(n, C)}: one "
            "weight for every output of every sample"
        )
    if not bool(torch.isfinite(cotangents).all()):
        raise InputError("cotangents hold NaN or infinity: check the loss they come from")
    return cotangents.detach().to(engine.like)


def check_result(out: Tensor) -> Tensor:
    """Return a result, samples first; raise if it is not finite."""
    if is_finite(out):
        return out
    dtype = str(out.dtype).removeprefix("torch.")
    rows = out.flatten(1) if out.ndim > 1 else out[:, None]
    for what, table in (("row", rows), ("column", rows.T)):
        broken = table.isnan().all(1)
        if not bool(broken.any()) or bool(broken.all()) or bool(table[~broken].isinf().any()):
            continue
        first, more = int(broken.nonzero()[0, 0]), int(broken.sum()) - 1
        raise NumericalError(
            f"the result is NaN in {what} {first} and {more} more of {len(broken)}: the gradient of "
            "that sample is not finite, for example of sqrt, norm or log at zero, or of the branch "
            "that torch.where does not take; clamp the argument of that operation"
        )
    advice = "" if out.dtype == torch.float64 else ", or use model.double() and x.double()"
    cause = ", or no sample has a finite gradient (sqrt at zero)" if bool(out.isnan().any()) else ""
    raise NumericalError(f"the result overflows {dtype}{cause}: scale the inputs down{advice}")
