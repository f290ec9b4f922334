"""A user's own vectors, from the file to the predictions taken away."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import labelahead as la
from labelahead.cli import app
from labelahead.errors import InputError
from tests.support.web_sessions import page, progress_once

N, D = 30, 6


def invoke(*arguments, code=0):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def photos(tmp_path):
    """Pictures that show nothing, in two class folders."""
    for i in range(N):
        path = tmp_path / "photos" / ("cat", "dog")[i % 2] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 12), (90, 90, 90)).save(path)
    return tmp_path / "photos"


def clusters(n=N, seed=0):
    """(n, D): even rows around one point, odd rows around another."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, D)) + 4 * (np.arange(n)[:, None] % 2)).astype(np.float32)


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def names():
    return [f"{('cat', 'dog')[i % 2]}/{i:02d}.png" for i in range(N)]


def test_vectors_of_photographs_from_file_to_predictions(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    order = np.random.default_rng(3).permutation(N)
    np.savez("clip.npz", vectors=clusters()[order].astype(np.float16), id=np.array(names())[order])
    said = invoke("run", "--data", photos, "--embedding", "clip.npz", "--strategy", "resolve",
                  "--initial", 4, "--labels", 10, "--retrain-every", 3, "--threads", 1,
                  "--out", "run")  # fmt: skip
    assert "100.0%" in said  # the pixels say nothing, the vectors everything
    assert f'embedding = "{tmp_path / "clip.npz"}"' in (tmp_path / "run/config.toml").read_text()
    invoke("resume", "run", "--labels", 13)
    invoke("export-model", "run", "--to", "model")
    about = json.loads((tmp_path / "model/model.json").read_text())
    assert about["reading"]["kind"] == "vectors"
    assert "vectors of 6 numbers, as in clip.npz" in (tmp_path / "model/README.md").read_text()
    assert about["onnx"]["input"] == ["n", D]

    np.save("new.npy", clusters(8, seed=1))
    invoke("predict", "model", "new.npy", "--out", "p.csv")
    assert [row["prediction"] for row in read_csv(tmp_path / "p.csv")] == ["cat", "dog"] * 4
    said = invoke("predict", "model", photos, code=1)
    assert "new items need vectors of the same encoder" in said.replace("\n", " ")
    np.save("wide.npy", np.ones((2, D + 1)))
    assert "vectors of 7 numbers; expected 6" in invoke("predict", "model", "wide.npy", code=1)

    np.savez("clip.npz", vectors=clusters(seed=5), id=np.array(names()))
    assert "the data have changed" in invoke("resume", "run", "--labels", 16, code=1)


def test_vectors_of_photographs_in_a_session(photos, tmp_path):
    np.save(tmp_path / "v.npy", clusters()[np.argsort(names())])  # files are ordered by name
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label\n" + "".join(f"{n},{n[:3]}\n" for n in names()[:6]))
    settings = {"name": str(photos), "embedding": str(tmp_path / "v.npy")}
    tables = {"data": settings, "model": {"name": "exact"}}
    out = tmp_path / "session"
    with page(photos, out, tables=tables, start=True, labels=labels) as (client, _):
        progress_once(client, lambda now: now["labels"] == 6 and now["training"]["idle"])
        assert "exact on v.npy" in json.dumps(client.get("/api/progress").json())
    model = la.load_model(out)
    said = model.predict(tmp_path / "v.npy")
    assert said.labels == [name[:3] for name in sorted(names())]


def test_vectors_of_a_table_join_its_columns(tmp_path):
    rng = np.random.default_rng(0)
    path, file = tmp_path / "t.csv", tmp_path / "e.npy"
    with path.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["size", "label"])
        rows.writerows([[f"{rng.normal():.3f}", "ab"[i % 2]] for i in range(N)])
    np.save(file, clusters())
    plan = {
        "data": {"name": str(path), "embedding": str(file)},
        "budget": {"initial": 4, "labels": 8},
        "threads": 1,
    }
    la.run(plan, out=tmp_path / "run", forecast=False)
    model = la.load_model(tmp_path / "run")
    said = model.predict({"size": [0.1, -0.3], "e": clusters(2, seed=2).tolist()})
    assert said.labels == ["a", "b"]
    with pytest.raises(InputError, match="no column 'e'"):
        model.predict({"size": [0.1]})


def test_table_of_ids_alone_takes_vectors_from_query_to_predictions(tmp_path):
    """The table has nothing to learn from: the vectors say everything."""
    table, labels = tmp_path / "items.csv", tmp_path / "labels.csv"
    table.write_text("id\n" + "".join(f"i{k}\n" for k in range(N)))
    labels.write_text("id,label\n" + "".join(f"i{k},{'ab'[k % 2]}\n" for k in range(6)))
    order = np.random.default_rng(3).permutation(N)
    np.savez(tmp_path / "v.npz", vectors=clusters()[order], id=[f"i{k}" for k in order])
    how = ("--labels", labels, "--embedding", tmp_path / "v.npz")
    said = invoke("encoders", table, *how)
    assert "best on 6 labels: v.npz" in said
    invoke("query", "--data", table, *how, "--n", 3, "--out", tmp_path / "next.csv")
    assert {row["id"] for row in read_csv(tmp_path / "next.csv")} <= {f"i{k}" for k in range(6, N)}
    tables = {"data": {"name": str(table), "embedding": str(tmp_path / "v.npz")}}
    out = tmp_path / "session"
    with page(table, out, tables=tables, start=True, labels=labels) as (client, _):
        progress_once(client, lambda now: now["labels"] == 6 and now["training"]["idle"])
    invoke("export-model", out, "--to", tmp_path / "model")
    np.save(tmp_path / "new.npy", clusters(8, seed=1))
    invoke("predict", tmp_path / "model", tmp_path / "new.npy", "--out", tmp_path / "p.csv")
    assert [row["prediction"] for row in read_csv(tmp_path / "p.csv")] == ["a", "b"] * 4
    assert "has no column to learn from" in invoke("query", "--data", table, *how[:2], code=1)


def test_query_takes_vectors_and_wrong_ones_cost_nothing(photos, tmp_path):
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label\ncat/00.png,cat\ndog/01.png,dog\n")
    np.save(tmp_path / "v.npy", clusters()[:-1])
    query = ("query", "--data", photos, "--labels", labels, "--classes", "cat,dog", "--n", 2)
    said = invoke(*query, "--embedding", tmp_path / "v.npy", code=1)
    assert "29 vectors without names" in said


def test_learner_takes_mapped_half_precision(tmp_path):
    np.save(tmp_path / "v.npy", clusters().astype(np.float16))
    features = torch.from_numpy(np.load(tmp_path / "v.npy", mmap_mode="c"))
    learner = la.Learner(la.exact(features, 2), features, "resolve")
    for position in learner.query(4):
        learner.teach([position], [position % 2])
    expected = la.Learner(la.exact(features.float(), 2), features.float(), "resolve")
    for position in expected.query(4):
        expected.teach([position], [position % 2])
    assert torch.allclose(learner.predict(range(N)), expected.predict(range(N)), atol=1e-6)
