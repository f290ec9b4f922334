"""Regression on a whole data set equals a dense float64 solve."""

import pytest
import torch

from labelahead import features, kernel
from labelahead.errors import InputError, NumericalError
from labelahead.models import build_model
from research.regression import FeatureFile, TileFile, nystrom, regress

N, C = 150, 3


@pytest.fixture(scope="module")
def problem():
    model = build_model("mlp", (6,), C, width=16, seed=0).eval()
    x = torch.randn(N, 6, generator=torch.Generator().manual_seed(1))
    y = torch.randn(N, C, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return model, x, y, kernel(model, x).double()


def make_feature_file(problem, path, rows=40):
    model, x, _, _ = problem
    width = features(model, x[:1]).shape[1]
    return FeatureFile(path, N, width, lambda lo, hi: features(model, x[lo:hi]), rows=rows)


def make_tile_file(problem, path, tile=40):
    model, x, _, _ = problem
    return TileFile(path, N, lambda r, c: kernel(model, x[r], x[c]), tile=tile)


@pytest.mark.parametrize("make", [make_feature_file, make_tile_file])
def test_operators_equal_dense_kernel(problem, tmp_path, make):
    theta = problem[3]
    found = make(problem, tmp_path / "k")
    v = torch.randn(N, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    at = torch.tensor([3, 149, 60, 61])
    close = {"rtol": 2e-5, "atol": 2e-5 * float(theta.abs().max())}
    torch.testing.assert_close(found.product(v), theta @ v, rtol=2e-5, atol=1e-3)
    torch.testing.assert_close(found.columns(at).double(), theta[:, at], **close)
    torch.testing.assert_close(found.diagonal(), theta.diagonal(), **close)


@pytest.mark.parametrize("make", [make_feature_file, make_tile_file])
@pytest.mark.parametrize("rank", [0, 30])
def test_regress_equals_dense_solve(problem, tmp_path, make, rank):
    _, _, y, theta = problem
    found = regress(make(problem, tmp_path / "k"), y, noise=1e-2, rank=rank, tolerance=1e-5)
    system = theta + 1e-2 * theta.diagonal().mean() * torch.eye(N, dtype=torch.float64)
    exact = torch.linalg.solve(system, y)
    assert float((found.alpha - exact).norm() / exact.norm()) < 1e-3
    assert found.residuals[-1] <= 1e-5
    assert len(found.residuals) == found.iterations


def test_nystrom_preconditioner_inverts_system_and_saves_iterations(problem, tmp_path):
    _, _, y, theta = problem
    operator = make_tile_file(problem, tmp_path / "k")
    sigma = 0.1
    full_rank = nystrom(operator, sigma, N, torch.Generator().manual_seed(0))  # S is all points
    v = torch.randn(N, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    system = theta + sigma * torch.eye(N, dtype=torch.float64)
    exact = torch.linalg.solve(system, v)
    assert float((full_rank(v) - exact).norm() / exact.norm()) < 1e-2
    plain = regress(operator, y, noise=1e-3, rank=0, tolerance=1e-3)
    preconditioned = regress(operator, y, noise=1e-3, rank=60, tolerance=1e-3)
    assert preconditioned.iterations < plain.iterations / 2


@pytest.mark.slow
def test_interrupted_regress_resumes_from_checkpoint(problem, tmp_path):
    y, operator = problem[2], make_tile_file(problem, tmp_path / "k")
    whole = regress(operator, y, noise=1e-3, rank=0, tolerance=1e-4)
    file = tmp_path / "state.pt"

    class StopError(Exception):
        pass

    def stop(what, done, total):
        if done == 23:
            raise StopError

    with pytest.raises(StopError):
        regress(operator, y, noise=1e-3, rank=0, tolerance=1e-4, checkpoint=file, progress=stop)
    checkpoint_bytes = file.read_bytes()
    for targets, noise in ((y, 1e-2), (y.roll(1, 0), 1e-3)):  # another system starts from scratch
        other = regress(operator, targets, noise=noise, rank=0, tolerance=1e-4, checkpoint=file)
        alone = regress(operator, targets, noise=noise, rank=0, tolerance=1e-4)
        torch.testing.assert_close(other.alpha, alone.alpha)
        file.write_bytes(checkpoint_bytes)
    iterations = []
    again = regress(
        operator,
        y,
        noise=1e-3,
        rank=0,
        tolerance=1e-4,
        checkpoint=file,
        progress=lambda what, done, total: iterations.append(done),
    )
    assert iterations[0] == 21  # from the checkpoint at 20
    assert again.iterations == whole.iterations
    torch.testing.assert_close(again.alpha, whole.alpha, rtol=1e-9, atol=1e-9)
    assert not file.exists()


def test_interrupted_tile_file_resumes(problem, tmp_path):
    model, x, _, theta = problem
    made = []

    def make(r, c):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append((r.start, c.start))
        return kernel(model, x[r], x[c])

    with pytest.raises(KeyboardInterrupt):
        TileFile(tmp_path / "k", N, make, tile=40)
    first, more = list(made), []

    def make_rest(r, c):
        more.append((r.start, c.start))
        return kernel(model, x[r], x[c])

    found = TileFile(tmp_path / "k", N, make_rest, tile=40)
    assert set(first) | set(more) == {(40 * i, 40 * j) for i in range(4) for j in range(i + 1)}
    assert not set(first) & set(more)
    eye = torch.eye(N, dtype=torch.float64)
    torch.testing.assert_close(found.product(eye), theta, rtol=1e-4, atol=1e-3)


def test_invalid_arguments_raise(problem, tmp_path):
    operator = make_tile_file(problem, tmp_path / "k")
    with pytest.raises(InputError, match="targets are"):
        regress(operator, torch.zeros(3, 2))
    with pytest.raises(InputError, match="noise is 0"):
        regress(operator, problem[2], noise=0)
    with pytest.raises(InputError, match="something else"):
        TileFile(tmp_path / "k", N, lambda r, c: torch.zeros(1), tile=40, about="another network")
    with pytest.raises(NumericalError, match="after 3 iterations"):
        regress(operator, problem[2], noise=1e-6, rank=0, most=3)
