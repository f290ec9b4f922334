import copy
import json
import shutil
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import labelahead as la
from labelahead.data import Answers, from_arrays
from labelahead.errors import InputError, LabelaheadError
from labelahead.learner.config import Budget, Network, parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.simulation.comparison.plan import (
    Comparison,
    format_comparison,
    parse_contenders,
    read_comparison,
)
from labelahead.simulation.final_model import run_model
from labelahead.simulation.run import resume, run
from labelahead.simulation.store import Store
from labelahead.strategies import STRATEGIES
from labelahead.strategies.base import QueryConfig
from tests.support.campaigns import blobs, data, reachable
from tests.support.simulations import SMALL, make_confirming_campaign
from tests.support.task_tables import write_task_table


def outcome(result):
    return (
        [replace(r, seconds={}) for r in result.rounds],
        result.pool.labelled.tolist(),
        {k: v.tolist() for k, v in result.model.state_dict().items()},
    )


@pytest.mark.parametrize("start", ["same", "warm", "shrink"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_run_is_reproducible_from_seed(strategy, start):
    campaign = replace(
        SMALL,
        asking=QueryConfig(strategy, retrainings=5),
        training={"steps": 15, "start": start},
        budget=Budget(initial=5, labels=8, retrain_every=3),
    )
    first = outcome(run(campaign, data=data()))
    assert first == outcome(run(campaign, data=data()))
    assert first[1] != outcome(run(replace(campaign, seed=1), data=data()))[1]


def test_comparison_file_stores_the_start_of_training(tmp_path):
    comparison = Comparison(
        replace(SMALL, asking=QueryConfig("random")), parse_contenders("random"), (0,)
    )
    text = format_comparison(comparison)
    assert 'start = "same"' in text
    (tmp_path / "compare.toml").write_text(text)
    assert read_comparison(tmp_path) == comparison


def test_folder_stores_complete_campaign(tmp_path):
    result = run(SMALL, data=data(), out=tmp_path / "a")
    plain = run(SMALL, data=data())
    assert outcome(result) == outcome(plain)
    with Store.open(tmp_path / "a") as store:
        labels = store.read_labels()
        assert [e.position for e in labels] == result.pool.labelled.tolist()
        assert [e.round for e in labels] == [0] * 5 + [1] * 4 + [2] * 4 + [3] * 4
        assert [replace(r, seconds={}) for r in store.read_rounds()] == outcome(result)[0]
        last = store.load_weights(3)
    assert all(torch.equal(last[k], v) for k, v in result.model.state_dict().items())
    stored_config = read_folder_config(tmp_path / "a")
    assert stored_config.training["steps"] == 60
    assert stored_config.training["optimiser"]
    assert outcome(resume(tmp_path / "a", data=data())) == outcome(result)


def read_folder_config(folder):
    import tomllib

    return parse_campaign(tomllib.loads((folder / "config.toml").read_text()))


@pytest.fixture(scope="module")
def run_whole(tmp_path_factory):
    """Return a function mode -> folder of a campaign, its outcome, the weights of each round."""

    @cache
    def run_mode(mode):
        campaign = replace(
            SMALL, asking=QueryConfig("flip", mode), training={"steps": 15, "start": "warm"}
        )
        folder = tmp_path_factory.mktemp(mode) / "a"
        found = outcome(run(campaign, data=data(), out=folder))
        return folder, found, train_weights(campaign)

    return run_mode


@pytest.mark.parametrize("keep", range(0, 17, 2))
@pytest.mark.parametrize("mode", ["sequential", "greedy", "top"])
def test_resume_after_any_label_gives_same_result(tmp_path, run_whole, keep, mode):
    folder, whole, weights = run_whole(mode)
    shutil.copytree(folder, tmp_path / "a")
    labels, rounds = tmp_path / "a" / "labels.jsonl", tmp_path / "a" / "rounds.jsonl"
    kept = labels.read_bytes().split(b"\n")[:keep]
    labels.write_bytes(b"".join(line + b"\n" for line in kept) + b'{"position": 3, "la')
    finished = max(0, (keep - 5) // 4)
    done = rounds.read_bytes().split(b"\n")[:finished]
    rounds.write_bytes(b"".join(line + b"\n" for line in done))
    # weights of later rounds do not exist yet; older ones may have been removed
    for path in (tmp_path / "a" / "weights").glob("*.pt"):
        path.unlink()
    if finished:
        with Store.open(tmp_path / "a") as store:
            store.save_weights(finished - 1, weights[finished - 1])
    again = resume(tmp_path / "a", data=data())
    assert outcome(again) == whole


def train_weights(campaign):
    """Return the weights after each round."""
    from labelahead.learner.preparation import prepare_campaign
    from labelahead.simulation.loop import run_rounds
    from labelahead.simulation.run import build_simulation

    ready, states, weights = prepare_campaign(campaign, data()), [], []
    for _ in run_rounds(build_simulation(ready), keep=states.append):
        weights.append(copy.deepcopy(states[-1].model.state_dict()))
    return weights


def test_recorded_labels_are_kept_if_query_changes(tmp_path):
    run(SMALL, data=data(), out=tmp_path / "a")
    folder = tmp_path / "a"
    rows = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()][:7]
    rows[-1]["position"] = next(i for i in range(60) if i not in {r["position"] for r in rows})
    (folder / "labels.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "rounds.jsonl").write_text("")
    result = resume(folder, data=data())
    assert {r["position"] for r in rows} <= set(result.pool.labelled.tolist())
    assert len(result.pool) == 17


def test_resume_with_other_data_raises(tmp_path):
    run(SMALL, data=data(), out=tmp_path / "a")
    with pytest.raises(InputError, match="the data have changed"):
        resume(tmp_path / "a", data=data(n=81))


def test_unsuitable_data_raise():
    x, y = blobs(30, (8,))
    with pytest.raises(InputError, match="no labels"):
        run(SMALL, data=from_arrays(x))
    with pytest.raises(InputError, match="at least two"):
        run(SMALL, data=from_arrays(x, torch.zeros_like(y)))
    with pytest.raises(InputError, match="pool has 10"):
        run(SMALL, data=from_arrays(x, y, test=range(10, 30)))


def test_custom_labeller_labels_queried_items(tmp_path):
    x, y = blobs(60, (8,))
    queried = []

    def annotate(position):
        queried.append(position)
        return int(y[position])

    dataset = from_arrays(x, y, test=range(50, 60))
    result = run(SMALL, data=dataset, labeller=annotate, out=tmp_path / "a")
    assert queried == result.pool.labelled.tolist()
    with pytest.raises(InputError, match="the labeller returned 'cat'"):
        run(SMALL, data=dataset, labeller=lambda p: "cat")
    with pytest.raises(InputError, match="the labeller returned 7"):
        run(SMALL, data=dataset, labeller=lambda p: 7)
    with_numpy_labels = run(SMALL, data=dataset, labeller=lambda p: y[p].numpy()[()])
    assert with_numpy_labels.pool.labelled.tolist() == queried


def test_invalid_absent_classes_raise(tmp_path):
    with pytest.raises(InputError, match="absent is -1"):
        parse_campaign({"budget": {"absent": -1}})
    for absent, initial, message in (
        (3, 5, "absent is 3, but there are 3 classes; expected fewer"),
        (2, 21, r"initial is 21, but without the last 2 classes \(absent\) the pool has 20"),
    ):
        for balanced in (False, True):
            budget = Budget(initial=initial, labels=30, absent=absent, balanced=balanced)
            with pytest.raises(InputError, match=message):
                run(replace(SMALL, budget=budget), data=data(), out=tmp_path / "a")
            assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("balanced", [False, True])
def test_campaign_with_absent_class_resumes(tmp_path, balanced):
    budget = Budget(initial=6, labels=12, retrain_every=3, balanced=balanced, absent=1)
    whole = run(replace(SMALL, budget=budget), data=data(), out=tmp_path / "a")
    assert read_folder_config(tmp_path / "a").budget == budget
    for name, keep in (("labels.jsonl", 4), ("rounds.jsonl", 0)):
        path = tmp_path / "a" / name
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:keep]))
    assert outcome(resume(tmp_path / "a", data=data())) == outcome(whole)


