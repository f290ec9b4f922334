"""Look-ahead: what every prediction becomes after one more label, without retraining.

Give candidate x' the hypothetical label y'. Training to convergence from where the network is now
gives, for the linearised network (LA-11),

    f₊(x) = f(x) + Θ(x,X₊) (Θ(X₊,X₊) + σI)⁻¹ (Y₊ − f(X₊)),      X₊ = X ∪ {x'},

one linear system per candidate. Bordering the system shows that all of them share one matrix, the
posterior covariance k, and that look-ahead is conditioning (LA-12; docs/errata.md):

    f₊(x) = f_lin(x) + k(x,x')/u · (y' − f_lin(x')),              u = k(x',x') + σ.

With the full kernel k(x,x') and u are C×C blocks and 1/u is an inverse.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.gp.checks import Positions
from labelahead.gp.linalg import block_factor, block_solve, cholesky, solve_factored
from labelahead.gp.posterior import Posterior

__all__ = ["LOOK_AHEAD_METHODS", "innovation_factors", "lookahead", "lookahead_by_solving"]


def lookahead(
    posterior: Posterior,
    at: Positions,
    targets: Tensor,
    *,
    evaluate: Positions | None = None,
    chunk: int = 64,
    noise: float | None = None,
    allow_labelled: bool = False,
) -> Iterator[Tensor]:
    """Predict the outputs if candidate at[j] alone were labelled targets[j], for every j, exactly.

    Args:
        posterior: The present posterior.
        at: (q,) unlabelled positions; one may occur several times, with different targets.
        targets: (q, C).
        evaluate: (e,) positions to predict at; default: all n.
        chunk: Candidates per yielded tensor, at most.
        noise: Relative noise of the hypothetical labels; default: that of the prior.
        allow_labelled: Whether candidates may have a label already, of another source.

    Yields:
        (≤chunk, e, C) float64, in the order of `at`.

    >>> futures = torch.cat(list(la.lookahead(post, [2, 2, 2], one_hot)))  # item 2 as each of the classes
    >>> futures.shape
    torch.Size([3, 6, 3])
    >>> bool(torch.allclose(futures[1], post.condition([2], one_hot[[1]]).mean, atol=1e-6))
    True
    """
    checked = _check_lookahead(posterior, at, targets, evaluate, chunk, allow_labelled)
    return _iterate_block_formula(posterior, *checked, chunk, noise)


def _iterate_block_formula(
    posterior: Posterior, at: Tensor, targets: Tensor, x: Tensor, chunk: int, noise: float | None
) -> Iterator[Tensor]:
    b, mean = posterior.width, posterior.mean[x]
    for lo in range(0, len(at), chunk):
        part = at[lo : lo + chunk]
        surprise = (targets[lo : lo + chunk] - posterior.mean[part]).view(len(part), b, -1)
        push = block_solve(
            innovation_factors(posterior, part, noise), surprise
        )  # u⁻¹ r, (q, b, C/b)
        k = posterior.covariance_block(x, part).to(torch.float64).view(len(x), b, len(part), b)
        change = torch.einsum("xaqb,qbp->qxap", k, push)  # (LA-12)
        yield mean + change.reshape(len(part), len(x), -1)


def innovation_factors(posterior: Posterior, at: Tensor, noise: float | None = None) -> Tensor:
    """Cholesky factors of u = k(x',x') + σI at each position: (q,) -> (q, b, b), float64.

    noise: Relative noise of the source that gives the label; default: that of the prior.
    """
    b = posterior.width
    blocks = posterior.variance().view(-1, b, b)[at]
    eye = torch.eye(b, dtype=blocks.dtype, device=blocks.device)
    return block_factor(blocks + _absolute_noise(posterior, noise) * eye, posterior.scale)


def _absolute_noise(posterior: Posterior, noise: float | None) -> float:
    """Return the noise of a hypothetical label, given a relative one."""
    checked = posterior.check_noise(noise, 1)
    return posterior.noise if checked is None else float(checked)


def lookahead_by_solving(
    posterior: Posterior,
    at: Positions,
    targets: Tensor,
    *,
    evaluate: Positions | None = None,
    chunk: int = 64,
    noise: float | None = None,
    allow_labelled: bool = False,
) -> Iterator[Tensor]:
    """Compute `lookahead` by one bordered system per candidate (LA-11), without the block formula.

    The paper's "NTK w/o block", kept as a baseline for tests, benchmarks and studies.
    """
    checked = _check_lookahead(posterior, at, targets, evaluate, chunk, allow_labelled)
    return _iterate_solves(posterior, *checked, chunk, noise)


def _iterate_solves(
    posterior: Posterior, at: Tensor, targets: Tensor, x: Tensor, chunk: int, noise: float | None
) -> Iterator[Tensor]:
    theta, b, here = posterior.covariance.prior, posterior.width, posterior.flat_positions(x)
    border = posterior.flat_positions(
        torch.cat([posterior.labelled, at[:1]])
    )  # its last b entries change
    old = slice(0, len(border) - b)
    new = slice(len(border) - b, None)
    rows = theta.rows(border)
    system, reach = (
        theta.evaluate_at(rows, border).clone(),
        theta.evaluate_at(rows, here).T.contiguous(),
    )
    system.diagonal()[old] += posterior.noise_of_labels().repeat_interleave(b)
    known = posterior.flatten_outputs(posterior.targets - posterior.outputs[posterior.labelled])
    own = _absolute_noise(posterior, noise) * torch.eye(b, dtype=system.dtype, device=system.device)
    done: list[Tensor] = []
    for j in range(len(at)):
        border[new] = posterior.flat_positions(at[j : j + 1])
        row = theta.rows(border[new])
        reach[:, new] = theta.evaluate_at(row, here).T
        edge = theta.evaluate_at(row, border)
        system[new, old], system[old, new] = edge[:, old], edge[:, old].T
        system[new, new] = edge[:, new] + own
        surprise = posterior.flatten_outputs((targets[j] - posterior.outputs[at[j]])[None])
        lower, _ = cholesky(system, scale=posterior.scale)
        change = reach @ solve_factored(lower, torch.cat([known, surprise]))
        done.append(posterior.outputs[x] + change.reshape(len(x), -1))
        if len(done) == chunk or j == len(at) - 1:
            yield torch.stack(done)
            done = []


LOOK_AHEAD_METHODS = {"block": lookahead, "solve": lookahead_by_solving}


def _check_lookahead(
    posterior: Posterior,
    at: Positions,
    targets: Tensor,
    evaluate: Positions | None,
    chunk: int,
    allow_labelled: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Check and return candidates (q,), targets (q, C) and evaluation points (e,)."""
    if chunk < 1:
        raise InputError(f"chunk is {chunk}; expected at least 1")
    at = posterior.check_positions(at, "at", distinct=False)
    if not allow_labelled:
        posterior.require_unlabelled(at, "at")
    targets = posterior.check_targets(targets, len(at))
    if evaluate is None:
        return at, targets, torch.arange(posterior.points, device=at.device)
    x = posterior.check_positions(evaluate, "evaluate", distinct=False)
    return at, targets, x
