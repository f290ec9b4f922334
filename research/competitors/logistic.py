"""What most people train on frozen features: scikit-learn's logistic regression, as a learner of a
campaign.

As a careful user would have it. On CIFAR-10 features with random labels (seeds 100 to 103, mean
over 10, 20, 40, 80 and 160 labels), of features raw, standardised, and centred with rows of length
one, C from 0.01 to 10,000, with and without intercept or balanced weights, this was within 0.1 of
the best: 54.7 %. Scikit-learn's defaults gave 48.2 % on standardised features and 49.6 % on raw
ones: with few labels the intercept only says which class happened to be drawn more often.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.errors import InputError, ModelError
from labelahead.inference.exact import ExactLearner
from labelahead.inference.network import FittedModel
from labelahead.models.training import Training, TrainingResult
from research.competitors.adapters import need

# output of a class without labels: its probability is zero, as scikit-activeml's own wrapper has it
NEVER = -1e4
HOW = {"C": 1000.0, "fit_intercept": False, "max_iter": 1000}


@dataclass(frozen=True, eq=False)
class LogisticLearner:
    """LogisticRegression on inputs (n, d) of the whole data set."""

    inputs: Tensor
    classes: int

    def forecast_error(self, *_: object, **__: object) -> None:
        """Return None: nothing is estimated beside the test items."""
        return

    @classmethod
    def beside(cls, own: object) -> "LogisticLearner":
        """On the very features of an exact learner: centred over the pool, of length one."""
        if not isinstance(own, ExactLearner):
            raise InputError(
                f"the campaign's learner is a {type(own).__name__}; expected model.name = 'exact'"
            )
        return cls(own.network(0).normalise_rows(own.inputs).float(), own.classes)

    @property
    def training(self) -> Training:
        """Probabilities are softmax of the outputs."""
        return Training(loss="cross-entropy")

    def network(self, seed: int) -> nn.Sequential:
        """One that gives every class the same probability."""
        layer = nn.Linear(self.inputs.shape[1], self.classes).requires_grad_(False)
        layer.weight.zero_()
        layer.bias.zero_()
        return nn.Sequential(layer)

    def fit(self, labelled: Tensor, labels: Tensor, *, seed: int = 0, **unused: Any) -> FittedModel:
        """Fitted to all labels (L,) anew."""
        began = time.perf_counter()
        model = self.network(seed)
        if not len(labelled):
            return FittedModel(
                model, self.inputs, "cross-entropy", None, time.perf_counter() - began
            )
        layer, present = model[-1], labels.unique()
        layer.bias.fill_(NEVER)
        layer.bias[present] = 0.0
        steps, x = 0, self.inputs[labelled]
        if len(present) > 1:
            fitted = need("sklearn.linear_model", "scikit-learn").LogisticRegression(**HOW)
            fitted.fit(x.numpy(), labels.numpy())
            # Of two classes it has one row, for the second.
            rows = present if len(present) > 2 else present[1:]
            layer.weight[rows] = torch.from_numpy(fitted.coef_).to(layer.weight)
            steps = int(fitted.n_iter_.max())
        outputs = model(x)
        loss = float(nn.functional.cross_entropy(outputs, labels))
        right = float((outputs.argmax(1) == labels).double().mean())
        seconds = time.perf_counter() - began
        return FittedModel(
            model.eval(),
            self.inputs,
            "cross-entropy",
            TrainingResult(loss, right, steps, 0.0, (), seconds),
            seconds,
        )

    def leave_one_out_predictions(
        self, labelled: Tensor, labels: Tensor, **unused: Any
    ) -> tuple[Tensor, Tensor]:
        """There is no closed form of it."""
        raise ModelError(
            "logistic regression has no leave-one-out without refitting; expected a kernel"
        )
