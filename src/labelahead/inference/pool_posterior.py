"""The posterior at the items of a pool: the interface between learning and querying.

Acquisition functions and `Posterior` count along the points of this posterior. All other code
counts positions in the data set, and so does every method here: this is the only place that
converts one to the other.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from labelahead.acquisition import Acquisition
from labelahead.acquisition import batch_selection as select
from labelahead.acquisition.pool_view import View, view
from labelahead.acquisition.probability import probabilities
from labelahead.data.class_targets import make_class_targets
from labelahead.data.positions import PositionIndex
from labelahead.errors import InputError
from labelahead.gp.nystrom import approximate_posterior, evenly_spaced
from labelahead.gp.posterior import Posterior, prior
from labelahead.inference.mixture import fill_missing, solve_leave_one_out
from labelahead.tasks import Task

__all__ = ["MAX_DRIFT", "Observation", "PoolPosterior", "PosteriorOptions", "drift_warning"]

MAX_INCREMENTAL_LABELS = 64  # new labels that an incremental update adds at most
NEW_LABELS_DIVISOR = 4  # beyond 1/4 new labels a refit is cheaper
MAX_REVISED_LABELS = 16  # changed or removed labels; beyond that a refit is cheaper

# Share of differing predictions above which look-ahead describes another network.
MAX_DRIFT = 0.10


def drift_warning(drift: float | None) -> str | None:
    """Return a warning if the linearised network differs from the trained one in too many predictions.

    Args:
        drift: Share of differing predictions (`PoolPosterior.drift`); None without a trained
            network.

    Returns:
        One sentence, or None up to `MAX_DRIFT`.
    """
    if drift is None or drift <= MAX_DRIFT:
        return None
    return (
        f"the linearised network predicts another class than the trained one for {drift:.0%} of "
        "the candidates, "
        f"expected at most {MAX_DRIFT:.0%}: train longer; look-ahead describes another network"
    )


class Observation(NamedTuple):
    """What the labels of an item amount to if its sources differ in reliability."""

    label: int  # that it belongs to; with another label it does not apply
    target: tuple[float, ...]  # (C,)
    noise: float  # relative, added to that of the posterior


def _fill_targets(post: Posterior, at: Tensor, targets: Tensor, most: int | None) -> Tensor:
    """Replace missing targets (q, D) of labels at (q,) by the posterior mean given the others.

    With more than `most` labels, given so many evenly spaced ones.
    """
    if not bool(targets.isnan().any()):
        return targets
    if post.width != 1:
        raise InputError(
            "answers that say nothing about some outputs need a scalar kernel; expected the kernel "
            "'pseudo', 'single' or 'trace', not 'full'"
        )
    some = torch.arange(len(at)) if most is None else evenly_spaced(len(at), min(most, len(at)))
    centred = targets - post.mean[at]
    K = post.covariance_block(at, at[some]).double()
    alpha = solve_leave_one_out(K[some], post.noise, centred[some])[0]
    return fill_missing(centred, K, alpha) + post.mean[at]


@dataclass(frozen=True)
class PosteriorOptions:
    """How a posterior over a pool is conditioned and scored.

    Attributes:
        evaluation: Acquisition functions sum over the first so many unlabelled points; None: over
            all.
        baseline: The predictions that changes are measured from (`View`): "outputs" if the prior
            mean is that of a network trained on exactly the labels.
        cache_cross_covariance: Keep k(candidates, evaluation), which makes single labels cheap.
        max_exact_labels: Above this number, labels are approximated (`labelahead.gp.nystrom`),
            which bounds the memory.
        observations: position -> what its labels amount to; other labels count as they are.
        task: What labels mean, as codes of its answers; None: class numbers.
        goal: Of queries (`View`).
    """

    evaluation: int | None = None
    baseline: str = "linearised"
    cache_cross_covariance: bool = False
    max_exact_labels: int | None = None
    observations: Mapping[int, Observation] = field(default_factory=dict)
    task: Task | None = None
    goal: str = "accuracy"

    def is_partial(self, labels: Iterable[int]) -> bool:
        """Return whether one of the answers says nothing about some output."""
        return self.task is not None and bool(self.task.targets(list(labels)).isnan().any())

    def find_observation(self, position: int, label: int) -> Observation | None:
        """Return the observation of an item, if it belongs to its present label."""
        found = self.observations.get(position)
        return found if found is not None and found.label == label else None

    def make_targets(
        self, labels: Mapping[int, int], post: Posterior
    ) -> tuple[Tensor, Tensor | None]:
        """Return targets, class numbers (q,) or (q, C), and relative noises (q,); None: the usual."""
        if self.task is not None:
            targets = self.task.targets(list(labels.values()))
            missing = post.classes - targets.shape[1]  # outputs of a kernel with more of them
            return pad(targets, (0, missing), value=float("nan")), None
        classes = torch.tensor(list(labels.values()))
        found = [self.find_observation(p, c) for p, c in labels.items()]
        if not any(found):
            targets = (
                classes if bool((classes >= 0).all()) else make_class_targets(classes, post.classes)
            )
            return targets, None
        targets = make_class_targets(classes, post.classes)
        noise = torch.full((len(found),), post.noise / post.scale, dtype=torch.float64)
        for i, observation in enumerate(found):
            if observation is not None:
                targets[i] = pad(
                    torch.tensor(observation.target, dtype=torch.float64),
                    (0, post.classes - len(observation.target)),
                )
                noise[i] += observation.noise
        return targets, noise

    def build_view(self, post: Posterior) -> View:
        """Build the view of a posterior, whose candidates are the unlabelled points."""
        left = (~post.is_labelled).nonzero().squeeze(1)
        if not len(left):  # no candidate is left, but labels may still be corrected
            return View(
                post,
                left,
                left,
                None,
                baseline=self.baseline,
                cache_cross_covariance=self.cache_cross_covariance,
            ).with_goal(self.goal)
        summed = left if self.evaluation is None else left[: self.evaluation]
        return view(
            post,
            left,
            summed,
            baseline=self.baseline,
            cache_cross_covariance=self.cache_cross_covariance,
        ).with_goal(self.goal)


@dataclass(frozen=True, eq=False)
class PoolPosterior:
    """The posterior at some items of the data set, given labels.

    Build it by `from_kernel` or `from_prior`; `with_labels` returns another one.

    Attributes:
        points: (n,) positions of the items in the data set.
        start: The posterior at them before any label.
        labels: position -> class, or `NONE_OF_THESE`.
        view: The posterior given the labels, with its candidates and evaluation points.
        options: How it is conditioned and scored.
        index: Rows of the items that can be labelled and predicted.
    """

    points: Tensor
    start: Posterior
    labels: Mapping[int, int]
    view: View
    options: PosteriorOptions
    index: PositionIndex
    # of `view`, filled on demand
    _scores: dict[str | Acquisition, Tensor] = field(default_factory=dict, repr=False)
    _orders: dict[str | Acquisition, list[int]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_kernel(
        cls,
        points: Tensor,
        mean: Tensor,
        kernel_arguments: Mapping[str, Any],
        noise: float,
        labels: Mapping[int, int],
        options: PosteriorOptions,
        *,
        classes: int = 0,
        initial_weights: Tensor | None = None,
    ) -> "PoolPosterior":
        """Condition a prior, given by its mean and kernel, on exactly these labels.

        Args:
            points: (n,) positions of the items in the data set.
            mean: (n, C) prior mean.
            kernel_arguments: The arguments of `prior` that describe the kernel: "kernel" or
                "features", and perhaps "scale".
            noise: Relative noise.
            labels: position -> class. Labels of other items are ignored.
            options: How to condition and score.
            classes: Least number of classes; the prior mean of further ones is 0.
            initial_weights: (n, C) α, the first guess if labels are approximated.
        """
        start = prior(mean, **kernel_arguments, noise=noise)
        if classes > start.classes:
            start = start.with_classes(classes)
        return cls.from_prior(points, start, labels, options, initial_weights=initial_weights)

    @classmethod
    def from_prior(
        cls,
        points: Tensor,
        start: Posterior,
        labels: Mapping[int, int] | None = None,
        options: PosteriorOptions | None = None,
        *,
        initial_weights: Tensor | None = None,
        index: PositionIndex | None = None,
    ) -> "PoolPosterior":
        """Condition the prior at some items on exactly these labels.

        Args:
            points: (n,) positions of the items in the data set.
            start: The posterior at them before any label.
            labels: position -> class. Labels of other items are ignored.
            options: How to condition and score.
            initial_weights: (n, C) α, the first guess if labels are approximated.
            index: Rows of the items, if it is known.
        """
        options = options or PosteriorOptions()
        index = index or PositionIndex(points)
        known = index.keep_known_values(labels or {})
        # Cached values of the prior could change the rounding here.
        post = replace(start, _cache={})
        if known:
            at = index.rows_of(known)
            targets, noise = options.make_targets(known, post)
            if options.task is not None:
                targets = _fill_targets(post, at, targets.to(post.mean), options.max_exact_labels)
            if options.max_exact_labels is None or len(at) <= options.max_exact_labels:
                post = post.condition(at, targets, noise)
            else:
                most = options.max_exact_labels
                post = approximate_posterior(post, at, targets, most, initial_weights, noise=noise)
        return cls(points, start, known, options.build_view(post), options, index)

    def can_update_incrementally(self, labels: Mapping[int, int]) -> bool:
        """Return whether `with_labels` takes milliseconds for these labels.

        It does not if many labels are new, or if early ones were removed.
        """
        target_labels = self._keep_points(labels)
        return len(
            target_labels.keys() - self.labels.keys()
        ) <= MAX_INCREMENTAL_LABELS and self._is_update_cheaper(target_labels)

    def _is_update_cheaper(self, target_labels: Mapping[int, int]) -> bool:
        """Return whether updating to these labels costs less than conditioning the prior on them."""
        if self.options.is_partial((*target_labels.values(), *self.labels.values())):
            return False  # A missing target depends on all other labels.
        if len(target_labels.keys() - self.labels.keys()) > max(
            MAX_INCREMENTAL_LABELS, len(self.labels) // NEW_LABELS_DIVISOR
        ):
            return False
        removed = [p for p in self.labels if p not in target_labels]
        revised = [p for p, c in self.labels.items() if target_labels.get(p, c) != c]
        changed = len(revised)
        if not removed and not changed:
            return True
        if any(p in self.options.observations for p in revised):
            return False  # The noise changes as well.
        are_few_revised = (
            len(removed) <= min(MAX_REVISED_LABELS, len(self.posterior.labelled))
            and changed <= MAX_REVISED_LABELS
            and self.posterior.can_revise_labels
        )
        return are_few_revised and removed == list(self.labels)[len(self.labels) - len(removed) :]

    def with_labels(self, labels: Mapping[int, int], classes: int = 0) -> "PoolPosterior":
        """Return the posterior given exactly these labels, with at least this number of classes.

        This takes milliseconds for new labels, a few changed ones, the removal of the last few and
        new classes (rank-one updates). Otherwise the prior is conditioned again: see
        `can_update_incrementally`.
        """
        target_labels, classes = self._keep_points(labels), max(classes, self.classes)
        options = self.options
        if target_labels != self.labels:
            options = replace(options, baseline="linearised")
        has_new_classes = classes != self.classes
        start = self.start.with_classes(classes) if has_new_classes else self.start
        if not self._is_update_cheaper(target_labels) or (
            has_new_classes and self.posterior.width != 1
        ):
            return PoolPosterior.from_prior(
                self.points,
                start,
                target_labels,
                options,
                initial_weights=self.nystrom_weights(classes),
                index=self.index,
            )
        removed = len(self.labels.keys() - target_labels.keys())
        kept = {p: target_labels[p] for p in self.labels if p in target_labels}
        new = {p: c for p, c in target_labels.items() if p not in self.labels}
        changed = [i for i, p in enumerate(kept) if kept[p] != self.labels[p]]
        current = self.view
        if has_new_classes:
            current = current.with_posterior(current.posterior.with_classes(classes))
        if removed:
            current = options.build_view(current.posterior.without_last_labels(removed))
        if changed:
            at = current.candidates.new_tensor(changed)
            answers = at.new_tensor([list(kept.values())[i] for i in changed])
            task = options.task
            targets = (
                make_class_targets(answers, classes) if task is None else task.targets(answers)
            )
            current = current.with_posterior(current.posterior.with_targets(at, targets))
        if new:
            targets, noise = options.make_targets(new, current.posterior)
            current = current.condition(self.rows_of(new), targets, noise)
        current = current.with_baseline(options.baseline)
        if current is self.view:  # scores stay valid
            return replace(self, start=start, labels={**kept, **new}, options=options)
        return PoolPosterior(self.points, start, {**kept, **new}, current, options, self.index)

    def nystrom_weights(self, classes: int) -> Tensor | None:
        """Return α (n, C) of the approximated labels, as a first guess for a refit; None without any."""
        settled = self.posterior.nystrom_labels
        if settled is None:
            return None
        out = settled.weights.new_zeros((len(self.points), classes))
        out[settled.positions, : settled.weights.shape[1]] = settled.weights
        return out

    def _keep_points(self, labels: Mapping[int, int]) -> dict[int, int]:
        return self.index.keep_known_values(labels)

    def __contains__(self, position: int) -> bool:
        """Return whether the item is one of the points."""
        return position in self.index

    def has_labels(self, labels: Mapping[int, int], classes: int) -> bool:
        """Return whether it is conditioned on exactly these labels."""
        return self.classes == max(
            classes, self.start.classes
        ) and self.labels == self._keep_points(labels)

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.start.classes

    @property
    def posterior(self) -> Posterior:
        """The posterior along `points`."""
        return self.view.posterior

    def drift(self) -> float | None:
        """Return the share of candidates whose predicted class differs between f_lin and f, the prior
        mean.

        The two agree if the prior mean is that of a network trained to convergence on exactly these
        labels.

        Returns:
            None without candidates.
        """
        at = self.view.candidates
        if not len(at) or self.classes < 2:
            return None
        differs = self.posterior.mean[at].argmax(1) != self.posterior.outputs[at].argmax(1)
        return int(differs.sum()) / len(differs)

    def rows_of(self, positions: Collection[int]) -> Tensor:
        """Return the rows (q,) of these items along `points`."""
        return self.index.rows_of(positions)

    def mean(self, positions: Sequence[int]) -> Tensor:
        """Return f_lin (q, C) at some items."""
        return self.posterior.mean[self.rows_of(positions).to(self.posterior.mean.device)]

    @cached_property
    def predicted_classes(self) -> Tensor:
        """(n,) the most probable class of every point."""
        return self.posterior.mean.argmax(1)

    @cached_property
    def probabilities(self) -> Tensor:
        """(n, C) class probabilities of every point."""
        return probabilities(self.posterior.mean.T.contiguous(), "simplex", 0).T.contiguous()

    def scores(self, acquisition: str | Acquisition) -> Tensor:
        """Return the acquisition scores (m,) of `view.candidates`; larger: label sooner."""
        if acquisition not in self._scores:
            self._scores[acquisition] = select.score_candidates(self.view, acquisition)
        return self._scores[acquisition]

    def rank_candidates(self, acquisition: str | Acquisition, n: int | None = None) -> list[int]:
        """Return the positions of the n best candidates, best first; None: of all."""
        if not len(self.view.candidates):
            return []
        if acquisition not in self._orders:  # computed once for all annotators
            order = torch.sort(self.scores(acquisition), descending=True, stable=True).indices
            self._orders[acquisition] = self.points[self.view.candidates[order].cpu()].tolist()
        return self._orders[acquisition][:n]

    def best(
        self, acquisition: str | Acquisition, without: Collection[int] = ()
    ) -> tuple[int, float] | None:
        """Return the best candidate's position and score, except for some; None if none is left."""
        if len(self.view.candidates) == 0:
            return None
        scores = self.scores(acquisition)
        first = int(scores.argmax())
        position = int(self.points[self.view.candidates[first]])
        if position not in without:
            return position, float(scores[first])
        free = next((p for p in self.rank_candidates(acquisition) if p not in without), None)
        if free is None:
            return None
        return free, float(
            scores[(self.view.candidates == self.index.row_of(free)).nonzero()[0, 0]]
        )

    def build_shortlist(self, scores: Tensor, n: int) -> "PoolPosterior":
        """Return the posterior of the n best candidates only, with the same evaluation points.

        scores: (m,) of `view.candidates`.

        A label costs it a few milliseconds, and it predicts and scores them exactly as this
        posterior would. Its `labels` are those added from now on; the labels known here must stay
        as they are.
        """
        some = torch.sort(scores, descending=True, stable=True).indices[:n]
        first, summed = self.view.candidates[some], self.view.evaluation
        others = (~torch.isin(summed, first)).nonzero().squeeze(1)
        at = torch.cat([first, summed[others]])
        place = torch.empty_like(self.posterior.is_labelled, dtype=torch.int64)
        place[at] = torch.arange(len(at), device=at.device)
        rows = torch.cat(
            [self.posterior.covariance_block(first, first), self.view.covariance(some)[:, others]],
            1,
        )
        points, start = self.points[at.cpu()], self.posterior.restricted_to(at, rows)
        return PoolPosterior(
            points,
            start,
            {},
            View(
                start,
                place[first],
                place[summed],
                None,
                baseline=self.options.baseline,
                cache_cross_covariance=True,
            ).with_goal(self.options.goal),
            replace(self.options, cache_cross_covariance=True, max_exact_labels=None),
            PositionIndex(points[: len(first)]),
        )

    def select_batch(
        self,
        acquisition: str | Acquisition,
        q: int,
        rng: torch.Generator,
        mode: str,
        oracle: Callable[[int], int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return q positions to label, best first, and their scores. `oracle` takes positions, too."""
        positions = self.points.tolist()
        answer = None if oracle is None else lambda place: oracle(positions[place])
        task = self.options.task
        if task is None:
            selection = select.select_batch(self.view, acquisition, q, rng, mode, answer)
        elif mode == "top":
            selection = select.top(self.view, acquisition, q, rng)
        elif mode == "sequential" and answer is not None:
            label = lambda place: task.targets([answer(place)])[0]  # noqa: E731
            selection = select.sequential(self.view, acquisition, q, label, rng)
        else:  # There is no most likely answer, as there is a most likely class.
            selection = select.greedy(self.view, acquisition, q, rng, hypothetical_label="mean")
        return self.points[selection.positions.cpu()], selection.scores.cpu()