@pytest.mark.parametrize(
    ("kept", "found"),
    [(13, "13 labels for round 3"), (7, "7 labels for round 1"), (3, "3 l"), (0, "0 l")],
)
def test_resume_with_missing_labels_raises(tmp_path, kept, found):
    whole = run(SMALL, data=data(), out=tmp_path / "a")
    path = tmp_path / "a" / "labels.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert [r.labels for r in whole.rounds] == [5, 9, 13, 17]
    path.write_bytes(b"".join(lines[:kept]) + lines[kept][:9])  # the last line is truncated
    before = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir() if p.is_file()}
    for _ in range(2):
        with pytest.raises(
            InputError,
            match=rf"labels.jsonl holds {found}.*rounds.jsonl records .*labels are missing",
        ):
            resume(tmp_path / "a", data=data())
        with pytest.raises(InputError, match="labels are missing"):
            run_model(tmp_path / "a", data=data())
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir() if p.is_file()} == before
    (tmp_path / "a" / "rounds.jsonl").unlink()  # as the message advises
    assert outcome(resume(tmp_path / "a", data=data())) == outcome(whole)


def test_resume_with_missing_confirmations_raises(tmp_path):
    grids = replace(SMALL, budget=Budget(initial=5, labels=20, retrain_every=6, confirm=10))
    whole = run(grids, data=data(), out=tmp_path / "a")
    assert whole.rounds[-1].confirmed
    assert outcome(resume(tmp_path / "a", data=data())) == outcome(whole)
    path = tmp_path / "a" / "labels.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if json.loads(line)["by"] == "confirmed")
    path.write_text("".join(lines[:last] + lines[last + 1 :]))
    with pytest.raises(
        InputError, match=r"confirmed labels for round \d+, but rounds.jsonl records"
    ):
        resume(tmp_path / "a", data=data())


