"""The tangent kernel as a linear operator: products without the matrix.

K v = J (Jᵀ v): one pass over the samples sums their gradients, weighted by v, and another one takes
the derivative of the outputs along that sum. The memory is that of a few vectors of parameters,
whatever the number of samples.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelahead.batching import Inputs, count_samples
from labelahead.errors import InputError, NumericalError, import_extra
from labelahead.ntk.derivatives import pull_back, push_forward, split_direction
from labelahead.ntk.engine import Engine, build_directions, check_result, run_with_engine
from labelahead.ntk.norms import directional, squared_norms
from labelahead.ntk.premises import ParamFilter, check_inputs, move_samples
from labelahead.ntk.sketch import features

__all__ = ["KernelOperator", "operator"]

MAX_COLUMNS = 16  # of a product at a time: each needs a vector of parameters
MAX_SOLVE_STEPS = 1000


def operator(
    model: nn.Module,
    x: Inputs,
    x2: Inputs | None = None,
    *,
    kind: str = "pseudo",
    params: ParamFilter = None,
    chunk: int | None = None,
) -> "KernelOperator":
    """Make the tangent kernel of `model` a linear operator, for kernels too large for memory.

    A product with a vector takes two passes over the samples. The network and the samples must not
    change while the operator is used. Sums are in the network's precision: eigenvalues and solves
    need a network in float64 for more than three digits.

    Args:
        model: The network.
        x: n samples.
        x2: m samples; default: `x`.
        kind: As in `kernel`; "trace" takes 2·C passes.
        params: As in `kernel`.
        chunk: Samples per pass; default from the size of the activations.

    >>> from labelahead.ntk import operator
    >>> K = operator(model, x, kind="full")
    >>> K.shape
    (18, 18)
    >>> v = torch.ones(18)
    >>> bool(torch.allclose(K @ v, la.kernel(model, x, kind="full") @ v, rtol=1e-3))
    True
    >>> values, vectors = K.top_eigenpairs(3)
    >>> values.shape, bool(values.sum() < K.trace())
    (torch.Size([3]), True)
    """
    x = move_samples(model, x)
    return KernelOperator(
        model, x, None if x2 is None else move_samples(model, x2), kind, params, chunk
    )


class KernelOperator:
    """A tangent kernel that is never computed; see `operator`.

    Attributes:
        shape: Of the kernel.
        dtype: Of the kernel.
        device: Of the network.

    >>> from labelahead.ntk import KernelOperator, operator
    >>> K = operator(model, x, x[:2])
    >>> isinstance(K, KernelOperator), K.shape, K.T.shape, (K @ torch.ones(2)).shape
    (True, (6, 2), (2, 6), torch.Size([6]))
    """

    def __init__(
        self,
        model: nn.Module,
        x: Inputs,
        x2: Inputs | None,
        kind: str,
        params: ParamFilter,
        chunk: int | None,
    ) -> None:
        self._model, self._left, self._right = model, x, x if x2 is None else x2
        self._kind = kind
        self._params = params if params is None or callable(params) else list(params)
        self._chunk = chunk
        self.is_symmetric = x2 is None

        def probe(engine: Engine) -> Tensor:
            if x2 is not None:
                check_inputs(x2, engine.chosen, "x2")
            return build_directions(kind, engine.plan.outputs, engine.like)

        self._directions = run_with_engine(model, x, params, probe)
        self.dtype = self._directions.dtype
        self.device = self._directions.device
        self._outputs = self._directions.shape[1] if kind == "full" else 1
        sizes = [count_samples(part) * self._outputs for part in (self._left, self._right)]
        self.shape = (sizes[0], sizes[1])

    @property
    def T(self) -> "KernelOperator":
        """The transposed operator."""
        if self.is_symmetric:
            return self
        return KernelOperator(
            self._model, self._right, self._left, self._kind, self._params, self._chunk
        )

    def matvec(self, v: Tensor) -> Tensor:
        """Compute K v: (rows,) from (columns,)."""
        return self.matmat(v[:, None])[:, 0]

    def matmat(self, V: Tensor) -> Tensor:
        """Compute K V: (rows, k) from (columns, k)."""
        if V.ndim != 2 or V.shape[0] != self.shape[1]:
            raise InputError(
                f"the factor has shape {tuple(V.shape)}, expected {self.shape[1]} rows: a vector "
                "(columns,) or a matrix (columns, k)"
            )
        V = V.to(dtype=self.dtype, device=self.device)
        parts = [self._multiply(part) for part in torch.split(V, MAX_COLUMNS, dim=1)]
        return torch.cat(parts, dim=1) if parts else V.new_zeros(self.shape[0], 0)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.matvec(other) if other.ndim == 1 else self.matmat(other)

    def _multiply(self, V: Tensor) -> Tensor:
        k = V.shape[1]
        if self._kind == "full":
            cotangents = V.reshape(-1, self._outputs, k).transpose(1, 2)  # (m, k, C)
            return self._push(self._pull(cotangents)).transpose(1, 2).reshape(-1, k)
        total = V.new_zeros(self.shape[0], k)
        for weights in self._directions:  # one, or an output at a time for the trace
            along = self._pull(V[:, :, None] * weights)
            total += self._push(along) @ weights
        return total

    def _pull(self, cotangents: Tensor) -> Tensor:
        """Σ_i J(x2_i)ᵀ cotangents[i]: (k, P) from (m, k, C)."""
        return run_with_engine(
            self._model,
            self._right,
            self._params,
            lambda engine: pull_back(engine, self._right, cotangents, chunk=self._chunk),
        )

    def _push(self, directions: Tensor) -> Tensor:
        """J(x_i)·directions: (n, k, C) from (k, P)."""
        names: dict[str, nn.Parameter] = {}

        def run(engine: Engine) -> Tensor:
            names.update(engine.chosen)
            found = push_forward(engine, self._left, directions, chunk=self._chunk)
            return directions.new_empty(0) if found is None else check_result(found)

        result = run_with_engine(self._model, self._left, self._params, run)
        if result.numel():
            return result
        columns = []
        for flat in directions:  # one backward per output
            parts = split_direction(flat, list(names.values()))
            along = dict(zip(names, parts, strict=True))
            columns.append(directional(self._model, self._left, along, chunk=self._chunk))
        return torch.stack(columns, dim=1)

    @cached_property
    def _diagonal(self) -> Tensor:
        n = count_samples(self._left)
        per_output = [
            squared_norms(
                self._model,
                self._left,
                weights.expand(n, -1),
                params=self._params,
                chunk=self._chunk,
            )
            for weights in self._directions
        ]
        stacked = torch.stack(per_output, dim=1)
        return stacked.flatten() if self._kind == "full" else stacked.sum(1)

    def diagonal(self) -> Tensor:
        """Compute the diagonal exactly, from norms of gradients: one pass for every direction."""
        self._require_symmetric("diagonal")
        return self._diagonal.clone()

    def trace(self) -> Tensor:
        """Compute the trace exactly, from norms of gradients."""
        self._require_symmetric("trace")
        return self._diagonal.sum()

    def to_scipy(self) -> scipy.sparse.linalg.LinearOperator:
        """Return the operator as a `scipy.sparse.linalg.LinearOperator`, for arrays."""

        def apply(to: KernelOperator) -> Callable[[NDArray[Any]], NDArray[Any]]:
            return lambda V: np.asarray(to._apply_array(V))

        kind = np.dtype(str(self.dtype).removeprefix("torch."))
        return scipy.sparse.linalg.LinearOperator(
            self.shape,
            matvec=apply(self),
            matmat=apply(self),
            rmatvec=apply(self.T),
            rmatmat=apply(self.T),
            dtype=kind,
        )

    def _apply_array(self, V: NDArray[Any]) -> NDArray[Any]:
        found = (self @ torch.as_tensor(np.asarray(V))).cpu().numpy()
        return np.asarray(found)

    def to_linear_operator(self) -> Any:
        """Return the operator for the package linear_operator, which GPyTorch uses.

        Raises:
            MissingExtra: If linear_operator is not installed.
        """
        library = import_extra("linear_operator.operators", "operators", "to_linear_operator")
        wrapped = self

        class TangentKernel(library.LinearOperator):  # type: ignore[misc, name-defined]
            def __init__(self, anchor: Tensor) -> None:
                super().__init__(anchor)  # the library reads dtype and device of an argument

            def _matmul(self, rhs: Tensor) -> Tensor:
                return wrapped @ rhs

            def _size(self) -> torch.Size:
                return torch.Size(wrapped.shape)

            def _transpose_nonbatch(self) -> Any:
                return wrapped.T.to_linear_operator()

        return TangentKernel(torch.zeros(1, dtype=self.dtype, device=self.device))

    def to_curvlinops(self) -> Any:
        """Return the operator for the package curvlinops, for example for its `hutchpp_trace`.

        Raises:
            MissingExtra: If curvlinops is not installed.
        """
        library = import_extra("curvlinops._torch_base", "operators", "to_curvlinops")
        wrapped = self

        class TangentKernel(library.PyTorchLinearOperator):  # type: ignore[misc, name-defined]
            SELF_ADJOINT = wrapped.is_symmetric

            def __init__(self) -> None:
                super().__init__([(wrapped.shape[1],)], [(wrapped.shape[0],)])

            @property
            def dtype(self) -> torch.dtype:
                return wrapped.dtype

            @property
            def device(self) -> torch.device:
                return wrapped.device

            def _matmat(self, M: list[Tensor]) -> list[Tensor]:
                return [wrapped @ M[0]]

            def _adjoint(self) -> Any:
                return wrapped.T.to_curvlinops()

        return TangentKernel()

    def top_eigenpairs(self, k: int, *, tolerance: float = 0.0) -> tuple[Tensor, Tensor]:
        """Compute the k largest eigenvalues (k,), largest first, and eigenvectors (rows, k).

        By Lanczos iterations (`scipy.sparse.linalg.eigsh`); `tolerance` is relative.
        """
        self._require_symmetric("eigenpairs")
        if not 1 <= k < self.shape[0]:
            raise InputError(f"k is {k!r}, expected 1 to {self.shape[0] - 1} eigenpairs")
        start = np.random.default_rng(0).normal(size=self.shape[0])
        values, vectors = scipy.sparse.linalg.eigsh(
            self.to_scipy(), k, tol=tolerance, v0=start.astype(self.to_scipy().dtype)
        )
        found = (torch.from_numpy(a).to(self.device) for a in (values, vectors))
        values, vectors = found
        return values.flip(0), vectors.flip(1)

    def condition_number(self, noise: float) -> float:
        """Compute (λ_max + noise) / (λ_min + noise), by Lanczos iterations.

        Raises:
            NumericalError: If the smallest eigenvalue does not converge.
        """
        self._require_symmetric("condition number")
        check_noise(noise)
        largest = float(self.top_eigenpairs(1)[0][0])
        try:
            found = scipy.sparse.linalg.eigsh(
                self.to_scipy(),
                1,
                which="SA",
                return_eigenvectors=False,
                tol=1e-4 * noise / largest,
            )
        except scipy.sparse.linalg.ArpackNoConvergence as error:
            raise NumericalError(
                "the smallest eigenvalue does not converge: use the bound (λ_max + noise) / noise, "
                f"here {(largest + noise) / noise:.3g}"
            ) from error
        return (largest + noise) / (max(float(found[0]), 0.0) + noise)

    def log_determinant(
        self, noise: float, *, probes: int = 10, steps: int = 50, seed: int = 0
    ) -> tuple[float, float]:
        """Estimate log det(K + noise·I) and the standard error of the estimate.

        Stochastic Lanczos quadrature: `probes` random vectors, `steps` products for each. With
        steps ≥ rows each probe is exact up to rounding.
        """
        self._require_symmetric("log-determinant")
        check_noise(noise)
        if probes < 2 or steps < 1:
            raise InputError(f"probes is {probes}, steps is {steps}: expected at least 2 and 1")
        generator = torch.Generator().manual_seed(seed)
        estimates = []
        for _ in range(probes):
            signs = 2.0 * torch.randint(2, (self.shape[0],), generator=generator) - 1
            nodes, weights = self._lanczos_quadrature(signs.to(self.device, self.dtype), steps)
            total = float((weights * np.log(np.maximum(nodes, 0.0) + noise)).sum())
            estimates.append(self.shape[0] * total)
        return float(np.mean(estimates)), float(np.std(estimates, ddof=1) / np.sqrt(probes))

    def _lanczos_quadrature(
        self, start: Tensor, steps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Nodes and weights of the Gauss quadrature of the spectral measure of `start`."""
        basis = [start / start.norm()]
        diagonal: list[float] = []
        beside: list[float] = []
        for _ in range(min(steps, self.shape[0])):
            w = self @ basis[-1]
            diagonal.append(float(w @ basis[-1]))
            Q = torch.stack(basis)
            for _ in range(
                2
            ):  # orthogonalise against all, twice: rounding would repeat eigenvalues
                w = w - Q.T @ (Q @ w)
            size = float(w.norm())
            if size <= 1e-10 * max(map(abs, diagonal)):
                break
            beside.append(size)
            basis.append(w / size)
        beside = beside[: len(diagonal) - 1]
        values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, beside)
        return values, vectors[0] ** 2

    def solve(
        self, b: Tensor, noise: float, *, tolerance: float = 1e-6, sketch: int = 0, seed: int = 0
    ) -> Tensor:
        """Solve (K + noise·I) u = b by preconditioned conjugate gradients.

        Args:
            b: (rows,) or (rows, k).
            noise: Added to the diagonal.
            tolerance: Of the residual, relative to b.
            sketch: Number of tangent features of the preconditioner, which holds (rows, sketch)
                numbers; 0 for the diagonal. A good choice for small noise: some hundreds.
            seed: Of the features.

        Raises:
            NumericalError: If it does not converge.
        """
        self._require_symmetric("solve")
        check_noise(noise)
        if b.ndim not in (1, 2) or b.shape[0] != self.shape[0]:
            raise InputError(f"b has shape {tuple(b.shape)}, expected {self.shape[0]} rows")
        K = self.to_scipy()
        shifted = scipy.sparse.linalg.LinearOperator(
            self.shape, matvec=lambda v: K.matvec(v) + noise * v, dtype=K.dtype
        )
        precondition = self._build_preconditioner(noise, sketch, seed)
        columns = []
        for column in b.reshape(b.shape[0], -1).T.cpu().numpy():
            u, failed = scipy.sparse.linalg.cg(
                shifted, column, rtol=tolerance, maxiter=MAX_SOLVE_STEPS, M=precondition
            )
            if failed:
                raise NumericalError(
                    f"conjugate gradients did not reach a residual of {tolerance:g} in "
                    f"{MAX_SOLVE_STEPS} steps: increase noise, tolerance or sketch, or use a "
                    "network in float64"
                )
            columns.append(torch.from_numpy(np.asarray(u)).to(self.device, self.dtype))
        return torch.stack(columns, dim=1).reshape(b.shape)

    def _build_preconditioner(
        self, noise: float, sketch: int, seed: int
    ) -> scipy.sparse.linalg.LinearOperator:
        if not sketch:
            scale = 1 / (self.diagonal().double().cpu().numpy() + noise)
            return scipy.sparse.linalg.aslinearoperator(scipy.sparse.diags(scale))
        psi = features(
            self._model,
            self._left,
            kind=self._kind,
            sketch=sketch,
            seed=seed,
            params=self._params,
            chunk=self._chunk,
        )
        F = psi.double().cpu().numpy()
        # (F Fᵀ + noise I)⁻¹ v = (v − F (FᵀF + noise I)⁻¹ Fᵀ v) / noise
        factor = scipy.linalg.cho_factor(F.T @ F + noise * np.eye(F.shape[1]))

        def apply(v: NDArray[Any]) -> NDArray[Any]:
            v = np.asarray(v, dtype=np.float64).reshape(-1)
            return np.asarray((v - F @ scipy.linalg.cho_solve(factor, F.T @ v)) / noise)

        return scipy.sparse.linalg.LinearOperator(self.shape, matvec=apply, dtype=np.float64)

    def _require_symmetric(self, what: str) -> None:
        if not self.is_symmetric:
            raise InputError(f"the {what} needs a kernel of samples with themselves: leave out x2")


def check_noise(noise: float) -> None:
    """Raise unless the noise is positive."""
    if not noise > 0:
        raise InputError(f"noise is {noise!r}, expected a number above 0, such as 1e-3")
