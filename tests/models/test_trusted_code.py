"""Code named by a folder: refused for a foreign folder, run for the user's own."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import labelahead as la
from labelahead.cli import app
from labelahead.errors import InputError
from labelahead.models.trusted_code import get_used_code_file, record_code
from tests.support.campaigns import data
from tests.support.web_sessions import photos

CODE = """
from pathlib import Path
from torch import nn

Path(__file__).with_suffix(".ran").touch()

def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))

def mine(view, rng):
    return view.variance.clone() if hasattr(view, "variance") else view.evaluation
"""
QUICK = (
    "--labels=14",
    "--initial=10",
    "--retrain-every=4",
    "--threads=1",
    "--set=training.steps=5",
)


@pytest.fixture
def accounts(tmp_path, monkeypatch):
    """Function that makes this process another account of this machine; it begins as `owner`."""

    def become(name):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / f"state-of-{name}"))

    become("owner")
    return become


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def code(folder):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "net.py"
    path.write_text(CODE)
    return path


def has_run(path):
    return path.with_suffix(".ran").exists()


def table(path):
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal() + 3 * (i % 2):.3f},{rng.normal():.3f},{'ab'[i % 2]}" for i in range(60)]
    path.write_text("x,y,label\n" + "\n".join(rows) + "\n")
    return path


def own_run(tmp_path):
    """A run on a table with a network of one's own, whose code lies beside it."""
    net, items = code(tmp_path / "project"), table(tmp_path / "items.csv")
    done = invoke(
        "run", "--data", items, "--model", f"{net}:make", *QUICK, "--out", tmp_path / "run"
    )
    assert done.exit_code == 0, done.output
    return tmp_path / "run", net, items


def foreign_run(tmp_path, name="{folder}/net.py:make"):
    """The same as somebody else hands it on: code inside, the configuration says which."""
    run, net, items = own_run(tmp_path)
    foreign = tmp_path / "foreign"
    shutil.copytree(run, foreign)
    evil = code(foreign)
    config = foreign / "config.toml"
    config.write_text(config.read_text().replace(f"{net}:make", name.format(folder=foreign)))
    return foreign, evil, items


def test_own_code_runs_again_without_confirmation(tmp_path, accounts):
    run, _, items = own_run(tmp_path)
    assert invoke("resume", run, "--labels=18").exit_code == 0
    assert invoke("predict", run, items).exit_code == 0
    assert invoke("export-model", run, "--to", tmp_path / "model", "--no-onnx").exit_code == 0
    assert len(la.load_model(run).predict(items)) == 60


@pytest.mark.parametrize("name", ["{folder}/net.py:make", "net.py:make", "net:make"])
@pytest.mark.parametrize("command", ["predict", "export-model", "resume"])
def test_code_inside_a_foreign_run_is_refused(tmp_path, accounts, monkeypatch, command, name):
    foreign, evil, items = foreign_run(tmp_path, name)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    monkeypatch.chdir(foreign)  # relative paths and modules are looked up there
    more = {
        "predict": [items],
        "export-model": ["--to", tmp_path / "model", "--no-onnx"],
        "resume": [],
    }[command]
    said = invoke(command, ".", *more)
    assert said.exit_code != 0
    assert "--trust-code" in said.output
    assert "it was not run" in said.output
    assert not has_run(evil)
    trusted = invoke(command, ".", *more, "--trust-code")
    assert trusted.exit_code == 0, trusted.output
    assert has_run(evil)


def test_unused_code_outside_the_folder_is_refused(tmp_path, accounts):
    run, net, items = own_run(tmp_path)
    net.with_suffix(".ran").unlink()
    net.write_text(CODE + "\n# edited: it would be run anew\n")
    accounts("stranger")
    with pytest.raises(InputError, match="which you have not used on this account before"):
        la.load_model(run)
    with pytest.raises(InputError, match="which you have not used"):
        la.resume(run)
    assert not has_run(net)
    assert (
        len(la.load_model(run, network=f"{net}:make").predict(items)) == 60
    )  # named in this very call
    assert len(la.load_model(run, trust_code=True).predict(items)) == 60


def test_code_named_by_the_caller_runs(tmp_path, accounts):
    run, _, _ = own_run(tmp_path)
    accounts("stranger")
    moved = code(tmp_path / "moved")
    assert invoke("resume", run, "--labels=18", "--model", f"{moved}:make").exit_code == 0
    assert has_run(moved)
    assert invoke("resume", run, "--labels=22").exit_code == 0  # used before by now


def test_library_function_counts_as_code(tmp_path, accounts):
    """An embedding `subprocess:call` would run the items of a table of texts as a command."""
    result = la.run(
        {
            "model": {"name": "mlp"},
            "budget": {"initial": 10, "labels": 12},
            "training": {"steps": 5},
        },
        data=data(),
        out=tmp_path / "run",
    )
    config = result.folder / "config.toml"
    config.write_text(
        config.read_text().replace('embedding = "raw"', 'embedding = "subprocess:call"')
    )
    assert "subprocess" in config.read_text()
    with pytest.raises(InputError, match="subprocess:call"):
        la.resume(result.folder, data=data())


def test_prediction_does_not_import_the_strategy(tmp_path, accounts):
    run, _, items = own_run(tmp_path)
    evil = code(tmp_path / "evil")
    config = run / "config.toml"
    config.write_text(config.read_text().replace('strategy = "flip"', f'strategy = "{evil}:mine"'))
    assert str(evil) in config.read_text()
    assert invoke("predict", run, items).exit_code == 0
    assert not has_run(evil)


