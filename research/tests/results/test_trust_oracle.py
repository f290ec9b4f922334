"""The share of the oracle's gain that learnt trust keeps."""

import numpy as np
import pytest
import torch

from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import append_pool_guesses, exact
from labelahead.inference.mixture import cosine_matrix, mix_kernels
from research.results import trust_oracle
from research.results.guesses import COUNTS, DOCS, NONE
from research.tests.results.test_guesses import make_set


def make_rows(guesser, kind, accuracies):
    """One row per seed with the same accuracy at every number of labels."""
    return [
        {"set": "r8", "guesser": guesser, "trust": kind, "seed": str(s)}
        | {f"at {n}": str(accuracy) for n in COUNTS}
        for s, accuracy in enumerate(accuracies)
    ]


def test_oracle_takes_the_constant_that_is_best_on_average():
    rows = make_rows(NONE, NONE, [0.5, 0.7])
    rows += make_rows("right 75", trust_oracle.OURS, [0.59, 0.79])
    for s in trust_oracle.CONSTANTS:
        gain = {0.2: (0.2, -0.1), 0.5: (0.1, 0.1)}.get(s, (0.0, 0.0))
        rows += make_rows("right 75", str(s), [0.5 + gain[0], 0.7 + gain[1]])
    ours, oracle, seeds = trust_oracle.collect_gains(rows)["r8", "right 75"]
    assert seeds == 2
    assert ours == pytest.approx([9.0] * 5)
    assert oracle == pytest.approx([10.0] * 5)  # of 0.5; that of 0.2 is 5 on average
    lines = trust_oracle.format_table(rows).splitlines()
    assert lines[2].startswith("| r8 | right 75 | 2 | +9.0 of +10.0 |")
    assert lines[2].endswith("| 90% |")
    assert lines[-1].startswith("5 of 5 cells")
    assert lines[-1].endswith("median 90%, least 90%.")


def test_guesses_that_bring_little_are_not_counted():
    rows = make_rows(NONE, NONE, [0.5])
    rows += make_rows("right 30", trust_oracle.OURS, [0.49])
    for s in trust_oracle.CONSTANTS:
        rows += make_rows("right 30", str(s), [0.515])
    lines = trust_oracle.format_table(rows).splitlines()
    assert lines[2].endswith("| - |")
    assert len(lines) == 3


def test_constant_trust_is_that_of_an_explicit_prior_mean():
    of, at = make_set(), torch.arange(30)
    learner = trust_oracle.FixedTrust(of, "right 75", {}, 0.2)
    fitted = learner.fit(at, of.y[at])
    model = exact(of.x, 3, guesses={"right 75": of.guesses["right 75"]})
    plain = ExactLearner(append_pool_guesses(model, of.x), model)
    assert not torch.equal(plain.fit(at, of.y[at]).kernel_model.trust, fitted.kernel_model.trust)
    said = of.guesses["right 75"].double() - 1 / 3  # certain enough not to be sharpened
    added = 0.2 * said
    units = fitted.kernel_model.take_features(fitted.kernel_model.normalise_rows(learner.inputs))
    mixture = fitted.kernel_model.get_mixture()
    K = mix_kernels(cosine_matrix(units.double()), mixture.weights)
    system = K[:30, :30] + mixture.noise * torch.eye(30, dtype=torch.float64)
    residual = torch.nn.functional.one_hot(of.y[at], 3) - 1 / 3 - added[at]
    naive = 1 / 3 + added + K[:, :30] @ torch.linalg.solve(system, residual)
    outputs = fitted.model(learner.inputs)
    assert np.allclose(outputs, naive, atol=1e-4)


def test_table_of_the_docs_is_that_of_the_results():
    table = trust_oracle.format_table(trust_oracle.read_rows())
    assert table in DOCS.read_text(encoding="utf-8")