@pytest.mark.parametrize("keep", [6, 8, 11, 15, 17, 24])
def test_campaign_with_confirmations_resumes(tmp_path, keep):
    campaign = make_confirming_campaign(0.5)
    whole = run(campaign, data=data(), out=tmp_path / "a")
    labels, rounds = tmp_path / "a" / "labels.jsonl", tmp_path / "a" / "rounds.jsonl"
    kept = labels.read_bytes().splitlines(keepends=True)[:keep]
    begun = max(json.loads(line)["round"] for line in kept)
    labels.write_bytes(b"".join(kept))
    rounds.write_bytes(b"".join(rounds.read_bytes().splitlines(keepends=True)[: max(0, begun - 1)]))
    assert outcome(resume(tmp_path / "a", data=data())) == outcome(whole)


@pytest.mark.parametrize(
    "wrong", [{"confirm": -1}, {"missed": 1.5}, {"confirm": 100}, {"confirm_cost": float("nan")}]
)
def test_invalid_confirmation_settings_raise(wrong):
    with pytest.raises(InputError, match="confirm"):
        Budget(**wrong)


def test_folder_without_absent_key_resumes(tmp_path):
    whole = run(SMALL, data=data(), out=tmp_path / "a")
    config, rounds = tmp_path / "a" / "config.toml", tmp_path / "a" / "rounds.jsonl"
    text = config.read_text()
    assert "absent = 0\n" in text
    config.write_text(text.replace("absent = 0\n", ""))
    rounds.write_bytes(rounds.read_bytes().splitlines(keepends=True)[0])
    assert outcome(resume(tmp_path / "a", data=data())) == outcome(whole)


@pytest.mark.parametrize("strategy", ["flip", "badge", "bald", "ll4al", "albl", "random"])
def test_campaign_gives_strategy_no_labels(strategy, monkeypatch):
    """In `run` too, a strategy cannot reach the labels from its arguments."""
    original, passed_objects = STRATEGIES[strategy], []

    def record_and_select(*given):
        passed_objects.extend(given)
        return original.select_batch(*given)

    query_module = sys.modules["labelahead.strategies.query"]
    monkeypatch.setattr(
        query_module,
        "find_strategy",
        lambda name: replace(original, select_batch=record_and_select),
    )
    mode = "greedy" if original.look_ahead else None
    budget = Budget(initial=5, labels=9, retrain_every=4)
    given = data()
    run(replace(SMALL, asking=QueryConfig(strategy, mode), budget=budget), data=given)
    assert passed_objects
    true_labels = given[1]._labels[:60].tolist()
    for found in reachable(passed_objects):
        assert not isinstance(found, Answers)
        if isinstance(found, torch.Tensor) and found.dtype == torch.int64 and found.dim() == 1:
            values = found.tolist()
            assert not any(values[i : i + 30] == true_labels[:30] for i in range(len(values)))


