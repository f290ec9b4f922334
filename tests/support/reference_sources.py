"""Naive float64 twin of `acquisition.sources`: the joint Gaussian of f and of true values, refitted."""

import math

import torch
from torch import Tensor

from tests.support import reference_lookahead as ref


class JointGaussian:
    """f and the true values g = f + δ at n points, given labels with errors of known variance.

    Args:
        problem: A scalar problem of `reference_lookahead`.
        labels: (position, target (C,), variance of the error) of every label, in any number for
            an item.
    """

    def __init__(self, problem: ref.Problem, labels: list[tuple[int, Tensor, float]]) -> None:
        n = len(problem.outputs)
        self.n = n
        eye = torch.eye(n, dtype=torch.float64)
        theta = problem.kernel
        prior = torch.cat(
            [torch.cat([theta, theta], 1), torch.cat([theta, theta + problem.sigma * eye], 1)]
        )
        mean = torch.cat([problem.outputs, problem.outputs])
        self.mean, self.covariance = mean, prior
        if labels:
            at = [n + i for i, _, _ in labels]
            targets = torch.stack([t for _, t, _ in labels])
            system = prior[at][:, at] + torch.diag(
                torch.tensor([e for _, _, e in labels], dtype=torch.float64)
            )
            weights = torch.linalg.solve(system, targets - mean[at])
            self.mean = mean + prior[:, at] @ weights
            self.covariance = prior - prior[:, at] @ torch.linalg.solve(system, prior[at])

    def explain(self, j: int, noise: float) -> Tensor:
        """Return by how much a label at j with this error reduces every variance: (2n,)."""
        column = self.covariance[:, self.n + j]
        u = float(column[self.n + j]) + noise
        return column.square() / u if math.isfinite(u) and u > 1e-12 else torch.zeros_like(column)

    def gain(self, x: int, j: int, noise: float, amplitude: float) -> float:
        """Return the fall of the 0/1 error of f at x, or of g at x = j."""
        row = self.n + j if x == j else x
        first, second = self.mean[row].topk(2).values
        now = float(self.covariance[row, row])
        if now <= 1e-12:
            return 0.0
        rho = math.sqrt(min(1.0, float(self.explain(j, noise)[row]) / now))
        return ref.gain_by_quadrature(float(first - second) / math.sqrt(2 * amplitude * now), rho)
