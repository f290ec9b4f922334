"""Reliability of sources against loops and simulations; labels of several sources against refits."""

import math

import pytest
import torch
from torch.nn import functional as F

import labelahead as la
from labelahead.data.dataset import NONE_OF_THESE
from labelahead.errors import InputError
from labelahead.gp.calibration import gaussian_class_probabilities
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import exact
from labelahead.inference.mixture import mix_kernels
from labelahead.inference.pool_posterior import PoolPosterior, PosteriorOptions
from labelahead.inference.sources import (
    LAPSE_GRID,
    Annotations,
    ItemLabels,
    average_labels,
    combine_sources,
    estimate_sources,
)

C = 4


def simulate(rates, per_item, n=90, seed=0):
    """Clouds of C classes; each item is labelled by `per_item` sources in turn, wrong at a rate."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, C, (2 * n,), generator=rng)
    centres = 1.2 * torch.randn(C, 12, generator=rng)
    x = centres[truth] + torch.randn(2 * n, 12, generator=rng)
    rows = []
    for i in range(n):
        for k in range(per_item):
            s = (i + k) % len(rates)
            wrong = float(torch.rand(1, generator=rng)) < rates[s]
            other = (int(truth[i]) + int(torch.randint(1, C, (1,), generator=rng))) % C
            rows.append((i, other if wrong else int(truth[i]), f"source {s}"))
    return x.double(), truth, Annotations.from_rows(rows)


def majority(annotations, n):
    labels = torch.zeros(n, dtype=torch.int64)
    for i in range(n):
        labels[i] = annotations.labels[annotations.positions == i].mode().values
    return labels


def make_learner(x, annotations=None):
    return ExactLearner(x, exact(x, C), annotations=annotations)


def test_likelihood_and_lapse_equal_loops_over_items():
    rng = torch.Generator().manual_seed(1)
    mean, variance = torch.randn(6, C, generator=rng).double(), torch.full((6,), 0.4).double()
    item = torch.tensor([0, 0, 1, 2, 3, 3, 4, 5, 5, 1])
    labels = torch.randint(0, C, (10,), generator=rng)
    source = torch.tensor([0, 1, 0, 1, 0, 1, 0, 0, 1, 1])
    found = estimate_sources(mean, variance, ItemLabels(6, item, labels, source, 2))

    def likelihood(p, lapse):
        total = 0.0
        for i in range(6):
            chance = 0.0
            for b in range(C):
                term = float(p[i, b])
                for j in range(10):
                    if item[j] == i:
                        own = lapse[int(source[j])]
                        term *= (1 - own) * (int(labels[j]) == b) + own / C
                chance += term
            total += math.log(chance)
        return total

    from labelahead.inference.sources import PRIOR_LABELS, SCALES, SWEEPS

    options = []
    for scale in SCALES:
        p = gaussian_class_probabilities(mean, scale**2 * variance).clamp_min(1e-9)
        options += [(likelihood(p, [x, x]), x, p) for x in LAPSE_GRID]
    _, common, p = max(options, key=lambda row: row[0])
    lapse = [common, common]
    for _ in range(SWEEPS):
        for s in range(2):
            logs = []
            for x in LAPSE_GRID:
                tried = [x if t == s else lapse[t] for t in range(2)]
                prior = common * math.log(x) + (1 - common) * math.log(1 - x)
                logs.append(likelihood(p, tried) + PRIOR_LABELS * prior)
            weights = torch.softmax(torch.tensor(logs).double(), 0)
            lapse[s] = float(weights @ torch.tensor(LAPSE_GRID).double())
    assert found.lapse.tolist() == pytest.approx(lapse, abs=1e-6)
    assert found.accuracy.tolist() == pytest.approx([1 - x * (C - 1) / C for x in lapse], abs=1e-6)
    assert bool((found.low <= found.high).all())
    assert found.counts.tolist() == [5, 5]


@pytest.mark.parametrize("per_item", [1, 2, 3])
def test_unreliable_source_is_found(per_item):
    x, _, annotations = simulate([0.0, 0.05, 0.5], per_item)
    learner = make_learner(x, annotations)
    learner.fit(torch.arange(90), majority(annotations, 90))
    found = learner.source_estimates
    assert found.counts.tolist() == [30 * per_item] * 3
    assert float(found.accuracy[2]) < 0.7
    assert float(found.accuracy[:2].min()) > 0.8
    assert float(found.low[2]) <= 0.5 <= float(found.high[2])


def test_confusion_matrix_shows_what_a_source_mistakes():
    x, truth, annotations = simulate([0.0, 0.0, 0.0], 3)
    labels = annotations.labels.clone()
    mistaken = (annotations.sources == 1) & (truth[annotations.positions] == 0)
    labels[mistaken] = 3
    learner = make_learner(
        x, Annotations(annotations.positions, labels, annotations.sources, ("a", "b", "c"))
    )
    learner.fit(torch.arange(90), truth[:90])
    careful, other, _ = learner.source_estimates.confusion
    assert torch.allclose(other.sum(1), torch.ones(C).double())
    assert float(other[0, 3]) > 0.5 > float(other[0, 0])
    assert float(careful[0, 3]) < 0.2
    assert float(other[1, 1]) > 0.7


def test_labels_are_combined_as_unbiased_targets_by_precision():
    labels = ItemLabels(
        3, torch.tensor([0, 0, 1, 2]), torch.tensor([1, 2, 0, 3]), torch.tensor([0, 1, 1, 2]), 2
    )
    effective = combine_sources(labels, torch.tensor([0.2, 0.5]).double(), C, noise=0.1)
    tau = [1.1 * (1 / 0.8**2 - 1), 1.1 * (1 / 0.5**2 - 1)]
    y = (torch.eye(C).double() - 1 / C)[labels.labels]
    y[0] /= 0.8
    y[1:3] /= 0.5
    weight = 1 / (1 / tau[0] + 1 / tau[1])
    assert effective.noise.tolist() == pytest.approx([weight, tau[1], 0.0])
    assert torch.allclose(effective.targets[0], weight * (y[0] / tau[0] + y[1] / tau[1]))
    assert torch.allclose(effective.targets[1:], y[2:])
    # Targets of a source are unbiased: their mean over its errors is the truth.
    wrong = torch.eye(C).double() - 1 / C
    chance = torch.full((C,), 0.5 / C).double()
    chance[0] += 0.5
    assert torch.allclose((chance[:, None] * wrong).sum(0) / 0.5, wrong[0])


def test_one_source_changes_no_bit():
    x, truth, _ = simulate([0.0], 1)
    at, labels = torch.arange(40), truth[:40]
    annotations = Annotations.from_rows([(i, int(c), "anna") for i, c in enumerate(labels)])
    plain, own = make_learner(x), make_learner(x, annotations)
    before, after = plain.fit(at, labels).kernel_model, own.fit(at, labels).kernel_model
    for name, value in before.state_dict().items():
        assert torch.equal(value, after.state_dict()[name]), name
    assert own.source_estimates is None
    assert torch.equal(before.predict_proba(x), after.predict_proba(x))


def test_fit_equals_refit_with_noise_per_label_and_export_keeps_it(tmp_path):
    x, _, annotations = simulate([0.0, 0.6], 1)
    at, labels = torch.arange(90), majority(annotations, 90)
    learner = make_learner(x, annotations)
    model = learner.fit(at, labels).kernel_model
    given = annotations.select_items(at, labels)
    effective = combine_sources(given, learner.source_estimates.lapse, C, model.get_mixture().noise)
    assert torch.equal(model.label_noise, effective.noise)
    units = model.normalise_rows(x).double()
    K = mix_kernels(units @ units.T, model.get_mixture().weights)
    system = K[:90, :90] + torch.diag(model.get_mixture().noise + effective.noise)
    system += torch.diag(1 - K[:90, :90].diagonal())
    alpha = torch.linalg.solve(system, effective.targets)
    assert torch.allclose(model.alpha, alpha, atol=1e-5)
    variance = 1 - (K[90:, :90] * torch.linalg.solve(system, K[:90, 90:]).T).sum(1)
    assert torch.allclose(model.predict_variance(model.normalise_rows(x[90:])), variance, atol=1e-4)
    path = tmp_path / "model.pt"
    p = model.predict_proba(x)
    torch.save(model.state_dict(), path)
    again = exact(x, C)
    again.load_state_dict(torch.load(path))
    assert torch.equal(again.predict_proba(x), p)
    old = {k: v for k, v in model.state_dict().items() if k != "label_noise"}
    again.load_state_dict(old)  # a file of an earlier version
    assert len(again.label_noise) == 0
    # The posterior over a pool is the same regression.
    fitted = learner.fit(at, labels)
    post = PoolPosterior.from_kernel(
        torch.arange(180),
        torch.full((180, C), 1 / C).double(),
        fitted.kernel_arguments(torch.arange(180), "pseudo"),
        fitted.noise,
        dict(enumerate(labels.tolist())),
        PosteriorOptions(observations=fitted.observations),
    )
    assert torch.allclose(post.posterior.mean, fitted.model(x).double(), atol=1e-5)
    # Another label of an item that had several: its observation no longer applies.
    revised = {**post.labels, 3: (post.labels[3] + 1) % C}
    later = post.with_labels(revised)
    fresh = PoolPosterior.from_prior(post.points, post.start, revised, post.options)
    assert torch.allclose(later.posterior.mean, fresh.posterior.mean)
    assert float(later.posterior.noise_of_labels()[3]) == pytest.approx(fitted.noise)


@pytest.mark.parametrize("max_exact_labels", [None, 40])
def test_leave_one_out_and_forecast_use_noise_per_label(max_exact_labels):
    x, truth, annotations = simulate([0.0, 0.6], 1)
    at, labels = torch.arange(90), majority(annotations, 90)
    learner = ExactLearner(
        x, exact(x, C), annotations=annotations, max_exact_labels=max_exact_labels
    )
    learner.fit(at, labels)
    outputs, residuals = learner.leave_one_out_predictions(at, labels)
    assert torch.allclose(residuals, outputs - F.one_hot(labels, C))
    weighed = float((outputs.argmax(1) == truth[:90]).double().mean())
    plain = make_learner(x)
    ignored = plain.leave_one_out_predictions(at, labels)[0]
    assert weighed > float((ignored.argmax(1) == truth[:90]).double().mean())
    rest = torch.arange(90, 180)
    right = learner.fit(at, labels).predict_proba(rest).argmax(1) == truth[rest]
    estimate = learner.forecast_error(at, labels, rest).error.rate
    assert abs(estimate - (1 - float(right.double().mean()))) < 0.2


def test_leave_one_out_with_several_sources_equals_refits_without_each_item():
    """All labels of an item are left out together; weights and kernel stay those of all labels."""
    n = 40
    x, _, annotations = simulate([0.0, 0.3, 0.6], 2, n=n)
    at, labels = torch.arange(n), majority(annotations, n)
    learner = make_learner(x, annotations)
    model = learner.fit(at, labels).kernel_model
    outputs, _ = learner.leave_one_out_predictions(at, labels)
    mixture = model.get_mixture()
    given = annotations.select_items(at, labels)
    targets, extra = combine_sources(given, learner.source_estimates.lapse, C, mixture.noise)
    units = model.normalise_rows(x[:n])
    K = mix_kernels((units @ units.T).fill_diagonal_(1.0), mixture.weights)
    for i in range(n):
        rest = torch.tensor([j for j in range(n) if j != i])
        system = K[rest][:, rest] + torch.diag(mixture.noise + extra[rest])
        naive = 1 / C + K[i, rest] @ torch.linalg.solve(system, targets[rest])
        assert torch.allclose(outputs[i], naive, atol=1e-8)


def test_learner_weighs_sources_and_saves_them(tmp_path):
    x, truth, annotations = simulate([0.0, 0.0, 0.6], 3, n=40)
    learner, ignoring = la.Learner(exact(x, C), x), la.Learner(exact(x, C), x)
    for s, name in enumerate(annotations.names):
        own = annotations.sources == s
        learner.teach(annotations.positions[own], annotations.labels[own], source=name)
    ignoring.teach(range(40), majority(annotations, 40))
    found = learner.source_accuracy()
    assert list(found) == list(annotations.names)
    assert found["source 2"].accuracy < 0.7 < found["source 0"].accuracy
    assert found["source 2"].labels == 40
    assert len(learner.pool) == 40
    p = learner.predict()
    path = tmp_path / "learner.pt"
    learner.save(path)
    again = la.Learner.load(path, exact(x, C), x)
    assert torch.equal(again.predict(), p)
    assert again.source_accuracy() == found
    assert len(learner.query(3)) == 3
    learner.teach([0], [int(truth[0])], source="source 2")  # it corrects itself
    assert sum(p == 0 for p, _ in learner._annotations) == 3
    with pytest.raises(InputError, match="labelled already"):
        ignoring.teach([0], [1])
    with pytest.raises(InputError, match="expected a name"):
        learner.teach([50], [1], source="")
    network = la.Learner(torch.nn.Linear(12, C), x.float())
    with pytest.raises(InputError, match="exact learner"):
        network.teach([0], [1], source="anna")


def test_average_of_agreeing_labels_is_the_label():
    labels = ItemLabels(
        2, torch.tensor([0, 1, 0]), torch.tensor([1, 2, 1]), torch.tensor([0, 0, 1]), 2
    )
    effective = average_labels(labels, C)
    assert torch.allclose(effective.targets, torch.eye(C).double()[[1, 2]] - 1 / C)
    assert effective.noise.tolist() == [0.0, 0.0]


def test_annotations_do_not_depend_on_the_order_of_rows():
    rows = [(3, 1, "ben"), (1, 0, "anna"), (3, 2, "anna")]
    first, second = Annotations.from_rows(rows), Annotations.from_rows(rows[::-1])
    assert first.names == second.names == ("anna", "ben")
    for name in ("positions", "labels", "sources"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert first.positions.tolist() == [1, 3, 3]
    assert first.labels.tolist() == [0, 2, 1]


def test_vote_takes_the_class_of_most_sources_and_the_newest_of_ties():
    rows = [(3, 1, "anna"), (3, 0, "ben"), (3, 1, "cy"), (5, 2, "anna"), (5, 0, "ben")]
    assert Annotations.vote(rows) == {3: 1, 5: 0}
    assert Annotations.vote([*rows, (5, 1, "anna"), (5, 1, "ben")]) == {3: 1, 5: 1}


def test_none_of_these_does_not_change_the_reliability_of_sources():
    x, _, annotations = simulate([0.1, 0.3], per_item=2, n=40)
    rows = list(
        zip(
            annotations.positions.tolist(),
            annotations.labels.tolist(),
            [annotations.names[s] for s in annotations.sources.tolist()],
            strict=True,
        )
    )
    labels = majority(annotations, 40)
    learner = make_learner(x, annotations)
    learner.fit(torch.arange(40), labels)
    found = learner.source_estimates.by_name(annotations.names)
    # Two more items, far from the others, that both call none of these.
    far = torch.cat([x, torch.full((2, x.shape[1]), 30.0, dtype=torch.float64)])
    more = Annotations.from_rows(
        [*rows, *((p, NONE_OF_THESE, name) for p in (80, 81) for name in annotations.names)]
    )
    learner = ExactLearner(far, exact(x, C), annotations=more)
    at = torch.cat([torch.arange(40), torch.tensor([80, 81])])
    fitted = learner.fit(at, torch.cat([labels, torch.tensor([NONE_OF_THESE] * 2)]))
    again = learner.source_estimates.by_name(annotations.names)
    for name in annotations.names:
        assert again[name].labels == found[name].labels
        assert again[name].accuracy == pytest.approx(found[name].accuracy, abs=0.05)
    assert bool((fitted.model(far[80:]).amax(1) < 0.25).all())


def test_class_label_outweighs_annotation_of_none_of_these():
    _, _, annotations = simulate([0.1, 0.3], per_item=2, n=30)
    labels = majority(annotations, 30)
    kept = annotations.select_items(torch.arange(30), labels)
    with_none = annotations.labels.clone()
    dropped = (annotations.positions == 4) & (annotations.sources == 1)
    with_none[dropped] = NONE_OF_THESE
    given = Annotations(annotations.positions, with_none, annotations.sources, annotations.names)
    chosen = given.select_items(torch.arange(30), labels)
    assert len(chosen.labels) == len(kept.labels) - int(dropped.sum())
    assert not bool((chosen.labels == NONE_OF_THESE).any())
