"""From a plan to numbers: captures batches of samples as factors of their gradients."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

from labelahead.errors import InputError, ModelError, VerificationError
from labelahead.inputs import Batch, Inputs, batch_of, length, take
from labelahead.tangent.capture import Trace, differentiable, gradients_at, trace
from labelahead.tangent.factors import Factor, OuterFactor, PlainFactor, factor, joined
from labelahead.tangent.fallback import per_sample_gradients
from labelahead.tangent.layout import GraphChangedError, close
from labelahead.tangent.plan import MIXED, Plan, make_plan
from labelahead.tangent.premises import ParamFilter, check_inputs, check_model, choose_parameters, copied, unwrapped
from labelahead.tangent.rules import read

__all__ = ["Engine", "checked_cotangents", "directions", "open_engine", "verifying", "with_engine"]

# Bytes of activations and gradients a capture: of one layer, which should stay in the cache, and
# of all. Small batches pay for calls, large ones for page faults.
LAYER_BYTES, BATCH_BYTES = 6 << 20, 64 << 20
KINDS = ("pseudo", "full", "single", "trace")


def directions(kind: str, outputs: int, like: Tensor) -> Tensor:
    """(K, C): the combinations of outputs whose gradients make the kernel (METHOD §1)."""
    eye: Tensor = torch.eye(outputs, dtype=like.dtype, device=like.device)
    if kind == "pseudo":
        return eye.sum(0, keepdim=True) / math.sqrt(outputs)  # (PN-2)
    if kind == "single":
        return eye[:1]  # (LA §3)
    if kind == "trace":
        return eye / math.sqrt(outputs)
    if kind == "full":
        return eye  # (PN-1)
    raise InputError(f"kind is {kind!r}, expected one of {', '.join(KINDS)}")


class Engine:
    """Differentiates one network; made by `open_engine`, which prepares and restores it."""

    def __init__(self, model: nn.Module, chosen: Mapping[str, nn.Parameter], plan: Plan) -> None:
        self.model, self.chosen, self.plan = model, chosen, plan
        self.names = {p: k for k, p in chosen.items()}

    def captured(
        self, x: Inputs, cotangents: Tensor, *, chunk: int | None = None, check: bool = False, probed: bool = True
    ) -> Iterator[tuple[slice, dict[str, Factor]]]:
        """Batch by batch: which samples, and the factors of every parameter with an effect.

        `cotangents` (n, K, C): what is differentiated is cotangents[i, k]·f(x_i). `probed`: `x`
        begins with the sample that the plan was made with, whose output is known.
        """
        if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
            raise InputError(f"chunk is {chunk!r}, expected a whole number of samples, or None")
        for rows in self._batches(cotangents.shape[0], cotangents.shape[1], chunk):
            part, v = batch_of(take(x, rows)), cotangents[rows]
            if v.shape[0] == 1:  # some operations treat a lone sample unlike many: double it
                twice = torch.zeros(2, dtype=torch.long, device=v.device)
                factors = self._factors(take(part, twice), v.expand(2, -1, -1))
                factors = {k: f.part(slice(0, 1)) for k, f in factors.items()}
            else:
                factors = self._factors(part, v, probed and rows.start == 0)
            if check:
                self._verify(part, v, factors)
            yield rows, factors

    def _batches(self, n: int, K: int, chunk: int | None) -> Iterator[slice]:
        """Even sizes, so that no small rest is left over."""
        more = (1 + K) / 2  # K gradients beside every activation
        fits = min(LAYER_BYTES / self.plan.largest, BATCH_BYTES / self.plan.held) / more
        size = chunk or max(2, min(2048, int(fits)))
        count = -(-n // size)
        edges = [round(i * n / count) for i in range(count + 1)]
        yield from (slice(a, b) for a, b in pairwise(edges) if b > a)

    def _factors(self, x: Batch, cotangents: Tensor, probed: bool = False) -> dict[str, Factor]:
        """One forward, and one backward a direction."""
        plan, n = self.plan, length(x)
        factors: dict[str, Factor] = {}
        if plan.ruled:
            seen = trace(self.model, self._own(x), self.names)
            if seen.signature != plan.signature:
                raise GraphChangedError
            if probed and not close(seen.out[0].detach(), plan.sample):
                raise ModelError(MIXED)
            # Inputs are read before the backward, which frees what autograd saved.
            readings = {i: read(seen.sites[i], p.shape) for p in plan.ruled for i in p.sites}
            grads = self._arriving(seen, {plan.nodes[i]: i for i in readings}, cotangents)
            for p in plan.ruled:
                parts = []
                for i in p.sites:
                    reading, layout = readings[i], plan.layouts[i]
                    if reading is None or layout is None:
                        raise GraphChangedError
                    parts.append(factor(reading, grads[plan.nodes[i]], layout, n, p.shape))
                factors[p.name] = self._as_planned(p.name, joined(parts))
        if plan.fallback:
            rest = per_sample_gradients(self.model, x, self.chosen, plan.fallback, cotangents)
            for name, v in rest.items():
                factors[name] = PlainFactor(v.reshape(n, v.shape[1], -1), tuple(v.shape[2:]))
        return factors

    def _as_planned(self, name: str, f: Factor) -> Factor:
        """Forms were chosen for the probe's sizes: images of another size are another matter."""
        example = self.plan.examples[name]
        if isinstance(f, OuterFactor) and (
            not isinstance(example, OuterFactor) or f.sizes != example.sizes or f.geometry != example.geometry
        ):
            raise GraphChangedError
        return f

    def _own(self, x: Batch) -> Batch:
        """A copy for a network that overwrites its input."""
        return copied(x) if self.plan.mutates else x

    def _arriving(self, seen: Trace, sites: Mapping[int, int], cotangents: Tensor) -> dict[int, Tensor]:
        """Node -> gradients (K, ...); `sites` gives a site at each node.

        Where operations may reorder samples, a second backward with each sample's cotangent
        scaled by a factor of its own must scale that sample's rows: else the layout is void.
        """
        nodes = [seen.sites[i].node for i in sites.values()]
        grads = gradients_at(seen.out, nodes, list(cotangents.unbind(1)), keep=seen.rearranges)
        if seen.rearranges:
            n = cotangents.shape[0]
            # Neighbours far apart, so that a swap of any two samples shows.
            order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
            scale = (1 + order / n).to(cotangents)
            scaled = gradients_at(seen.out, nodes, [v * scale[:, None] for v in cotangents.unbind(1)])
            for i, g, h in zip(sites.values(), grads, scaled, strict=True):
                layout = self.plan.layouts[i]
                if layout is None:
                    continue
                rows, want = layout.split(h, n, lead=1), layout.split(g, n, lead=1)
                if not close(rows, want * scale.view(n, *[1] * (want.ndim - 1))):
                    raise GraphChangedError
        return dict(zip(sites, grads, strict=True))

    def _verify(self, x: Batch, cotangents: Tensor, factors: Mapping[str, Factor]) -> None:
        """Raise unless the factors add up to autograd's gradient, of one sample and of several."""
        k, several = cotangents.shape[1] - 1, min(4, cotangents.shape[0])
        # At least two samples, of which some count: a batch of one may be special.
        index = torch.arange(max(2, several), device=cotangents.device).clamp(max=several - 1)
        for count in {1, several}:
            out = trace(self.model, take(x, index), {}).out
            weights = cotangents[index, k] * (torch.arange(len(index)) < count).to(out)[:, None]
            expected = torch.autograd.grad(out, list(self.chosen.values()), weights, allow_unused=True)
            scale = max(float(w.abs().amax()) for w in expected if w is not None and w.numel())
            for (name, p), want in zip(self.chosen.items(), expected, strict=True):
                ours = torch.zeros_like(p)
                if name in factors:
                    ours = factors[name].part(slice(0, count)).gradient()[:, k].sum(0)
                if not close(ours, torch.zeros_like(p) if want is None else want, scale):
                    raise VerificationError(
                        f"the gradient of {name!r} over {count} sample(s) differs from autograd's: "
                        "a defect of labelahead, please report the network; rules=False avoids it"
                    )


