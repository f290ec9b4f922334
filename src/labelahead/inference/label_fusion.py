"""Combine a few labels of people with many of an unreliable source, such as a language model.

`labelahead.inference.sources` is about sources of equal standing, whose error rates are all unknown
and the same for all of their labels: it is part of every fit of the exact learner. This module is
about whether to ask once more (`labelahead route`, simulated sources): people's error rate is given,
that of the other source depends on its stated confidence, and the result is a probability of every
class for every item, labelled or not. The mapping from error rate to target and noise is that of
`labelahead.acquisition.sources` in both.

The labels of both condition one posterior. The targets of the unreliable source are unbiased and noisier by
1/s² − 1 (`labelahead.acquisition.sources`), with the error rate of each of its labels, so that its
errors average out over similar items. The truth of item x then is

    P(y | x, labels) ∝ ( P_loo(y | x) · P(l | y) · P(h | y) )^T

where P_loo predicts x from the labels of all other items, l is the item's label by the unreliable
source and h that by a person. The error rate of l depends on the stated confidence (a logistic
regression), and which class is given instead of which on a confusion matrix: both are estimated
from people's labels and, weighted by its probabilities, from the model. T < 1 allows for errors
that the source and the model have in common; it is estimated from people's labels.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from labelahead.acquisition.sources import retained_signal
from labelahead.errors import InputError
from labelahead.gp.calibration import gaussian_class_probabilities, predict_leave_one_out
from labelahead.gp.nystrom import evenly_spaced
from labelahead.gp.posterior import Posterior, prior
from labelahead.inference.mixture import mix_kernels, mixture_kernel

__all__ = ["FusedLabels", "LabelEvidence", "expect_accuracy", "fuse_labels"]

WEIGHTS = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.5, 0.5), (0.0, 0.0, 1.0))
NOISES = (0.03, 0.1, 0.3, 1.0)
MAX_SELECTION_LABELS = 250  # by which kernel and noise are chosen; the cost is cubic
MAX_CONDITIONED_LABELS = 1000  # further labels of the unreliable source still count for their item
SCALES = (0.15, 0.25, 0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2, 3.0)
TEMPERATURES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
# Before people have labelled anything, T is the mean of a prior worth so many labels.
PRIOR_TEMPERATURE, PRIOR_TEMPERATURE_DEVIATION = 0.7, 0.1
START_ERROR = 0.35  # of the unreliable source, before it is estimated
MAX_ERROR_SHARE = 0.93  # of (C−1)/C: beyond, a label counts as nothing
ROUNDS = 2
EM_STEPS, NEWTON_STEPS = 3, 8
# Prior of the logistic regression of "is right" on the log-odds of the confidence.
COEFFICIENT_MEAN, COEFFICIENT_PRECISION = (0.8, 0.5), (0.25, 4.0)
# What the model believes about an item counts as so many labels of people: it errs where the source
# errs. Chosen on seeds 100 and 101 of `research.results.routing`, as the temperature was.
MODEL_WEIGHT = 0.2
ITEMS_PER_BLOCK = 256
CONFUSION_PRIOR = 2.0  # labels, spread over the classes given instead of a class


@dataclass(frozen=True, eq=False)
class LabelEvidence:
    """What was said about the items.

    Attributes:
        people: (n,) class numbers by people; −1: none.
        guesses: (n,) class numbers by the unreliable source; −1: none.
        confidence: (n,) its stated probability of the class; None: always the same.
        person_error: Share of wrong labels of people.
    """

    people: Tensor
    guesses: Tensor
    confidence: Tensor | None = None
    person_error: float = 0.0


@dataclass(frozen=True, eq=False)
class FusedLabels:
    """The classes of all items, given everything that was said.

    Attributes:
        probabilities: (n, C) with all labels.
        model_probabilities: (n, C) from the labels of all other items.
        guess_error: (n,) error rate of the guess about each item, also of items without one.
        confusion: (C, C) P(guess = column | class = row).
        posterior: Of f, along the items.
        label_noise: (n,) τ² of the labels of each item, for `source_view`; infinite without any.
        temperature: T.
    """

    probabilities: Tensor
    model_probabilities: Tensor
    guess_error: Tensor
    confusion: Tensor
    posterior: Posterior
    label_noise: Tensor
    temperature: float


def fuse_labels(
    units: Tensor,
    evidence: LabelEvidence,
    classes: int,
    *,
    max_conditioned: int = MAX_CONDITIONED_LABELS,
) -> FusedLabels:
    """Estimate the classes of all items from the labels of people and of an unreliable source.

    Args:
        units: (n, d) unit features of the items (`ExactModel.normalise_rows`).
        evidence: The labels.
        classes: C.
        max_conditioned: Labels of the unreliable source that the posterior is conditioned on.

    Raises:
        InputError: If there is no label at all, or shapes do not fit.
    """
    _check_evidence(evidence, len(units), classes)
    units = units.double()
    error = torch.full((len(units),), START_ERROR, dtype=torch.float64)
    kernel: tuple[tuple[float, ...], float] | None = None
    for _ in range(ROUNDS if bool((evidence.guesses >= 0).any()) else 1):
        at, targets, noise = _combine_targets(evidence, error, classes, max_conditioned)
        kernel = _choose_kernel(units, at, targets, noise)
        weights, base = kernel
        start = prior(
            torch.full((len(units), classes), 1 / classes, dtype=torch.float64),
            mixture_kernel(units, weights),
            noise=base,
        )
        post = start.condition(at, targets + 1 / classes, noise=base + noise * (1 + base))
        model_p = _predict_from_others(post, at, evidence, error)
        error, confusion, likelihood = _estimate_guesser(model_p, evidence)
    unscaled, seen = _multiply_evidence(model_p, evidence, likelihood, with_people=False)
    temperature = _fit_temperature(unscaled, evidence)
    both, _ = _multiply_evidence(model_p, evidence, likelihood, with_people=True)
    p = torch.where(seen[:, None], torch.softmax(temperature * both, 1), model_p)
    p = torch.where((evidence.people >= 0)[:, None], torch.softmax(both, 1), p)
    label_noise = torch.full((len(units),), math.inf, dtype=torch.float64)
    label_noise[at] = noise * (1 + base) * post.scale
    return FusedLabels(p, model_p, error, confusion, post, label_noise, temperature)


def expect_accuracy(probabilities: Tensor, confusion: Tensor, temperature: float = 1.0) -> Tensor:
    """Return Σ_l P(l) max_y P(y | l): the expected accuracy (q,) after one more label l of each item.

    Args:
        probabilities: (q, C) of the classes before the label.
        confusion: (C, C) P(label = column | class = row).
        temperature: T, by which P(y | l) is flattened.
    """
    parts = []
    for p in torch.split(probabilities, ITEMS_PER_BLOCK):
        joint = p[:, :, None] * confusion  # (q, class, label)
        shaped = torch.softmax(temperature * joint.clamp_min(1e-12).log(), 1)
        parts.append((joint.sum(1) * shaped.amax(1)).sum(1))
    return torch.cat(parts)


def _check_evidence(evidence: LabelEvidence, n: int, classes: int) -> None:
    for name in ("people", "guesses", "confidence"):
        values = getattr(evidence, name)
        if values is None:
            continue
        if values.shape != (n,):
            raise InputError(f"{name} has shape {tuple(values.shape)}; expected ({n},)")
        if name != "confidence" and not -1 <= int(values.min()) <= int(values.max()) < classes:
            raise InputError(f"{name} holds classes outside 0 to {classes - 1}; expected -1: none")
        if name == "confidence" and not bool(torch.isfinite(values[evidence.guesses >= 0]).all()):
            raise InputError("confidence holds NaN where there is a guess; expected numbers")
    if not bool(((evidence.people >= 0) | (evidence.guesses >= 0)).any()):
        raise InputError("there is no label and no guess; expected some")
    if not 0 <= evidence.person_error < 1 - 1 / classes:
        raise InputError(
            f"the error rate of people is {evidence.person_error}; expected less than guessing"
        )


def _combine_targets(
    evidence: LabelEvidence,
    error: Tensor,
    classes: int,
    max_conditioned: int = MAX_CONDITIONED_LABELS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return labelled positions (L,), centred targets (L, C), and the variance of their errors (L,).

    The variances are relative to those of the targets. Two labels of an item count by precision.
    """
    n = len(evidence.people)
    total = torch.zeros(n, classes, dtype=torch.float64)
    precision = torch.zeros(n, dtype=torch.float64)
    person = torch.full_like(error, evidence.person_error)
    guesses = evidence.guesses.clone()
    given = (guesses >= 0).nonzero()[:, 0]
    if len(given) > max_conditioned:
        kept = given[evenly_spaced(len(given), max_conditioned)]
        guesses = torch.full_like(guesses, -1).index_copy_(0, kept, guesses[kept])
    for labels, errors in ((evidence.people, person), (guesses, error)):
        at = (labels >= 0).nonzero()[:, 0]
        e = errors[at].clamp_max(MAX_ERROR_SHARE * (classes - 1) / classes)
        s = retained_signal(e, classes)
        weight = (1 / s.square() - 1).clamp_min(1e-3).reciprocal()
        centred = F.one_hot(labels[at], classes).double() - 1 / classes
        total[at] += (weight / s)[:, None] * centred
        precision[at] += weight
    at = (precision > 0).nonzero()[:, 0]
    return at, total[at] / precision[at, None], precision[at].reciprocal()