def test_none_in_configuration_survives_resume(tmp_path):
    tables = {
        "model": {"name": "mlp", "width": 16},
        "threads": 1,
        "training": {"steps": 15, "clip": None, "rate": 0.3},
        "asking": {"candidates": None, "evaluation": None},
        "budget": {"initial": 5, "labels": 13, "retrain_every": 4},
    }
    whole = run(tables, data=data(), out=tmp_path / "a")
    rounds = tmp_path / "a" / "rounds.jsonl"
    rounds.write_bytes(rounds.read_bytes().split(b"\n")[0] + b"\n")
    assert outcome(resume(tmp_path / "a", data=data())) == outcome(whole)


def test_campaign_failing_in_first_round_leaves_no_folder(tmp_path):
    for changed in ({"device": "nowhere"}, {"training": {"rate": 1e300, "steps": 20}}):
        with pytest.raises(LabelaheadError):
            run(replace(SMALL, **changed), data=data(), out=tmp_path / "a")
        assert not (tmp_path / "a").exists()


def test_labels_of_an_annotator_are_kept_after_failure(tmp_path):
    x, y = blobs(60, (8,))

    def annotate_until_failure(position):
        if position == 5:
            raise RuntimeError("gone home")
        return int(y[position])

    with pytest.raises(RuntimeError, match="gone home"):
        run(
            replace(SMALL, budget=Budget(labels=60, initial=60)),
            data=from_arrays(x, y, test=[]),
            labeller=annotate_until_failure,
            out=tmp_path / "a",
        )
    assert (tmp_path / "a" / "config.toml").exists()


def test_resume_with_changed_content_raises(tmp_path):
    run(SMALL, data=data(), out=tmp_path / "a")
    with pytest.raises(InputError, match="other content"):
        resume(tmp_path / "a", data=data(seed=1))
    with pytest.raises(InputError, match="given in Python"):
        resume(tmp_path / "a")
    (tmp_path / "a" / "data.json").write_text("{")
    with pytest.raises(InputError, match=r"data\.json is damaged"):
        resume(tmp_path / "a", data=data())


def test_finished_campaign_continues_with_larger_budget(tmp_path):
    short = replace(SMALL, budget=Budget(initial=5, labels=9, retrain_every=4))
    run(short, data=data(), out=tmp_path / "a")
    more = resume(tmp_path / "a", {"budget.labels": 17}, data=data())
    assert outcome(more) == outcome(run(SMALL, data=data()))
    assert outcome(resume(tmp_path / "a", data=data())) == outcome(more)
    with pytest.raises(InputError, match="seed cannot be changed"):
        resume(tmp_path / "a", {"seed": 1}, data=data())


def test_label_records_name_items_and_classes(tmp_path):
    x, y = blobs(80, (32,))
    given = from_arrays(x, [("cat", "dog", "fox")[int(v)] for v in y], test=range(60, 80))
    run(SMALL, data=given, out=tmp_path / "a")
    rows = [json.loads(v) for v in (tmp_path / "a" / "labels.jsonl").read_text().splitlines()]
    assert all(r["item"] == str(r["position"]) for r in rows)
    assert all(r["name"] == ("cat", "dog", "fox")[int(y[r["position"]])] for r in rows)


def test_run_preserves_thread_count():
    before = torch.get_num_threads()
    run(replace(SMALL, threads=3, budget=Budget(labels=5, initial=5)), data=data())
    assert torch.get_num_threads() == before


