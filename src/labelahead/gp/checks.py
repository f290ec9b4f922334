"""Check arguments at the public entry points. Every failure is an `InputError`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labelahead.errors import InputError

__all__ = [
    "Noise",
    "Positions",
    "as_slice",
    "check_finite",
    "check_floating",
    "check_noise",
    "check_positions",
    "check_symmetric",
    "check_targets",
]

Positions = Tensor | Sequence[int]
Noise = Tensor | Sequence[float] | float | None  # relative; None: that of the prior
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def check_floating(value: object, what: str, shape: str, dims: tuple[int, ...]) -> Tensor:
    """Return `value` if it is a non-empty float32/float64 tensor whose rank is in `dims`."""
    if not isinstance(value, Tensor):
        raise InputError(
            f"{what} is a {type(value).__name__}; expected a torch tensor {shape}: convert it "
            "with torch.as_tensor"
        )
    if value.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{what} has dtype {value.dtype}; expected float32 or float64 {shape}: use .double()"
        )
    if value.dim() not in dims or value.numel() == 0:
        raise InputError(f"{what} has shape {tuple(value.shape)}; expected a non-empty {shape}")
    return value.detach()


def check_finite(value: Tensor, what: str) -> Tensor:
    """Return `value` if it holds neither NaN nor infinity."""
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).sum())
        raise InputError(
            f"{what} holds {bad} NaN or infinite entries of {value.numel()}; expected finite "
            "numbers: remove or repair those points first"
        )
    return value


def check_positions(value: Positions, what: str, n: int, *, distinct: bool = True) -> Tensor:
    """Return positions as an int64 tensor (q,), within 0..n−1, at least one, distinct by default."""
    try:
        at = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(
            f"{what} is a {type(value).__name__} that cannot be converted to a tensor ({error}); "
            "expected positions as a list of whole numbers or an integer tensor"
        ) from error
    if at.dim() != 1 or len(at) == 0:
        raise InputError(
            f"{what} has shape {tuple(at.shape)}; expected one dimension with at least one position"
        )
    if at.dtype not in _INTEGERS:
        raise InputError(
            f"{what} has dtype {at.dtype}; expected integer positions: turn a mask into "
            "them with mask.nonzero().squeeze(1)"
        )
    at = at.to(torch.int64)
    low, high = int(at.min()), int(at.max())
    if low < 0 or high >= n:
        raise InputError(
            f"{what} reaches from {low} to {high}; expected positions among the {n} points, 0 to "
            f"{n - 1}"
        )
    if distinct and len(at) > 1 and len(torch.unique(at)) < len(at):
        raise InputError(
            f"{what} names {len(at)} positions but only {len(torch.unique(at))} different ones; "
            "expected each at most once"
        )
    return at


def check_noise(value: Tensor | Sequence[float] | float, q: int) -> Tensor:
    """Return relative noises of q labels as float64 (q,); one number counts for all of them."""
    try:
        noise = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"noise is a {type(value).__name__} that cannot be converted to numbers ({error}); "
            "expected one relative noise for each label, or one for all"
        ) from error
    if noise.dim() == 0:
        noise = noise.expand(q)
    if noise.shape != (q,):
        raise InputError(
            f"noise has shape {tuple(noise.shape)}; expected ({q},): one relative noise for each "
            "label, or one number for all"
        )
    if not bool((torch.isfinite(noise) & (noise >= 0)).all()):
        raise InputError(
            f"noise reaches from {float(noise.min()):.3g} to {float(noise.max()):.3g}; expected "
            "finite numbers >= 0, such as 1e-2"
        )
    return noise


def check_targets(value: object, q: int, classes: int) -> Tensor:
    """Return targets as float64 (q, C).

    Accepts targets (q, C), class numbers (q,), which become one-hot, and, with C = 1, values (q,).
    """
    if isinstance(value, Tensor) and value.dim() == 1 and classes == 1:
        value = value[:, None]
    if isinstance(value, Tensor) and value.dtype in _INTEGERS:
        if value.dim() == 1 and classes > 1:
            if len(value) == 0 or not 0 <= int(value.min()) <= int(value.max()) < classes:
                raise InputError(
                    f"targets holds class numbers outside 0 to {classes - 1}, the network's outputs"
                )
            value = torch.nn.functional.one_hot(value.long(), classes)
        value = value.to(torch.float64)
    rows = check_floating(value, "targets", "(q, C), or whole class numbers (q,)", (2,))
    if rows.shape != (q, classes):
        raise InputError(
            f"targets has shape {tuple(rows.shape)}; expected ({q}, {classes}): one row per "
            "position, one column per output (one-hot for classes)"
        )
    return check_finite(rows, "targets")


def check_symmetric(kernel: Tensor, what: str) -> None:
    """Raise unless a square matrix is finite, symmetric and has no negative diagonal entry.

    Two matrix-vector products replace an n² comparison: an entry that is NaN, infinite or unequal
    to its mirror image shows in K p − Kᵀ p for a probe p without zeros. The probe is fixed, so the
    check is deterministic.
    """
    n = kernel.shape[0]
    steps = torch.arange(n, dtype=torch.float64, device=kernel.device)
    probe = (1.0 + 0.5 * torch.cos(1.7 * steps * steps + 0.3 * steps)).to(kernel.dtype)
    right, left = kernel @ probe, kernel.T @ probe
    if not bool(torch.isfinite(right).all() & torch.isfinite(left).all()):
        raise InputError(
            f"{what} ({n} x {n}) holds NaN or infinite entries; expected finite numbers: check the "
            "network's weights and inputs"
        )
    diagonal = kernel.diagonal()
    if bool((diagonal < 0).any()):
        raise InputError(
            f"{what} has a negative diagonal entry {float(diagonal.min()):.3g}; expected a Gram "
            "matrix, whose diagonal is never negative"
        )
    slack = 16 * torch.finfo(kernel.dtype).eps * n * float(diagonal.max())
    gap = float((right - left).abs().max())
    if gap <= slack:
        return
    # Sums over many entries of one sign can round by more than that, so compare the entries.
    rows = torch.split(torch.arange(n, device=kernel.device), max(1, (1 << 24) // n))
    worst = max(float((kernel[r] - kernel[:, r].T).abs().max()) for r in rows)
    if worst > 16 * torch.finfo(kernel.dtype).eps * float(diagonal.max()):
        raise InputError(
            f"{what} ({n} x {n}) is not symmetric: an entry and its mirror differ by {worst:.3g}; "
            "expected a symmetric kernel: pass (K + K.T) / 2 if the difference is rounding"
        )


def as_slice(at: Tensor) -> slice | None:
    """Return consecutive positions as a slice, else None: slices are views, indexing copies."""
    lo, hi = int(at[0]), int(at[-1]) + 1
    if hi - lo != len(at):
        return None
    return slice(lo, hi) if torch.equal(at, torch.arange(lo, hi, device=at.device)) else None
