"""Whom to ask next: the gain of a pair (item, source) in closed form, and what it costs.

A label of source s at item x' is the item's true value plus an error of variance τ²_s, which is zero
for a careful person. The true value is g(x') = f(x') + δ(x'), where δ, of variance σ (the noise of
the posterior), is what the kernel cannot represent of this item. δ is the same in every label of an
item; errors are independent. With v = Var g(x'), c(x) = Cov(g(x'), f(x)) and u = v + τ²_s,

    explained variance of f(x):   c(x)²/u                                    (`variance`)
    fall of the 0/1 error at x:   gain(h, ρ²),  ρ² = c(x)²/(u k(x,x))         (`resolve`)

where k is the posterior covariance of f, and for an item whose labels so far have errors of the
combined variance τ² (infinite if there are none)

    r = τ²/(σ + τ²),   c(x) = r k(x,x'),   v = r² k(x',x') + r σ.

So an item that a careful person has labelled has r = 0 and is never queried again, while one with
an uncertain label is a candidate like any other.

A source that gives a wrong class with probability e, the others being equally likely, gives one-hot
targets whose mean is 1/C + s (truth − 1/C) with s = 1 − e C/(C−1). Divided by s (`unbiased_targets`),
they are the truth plus an error with the variance 1/s² − 1 relative to that of the truth, which is
the mapping used here. s = 0, the source that guesses, has an infinite variance.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, overload

import torch
from torch import Tensor

from labelahead.acquisition.functions import tabulate_gain
from labelahead.errors import InputError, did_you_mean
from labelahead.gp.checks import Positions
from labelahead.gp.posterior import Posterior

__all__ = [
    "LabelSource",
    "SourceQuery",
    "SourceView",
    "parse_prices",
    "retained_signal",
    "select_pairs",
    "source_view",
    "unbiased_targets",
]

GAIN_NAMES = ("resolve", "variance")
ROWS_PER_BLOCK = 256
# Gains below this share of an item are rounding: not worth a label, even of a free source.
MIN_GAIN = 1e-9


@dataclass(frozen=True)
class LabelSource:
    """A person, a language model or a file that gives labels at a price.

    Attributes:
        name: Its name.
        price: Of one label, in any unit; 0: free.
        error_rate: Share of wrong labels, from 0 to 1.
        noise: Variance of its errors, relative to the variance of the true targets; None: from the
            error rate (see the module).

    >>> anna = la.acquisition.LabelSource("anna", price=0.10)
    >>> model = la.acquisition.LabelSource("llm", price=0.001, error_rate=0.25)
    >>> anna.relative_noise(4), round(model.relative_noise(4), 3)
    (0.0, 1.25)
    """

    name: str
    price: float = 1.0
    error_rate: float = 0.0
    noise: float | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("the name of a source is empty; expected a name such as 'anna'")
        if not (math.isfinite(self.price) and self.price >= 0):
            raise InputError(
                f"the price of {self.name} is {self.price}; expected a number >= 0, per label"
            )
        if not 0 <= self.error_rate <= 1:
            raise InputError(
                f"error_rate of {self.name} is {self.error_rate}; expected a share of wrong labels, "
                "from 0 to 1"
            )
        if self.noise is not None and not self.noise >= 0:
            raise InputError(f"noise of {self.name} is {self.noise}; expected a number >= 0")

    def relative_noise(self, classes: int) -> float:
        """Return the variance of its errors relative to that of the true targets."""
        if self.noise is not None:
            return self.noise
        s = retained_signal(self.error_rate, classes)
        return math.inf if s <= 0 else 1 / s**2 - 1


@overload
def retained_signal(error_rate: float, classes: int) -> float: ...


@overload
def retained_signal(error_rate: Tensor, classes: int) -> Tensor: ...


def retained_signal(error_rate: float | Tensor, classes: int) -> float | Tensor:
    """Return s = 1 − e C/(C−1): the mean of a source's one-hot targets is 1/C + s (truth − 1/C)."""
    return 1 - error_rate * classes / (classes - 1)


