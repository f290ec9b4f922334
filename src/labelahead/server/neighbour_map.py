"""A map of the pool on which neighbours stay neighbours: t-SNE of the kernel, in another process.

van der Maaten and Hinton (2008). Distances between far clusters mean little; the two leading
components, which `compute_map` gives, keep those.
"""

import multiprocessing
import threading
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelahead.errors import import_extra
from labelahead.processes import ignore_sigint, run_in_worker
from labelahead.server.page_model import PageModel

__all__ = ["MapLayout", "NeighbourMap", "embed_kernel", "run_embedding"]

COMPONENTS = 30  # of the kernel, from which distances are computed
PERPLEXITY = 30.0  # effective number of neighbours of each item
ITERATIONS = 500
MIN_ITEMS = 10

Rows = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class MapLayout(NamedTuple):
    """Coordinates of items on a plane, or why there are none yet.

    state: "ready", "computing" or "failed". coordinates: position -> (x, y) in [−1, 1].
    """

    state: str
    coordinates: dict[int, tuple[float, float]]


def embed_kernel(K: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Place items on a plane so that similar ones are close to each other.

    Args:
        K: (n, n) kernel of the items.
        iterations: Steps of the optimisation.

    Returns:
        (n, 2) coordinates in [−1, 1]; on a line if there are fewer than `MIN_ITEMS` items.
    """
    K = K.double()
    n = len(K)
    centred = K - K.mean(0) - K.mean(1, keepdim=True) + K.mean()
    values, vectors = torch.linalg.eigh((centred + centred.T) / 2)
    kept = min(COMPONENTS, n)
    features = vectors[:, -kept:] * values[-kept:].clamp_min(0).sqrt()  # (n, kept), largest last
    features = features.flip(1)
    if n < MIN_ITEMS:
        xy = torch.nn.functional.pad(features[:, :2], (0, max(0, 2 - features.shape[1])))
    else:
        manifold = import_extra("sklearn.manifold", "app", "the map of neighbours")
        embedding = manifold.TSNE(
            init="pca",
            perplexity=min(PERPLEXITY, (n - 1) / 3),
            max_iter=iterations,
            random_state=0,
            n_jobs=1,
        )
        xy = torch.from_numpy(embedding.fit_transform(features.numpy().astype(np.float32))).double()
    xy = xy - (xy.amax(0) + xy.amin(0)) / 2
    return xy / xy.abs().amax(0).clamp_min(1e-12)


def run_embedding(pipe: Connection, K: Rows) -> None:
    """Compute the map in a process of its own, and send it."""
    torch.set_num_threads(1)
    pipe.send(embed_kernel(torch.from_numpy(K)).tolist())
    pipe.close()


class NeighbourMap:
    """The map of a session: computed when it is first asked for, and again when items are added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: tuple[int, ...] = ()
        self._layout = MapLayout("computing", {})

    def read(self, page_model: PageModel, *, refresh: bool = False) -> MapLayout:
        """Return the layout of the items that the map of a page model has; start it if necessary.

        refresh: compute it again, from the kernel of this model.
        """
        points = page_model.snapshot.pool_facts.map.points
        with self._lock:
            is_known = points == self._points
            if is_known and not (refresh and self._layout.state != "computing"):
                return self._layout
            self._points, self._layout = points, MapLayout("computing", {})
        start = page_model.pool_posterior.start
        rows = page_model.pool_posterior.rows_of(points)
        K = start.covariance_block(rows, rows).double().cpu().numpy()
        threading.Thread(target=self._compute, args=(points, K), daemon=True).start()
        return self._layout

    def _compute(self, points: tuple[int, ...], K: Rows) -> None:
        """Run a process, so that t-SNE does not slow the page down; take what it sends."""
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        with ignore_sigint():
            process = context.Process(
                target=run_in_worker, args=(__name__, "run_embedding", sender, K), daemon=True
            )
            process.start()
        sender.close()
        try:
            xy = receiver.recv()
            found = {p: (round(x, 4), round(y, 4)) for p, (x, y) in zip(points, xy, strict=True)}
            layout = MapLayout("ready", found)
        except EOFError:  # the process died, and has said why on stderr
            layout = MapLayout("failed", {})
        finally:
            receiver.close()
            process.join()
        with self._lock:
            if self._points == points:
                self._layout = layout