def comparison(tmp_path):
    net, items = code(tmp_path / "project"), table(tmp_path / "items.csv")
    arguments = (
        "--data",
        items,
        "--strategies=random",
        "--seeds=1",
        "--workers=1",
        "--model",
        f"{net}:make",
    )
    quick = [option for option in QUICK if "threads" not in option]
    done = invoke("compare", *arguments, *quick, "--out", tmp_path / "comparison")
    assert done.exit_code == 0, done.output
    return tmp_path / "comparison", net


def test_foreign_comparison_is_neither_resumed_nor_reported(tmp_path, accounts):
    folder, net = comparison(tmp_path)
    evil = code(tmp_path / "evil")
    whole, single = folder / "compare.toml", folder / "random" / "seed-0" / "config.toml"
    model = (f"{net}:make", f"{evil}:make")
    for file, old, new in (
        (whole, *model),
        (single, *model),
        (whole, '"random",', f'"random", "{evil}:mine",'),
    ):
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        said = invoke("report", folder)
        assert said.exit_code != 0
        assert "it was not run" in said.output
        if file == whole:
            assert "--trust-code" in invoke("compare", "--out", folder, "--workers=1").output
        file.write_text(text)
    single.write_text(single.read_text().replace(*model))
    (single.parent / "rounds.jsonl").unlink()  # something is left to do, which a worker would
    said = invoke("compare", "--out", folder, "--workers=1")
    assert said.exit_code == 1
    assert "it was not run" in said.output
    assert not has_run(evil)


def test_foreign_session_model_is_refused(tmp_path, accounts):
    from labelahead.learner.config import parse_campaign
    from labelahead.server.session import open_session

    pictures, net = photos(tmp_path / "photos"), code(tmp_path / "project")
    tables = {"data": {"name": str(pictures)}, "model": {"name": f"{net}:make"}, "threads": 1}
    with open_session(parse_campaign(tables), tmp_path / "session", classes=["a", "b"]):
        pass
    accounts("stranger")
    for command in (
        ("predict", tmp_path / "session", pictures),
        ("export-model", tmp_path / "session", "--to", "m"),
    ):
        said = invoke(*command)
        assert said.exit_code != 0
        assert "--trust-code" in said.output
        assert not has_run(net)


def test_out_of_core_store_runs_no_code(tmp_path, accounts):
    from labelahead.outofcore import LargePool, embed
    from tests.support.large_pools import Inline

    net = code(tmp_path / "project")
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32))
    sketched = {"model": f"{net}:make", "classes": ["a", "b"], "sketch": 8}
    embed(tmp_path / "pool.npy", tmp_path / "store", executor=Inline(), **sketched)
    assert has_run(net)
    net.unlink()
    assert (
        len(
            LargePool(tmp_path / "store", executor=Inline()).query(
                2, evaluation=10, classes=["a", "b"]
            )
        )
        == 2
    )


def test_configuration_must_not_name_code_in_the_data(tmp_path, accounts):
    pictures = photos(tmp_path / "photos")
    evil = code(pictures)
    config = pictures / "labelahead.toml"
    config.write_text(f'[data]\nname = "{pictures}"\n[model]\nname = "{evil}:make"\n')
    query = (
        "query",
        "--data",
        pictures,
        "--config",
        config,
        "--classes=a,b",
        "--n=2",
        "--threads=1",
    )
    said = invoke(*query)
    assert said.exit_code == 2
    assert "--trust-code" in said.output
    assert not has_run(evil)


def test_saved_learner_does_not_run_foreign_strategy(tmp_path, accounts):
    import torch

    net = code(tmp_path / "project")
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    learner = la.Learner(torch.nn.Linear(4, 3), x, f"{net}:mine")
    learner.save(tmp_path / "learner.pt")
    assert (
        la.Learner.load(tmp_path / "learner.pt", torch.nn.Linear(4, 3), x).asking.strategy
        == f"{net}:mine"
    )
    accounts("stranger")
    with pytest.raises(InputError, match="trust_code=True"):
        la.Learner.load(tmp_path / "learner.pt", torch.nn.Linear(4, 3), x)
    assert la.Learner.load(tmp_path / "learner.pt", torch.nn.Linear(4, 3), x, trust_code=True)


@pytest.mark.skipif(os.name != "posix", reason="permissions of files")
def test_used_code_file_writable_by_others_is_ignored(tmp_path, accounts):
    run, net, _ = own_run(tmp_path)
    listed = get_used_code_file()
    assert listed is not None
    assert [json.loads(line)["name"] for line in listed.read_text().splitlines()] == [f"{net}:make"]
    assert listed.stat().st_mode & 0o777 == 0o600
    listed.chmod(0o666)
    with pytest.raises(InputError, match="have not used"):
        la.load_model(run)


def test_truncated_line_in_used_code_file_is_skipped(tmp_path, accounts):
    run, net, _ = own_run(tmp_path)
    listed = get_used_code_file()
    listed.write_text('{"name": "half\n' + listed.read_text())
    assert la.load_model(run)
    record_code([f"{net}:make"])
    assert len(listed.read_text().splitlines()) == 2  # it is noted already


def test_unwritable_used_code_file_only_warns(tmp_path, accounts, monkeypatch, caplog):
    (tmp_path / "blocked").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "blocked"))
    run, _, _ = own_run(tmp_path)
    assert Path(run / "rounds.jsonl").exists()
    assert "will need --trust-code" in caplog.text
