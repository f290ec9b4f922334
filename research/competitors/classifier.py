"""A network's read-out as a classifier of scikit-activeml, which is imported here and needed."""

import numpy as np
import torch
from skactiveml.base import SkactivemlClassifier

from labelahead.acquisition.probability import probabilities


class ReadOut(SkactivemlClassifier):
    """From embedding to class probabilities, trained already; `embed` also returns the former."""

    def __init__(self, weight=None, bias=None, method="softmax", missing_label=-1, random_state=0):
        classes = np.arange(len(bias))
        super().__init__(classes=classes, missing_label=missing_label, random_state=random_state)
        self.weight, self.bias, self.method = weight, bias, method

    def fit(self, X, y, sample_weight=None):
        """Trained already."""
        return self

    def predict_proba(self, X, embed=False):
        """(n, C)."""
        p = probabilities(torch.from_numpy(X @ self.weight.T + self.bias), self.method).numpy()
        return (p, X) if embed else p

    def predict(self, X):
        """(n,)."""
        return self.predict_proba(X).argmax(1)