def _choose_kernel(
    units: Tensor, at: Tensor, targets: Tensor, noise: Tensor
) -> tuple[tuple[float, ...], float]:
    """Choose kernel weights and noise by leave-one-out predictive density on evenly spaced labels."""
    some = evenly_spaced(len(at), min(MAX_SELECTION_LABELS, len(at)))
    chosen, y, extra = units[at[some]], targets[some], noise[some]
    cosines = (chosen @ chosen.T).fill_diagonal_(1.0)
    best, least = (WEIGHTS[0], NOISES[1]), -math.inf
    if len(some) < 2:
        return best
    for weights in WEIGHTS:
        kernel = mix_kernels(cosines, weights)
        for base in NOISES:
            inverse = torch.linalg.inv(kernel + torch.diag(base + extra * (1 + base)))
            alpha, scale = inverse @ y, inverse.diagonal()
            amplitude = (y * alpha).sum() / y.numel()
            misfit = (alpha.square().sum(1) / (scale * amplitude)).sum()
            density = -0.5 * misfit - 0.5 * y.shape[1] * (amplitude / scale).log().sum()
            if float(density) > least:
                best, least = (weights, base), float(density)
    return best


def _predict_from_others(
    post: Posterior, at: Tensor, evidence: LabelEvidence, error: Tensor
) -> Tensor:
    """Return P_loo (n, C), with the variance scale that makes the labels most probable."""
    mean, variance = post.mean.clone(), post.variance().clone()
    if len(at) > 1:
        mean[at], variance[at] = predict_leave_one_out(post)
    spread = post.amplitude() * variance.clamp_min(1e-9)
    people = evidence.people[at] >= 0
    label = torch.where(people, evidence.people[at], evidence.guesses[at])
    wrong = torch.where(people, torch.tensor(evidence.person_error).double(), error[at])
    fits = []
    for scale in SCALES:
        p = gaussian_class_probabilities(mean[at], scale**2 * spread[at])
        own = p.gather(1, label[:, None])[:, 0]
        likelihood = (1 - wrong) * own + wrong / (p.shape[1] - 1) * (1 - own)
        fits.append(float(likelihood.clamp_min(1e-12).log().sum()))
    scale = SCALES[max(range(len(SCALES)), key=fits.__getitem__)]
    return gaussian_class_probabilities(mean, scale**2 * spread)


