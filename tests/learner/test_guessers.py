"""Guesses of a campaign, from files to exported predictions."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import labelahead as la
from labelahead.data.loading import load_source
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign, read_stored, to_toml
from labelahead.learner.encoding import SENTENCES
from labelahead.learner.export import export_model
from labelahead.learner.guessers import offer_class_names
from labelahead.learner.labelling_query import query_items
from labelahead.learner.preparation import prepare_campaign
from labelahead.learner.stopping import wilson_interval
from labelahead.models import EXACT
from labelahead.models.sentence_encoder import embed_texts
from labelahead.simulation import RunCallbacks
from tests.support.campaigns import own

CLASSES = ("low", "high")


@pytest.fixture
def table(tmp_path):
    """Numbers whose class is their sign, with the guesses of somebody who is right in 80 %."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5))
    y = (x[:, 0] > 0).astype(int)
    said = np.where(rng.random(60) < 0.8, y, 1 - y)
    path = tmp_path / "numbers.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*"abcde", "label", "llm"])
        for row, label, guess in zip(x, y, said, strict=True):
            writer.writerow([*(f"{v:.3f}" for v in row), CLASSES[label], CLASSES[guess]])
    return path


def make_campaign(table, **source):
    return la.Campaign(
        data=la.Source(str(table), target="label", **source),
        budget=la.Budget(initial=0, labels=10, retrain_every=5),
        threads=1,
    )


def export(prepared, count=12):
    labels = {p: prepared.answers(p) for p in range(count)}
    learner = prepared.make_learner(len(prepared.data.classes))
    fitted = learner.fit(torch.arange(count), torch.tensor(list(labels.values())))
    return export_model(prepared, fitted.model, labels, prepared.data.classes, {}), fitted


def test_campaign_without_labels_predicts_the_guesses(table):
    prepared = prepare_campaign(make_campaign(table, guesses=("llm",)))
    fitted = prepared.make_learner(2).fit(torch.tensor([], dtype=torch.int64), torch.tensor([]))
    guessed = prepared.data.guesses["llm"].probabilities
    assert torch.allclose(fitted.predict_proba(torch.arange(60)), guessed.double(), atol=1e-6)


def test_simulated_campaign_starts_from_the_guesses(table):
    notes = []
    campaign = make_campaign(table, guesses=("llm",))
    callbacks = RunCallbacks(on_ready=lambda prepared: notes.extend(prepared.notes))
    result = la.run(campaign, callbacks=callbacks)
    without = la.run(make_campaign(table, without=("llm",)))
    assert result.rounds[0].accuracy > without.rounds[0].accuracy
    assert any("prior knowledge: llm" in note for note in notes)
    (sentence,) = result.guessers
    assert f"of {len(result.pool)} labelled items" in sentence
    assert without.guessers == ()


def test_exported_model_reads_the_column_of_guesses(table, tmp_path):
    prepared = prepare_campaign(make_campaign(table, guesses=("llm",)))
    model, fitted = export(prepared)
    model.save(tmp_path / "model", onnx=False)
    found = la.load_model(tmp_path / "model").predict(table)
    expected = fitted.predict_proba(torch.arange(60))
    assert torch.allclose(found.probabilities, expected, atol=1e-6)


def test_exported_model_predicts_items_without_guesses(table, tmp_path):
    prepared = prepare_campaign(make_campaign(table, guesses=("llm",)))
    model, fitted = export(prepared, 5)
    assert bool(fitted.model.trust.any())
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {name: [row[name] for row in rows] for name in "abcde"}
    found = model.predict(columns)
    blind = torch.cat([prepared.rows[:, : prepared.feature_width], torch.zeros(60, 2)], 1)
    assert torch.allclose(found.probabilities, fitted.model.predict_proba(blind), atol=1e-6)
    (note,) = found.notes
    assert "guesses of the column 'llm', and there are none about 60 items" in note
    assert "--without-guesses" in note
    with_guesses = model.predict({**columns, "llm": [row["llm"] for row in rows]})
    assert with_guesses.notes == ()
    assert not torch.equal(with_guesses.probabilities, found.probabilities)
    accepted = model.predict(table, without_guesses=True)
    assert torch.equal(accepted.probabilities, found.probabilities)
    assert accepted.notes == ()


