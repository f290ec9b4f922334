"""What is contracted together, and in which form.

A term is a parameter, with its bias where both enter the same matrix products. Its form is chosen
from its sizes: `pairs` keeps the factors, dense keeps multiplied-out gradients (see `gram`).
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

# a number of a gradient, written to memory and read again, costs about as much as so many
WRITE_COST = 40.0
MAX_CACHED_FORMS = 64  # lists of terms that a plan keeps
ADDITION_COST = (
    20.0  # an elementwise addition through memory costs about as much as so many in a GEMM
)


@dataclass(frozen=True)
class Term:
    """A parameter, its form, and its columns among the dense gradients, which are kept in pieces."""

    name: str
    bias: bool  # contracted along with the weight, in `pairs` form only
    pairs: bool
    offset: int  # in its piece
    width: int
    piece: int = 0
    # In a piece of its own: torch multiplies the matrices of many samples in one call only into
    # memory without gaps.
    has_own_piece: bool = False


def make_terms(
    plan: Plan,
    chosen: Mapping[str, nn.Parameter],
    K: int,
    fold: bool,
    partners: float,
    max_piece_columns: float = math.inf,
) -> list[Term]:
    """Terms for a kernel in which every sample is paired with `partners` others.

    K directions are summed over (`fold`) or kept apart as rows and columns. `max_piece_columns`: columns a
    piece, where more than one parameter shares it.
    """
    asked = (K, fold, partners, max_piece_columns)
    if asked not in plan.forms:
        if len(plan.forms) >= MAX_CACHED_FORMS:
            plan.forms.clear()
        plan.forms[asked] = _build_terms(plan, chosen, K, fold, partners, max_piece_columns)
    terms: list[Term] = plan.forms[asked]
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
    """Whether a piece of its own saves more in multiplying out than it costs to add one more
    product to the kernel.
    """
    return isinstance(f, OuterFactor) and width >= partners


def _place_terms(terms: list[Term], max_piece_columns: float) -> list[Term]:
    """The same, first those that are alone, then the others one after the other in pieces of at
    most `max_piece_columns` columns, or of one term."""
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
    """Operations a sample in the form of pairs, and dense: GEMMs at one, the rest at ADDITION_COST and
    WRITE_COST.

    `width` numbers in the parameter; every sample is paired with `partners` others
    (research/benchmarks/kernel_costs.py).
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
    """Bytes a sample that the gradients of these terms take; `size` bytes a number."""
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
    """Terms in groups of at most `room` bytes a sample; none if a single one takes more.

    Nor where gradients came from torch.func: those are multiplied out from the start.
    """
    if plan.fallback:
        return []
    groups: list[list[Term]] = [[]]
    taken = 0
    for term in terms:
        needed = count_bytes_per_sample(plan, [term], K, size)
        if needed > room:
            return []
        if taken + needed > room:
            groups.append([])
            taken = 0
        groups[-1].append(term)
        taken += needed
    return [_place_terms(group, max_piece_columns) for group in groups]


def group_by_piece(terms: list[Term]) -> list[list[Term]]:
    """Terms that are contracted together anyway."""
    groups: dict[tuple[int, str], list[Term]] = {}
    for term in terms:
        groups.setdefault((term.piece, term.name if term.pairs else ""), []).append(term)
    return list(groups.values())


def allocate_gradients(plan: Plan, terms: list[Term], n: int, K: int, like: Tensor) -> Gradients:
    """Room for those of n samples; filled by `write_factors`."""
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
    """All of a piece; in one call where there is nothing to be multiplied out."""
    small = [f.v for _, f in own if isinstance(f, PlainFactor) and f.v.dtype == out.dtype]
    if len(small) == len(own):
        torch.cat(small, 2, out=out)
        return
    for term, f in own:
        f.product(out[:, :, term.offset : term.offset + term.width], any_order=True)