def _estimate_guesser(model_p: Tensor, evidence: LabelEvidence) -> tuple[Tensor, Tensor, Tensor]:
    """Estimate the error rate (n,), confusion (C, C) and likelihood (n, C) of the guesses."""
    n, classes = model_p.shape
    people, given = evidence.people >= 0, evidence.guesses >= 0
    truth = model_p.clone()
    hit = F.one_hot(evidence.people.clamp_min(0), classes).double()
    e = evidence.person_error
    truth[people] *= (hit * (1 - e) + (1 - hit) * e / (classes - 1))[people]
    truth = truth / truth.sum(1, keepdim=True).clamp_min(1e-300)
    guess = evidence.guesses.clamp_min(0)
    confidence = torch.full((n,), 0.9) if evidence.confidence is None else evidence.confidence
    odds = torch.logit(confidence.double().nan_to_num(0.9).clamp(0.01, 0.99))
    x = torch.stack([torch.ones_like(odds), odds], 1)
    beta = torch.tensor(COEFFICIENT_MEAN, dtype=torch.float64)
    weight = torch.where(people, 1.0, MODEL_WEIGHT).double()
    believed, off = truth, torch.ones(classes, classes, dtype=torch.float64)
    for _ in range(EM_STEPS):
        counts = torch.zeros(classes, classes, dtype=torch.float64)  # (guess, class)
        counts.index_add_(0, guess[given], believed[given] * weight[given, None])
        off = counts.T + CONFUSION_PRIOR / (classes - 1)
        off.fill_diagonal_(0.0)
        off = off / off.sum(1, keepdim=True)
        right = believed.gather(1, guess[:, None])[:, 0]
        beta = _fit_logistic(x[given], right[given], weight[given], beta)
        error = 1 - torch.sigmoid(x @ beta)
        likelihood = off[:, guess].T * error[:, None]
        likelihood[torch.arange(n), guess] = 1 - error
        believed = torch.where(given[:, None], truth * likelihood, truth)
        believed = believed / believed.sum(1, keepdim=True).clamp_min(1e-300)
    average = float(error[given].mean()) if bool(given.any()) else START_ERROR
    error = torch.where(given, error, average)
    confusion = off * average + torch.eye(classes, dtype=torch.float64) * (1 - average)
    return error, confusion, torch.where(given[:, None], likelihood, 1.0)