def test_guesses_that_are_not_trusted_are_not_missed(table):
    prepared = prepare_campaign(make_campaign(table, guesses=("llm",)))
    model, fitted = export(prepared, 12)
    assert not fitted.model.trust.any()
    columns = {name: [0.5, -0.5] for name in "abcde"}
    assert model.predict(columns).notes == ()


def test_guesses_of_an_exported_model_are_its_predictions(table, tmp_path):
    model, fitted = export(prepare_campaign(make_campaign(table, without=("llm",))))
    model.save(tmp_path / "old", onnx=False)
    campaign = make_campaign(table, without=("llm",), guesses=(f"model:{tmp_path / 'old'}",))
    prepared = prepare_campaign(campaign)
    assert prepared.guesses.names == (f"model:{tmp_path / 'old'}",)
    expected = fitted.predict_proba(torch.arange(60)) - 0.5
    assert torch.allclose(prepared.guesses.deviations.double(), expected, atol=1e-6)


def test_model_without_common_classes_is_refused_as_guesser(table, tmp_path):
    prepared = prepare_campaign(make_campaign(table, without=("llm",)))
    renamed = replace(prepared, data=replace(prepared.data, classes=("no", "yes")))
    model, _ = export(renamed)
    model.save(tmp_path / "old", onnx=False)
    campaign = make_campaign(table, without=("llm",), guesses=(f"model:{tmp_path / 'old'}",))
    with pytest.raises(InputError, match="none of which is a class of this project"):
        prepare_campaign(campaign)


def test_trained_network_refuses_guesses(table):
    campaign = replace(make_campaign(table, guesses=("llm",)), model=la.Network("mlp"))
    with pytest.raises(InputError, match="prior knowledge of the model exact, but model is mlp"):
        prepare_campaign(campaign)


@pytest.mark.parametrize("task", ["multilabel", "number", "rating"])
def test_other_tasks_refuse_guesses_before_they_are_read(table, task):
    source = la.Source(str(table), task=task, guesses=("llm",))
    with pytest.raises(InputError, match=f"for the task {task}; they work for one class per item"):
        query_items(la.Campaign(data=source, threads=1), 2)


def test_class_names_need_an_encoder_of_texts(table):
    campaign = make_campaign(table, without=("llm",), prior="class-names")
    with pytest.raises(InputError, match="does not read class names"):
        prepare_campaign(campaign)


def test_unknown_prior_is_refused():
    with pytest.raises(InputError, match="prior is 'names'"):
        la.run({"data": {"prior": "names"}})


def test_learner_with_guesses_is_saved_and_loaded(tmp_path):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(40, 4, generator=rng)
    y = (x[:, 0] > 0).long()
    learner = la.Learner(la.exact(x, 2, guesses={"llm": y, "old": 1 - y}), x)
    assert torch.equal(learner.predict().argmax(1), torch.zeros(40).long())  # they contradict
    learner.teach(list(range(12)), y[:12])
    learner.train()
    learner.save(tmp_path / "learner.pt")
    with pytest.raises(InputError, match="was saved with 2 guessers, but the model has 0"):
        la.Learner.load(tmp_path / "learner.pt", la.exact(x, 2), x)
    blank = la.exact(x, 2, guesses={"llm": y, "old": 1 - y})
    again = la.Learner.load(tmp_path / "learner.pt", blank, x)
    assert torch.equal(again.predict(), learner.predict())
    assert again.query(3) == learner.query(3)


