"""The map of neighbours."""

import pytest
import torch

from labelahead.server.neighbour_map import NeighbourMap, embed_kernel
from tests.server.test_confirm import EXACT, NAMES, write_clusters
from tests.support.waiting import until
from tests.support.web_sessions import page, progress_once


def make_clusters(n=60, clusters=4):
    rng = torch.Generator().manual_seed(0)
    of = torch.arange(n) % clusters
    return torch.randn(clusters, 8, generator=rng)[of] * 3 + torch.randn(n, 8, generator=rng), of


def test_items_of_a_cluster_are_neighbours_on_the_map():
    x, of = make_clusters()
    xy = embed_kernel(x @ x.T)
    assert xy.shape == (60, 2)
    assert float(xy.abs().max()) == 1.0
    distances = torch.cdist(xy, xy).fill_diagonal_(torch.inf)
    assert float((of[distances.argmin(1)] == of).double().mean()) > 0.95


def test_few_items_are_placed_by_their_components():
    assert embed_kernel(torch.tensor([[1.0]])).tolist() == [[0.0, 0.0]]
    xy = embed_kernel(torch.tensor([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    assert (xy[0] - xy[1]).norm() < (xy[0] - xy[2]).norm()


@pytest.mark.slow
def test_map_is_computed_by_another_process_and_sent_by_the_api(tmp_path):
    options = {"tables": EXACT, "start": True, "classes": NAMES}
    with page(write_clusters(tmp_path / "x.npz"), tmp_path / "out", **options) as (client, _):
        progress_once(client, lambda p: p["training"]["round"] == 0 and p["training"]["idle"])
        plain = client.get("/api/map").json()
        assert client.get("/api/map?layout=neighbours").json()["state"] in ("computing", "ready")
        found = until(
            lambda: (
                reply
                if (reply := client.get("/api/map?layout=neighbours").json())["state"] == "ready"
                else None
            )
        )
        assert [row[0] for row in found["points"]] == [row[0] for row in plain["points"]]
        assert [row[1:3] for row in found["points"]] != [row[1:3] for row in plain["points"]]


@pytest.mark.slow
def test_process_that_dies_leaves_a_failed_map():
    maps = NeighbourMap()
    maps._points = (0,)
    maps._compute((0,), object())  # no array: the process raises
    assert maps._layout.state == "failed"