def _fit_logistic(x: Tensor, y: Tensor, weight: Tensor, beta: Tensor) -> Tensor:
    """Fit P(y = 1) = σ(x β) to weighted soft labels (q,) by Newton steps, with a Gaussian prior."""
    mean = torch.tensor(COEFFICIENT_MEAN, dtype=torch.float64)
    precision = torch.tensor(COEFFICIENT_PRECISION, dtype=torch.float64)

    def loss(b: Tensor) -> float:
        z = x @ b
        misfit = weight * (F.softplus(z) - y * z)
        return float(misfit.sum() + (precision * (b - mean).square()).sum() / 2)

    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(x @ beta)
        slope = x.T @ (weight * (y - p)) - precision * (beta - mean)
        curvature = (x * (weight * p * (1 - p))[:, None]).T @ x + precision.diag()
        step, before = torch.linalg.solve(curvature, slope), loss(beta)
        # A full Newton step can overshoot to where the curve is flat, and never come back.
        while loss(beta + step) > before and float(step.abs().max()) > 1e-9:
            step = step / 2
        beta = beta + step
    return beta


def _multiply_evidence(
    model_p: Tensor, evidence: LabelEvidence, likelihood: Tensor, *, with_people: bool
) -> tuple[Tensor, Tensor]:
    """Return log P_loo + log P(l | y) (+ log P(h | y)) (n, C), and which items have a guess (n,)."""
    out = model_p.clamp_min(1e-12).log() + likelihood.clamp_min(1e-12).log()
    if with_people:
        people, classes = evidence.people, model_p.shape[1]
        hit = F.one_hot(people.clamp_min(0), classes).double()
        e = max(evidence.person_error, 1e-9)
        given = hit * math.log1p(-e) + (1 - hit) * math.log(e / (classes - 1))
        out = torch.where((people >= 0)[:, None], out + given, out)
    return out, evidence.guesses >= 0


def _fit_temperature(log_p: Tensor, evidence: LabelEvidence) -> float:
    """Return the T that makes people's labels most probable, given everything else."""
    at = ((evidence.people >= 0) & (evidence.guesses >= 0)).nonzero()[:, 0]
    fits = []
    for t in TEMPERATURES:
        p = torch.softmax(t * log_p[at], 1).gather(1, evidence.people[at, None])[:, 0]
        e = evidence.person_error
        likelihood = (1 - e) * p + e / (log_p.shape[1] - 1) * (1 - p)
        near = ((t - PRIOR_TEMPERATURE) / PRIOR_TEMPERATURE_DEVIATION) ** 2 / 2
        fits.append(float(likelihood.clamp_min(1e-12).log().sum()) - near)
    return TEMPERATURES[max(range(len(fits)), key=fits.__getitem__)]
