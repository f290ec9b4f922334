"""Batch selection: from acquisition scores to the next positions to label.

`top` takes the best scores at once, `greedy` conditions on a hypothetical label after each
selection, and `sequential` conditions on the true label.
"""

from collections.abc import Callable
from operator import index
from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.acquisition.functions import ACQUISITIONS, Acquisition
from labelahead.acquisition.pool_view import View
from labelahead.errors import InputError, NumericalError

__all__ = [
    "HYPOTHETICAL_LABELS",
    "Selection",
    "best",
    "greedy",
    "score_candidates",
    "select_batch",
    "sequential",
    "top",
]

HYPOTHETICAL_LABELS = ("linearised", "outputs", "mean")
# Acquisition functions that need no hypothetical label: a batch is conditioned on f_lin itself, so
# that only the covariance changes, not the predictions.
LABEL_FREE = ("flip", "resolve", "variance")


class Selection(NamedTuple):
    """The selected positions, their scores, and the view after they are labelled.

    >>> chosen = la.acquisition.greedy(pool_view, "flip", 2)
    >>> len(chosen.positions), len(chosen.scores), len(chosen.view.candidates)
    (2, 2, 2)
    """

    positions: Tensor  # (q,) distinct, in the order of selection
    scores: Tensor  # (q,) each at the time of its selection
    view: View  # conditioned on the selected positions, except after `top`


def best(
    view: View, acquisition: str | Acquisition, rng: torch.Generator | None = None
) -> tuple[int, float]:
    """Return the next position to label and its score; ties go to the first candidate.

    A labelling loop alternates this with `view = view.condition([position], target)`.

    >>> position, score = la.acquisition.best(pool_view, "flip")
    >>> position in pool_view.candidates.tolist()
    True
    """
    scores = score_candidates(view, acquisition, rng)
    first = int(scores.argmax())
    return int(view.candidates[first]), float(scores[first])


def top(
    view: View, acquisition: str | Acquisition, q: int, rng: torch.Generator | None = None
) -> Selection:
    """Select the q candidates with the best scores at once.

    Changes are measured from the view's baseline (the network's f, as in the paper). The returned
    view is the given one.

    >>> scores = la.acquisition.top(pool_view, "variance", 3).scores.tolist()
    >>> scores == sorted(scores, reverse=True)
    True
    """
    _check_count(view, q)
    scores = score_candidates(view, acquisition, rng)
    order = torch.sort(scores, descending=True, stable=True).indices[:q]
    return Selection(view.candidates[order], scores[order], view)


def greedy(
    view: View,
    acquisition: str | Acquisition,
    q: int,
    rng: torch.Generator | None = None,
    *,
    hypothetical_label: str = "linearised",
) -> Selection:
    """Select q candidates one by one, conditioning on a hypothetical label after each.

    Near-copies of a selected candidate therefore score low. Changes are measured from f_lin, which
    includes the earlier selections, not from the network's f.

    Args:
        view: Posterior, candidates and evaluation points.
        acquisition: A name in `ACQUISITIONS`, or a function of (view, rng).
        q: Number of candidates to select.
        rng: For acquisition functions that draw random numbers.
        hypothetical_label: The label that a selected candidate is assumed to have. "linearised":
            the most likely class by f_lin; "outputs": the most likely class by f; "mean": f_lin
            itself, so that only the covariance changes, not the predictions.

    >>> batch = la.acquisition.greedy(pool_view, "resolve", 3, hypothetical_label="mean")
    >>> len(set(batch.positions.tolist()))
    3
    """
    if hypothetical_label not in HYPOTHETICAL_LABELS:
        raise InputError(
            f"hypothetical_label is {hypothetical_label!r}; expected one of "
            f"{', '.join(HYPOTHETICAL_LABELS)}"
        )

    if view.posterior.classes == 1:  # A regression has no most likely class.
        hypothetical_label = "mean"

    def answer(now: View, position: int) -> Tensor:
        values = now.values("outputs" if hypothetical_label == "outputs" else "linearised")[
            position
        ]
        if hypothetical_label == "mean":
            return values
        return torch.zeros_like(values).index_fill_(0, values.argmax(), 1.0)

    return _select_one_by_one(view, acquisition, q, rng, answer)


def sequential(
    view: View,
    acquisition: str | Acquisition,
    q: int,
    annotate: Callable[[int], Tensor | float],
    rng: torch.Generator | None = None,
) -> Selection:
    """Select q candidates one by one, labelling each before the next by rank-one updates.

    Changes are measured from f_lin, which includes the new labels, not from the network's f.

    Args:
        view: Posterior, candidates and evaluation points.
        acquisition: A name in `ACQUISITIONS`, or a function of (view, rng).
        q: Number of candidates to select.
        annotate: Returns the label of a position: a target (C,) or a class 0..C−1.
        rng: For acquisition functions that draw random numbers.

    Returns:
        The selection; its labels are in `selection.view.posterior.targets`.

    >>> truth = [0, 1, 2, 0, 1, 2]
    >>> chosen = la.acquisition.sequential(pool_view, "flip", 2, annotate=lambda position: truth[position])
    >>> len(chosen.view.labelled)
    4
    """

    def answer(now: View, position: int) -> Tensor:
        target = _check_target(annotate(position), now)
        # What an answer says nothing about stays as predicted.
        return torch.where(target.isnan(), now.posterior.mean[position].to(target), target)

    return _select_one_by_one(view, acquisition, q, rng, answer)