def unbiased_targets(labels: Tensor, classes: int, error_rate: float | Tensor) -> Tensor:
    """Return targets (q, C) of an unreliable source whose mean is the true one-hot target.

    Args:
        labels: (q,) class numbers.
        classes: C.
        error_rate: Share of wrong labels, one or (q,), below (C−1)/C.

    >>> la.acquisition.unbiased_targets(torch.tensor([1]), 2, 0.25).tolist()
    [[-0.5, 1.5]]
    """
    e = torch.as_tensor(error_rate, dtype=torch.float64).expand(len(labels))
    s = retained_signal(e, classes)
    if bool((s <= 0).any()):
        raise InputError(
            f"error_rate is {float(e.max()):.3g} for {classes} classes; expected less than "
            f"{1 - 1 / classes:.3g}: labels that are wrong more often than guesses carry no information "
            "of this kind"
        )
    one_hot = torch.nn.functional.one_hot(labels, classes).double()
    return 1 / classes + (one_hot - 1 / classes) / s[:, None]


class SourceQuery(NamedTuple):
    """A label to ask for: of which item, of whom, its expected gain, and its price.

    >>> careful = la.acquisition.LabelSource("anna", price=0.10)
    >>> query = la.acquisition.select_pairs(la.acquisition.source_view(post, [2, 3]), [careful], 1)[0]
    >>> isinstance(query, la.acquisition.SourceQuery), query.source, query.price
    (True, 'anna', 0.1)
    """

    position: int
    source: str
    gain: float  # of `resolve`: items of the evaluation set whose prediction becomes right
    price: float


