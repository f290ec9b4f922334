"""Choose which parameters are contracted together, and in which form.

A term is a parameter, with its bias if both enter the same matrix products. Its form depends on its
sizes: `pairs` stores the factors, dense stores multiplied-out gradients (see `gram`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from labelahead.ntk.factors import Factor, OuterFactor, PlainFactor
from labelahead.ntk.gram import Gradients, Pairs
from labelahead.ntk.plan import Plan

__all__ = [
    "Term",
    "allocate_gradients",
    "count_bytes_per_sample",
    "estimate_costs",
    "group_by_piece",
    "group_terms",
    "make_terms",
    "write_factors",
]

# Writing a number of a gradient to memory and reading it costs as much as this many operations of a
# matrix product.
WRITE_COST = 40.0
MAX_CACHED_FORMS = 64  # lists of terms in a plan's cache
# An elementwise addition in memory costs as much as this many operations of a matrix product.
ADDITION_COST = 20.0


@dataclass(frozen=True)
class Term:
    """A parameter, its form, and its columns in one of the pieces of the dense gradients."""

    name: str
    bias: bool  # contracted along with the weight, in `pairs` form only
    pairs: bool
    offset: int  # in its piece
    width: int
    piece: int = 0
    # Torch multiplies the matrices of many samples in one call only into contiguous memory.
    has_own_piece: bool = False


def make_terms(
    plan: Plan,
    chosen: Mapping[str, nn.Parameter],
    K: int,
    fold: bool,
    partners: float,
    max_piece_columns: float = math.inf,
) -> list[Term]:
    """Choose the terms of a kernel, cached in the plan.

    Args:
        plan: The network's plan.
        chosen: The parameters.
        K: Number of directions.
        fold: Whether to sum over directions, or keep them as rows and columns.
        partners: With how many others each sample is paired.
        max_piece_columns: Columns of a piece that several parameters share.
    """
    key = (K, fold, partners, max_piece_columns)
    if key not in plan.forms:
        if len(plan.forms) >= MAX_CACHED_FORMS:
            plan.forms.clear()
        plan.forms[key] = _build_terms(plan, chosen, K, fold, partners, max_piece_columns)
    terms: list[Term] = plan.forms[key]
    return terms


def _build_terms(
    plan: Plan,
    chosen: Mapping[str, nn.Parameter],
    K: int,
    fold: bool,
    partners: float,
    max_piece_columns: float,
) -> list[Term]:
    terms: list[Term] = []
    weights = [p.name for p in plan.ruled if p.name not in plan.biases.values()]
    for name in [*weights, *plan.fallback]:
        width = chosen[name].numel()
        example = plan.examples.get(name)
        if example is not None and _are_pairs_cheaper(example, width, K, fold, partners):
            terms.append(Term(name, name in plan.biases, True, 0, 0))
            continue
        for part in (name, plan.biases.get(name)):
            if part is not None:
                width = chosen[part].numel()
                terms.append(
                    Term(
                        part,
                        False,
                        False,
                        0,
                        width,
                        has_own_piece=_needs_own_piece(plan.examples.get(part), width, partners),
                    )
                )
    return _place_terms(terms, max_piece_columns)


def _needs_own_piece(f: Factor | None, width: int, partners: float) -> bool:
    """Whether a separate piece saves more in multiplying out than another product costs."""
    return isinstance(f, OuterFactor) and width >= partners


def _place_terms(terms: list[Term], max_piece_columns: float) -> list[Term]:
    """Assign terms to pieces: own pieces first, then pieces of at most `max_piece_columns`."""
    placed: list[Term] = []
    offset = piece = 0
    for term in sorted(terms, key=lambda t: not t.has_own_piece):
        if offset and (
            term.has_own_piece
            or placed[-1].has_own_piece
            or offset + term.width > max_piece_columns
        ):
            offset, piece = 0, piece + 1
        placed.append(replace(term, offset=offset, piece=piece))
        offset += term.width
    return placed


def _are_pairs_cheaper(f: Factor, width: int, K: int, fold: bool, partners: float) -> bool:
    if not isinstance(f, OuterFactor):
        return False
    pairs, dense = estimate_costs(f, width, K, fold, partners)
    return pairs < dense


def estimate_costs(
    f: OuterFactor, width: int, K: int, fold: bool, partners: float
) -> tuple[float, float]:
    """Estimate operations per sample for the forms pairs and dense.

    An operation of a matrix product counts as 1, others as ADDITION_COST and WRITE_COST
    (research/benchmarks/kernel_costs.py).

    Args:
        f: An example factor.
        width: Numbers in the parameter.
        K: Number of directions.
        fold: Whether to sum over directions.
        partners: With how many others each sample is paired.
    """
    window = f.geometry
    S, d, T, o = f.sizes
    grads = K if fold else K * K
    build = (2.0 * T + WRITE_COST) * width * K
    dense = build + partners * 2.0 * width * grads
    if window is not None and (window.groups > 1 or f.a.shape[1] > 1):
        return float("inf"), dense  # pairs are written for one group and one image a sample
    shifts = S * S * sum(window.size) if window else 0
    touched = 3 * T * T * (1 if fold else K * K) + shifts
    return partners * (2.0 * S * S * d + 2.0 * T * T * o * grads + ADDITION_COST * touched), dense


def count_bytes_per_sample(plan: Plan, terms: list[Term], K: int, size: int) -> int:
    """Bytes per sample of the gradients of these terms; `size` bytes per number."""
    total = 0
    for term in terms:
        f = plan.examples.get(term.name)
        if term.pairs and isinstance(f, OuterFactor):
            S, d, T, o = f.sizes
            total += size * (S * max(d, 2) + T * o * K)
        else:
            total += size * term.width * K
    return total


def group_terms(
    plan: Plan, terms: list[Term], K: int, size: int, room: int, max_piece_columns: float = math.inf
) -> list[list[Term]]:
    """Group terms to at most `room` bytes per sample; no groups if a single term takes more.

    There are none either if gradients come from torch.func, which multiplies them out at once.
    """
    if plan.fallback:
        return []
    groups: list[list[Term]] = [[]]
    used_bytes = 0
    for term in terms:
        needed = count_bytes_per_sample(plan, [term], K, size)
        if needed > room:
            return []
        if used_bytes + needed > room:
            groups.append([])
            used_bytes = 0
        groups[-1].append(term)
        used_bytes += needed
    return [_place_terms(group, max_piece_columns) for group in groups]


def group_by_piece(terms: list[Term]) -> list[list[Term]]:
    """Group the terms that are contracted together."""
    groups: dict[tuple[int, str], list[Term]] = {}
    for term in terms:
        groups.setdefault((term.piece, term.name if term.pairs else ""), []).append(term)
    return list(groups.values())


def allocate_gradients(plan: Plan, terms: list[Term], n: int, K: int, like: Tensor) -> Gradients:
    """Allocate memory for the gradients of n samples; `write_factors` fills it."""
    ends = {t.piece: t.offset + t.width for t in terms if not t.pairs}
    dense = {piece: like.new_empty(n, K, width) for piece, width in ends.items()}
    pairs = []
    for term in terms:
        if term.pairs:
            f = plan.examples[term.name]
            assert isinstance(f, OuterFactor)
            S, d, T, o = f.sizes
            a = like.new_empty(S, n, dtype=f.a.dtype) if f.lookup else like.new_empty(S, n, d)
            pairs.append(Pairs(a, like.new_empty(T, n, K, o), term.bias, f.geometry))
    return Gradients(dense, pairs)


def write_factors(
    gradients: Gradients, terms: list[Term], rows: slice, factors: Mapping[str, Factor]
) -> None:
    """Write the factors of a batch to its rows."""
    kept = iter(gradients.pairs)
    beside: dict[int, list[tuple[Term, Factor]]] = {}
    for term in terms:
        f = factors[term.name]
        if not term.pairs:
            beside.setdefault(term.piece, []).append((term, f))
            continue
        assert isinstance(f, OuterFactor)
        target = next(kept)
        if f.geometry is not None:  # one image a sample: channels last, positions first
            a = f.a[:, 0].flatten(2).permute(2, 0, 1)
            g = f.g[:, :, 0].flatten(3).permute(3, 0, 1, 2)
        else:
            a = f.a.transpose(0, 1)
            g = f.g.permute(2, 0, 1, 3)
        target.a[:, rows].copy_(a)
        target.g[:, rows].copy_(g)
    for piece, own in beside.items():
        _write_piece(gradients.dense[piece][rows], own)


def _write_piece(out: Tensor, own: list[tuple[Term, Factor]]) -> None:
    """Write all terms of a piece; in one call if none needs to be multiplied out."""
    small = [f.v for _, f in own if isinstance(f, PlainFactor) and f.v.dtype == out.dtype]
    if len(small) == len(own):
        torch.cat(small, 2, out=out)
        return
    for term, f in own:
        f.product(out[:, :, term.offset : term.offset + term.width], any_order=True)
