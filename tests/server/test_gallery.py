"""Views of the gallery: filters, orders, search, expected positives."""

import numpy as np
import pytest
import torch

from labelahead.errors import InputError
from labelahead.server.gallery import MAX_VIEWS_KEPT, Gallery, GalleryFilter
from tests.server.test_confirm import EXACT, NAMES, label_and_wait, write_clusters
from tests.support.web_answers import answer
from tests.support.web_sessions import page, photo


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A session on three clusters, item i of class i mod 3, with 24 labels."""
    folder = tmp_path_factory.mktemp("gallery")
    options = {"tables": EXACT, "start": True, "classes": NAMES}
    with page(write_clusters(folder / "x.npz"), folder / "out", **options) as (client, session):
        label_and_wait(client, 24)
        session.service.catch_up()
        yield client, session.service


def read_all(gallery, **wanted):
    view = gallery.open_view(GalleryFilter(**wanted))
    return view, gallery.read_page(view["view"], 0, 10_000)["items"]


def test_status_filters_divide_the_items_into_labelled_and_unlabelled(labelled):
    _, service = labelled
    gallery = Gallery(service)
    view, everything = read_all(gallery)
    labels = service.label_state.labels
    assert [c["position"] for c in everything] == list(range(90))  # names are row numbers
    assert view["counts"] | {"unlike": 0, "doubtful": 0} == {
        "all": 90,
        "unlabelled": 90 - len(labels),
        "labelled": len(labels),
        "doubtful": 0,
        "unlike": 0,
    }
    for status, kept in (("labelled", True), ("unlabelled", False)):
        found = {c["position"] for c in read_all(gallery, status=status)[1]}
        assert found == {p for p in range(90) if (p in labels) == kept}
    assert {c["position"]: c["label"] for c in everything if c["label"] is not None} == labels


def test_orders_and_bounds_agree_with_the_predictions_of_the_page_model(labelled):
    _, service = labelled
    gallery, model = Gallery(service), service.page_model
    sure = dict(zip(model.pool_posterior.points.tolist(), model.confidence.tolist(), strict=True))
    rest = set(sure) - service.label_state.labels.keys()
    found = [
        c["position"] for c in read_all(gallery, status="unlabelled", order="least-certain")[1]
    ]
    assert [sure[p] for p in found] == sorted(sure[p] for p in rest)
    middle = sorted(sure[p] for p in rest)[len(rest) // 2]
    low = {c["position"] for c in read_all(gallery, max_probability=middle)[1]}
    high = {c["position"] for c in read_all(gallery, min_probability=middle)[1]}
    assert low == {p for p in rest if sure[p] < middle}
    assert high == rest - low
    gains = [c["position"] for c in read_all(gallery, status="unlabelled", order="gain")[1]]
    ranked = model.query_posterior.rank_candidates(model.acquisition)
    scores = model.query_posterior.scores(model.acquisition)
    by_position = dict(
        zip(
            model.query_posterior.points[model.query_posterior.view.candidates].tolist(),
            scores.tolist(),
            strict=True,
        )
    )
    assert [by_position[p] for p in gains] == [by_position[p] for p in ranked if p in rest]


def test_similar_items_are_ordered_by_their_kernel_with_the_item(labelled):
    _, service = labelled
    start = service.page_model.pool_posterior.start
    points = service.page_model.pool_posterior.points
    everywhere = torch.arange(len(points))
    K = start.covariance_block(everywhere, everywhere).double()
    i = int((points == 7).nonzero())
    naive = K[i] / (K[i, i] * K.diagonal()).sqrt()
    assert torch.allclose(service.page_model.similarities(7), naive)
    found = [c["position"] for c in read_all(Gallery(service), like=7, order="similar")[1]]
    assert found[0] == 7
    assert {p % 3 for p in found[:25]} == {1}  # its own cluster


def test_sought_class_comes_first_and_its_count_is_estimated(labelled):
    _, service = labelled
    view, found = read_all(Gallery(service), sought=1, order="probability")
    labels, model = service.label_state.labels, service.page_model
    positions = [c["position"] for c in found]
    assert not labels.keys() & set(positions)
    true = [p for p in range(90) if p % 3 == 1 and p not in labels]
    assert set(positions[: len(true)]) == set(true)
    rows = model.pool_posterior.rows_of(positions)
    expected = view["expected"]
    assert expected["expected"] == pytest.approx(float(model.predict_proba(rows)[:, 1].sum()))
    assert expected["low"] <= len(true) <= expected["high"]
    assert expected["found"] == sum(c == 1 for c in labels.values())


def test_unlike_items_exceed_the_variance_of_labels_left_out(labelled):
    _, service = labelled
    posterior = service.page_model.pool_posterior
    prior = posterior.start
    at, _ = posterior.posterior.all_labels()
    left_out = []
    for k in range(len(at)):  # each label left out, by a refit
        others = torch.cat([at[:k], at[k + 1 :]])
        refit = prior.condition(others, torch.zeros(len(others), dtype=torch.int64))
        left_out.append(float(refit.variance()[at[k]]))
    bound = torch.quantile(torch.tensor(left_out, dtype=torch.float64), 0.95)
    naive = posterior.posterior.variance() > bound
    assert torch.equal(service.page_model.unlike_labelled(), naive)


def test_view_keeps_its_order_while_people_label(labelled):
    client, service = labelled
    gallery = Gallery(service)
    view = gallery.open_view(GalleryFilter(status="unlabelled", order="least-certain"))
    before = gallery.list_positions(view["view"], 0, 100)
    assert before["labelled"] == []
    first = before["positions"][0]
    answer(client, first, first % 3)
    after = gallery.list_positions(view["view"], 0, 100)
    assert after["positions"] == before["positions"]
    assert after["labelled"] == [first]
    cell = gallery.read_page(view["view"], 0, 1)["items"][0]
    assert (cell["position"], cell["label"], cell["source"]) == (first, first % 3, "me")
    now = gallery.open_view(GalleryFilter(status="unlabelled"))
    assert now["total"] == view["total"] - 1


def test_oldest_view_is_dropped_when_there_are_many(labelled):
    gallery = Gallery(labelled[1])
    first = gallery.open_view(GalleryFilter())["view"]
    for _ in range(MAX_VIEWS_KEPT):
        gallery.open_view(GalleryFilter())
    assert gallery.read_page(first, 0, 1) is None
    assert gallery.list_positions(first, 0, 1) is None


def test_text_is_found_in_names_and_cells_ignoring_case(tmp_path):
    table = tmp_path / "texts.csv"
    table.write_text("title,about,size\nAn Owl,flies,1\nA fox,runs,2\nNo animal,OWLS,2\n")
    with page(table, tmp_path / "out", tables=EXACT, classes=NAMES) as (_, session):
        gallery = Gallery(session.service)
        assert [c["position"] for c in read_all(gallery, text=" owl ")[1]] == [0, 2]
        assert [c["position"] for c in read_all(gallery, text="FLIES")[1]] == [0]
        assert read_all(gallery, text="wolf")[1] == []


def test_names_are_ordered_by_the_numbers_in_them_and_test_items_are_hidden(tmp_path):
    for i in (1, 2, 10, 9):
        photo(tmp_path / "set" / f"photo{i}.png")
    (tmp_path / "test.csv").write_text("item,label\nphoto9.png,left\n")
    options = {"tables": EXACT, "classes": NAMES, "test": tmp_path / "test.csv"}
    with page(tmp_path / "set", tmp_path / "out", **options) as (_, session):
        found = [c["item"] for c in read_all(Gallery(session.service))[1]]
        assert found == ["photo1.png", "photo2.png", "photo10.png"]


def test_source_filter_keeps_the_labels_of_one_annotator_or_bulk_labels(tmp_path):
    with page(
        write_clusters(tmp_path / "x.npz"), tmp_path / "out", tables=EXACT, classes=NAMES
    ) as (client, session):
        answer(client, 3, 0, who="anna")
        answer(client, 4, 1, who="ben")
        session.service.confirm_items("ben", [5, 8], 2)
        gallery = Gallery(session.service)
        assert [c["position"] for c in read_all(gallery, source="ben")[1]] == [4]
        view, found = read_all(gallery, source="bulk labels")
        assert [c["position"] for c in found] == [5, 8]
        assert view["sources"][0] == {"source": "bulk labels", "items": 2}
        assert [c["position"] for c in read_all(gallery, label=0)[1]] == [3]


def test_unknown_status_and_incomplete_orders_are_refused():
    with pytest.raises(InputError, match="expected one of all, unlabelled"):
        GalleryFilter(status="new")
    with pytest.raises(InputError, match="give its position as like"):
        GalleryFilter(order="similar")
    with pytest.raises(InputError, match="give its number as sought"):
        GalleryFilter(order="probability")


def test_view_of_a_hundred_thousand_items_is_paged_without_a_model(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((100_000, 1), dtype=np.float32))
    with page(tmp_path / "x.npz", tmp_path / "out", tables=EXACT, classes=NAMES) as (_, session):
        gallery = Gallery(session.service)
        view = gallery.open_view(GalleryFilter(status="unlabelled", order="gain"))
        assert view["total"] == 100_000
        assert not view["predicts"]
        assert gallery.read_page(view["view"], 99_990, 60)["items"][-1]["position"] == 99_999