class Sampling(torch.nn.Module):
    """A network without a tangent kernel (BatchNorm with batch statistics)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(32, track_running_stats=False)
        self.last = torch.nn.Linear(32, 3)

    def forward(self, x):
        return self.last(self.norm(x))


def test_network_without_kernel_works_with_random():
    factory = f"{__file__}:Sampling"
    result = run(replace(SMALL, model=Network(factory), asking=QueryConfig("random")), data=data())
    assert result.rounds[0].loo is None
    assert "no estimate by leave-one-out" in result.rounds[0].notes[-1]


def test_numpy_random_factories_are_reproducible(tmp_path):
    (tmp_path / "net.py").write_text(
        "import numpy as np, torch\n"
        "def make():\n"
        "    m = torch.nn.Linear(32, 3)\n"
        "    m.weight.data = torch.tensor(np.random.randn(3, 32), dtype=torch.float32)\n"
        "    return m\n"
    )
    campaign = replace(SMALL, model=Network(f"{tmp_path / 'net.py'}:make"))
    assert outcome(run(campaign, data=data())) == outcome(run(campaign, data=data()))


TASKS = ("multilabel", "number", "rating")


@pytest.mark.parametrize("task", TASKS)
def test_run_of_a_task_measures_its_test_items_as_a_learner_does(task, tmp_path):
    table = write_task_table(tmp_path, task)
    result = run(table.tables, out=tmp_path / "run")
    assert [r.labels for r in result.rounds] == [10, 20, 30]
    prepared = prepare_campaign(parse_campaign(table.tables))
    pool, test = torch.ones(len(prepared.data), dtype=torch.bool), prepared.data.test
    pool[test] = False
    learner = la.Learner(
        la.exact(prepared.rows[pool], task=prepared.task), prepared.rows, test=test.tolist()
    )
    at = result.pool.labelled
    learner.teach(at.tolist(), [table.answers[p] for p in at.tolist()])
    codes = prepared.task.parse_all([table.answers[p] for p in test.tolist()])
    want = prepared.task.measure(learner.predict(test.tolist()), codes)
    found = result.rounds[-1].measures
    assert {name: found[name] for name in want} == pytest.approx(want, abs=1e-9)
    assert result.curve[-1][1] == found[prepared.task.main_measure]
    assert result.rounds[-1].accuracy is None
    error = result.rounds[-1].error
    assert result.rounds[-1].error_low < error < result.rounds[-1].error_high


@pytest.mark.parametrize("task", TASKS)
def test_run_of_a_task_chooses_its_strategy_and_resumes_with_the_same_rounds(task, tmp_path):
    table = write_task_table(tmp_path, task)
    result = run(table.tables, out=tmp_path / "run")
    default = "resolve" if task == "multilabel" else "variance"
    assert result.campaign.asking.strategy == default
    assert result.campaign.model.name == "exact"
    rounds = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "rounds.jsonl").write_text("".join(rounds[:2]))
    assert outcome(resume(tmp_path / "run")) == outcome(result)
    answers = [
        json.loads(line)["name"]
        for line in (tmp_path / "run" / "labels.jsonl").read_text().splitlines()
    ]
    unit = " mg" if task == "number" else ""
    assert {float(a) if unit else a for a in answers} <= {
        float(a.removesuffix(unit)) if unit else a for a in table.answers
    }


def test_run_from_no_label_leaves_infinite_intervals_out(tmp_path):
    table = write_task_table(tmp_path, "number")
    result = run({**table.tables, "budget": {"initial": 0, "labels": 20}}, out=tmp_path / "run")
    assert "interval_width" not in result.rounds[0].measures
    assert result.rounds[0].measures["rmse"] > result.rounds[-1].measures["rmse"]
    assert "Infinity" not in (tmp_path / "run" / "rounds.jsonl").read_text()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"budget": {"initial": 10, "labels": 20, "balanced": True}}, "balanced is for one class"),
        ({"asking": {"strategy": "margin"}}, "margin works for the task classes, not for number"),
        ({"asking": {"strategy": "flip"}}, "flip does not work .* it counts wrong decisions"),
        ({"model": {"name": "mlp"}}, "mlp, but the task number needs the exact learner"),
    ],
)
def test_run_of_a_task_refuses_what_is_for_single_classes(tables, message, tmp_path):
    table = write_task_table(tmp_path, "number")
    with pytest.raises(InputError, match=message):
        run({**table.tables, **tables})


def test_run_refuses_labels_that_are_all_equal(tmp_path):
    table = write_task_table(tmp_path, "rating")
    lines = table.path.read_text().splitlines()
    table.path.write_text(
        "\n".join([lines[0], *(line[: line.rindex(",")] + ",3" for line in lines[1:])])
    )
    with pytest.raises(InputError, match=r"all labels .* are equal"):
        run({**table.tables, "data": {**table.tables["data"], "classes": "1,2,3"}})


def test_run_takes_the_task_of_data_given_in_python():
    x = np.random.default_rng(0).normal(size=(80, 3))
    given = from_arrays(x, x[:, 0] * 2, test=range(60, 80), task="number")
    result = run({"budget": {"initial": 10, "labels": 20}, "threads": 1}, data=given)
    assert result.campaign.data.task == "number"
    assert result.campaign.asking.strategy == "variance"
    assert result.curve[-1][1] < result.curve[0][1]
