"""Which embedding is best: leave-one-out against leaving out by hand."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from labelahead.data.new_items import encode_table_rows
from labelahead.data.table import Table
from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import exact
from labelahead.inference.sources import Annotations
from labelahead.learner.config import parse_campaign
from labelahead.learner.encoder_comparison import (
    compare_embeddings,
    resolve_auto_embedding,
    split_embedding_names,
)
from labelahead.learner.preparation import prepare_campaign
from labelahead.models.trusted_code import find_code_names

N, L = 60, 24


@pytest.fixture
def source(tmp_path):
    """A table with a column of noise, labels of some rows, good and useless vectors."""
    rng = np.random.default_rng(0)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text"])
        rows.writerows([[f"i{k}", f"a text of no {k} help at all here"] for k in range(N)])
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "label"])
        rows.writerows([[f"i{k}", "xyz"[k % 3]] for k in range(L)])
    centres = 2.5 * rng.normal(size=(3, 8))
    good = centres[np.arange(N) % 3] + rng.normal(size=(N, 8))
    np.save(tmp_path / "good.npy", good.astype(np.float32))
    np.save(tmp_path / "bad.npy", rng.normal(size=(N, 8)).astype(np.float32))
    return tmp_path


def campaign(source, embedding=None):
    data = {"name": str(source / "t.csv"), **({"embedding": embedding} if embedding else {})}
    return parse_campaign({"data": data, "threads": 1})


def test_scores_equal_leaving_out_by_hand(source):
    names = [str(source / "bad.npy"), str(source / "good.npy")]
    scores = compare_embeddings(campaign(source), names, labels=source / "labels.csv")
    both = "+".join(names[::-1])
    weighted = [f"{a}*{names[1]}+{b}*{names[0]}" for a, b in ((0.8, 0.2), (0.2, 0.8))]
    assert sorted(s.embedding for s in scores) == sorted([*names, both, *weighted])
    assert scores[0].embedding == names[1]  # the joined one predicts no more labels
    right = {}
    for score in scores:
        parts = [part.rpartition("*") for part in score.embedding.split("+")]
        blocks = [torch.from_numpy(np.load(path)).double() for _, _, path in parts]
        blocks = [block - block.mean(0) for block in blocks]
        roots = [float(weight or 1) ** 0.5 for weight, _, _ in parts]
        units = [b / b.square().sum(1).mean().sqrt() for b in blocks]
        x = torch.cat([r * b for r, b in zip(roots, units, strict=True)], 1).float()
        labels = torch.arange(L) % 3
        learner = ExactLearner(x, exact(x, 3), "cpu")
        mixture = learner.fit(torch.arange(L), labels).kernel_model.get_mixture()
        guesses, errors = [], []
        for left in range(L):  # the mixture of all labels, as leave-one-out has it
            rest = [i for i in range(L) if i != left]
            units = learner.network(0).normalise_rows(x[:L]).double()
            from labelahead.inference.mixture import mix_kernels

            K = mix_kernels(units @ units.T, mixture.weights)
            targets = torch.nn.functional.one_hot(labels, 3).double() - 1 / 3
            system = K[rest][:, rest] + mixture.noise * torch.eye(L - 1, dtype=torch.float64)
            mean = K[left, rest] @ torch.linalg.solve(system, targets[rest])
            guesses.append(mean.argmax())
            errors.append(float((mean - targets[left]).square().sum()))
        right[score.embedding] = torch.stack(guesses) == labels
        assert score.accuracy == pytest.approx(float(right[score.embedding].double().mean()))
        assert score.squared_error == pytest.approx(np.mean(errors), abs=1e-5)
        share = binomtest(int(right[score.embedding].sum()), L)
        wilson = share.proportion_ci(method="wilson")
        assert (score.low, score.high) == pytest.approx((wilson.low, wilson.high), abs=1e-6)
        assert (score.labels, score.width) == (L, 8 * len(blocks))
    assert scores[0].p_value == 1.0
    assert {s.embedding: s for s in scores}[names[0]].p_value < 0.05


def test_auto_joins_embeddings_that_complement_each_other(source):
    """One file of vectors tells x from the others, the other one y."""
    rng = np.random.default_rng(1)
    for letter in range(2):
        vectors = rng.normal(size=(N, 8))
        vectors[:, 0] += 8 * (np.arange(N) % 3 == letter)
        np.save(source / f"part{letter}.npy", vectors.astype(np.float32))
    names = ",".join(str(source / f"part{letter}.npy") for letter in range(2))
    chosen, why = resolve_auto_embedding(campaign(source, f"auto:{names}"), source / "labels.csv")
    parts = (chosen.data.embedding or "").split("+")
    assert sorted(parts) == sorted(names.split(","))
    assert "by leave-one-out on 24 labels" in why
    ready = prepare_campaign(chosen)
    assert ready.rows.shape == (N, 16)
    # new items come with both vectors
    columns = {"part0": np.load(source / "part0.npy"), "part1": np.load(source / "part1.npy")}
    columns["text"] = ["a text"] * N
    read = encode_table_rows(ready.make_preprocessor(), Table(columns, range(N), unit="row"), "new")
    seen = (read - ready.make_preprocessor().mean) / ready.make_preprocessor().std
    torch.testing.assert_close(seen.float(), ready.rows, rtol=1e-5, atol=1e-5)


def test_code_cannot_be_joined_to_an_embedding(source):
    joined = f"{source / 'good.npy'}+evil.py:f"
    with pytest.raises(InputError, match=r"evil.py:f cannot be joined"):
        prepare_campaign(campaign(source, joined))
    for name in (joined, "hf:a/b+evil.py:f"):  # a stored one has to be trusted first
        assert find_code_names({"data": {"embedding": name}})
    assert not find_code_names({"data": {"embedding": "minilm+hf:a/b"}})
    assert not find_code_names({"data": {"embedding": "0.8*minilm+0.2*hf:a/b"}})
    for name in ("0.8*hf:a/b+0.2*evil.py:f", "3*hf:evil.py:f", "3*hf:evil.py:f+"):
        assert find_code_names({"data": {"embedding": name}})


def test_auto_takes_the_best_or_says_why_not(source):
    names = f"auto:{source / 'bad.npy'},{source / 'good.npy'}"
    chosen, why = resolve_auto_embedding(campaign(source, names), source / "labels.csv")
    assert chosen.data.embedding == str(source / "good.npy")
    assert "by leave-one-out on 24 labels" in why
    chosen, why = resolve_auto_embedding(campaign(source, names))
    assert chosen.data.embedding == str(source / "bad.npy")
    assert "there are 0 labels" in why


def test_names_are_split_and_repeated_ones_refused():
    assert split_embedding_names("auto:a, b") == ["a", "b"]
    for names in ("", "a,a", "auto:"):
        with pytest.raises(InputError, match="expected different names"):
            split_embedding_names(names)


def test_embeddings_are_scored_by_the_labels_of_all_annotators(source):
    labels = source / "disputed.csv"
    number = {f"i{k}": "xyz"[k % 3] for k in range(L)}
    wrong = {f"i{k}": "xyz"[(k + (k % 4 == 0)) % 3] for k in range(L)}
    by = {"anna": number, "ben": wrong, "cy": number}
    with labels.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "label", "annotator"])
        rows.writerows([[i, c, who] for who, said in by.items() for i, c in said.items()])
    good = str(source / "good.npy")
    (score,) = compare_embeddings(campaign(source, good), [good], labels=labels)
    prepared = prepare_campaign(campaign(source, good))
    annotations = Annotations.from_rows(
        [(int(i[1:]), "xyz".index(c), who) for who, said in by.items() for i, c in said.items()]
    )
    learner = replace(prepared.make_exact_learner(3), annotations=annotations)
    truth = torch.arange(L) % 3  # two of three are right everywhere
    predicted, _ = learner.leave_one_out_predictions(torch.arange(L), truth)
    assert score.labels == L
    assert score.accuracy == float((predicted.argmax(1) == truth).double().mean())


def test_embeddings_of_another_task_are_refused_with_the_command_that_compares_them():
    campaign = parse_campaign({"data": {"name": "x.csv", "task": "number"}})
    with pytest.raises(InputError, match=r"compare --task number --embedding a,b"):
        compare_embeddings(campaign, ["words"])