def test_learner_loads_guesses_that_were_given_to_it(tmp_path):
    """A file of `Learner(guesses=)` and one of `exact(guesses=)` are the same."""
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 2
    learner = la.Learner(la.exact(x, 2), x, guesses={"llm": y, "old": y})
    learner.teach(list(range(12)), y[:12])
    learner.save(tmp_path / "learner.pt")
    said = {"llm": y, "old": y}
    again = la.Learner.load(tmp_path / "learner.pt", la.exact(x, 2), x, guesses=said)
    other = la.Learner.load(tmp_path / "learner.pt", la.exact(x, 2, guesses=said), x)
    for loaded in (again, other):
        assert torch.equal(loaded.predict(), learner.predict())
        assert loaded.query(3) == learner.query(3)
    with pytest.raises(InputError, match="was saved with 2 guessers, but the model has 1"):
        la.Learner.load(tmp_path / "learner.pt", la.exact(x, 2), x, guesses=y)


def make_guesses_of_every_form():
    """Items, their classes, and guesses about them: classes, probabilities, of several guessers."""
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(50, 6, generator=rng)
    y = (x[:, 0] > 0).long()
    says = torch.where(torch.rand(50, generator=rng) < 0.7, y, 1 - y)
    says[::7] = -1
    p = torch.rand(50, 2, generator=rng).softmax(1)
    p[::5] = 0
    every = [says, says.tolist(), says.numpy(), p, p.numpy(), {"llm": says, "old": p}]
    return x, y, every


@pytest.mark.parametrize("form", range(6))
def test_guesses_of_learner_equal_those_of_exact_bit_for_bit(form):
    x, y, every = make_guesses_of_every_form()
    model = la.exact(x, 2)
    learner = la.Learner(model, x, guesses=every[form], seed=4)
    twin = la.Learner(la.exact(x, 2, guesses=every[form]), x, seed=4)
    for _ in range(3):
        found = learner.predict()
        assert torch.equal(found, twin.predict())
        queried = learner.query(5)
        assert queried == twin.query(5)
        learner.teach(queried, y[queried])
        twin.teach(queried, y[queried])
    plain = la.Learner(model, x, seed=4)  # the model given is as it was
    plain.teach(learner.pool.labelled, learner.pool.labels)
    assert torch.equal(learner.predict(), twin.predict())
    assert not torch.equal(learner.predict(), plain.predict())
    assert learner.forecast().error.rate == twin.forecast().error.rate
    assert torch.equal(learner.leave_one_out(), twin.leave_one_out())


def test_guesses_of_learner_are_refused_where_they_cannot_count():
    x, y, (says, *_) = make_guesses_of_every_form()
    guessing = la.exact(x, 2, guesses=says)
    fitted = la.Learner(la.exact(x, 2), x)
    fitted.teach(range(8), y[:8])
    fitted.train()
    for model, given, message in (
        (own(), says, "the model is a Own; expected la.exact"),
        (guessing, says, "has guesses already; expected them once"),
        (fitted.model, says, "has 8 labels already; expected a new one"),
        (la.exact(x, task=la.tasks.Number()), says, "for the task number; they work for one class"),
        (la.exact(x, 2), says[:9], "has 9 guesses; expected one for each of 50 items"),
        (la.exact(x, 2), [5] * 50, "guesses 1 class that the project does not have"),
        (la.exact(x, 2), {}, "guesses is empty"),
    ):
        with pytest.raises(InputError, match=message):
            la.Learner(model, x, guesses=given)


def test_guesses_about_other_items_are_refused():
    x = torch.randn(10, 4)
    with pytest.raises(InputError, match="has 9 guesses; expected one for each of 10 items"):
        la.exact(x, 2, guesses=[0] * 9)
    with pytest.raises(InputError, match="guesses about 10 items, but there are 8 inputs"):
        la.Learner(la.exact(x, 2, guesses=[0] * 10), x[:8])