def select_batch(
    view: View,
    acquisition: str | Acquisition,
    q: int,
    rng: torch.Generator,
    mode: str,
    annotate: Callable[[int], Tensor | float] | None = None,
) -> Selection:
    """Select q candidates by mode: "top", "greedy", or "sequential" (greedy without `annotate`)."""
    if mode == "top":
        return top(view, acquisition, q, rng)
    if mode == "sequential" and annotate is not None:
        return sequential(view, acquisition, q, annotate, rng)
    return greedy(
        view,
        acquisition,
        q,
        rng,
        hypothetical_label="mean" if acquisition in LABEL_FREE else "linearised",
    )


def _select_one_by_one(
    view: View,
    acquisition: str | Acquisition,
    q: int,
    rng: torch.Generator | None,
    answer: Callable[[View, int], Tensor],
) -> Selection:
    _check_count(view, q)
    # From the second selection on there are labels that the network was not trained on. So all
    # changes are measured from f_lin, which makes the scores comparable.
    view = view.with_baseline("linearised")
    positions, scores = [], []
    for _ in range(q):
        position, score = best(view, acquisition, rng)
        positions.append(position)
        scores.append(score)
        view = view.condition([position], answer(view, position)[None])
    return Selection(torch.tensor(positions), torch.tensor(scores, dtype=torch.float64), view)


def score_candidates(
    view: View, acquisition: str | Acquisition, rng: torch.Generator | None = None
) -> Tensor:
    """Compute acquisition scores (m,) by name or function.

    A score of −infinity excludes a candidate while there are others.

    Raises:
        InputError: If the name is unknown or the function does not return one score per candidate.
        NumericalError: If a score is NaN or +infinity.
    """
    _check_count(view, 1)
    if not isinstance(acquisition, str) and not callable(acquisition):
        raise InputError(f"acquisition is {acquisition!r}; expected a name or a function")
    if isinstance(acquisition, str):
        if acquisition not in ACQUISITIONS:
            raise InputError(
                f"acquisition is {acquisition!r}; expected one of {', '.join(ACQUISITIONS)} or a "
                "function of (view, rng)"
            )
        acquisition = ACQUISITIONS[acquisition]
    scores = acquisition(view, rng)
    if not isinstance(scores, Tensor):
        kind = type(scores).__name__
        raise InputError(
            f"the acquisition returned a {kind}; expected a tensor, one score per candidate"
        )
    if scores.shape != view.candidates.shape:
        raise InputError(
            f"the acquisition returned shape {tuple(scores.shape)}; expected "
            f"{tuple(view.candidates.shape)}, one score per candidate"
        )
    bad = torch.isnan(scores) | torch.isposinf(scores)
    if bool(bad.any()):
        raise NumericalError(
            f"the acquisition returned NaN or infinity for {int(bad.sum())} of {len(scores)} "
            "candidates; expected numbers: raise `noise` or check the kernel"
        )
    return scores.detach()


def _check_count(view: View, q: int) -> None:
    if not isinstance(view, View):
        raise InputError(
            f"expected a View, got a {type(view).__name__}: make one with view(post, ...)"
        )
    if isinstance(q, bool) or not isinstance(q, int):
        raise InputError(f"the batch size is {q!r}; expected a whole number")
    if not 1 <= q <= len(view.candidates):
        raise InputError(
            f"the batch size is {q} with {len(view.candidates)} candidates; expected between 1 and "
            "the number of candidates: select fewer or give more candidates"
        )


def _check_target(answer: Tensor | float, view: View) -> Tensor:
    """Return an annotator's class number or target as a target (C,)."""
    classes = view.posterior.classes
    if isinstance(answer, Tensor) and answer.dim() == 0:
        answer = answer.item()
    if isinstance(answer, Tensor):
        if answer.shape != (classes,):
            raise InputError(
                f"annotate returned shape {tuple(answer.shape)}; expected a class number or a target "
                f"of shape ({classes},)"
            )
        return answer
    if isinstance(answer, int | float) and not isinstance(answer, bool) and classes == 1:
        return torch.full_like(view.outputs[0], float(answer))
    try:
        is_class = not isinstance(answer, bool) and 0 <= index(answer) < classes  # type: ignore[arg-type]
    except TypeError:  # not a whole number
        is_class = False
    if not is_class:
        raise InputError(f"annotate returned class {answer!r}; expected 0 to {classes - 1}")
    return torch.zeros_like(view.outputs[0]).index_fill_(0, torch.tensor(int(answer)), 1.0)