@contextmanager
def open_engine(
    model: nn.Module, chosen: Mapping[str, nn.Parameter], x: Inputs, *, rules: bool = True
) -> Iterator[Engine]:
    """An engine for the network; gradients and flags are as before afterwards."""
    with differentiable(model, chosen):
        if any(p.is_inference() for p in chosen.values()):
            raise ModelError(
                "the network was made under torch.inference_mode(), so autograd cannot "
                "differentiate it: build or load it outside of that"
            )
        yield Engine(model, chosen, make_plan(model, x, chosen, rules=rules))


def with_engine(
    model: nn.Module, x: Inputs, params: ParamFilter, run: Callable[[Engine], Tensor], *, rules: bool = True
) -> Tensor:
    """Check the premises, open an engine and run; again by torch.func if the graph changes."""
    model = unwrapped(model)
    check_model(model)
    chosen = choose_parameters(model, params)
    check_inputs(x, chosen)
    try:
        with open_engine(model, chosen, x, rules=rules) as engine:
            return run(engine)
    except GraphChangedError:
        # The graph depends on the data: only sample-by-sample differentiation is safe.
        with open_engine(model, chosen, x, rules=False) as engine:
            return run(engine)


def verifying(check: bool | None) -> bool:
    """Whether to compare with autograd: as asked, else as LABELAHEAD_VERIFY says."""
    return os.environ.get("LABELAHEAD_VERIFY", "") not in ("", "0") if check is None else check


def checked_cotangents(cotangents: Tensor, x: Inputs, engine: Engine) -> Tensor:
    """Weights (n, C) of the outputs of every sample, in the network's dtype."""
    n, C = length(x), engine.plan.outputs
    if not isinstance(cotangents, Tensor):
        raise InputError(f"cotangents are a {type(cotangents).__name__}, expected a tensor (n, C)")
    if tuple(cotangents.shape) != (n, C):
        raise InputError(
            f"cotangents have shape {tuple(cotangents.shape)}, expected (n, C) = {(n, C)}: one "
            "weight for every output of every sample"
        )
    if not bool(torch.isfinite(cotangents).all()):
        raise InputError("cotangents hold NaN or infinity: check the loss they come from")
    return cotangents.detach().to(next(iter(engine.chosen.values())))