def test_guesses_follow_the_classes_of_a_query(table, tmp_path):
    """The labels of a file may name the classes in another order than --classes."""
    labels = tmp_path / "labels.csv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    unlabelled = tmp_path / "unlabelled.csv"
    with unlabelled.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*"abcde", "llm"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    labels.write_text("item,label\n" + "".join(f"{i},{rows[i]['label']}\n" for i in range(5)))
    found = []
    for classes in (("high", "low"), ("low", "high")):
        source = la.Source(str(unlabelled), guesses=("llm",), classes=classes)
        campaign = la.Campaign(data=source, threads=1)
        items, prepared = query_items(campaign, 55, labels=labels)
        found.append({item.id: (item.prediction, item.probability) for item in items})
        said = next(note for note in prepared.notes if note.startswith("llm: right for"))
        right = sum(row["llm"] == row["label"] for row in rows[:5])
        assert f"right for {right} of 5 labelled items" in said
    assert found[0].keys() == found[1].keys()
    for item, (prediction, probability) in found[0].items():
        assert found[1][item][0] == prediction
        assert found[1][item][1] == pytest.approx(probability, abs=1e-6)
    plain, _ = query_items(
        la.Campaign(data=la.Source(str(unlabelled), without=("llm",), classes=CLASSES), threads=1),
        55,
        labels=labels,
    )
    assert {i.id: i.probability for i in plain} != {i: p for i, (_, p) in found[0].items()}


def test_quality_names_the_mistakes(table):
    prepared = prepare_campaign(make_campaign(table, guesses=("llm",)))
    at = torch.arange(30)
    labels = prepared.answers.take(at)
    model = prepared.make_learner(2).fit(at, labels).kernel_model
    (note,) = prepared.guesses.describe_quality(model, labels)
    guess = prepared.data.guesses["llm"].probabilities.argmax(1)[at]
    truth = prepared.answers.take(at)
    assert f"right for {int((guess == truth).sum())} of 30" in note
    high = int(((guess == 0) & (truth == 1)).sum())
    name = prepared.data.classes
    assert f"{name[0]} for {name[1]} ({high})" in note
    assert " worth " in note


def test_wilson_interval_equals_scipy():
    found = wilson_interval(7, 30)
    expected = binomtest(7, 30).proportion_ci(method="wilson")
    assert found == pytest.approx((expected.low, expected.high), abs=1e-6)


# --- Classes with descriptions and examples


def prepare_texts(tmp_path, classes):
    path = tmp_path / "texts.csv"
    texts = ["the rocket left its orbit", "bake the cake with butter and sugar"] * 6
    path.write_text("text\n" + "".join(f"{text} number {i}\n" for i, text in enumerate(texts)))
    source = {"name": str(path), "classes": str(classes), "prior": "class-names"}
    return prepare_campaign(parse_campaign({"data": source, "threads": 1}))


def test_class_file_gives_names_their_meaning(tmp_path):
    """Cryptic names say nothing; their description or examples do."""
    classes = tmp_path / "classes.csv"
    classes.write_text(
        "name,description,examples\nk1,,a moon landing|astronauts in space\nk2,cooking food.,\n"
    )
    prepared = prepare_texts(tmp_path, classes)
    assert prepared.guesses.classes == ("k1", "k2")
    assert (prepared.guesses.deviations.argmax(1) == torch.arange(12) % 2).all()
    names = prepared.guesses.class_names.embeddings.double()
    texts = ["This text is about k1.", "a moon landing", "astronauts in space"]
    each = torch.nn.functional.normalize(embed_texts(texts, cache=None).double(), dim=1)
    assert torch.allclose(names[0], each.mean(0), atol=1e-6)
    alone = embed_texts(["This text is about k2: cooking food."], cache=None)[0]
    cosine = torch.nn.functional.cosine_similarity(names[1], alone.double(), dim=0)
    assert float(cosine) == pytest.approx(1, abs=1e-6)


def test_class_file_is_stored_with_the_campaign(tmp_path):
    classes = tmp_path / "classes.csv"
    classes.write_text("name,description,examples\nspace,rockets,moon|stars\nfood,,\n")
    campaign = prepare_texts(tmp_path, classes).campaign
    classes.unlink()
    stored = tmp_path / "config.toml"
    stored.write_text(to_toml(campaign))
    again = parse_campaign(read_stored(stored))
    assert again.data == campaign.data
    assert again.data.class_examples == {"space": ("moon", "stars")}


# --- The user's own function


def write_function(tmp_path, body):
    path = tmp_path / "heuristic.py"
    path.write_text(f"def guess(items):\n    {body}\n")
    return f"{path}:guess"