@dataclass(frozen=True, eq=False)
class SourceView:
    """What the gain of a pair depends on; from `source_view`. `condition` returns another one.

    >>> before = la.acquisition.source_view(post, [2, 3, 4])
    >>> after = before.condition(0, la.acquisition.LabelSource("anna"))  # item 2 is given to her
    >>> isinstance(after, la.acquisition.SourceView), bool((after.variance <= before.variance).all())
    (True, True)

    Attributes:
        posterior: Before the labels that `condition` has assumed.
        candidates: (m,) positions that may be labelled, also labelled ones.
        evaluation: (e,) positions whose predictions matter.
        cross: (m, e) k(x',x).
        variance: (m,) k(x',x').
        evaluation_variance: (e,) k(x,x).
        label_noise: (m,) τ² of the labels of each candidate so far; infinite if it has none.
        own_gap: (m,) gap between the two largest means of g at the candidates.
        include_candidate: Whether x = x' counts.
        variance_scale: Factor on the amplitude.
        steps: (t, m) factor rows of the assumed labels at the candidates.
    """

    posterior: Posterior
    candidates: Tensor
    evaluation: Tensor
    cross: Tensor
    variance: Tensor
    evaluation_variance: Tensor
    label_noise: Tensor
    own_gap: Tensor
    include_candidate: bool
    variance_scale: float
    steps: Tensor

    @property
    def retained(self) -> Tensor:
        """(m,) r: the share of k(x,x') that the covariance of g(x') and f(x) keeps."""
        noise = self.label_noise
        limit = torch.ones_like(noise)
        return torch.where(
            noise.isinf(), limit, noise / (noise + self.posterior.noise).clamp_min(1e-300)
        )

    @property
    def value_variance(self) -> Tensor:
        """(m,) v = Var g(x')."""
        r = self.retained
        return r.square() * self.variance + r * self.posterior.noise

    def absolute_noise(self, source: LabelSource) -> float:
        """Return τ²_s in the units of the kernel."""
        relative = source.relative_noise(self.posterior.classes)
        return relative * (self.posterior.scale + self.posterior.noise) if relative else 0.0

    def gains(self, sources: Sequence[LabelSource], gain: str = "resolve") -> Tensor:
        """Return the gain of every pair: (m, S) float64.

        Args:
            sources: The sources.
            gain: "resolve": the expected number of evaluation points whose prediction becomes
                right; "variance": the variance that a label explains, summed over them.
        """
        if gain not in GAIN_NAMES:
            raise InputError(f"gain is {gain!r}; expected one of {', '.join(GAIN_NAMES)}")
        v = self.value_variance
        out = v.new_zeros((len(v), len(sources)))
        for column, source in zip(out.unbind(1), sources, strict=True):
            noise = self.absolute_noise(source)
            if math.isinf(noise):  # it only guesses
                continue
            precision = torch.where(v > 0, (v + noise).clamp_min(1e-300).reciprocal(), 0.0)
            sums = self._sum_resolved if gain == "resolve" else self._sum_variance
            column.copy_(torch.where(v > 0, sums(precision), 0.0))
        return out

    def _blocks(self) -> list[tuple[Tensor, Tensor]]:
        """Rows of candidates, and c(x)² (rows, e) with zeros where x = x'."""
        blocks = []
        for rows in torch.split(torch.arange(len(self.candidates)), ROWS_PER_BLOCK):
            squares = (self.retained[rows, None] * self.cross[rows]).square_()
            squares[self.candidates[rows, None] == self.evaluation] = 0.0
            blocks.append((rows, squares))
        return blocks

    def _sum_variance(self, precision: Tensor) -> Tensor:
        out = torch.cat([squares.sum(1) * precision[rows] for rows, squares in self._blocks()])
        return out + self.value_variance.square() * precision if self.include_candidate else out

    def _sum_resolved(self, precision: Tensor) -> Tensor:
        tiny = 1e-14 * self.posterior.scale
        around = self.evaluation_variance.clamp_min(tiny)
        spread = 2 * self.variance_scale * self.posterior.amplitude()
        top = self.posterior.mean[self.evaluation].topk(2, dim=1).values
        gain = tabulate_gain((top[:, 0] - top[:, 1]) / (spread * around).sqrt())
        out = torch.cat(
            [
                gain((squares * precision[rows, None] / around).clamp_(0.0, 1.0)).sum(1)
                for rows, squares in self._blocks()
            ]
        )
        if not self.include_candidate:
            return out
        v = self.value_variance
        own = tabulate_gain(self.own_gap / (spread * v.clamp_min(tiny)).sqrt())
        return out + torch.where(v > 0, own((v * precision)[None].clamp(0.0, 1.0))[0], 0.0)

    def condition(self, candidate: int, source: LabelSource) -> "SourceView":
        """Return the view after a label of `candidate`, a row of `candidates`, by a source.

        The label is assumed to be its own mean: the covariance changes, predictions do not.
        """
        noise = self.absolute_noise(source)
        r = float(self.retained[candidate])
        u = float(self.value_variance[candidate]) + noise
        if math.isinf(noise) or not u > 0 or r == 0:
            return self
        covariance = self.posterior.covariance_block(
            self.candidates, self.candidates[[candidate]]
        ).double()[:, 0]
        covariance = covariance - self.steps.T @ self.steps[:, candidate]
        row = covariance * (r / math.sqrt(u))
        across = self.cross[candidate] * (r / math.sqrt(u))
        before = float(self.label_noise[candidate])
        both = noise if math.isinf(before) else before * noise / (before + noise)
        return replace(
            self,
            cross=torch.addr(self.cross, row, across, alpha=-1),
            variance=(self.variance - row.square()).clamp_min(0.0),
            evaluation_variance=(self.evaluation_variance - across.square()).clamp_min(0.0),
            label_noise=self.label_noise.index_fill(0, torch.tensor([candidate]), both),
            steps=torch.cat([self.steps, row[None]]),
        )


