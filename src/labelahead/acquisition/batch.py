"""Scores -> a batch: the best at once, one by one on predictions, or one by one on the truth."""

from collections.abc import Callable
from operator import index
from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.acquisition import ACQUISITIONS, Acquisition
from labelahead.acquisition.view import View
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
# Criteria that need no hypothetical label: a batch is conditioned on f_lin itself, so that the
# predictions stay and only the covariance falls.
LABEL_FREE = ("flip", "resolve", "variance")


class Selection(NamedTuple):
    """What was picked, why, and what is seen afterwards.

    >>> chosen = la.greedy(seen, "flip", 2)
    >>> len(chosen.positions), len(chosen.scores), len(chosen.view.candidates)
    (2, 2, 2)
    """

    positions: Tensor  # (q,) distinct, in the order picked
    scores: Tensor  # (q,) each as it was when picked
    view: View  # after the picks: go on from here


def best(
    view: View, acquisition: str | Acquisition, rng: torch.Generator | None = None
) -> tuple[int, float]:
    """The next position to label and its score; ties go to the first candidate.

    A labelling page is `view = view.condition([position], target)` and then this, again and again.

    >>> position, score = la.best(seen, "flip")
    >>> position in seen.candidates.tolist()
    True
    """
    scores = score_candidates(view, acquisition, rng)
    first = int(scores.argmax())
    return int(view.candidates[first]), float(scores[first])


def top(
    view: View, acquisition: str | Acquisition, q: int, rng: torch.Generator | None = None
) -> Selection:
    """The q best scores at once, measured from the view's baseline (the network's f, as in the
    paper).

    The view comes back unchanged.

    >>> scores = la.top(seen, "variance", 3).scores.tolist()
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
    """q picks, conditioning on a predicted label after each, so that near-copies lose their worth.

    Changes are measured from f_lin, which has heard of the earlier picks, not from the network's f.

    hypothetical_label: what label a pick is taken to have. "linearised": the most likely by f_lin, which has
    heard of the earlier picks; "outputs": the most likely by f; "mean": f_lin itself, so that the
    predictions stay and only the covariance falls.

    >>> batch = la.greedy(seen, "resolve", 3, hypothetical_label="mean")
    >>> len(set(batch.positions.tolist()))
    3
    """
    if hypothetical_label not in HYPOTHETICAL_LABELS:
        raise InputError(
            f"hypothetical_label is {hypothetical_label!r}; expected one of {', '.join(HYPOTHETICAL_LABELS)}"
        )

    if view.posterior.classes == 1:  # no class to hypothetical_label in, only a value
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
    """q picks, each labelled for real by `ask` before the next: rank-one steps, no retraining.

    Changes are measured from f_lin, which has heard of the answers, not from the network's f.
    annotate(position) returns a target (C,) or a class 0..C−1. The labels end up in
    `selection.view.posterior.targets`.

    >>> truth = [0, 1, 2, 0, 1, 2]
    >>> asked = la.sequential(seen, "flip", 2, annotate=lambda position: truth[position])
    >>> len(asked.view.labelled)
    4
    """
    return _select_one_by_one(
        view, acquisition, q, rng, lambda now, position: _check_target(annotate(position), now)
    )


def select_batch(
    view: View,
    acquisition: str | Acquisition,
    q: int,
    rng: torch.Generator,
    mode: str,
    annotate: Callable[[int], Tensor | float] | None = None,
) -> Selection:
    """q picks in the mode of that name; sequential without anybody to annotate is greedy."""
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
    # From the second pick on labels have arrived that the network was not trained on; its outputs
    # are those of before them. So all picks are measured from f_lin, and their scores compare.
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
    """Scores (m,) by name or function.

    Refused with NaN or +infinity. −infinity: never, while there are others.
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
        raise InputError(f"{q!r} picks asked for; expected a whole number")
    if not 1 <= q <= len(view.candidates):
        raise InputError(
            f"{q} picks asked of {len(view.candidates)} candidates; expected between 1 and that "
            "number: ask for fewer or give more candidates"
        )


def _check_target(answer: Tensor | float, view: View) -> Tensor:
    """A class or a target as a target (C,)."""
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
        known = not isinstance(answer, bool) and 0 <= index(answer) < classes  # type: ignore[arg-type]
    except TypeError:  # not a whole number
        known = False
    if not known:
        raise InputError(f"annotate returned class {answer!r}; expected 0 to {classes - 1}")
    return torch.zeros_like(view.outputs[0]).index_fill_(0, torch.tensor(int(answer)), 1.0)