@pytest.mark.parametrize(
    "body",
    [
        "return ['high' if float(row['a']) > 0 else 'low' for row in items]",
        "import numpy\n    high = numpy.array([float(row['a']) > 0 for row in items]) * 0.8 + 0.1\n"
        "    return numpy.stack([high, 1 - high], 1)",
    ],
)
def test_function_guesses_classes_or_probabilities(table, tmp_path, body):
    """The second one names the probabilities in the order of the classes: high, low."""
    name = write_function(tmp_path, body)
    prepared = prepare_campaign(make_campaign(table, without=("llm",), guesses=(name,)))
    assert prepared.data.classes == ("high", "low")
    first = torch.tensor([float(v) for v in column_of(table, "a")])
    expected = 0.4 if "return [" in body else None
    blocks = prepared.guesses.deviations
    assert torch.equal(blocks.argmax(1), (first <= 0).long())
    assert expected is None or blocks.max().item() == pytest.approx(expected)
    assert "prior knowledge: guess" in " ".join(prepared.notes)


def column_of(table, name):
    with table.open(newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return ['medium'] * len(items)", "does not have .medium.; expected some of high, low"),
        ("return ['low']", "has 1 guess; expected one for each of 60"),
        ("return 'low'", "returned a str for 60 items; expected a list"),
        ("return 1 / 0", "failed on 60 items with ZeroDivisionError"),
        ("return [[0.4, 0.4]] * len(items)", "expected numbers from 0 to 1 that sum to 1"),
        ("return [[1.4, -0.4]] * len(items)", "expected numbers from 0 to 1 that sum to 1"),
    ],
)
def test_function_that_returns_no_guesses_is_refused(table, tmp_path, body, message):
    name = write_function(tmp_path, body)
    with pytest.raises(InputError, match=message):
        prepare_campaign(make_campaign(table, without=("llm",), guesses=(name,)))


def test_function_may_have_no_guess(table, tmp_path):
    name = write_function(tmp_path, "return [None] * len(items)")
    prepared = prepare_campaign(make_campaign(table, without=("llm",), guesses=(name,)))
    assert not prepared.guesses.deviations.any()


def test_stored_function_of_somebody_else_is_not_run(table, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ran = tmp_path / "ran"
    name = write_function(tmp_path, f"open({str(ran)!r}, 'w')\n    return [None] * len(items)")
    folder = tmp_path / "from-somebody"
    folder.mkdir()
    campaign = make_campaign(table, without=("llm",), guesses=("llm", name))
    (folder / "config.toml").write_text(to_toml(campaign))
    with pytest.raises(InputError, match=r"data.guesses\[1\].*add --trust-code"):
        read_stored(folder / "config.toml")
    read_stored(folder / "config.toml", {"data.guesses": [name]})  # typed by the user
    read_stored(folder / "config.toml", trust_code=True)
    assert not ran.exists()


def test_language_model_is_only_asked_by_a_command(table):
    campaign = make_campaign(table, without=("llm",), guesses=("llm:http://127.0.0.1:9",))
    with pytest.raises(InputError, match="labelahead guess DATA --guesses llm:URL"):
        prepare_campaign(campaign)


@pytest.mark.parametrize(("classes", "offered"), [(("cars", "space_flight"), 1), (("0", "1"), 0)])
def test_class_names_are_offered_for_texts_whose_classes_are_words(tmp_path, classes, offered):
    path = tmp_path / "texts.csv"
    rows = [
        f'"a longer text about thing number {i}, with some words",{classes[i % 2]}'
        for i in range(40)
    ]
    path.write_text("\n".join(["text,label", *rows]))
    source = la.Source(str(path), target="label")
    data, _ = load_source(source, 0)
    assert len(offer_class_names(source, data, SENTENCES, EXACT)) == offered
    assert offer_class_names(source, data, "words", EXACT) == ()
    named = replace(source, prior="class-names")
    assert offer_class_names(named, data, SENTENCES, EXACT) == ()