def source_view(
    posterior: Posterior,
    candidates: Positions,
    evaluation: Positions | None = None,
    *,
    label_noise: Tensor | None = None,
    include_candidate: bool = False,
    variance_scale: float = 1.0,
) -> SourceView:
    """Build the view of a posterior for `select_pairs`.

    It stores k(candidates, evaluation), m·e numbers: give a sample of a large pool.

    Args:
        posterior: The present posterior, of a scalar kernel.
        candidates: (m,) distinct positions that may be labelled, also labelled ones.
        evaluation: (e,) positions whose predictions matter; default: the candidates.
        label_noise: (m,) variance of the errors in the labels that the candidates have, infinite
            where there is none; default: what the posterior's noise per label exceeds its own noise
            by.
        include_candidate: Whether the item itself counts. A label of an unlabelled item by a
            careful person settles it: set it if all that matters are the items at hand.
        variance_scale: Factor on the amplitude.

    >>> pairs = la.acquisition.source_view(post, [1, 2, 3, 4])  # item 1 has a careful label
    >>> careful, cheap = la.acquisition.LabelSource("anna"), la.acquisition.LabelSource("llm", error_rate=0.3)
    >>> gains = pairs.gains([careful, cheap])
    >>> gains.shape, bool((gains[0] == 0).all()), bool((gains[1:, 0] > gains[1:, 1]).all())
    (torch.Size([4, 2]), True, True)
    """
    if posterior.width != 1 or posterior.classes < 2:
        raise InputError(
            f"the posterior has {posterior.classes} outputs and {posterior.width} kernel rows per "
            "point; expected two or more outputs and a scalar kernel"
        )
    if not variance_scale > 0:
        raise InputError(f"variance_scale is {variance_scale}; expected a positive number")
    at = posterior.check_positions(candidates, "candidates")
    over = at if evaluation is None else posterior.check_positions(evaluation, "evaluation")
    if label_noise is None:
        label_noise = _combine_label_errors(posterior)[0][at]
    elif label_noise.shape != at.shape or not bool((label_noise >= 0).all()):
        raise InputError(
            f"label_noise has shape {tuple(label_noise.shape)}; expected ({len(at)},) variances >= 0"
        )
    view = SourceView(
        posterior,
        at,
        over,
        posterior.covariance_block(at, over).double(),
        posterior.variance()[at],
        posterior.variance()[over],
        label_noise.double(),
        torch.zeros(len(at), dtype=torch.float64),
        include_candidate,
        variance_scale,
        torch.zeros((0, len(at)), dtype=torch.float64),
    )
    return replace(view, own_gap=_own_gap(view))


