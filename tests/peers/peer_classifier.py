"""A classifier for scikit-activeml that looks its answers up; imported only where that is there."""

import numpy as np
from skactiveml.base import SkactivemlClassifier


class Looked(SkactivemlClassifier):
    """Row i of X holds the number of an item; its probabilities and embedding are in tables."""

    def __init__(self, table=None, embedding=None, missing_label=-1, random_state=0):
        super().__init__(
            classes=np.arange(table.shape[1]),
            missing_label=missing_label,
            random_state=random_state,
        )
        self.table, self.embedding = table, embedding

    def fit(self, X, y, sample_weight=None):
        return self

    def predict_proba(self, X, embed=False):
        rows = X[:, 0].astype(int)
        return (self.table[rows], self.embedding[rows]) if embed else self.table[rows]