def _combine_label_errors(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Return the error variance τ² (n,) of the labels of each point, combined, and their mean (n, C).

    τ² of a label is what its noise exceeds σ by; infinite without a label.
    """
    positions, targets = posterior.all_labels()
    parts = [(posterior.label_noise, len(posterior.labelled))]
    if posterior.nystrom_labels is not None:
        first = posterior.nystrom_labels
        parts.insert(0, (first.label_noise, len(first.positions)))
    noise = [targets.new_full((n,), posterior.noise) if x is None else x for x, n in parts]
    # Careful labels have an error of zero, up to rounding; a positive one keeps sums finite.
    tiny = 1e-12 * posterior.scale
    weight = (torch.cat(noise) - posterior.noise).clamp_min(tiny).reciprocal()
    precision = posterior.mean.new_zeros(posterior.points).index_add_(0, positions, weight)
    total = torch.zeros_like(posterior.mean).index_add_(0, positions, weight[:, None] * targets)
    error = precision.reciprocal()
    error = torch.where(error <= tiny, 0.0, error)
    return error, total / precision.clamp_min(1e-300)[:, None]


def _own_gap(view: SourceView) -> Tensor:
    """Gap between the two largest means of g, r f_lin + (1 − r) y: (m,)."""
    mean, r = view.posterior.mean[view.candidates], view.retained
    label = _combine_label_errors(view.posterior)[1][view.candidates]
    top = (r[:, None] * mean + (1 - r)[:, None] * label).topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


def select_pairs(
    view: SourceView,
    sources: Sequence[LabelSource],
    n: int,
    *,
    budget: float | None = None,
    value: float | None = None,
    gain: str = "resolve",
    given: Collection[tuple[int, str]] = (),
) -> list[SourceQuery]:
    """Select up to n labels to ask for, one by one: the pair with the largest gain per price.

    Free labels with any gain come first. Each selection assumes the labels selected before it, so
    that an item may be given to two sources; none is asked twice about an item, since it would
    repeat its error.

    Args:
        view: From `source_view`.
        sources: With different names.
        n: Number of labels, at most.
        budget: Total price, at most.
        value: What a point of accuracy over the evaluation points is worth, in the unit of the
            prices: labels that cost more than their gain is worth are not selected.
        gain: See `SourceView.gains`; a value needs "resolve".
        given: Labels that there are already, as pairs of position and name of the source.

    Returns:
        The labels in the order of selection; fewer than n if no other is worth its price.

    >>> sources = [la.acquisition.LabelSource("anna", 0.10), la.acquisition.LabelSource("llm", 0.001, error_rate=0.3)]
    >>> pairs = la.acquisition.source_view(post, [2, 3, 4, 5])
    >>> [q.source for q in la.acquisition.select_pairs(pairs, sources, 2)]
    ['llm', 'llm']
    """
    _check_selection(sources, n, budget, value, gain)
    chosen: list[SourceQuery] = []
    names = [s.name for s in sources]
    row = {position: i for i, position in enumerate(view.candidates.tolist())}
    closed = torch.zeros(len(row), len(sources), dtype=torch.bool)
    for position, name in given:
        if position in row and name in names:
            closed[row[position], names.index(name)] = True
    left = math.inf if budget is None else budget
    for _ in range(n):
        # The tolerance lets ten labels of 0.1 fit into a budget of 1.
        for which, source in enumerate(sources):
            if source.price > left + 1e-9 * max(source.price, abs(left)):
                closed[:, which] = True
        best = _best_pair(view, sources, closed, value, gain)
        if best is None:
            break
        candidate, which, found = best
        source = sources[which]
        closed[candidate, which] = True
        chosen.append(
            SourceQuery(int(view.candidates[candidate]), source.name, found, source.price)
        )
        left -= source.price
        view = view.condition(candidate, source)
    return chosen


def _best_pair(
    view: SourceView, sources: Sequence[LabelSource], closed: Tensor, value: float | None, gain: str
) -> tuple[int, int, float] | None:
    """Return row, column and gain of the best pair that is not closed (m, S); None if none pays."""
    gains = view.gains(sources, gain)
    price = gains.new_tensor([s.price for s in sources])
    worth = ~closed & (gains > MIN_GAIN * (1.0 if gain == "resolve" else view.posterior.scale**2))
    if value is not None:
        worth &= value * 100 * gains / len(view.evaluation) >= price
    if not bool(worth.any()):
        return None
    free = worth & (price == 0)
    score = gains if bool(free.any()) else gains / price
    score = torch.where(free if bool(free.any()) else worth, score, -math.inf)
    best = int(score.argmax())
    candidate, which = divmod(best, len(sources))
    return candidate, which, float(gains[candidate, which])


def _check_selection(
    sources: Sequence[LabelSource], n: int, budget: float | None, value: float | None, gain: str
) -> None:
    names = [s.name for s in sources]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"the sources are {', '.join(names) or 'none'}; expected at least one, with different "
            "names"
        )
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"{n!r} labels requested; expected a whole number from 1 on")
    for name, given in (("budget", budget), ("value", value)):
        if given is not None and not given >= 0:
            raise InputError(f"{name} is {given}; expected a number >= 0")
    if value is not None and gain != "resolve":
        raise InputError(f"a value per point of accuracy needs gain 'resolve', not {gain!r}")


def parse_prices(text: str, known: Sequence[str] = ()) -> dict[str, float]:
    """Parse prices per label such as "anna=0.10,llm=0.001".

    Args:
        text: Pairs NAME=PRICE, separated by commas.
        known: Names of the sources; default: any.

    >>> la.acquisition.parse_prices("anna=0.10, llm=0.001")
    {'anna': 0.1, 'llm': 0.001}
    """
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not equals or not name or not math.isfinite(price) or price < 0:
            raise InputError(
                f"the price {part.strip()!r} is not NAME=PRICE with a number >= 0; expected prices "
                "per label such as anna=0.10,llm=0.001"
            )
        if name in prices:
            raise InputError(f"{name} has two prices; expected one for each source")
        if known and name not in known:
            raise InputError(
                f"there is no source {name!r}; {did_you_mean(name, known)}expected prices of "
                f"{', '.join(known)}"
            )
        prices[name] = price
    return prices
