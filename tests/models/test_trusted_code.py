"""Code named by a folder: refused for another user's folder, run for the user's own."""

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
def switch_account(tmp_path, monkeypatch):
    """Return a function that switches the account of this process; the first is `owner`."""

    def become(name):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / f"state-of-{name}"))

    become("owner")
    return become


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def write_code(folder):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "net.py"
    path.write_text(CODE)
    return path


def has_run(path):
    return path.with_suffix(".ran").exists()


def write_table(path):
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal() + 3 * (i % 2):.3f},{rng.normal():.3f},{'ab'[i % 2]}" for i in range(60)]
    path.write_text("x,y,label\n" + "\n".join(rows) + "\n")
    return path


def make_own_run(tmp_path):
    """Run a campaign on a table with a custom network, whose code is outside the run folder."""
    net, items = write_code(tmp_path / "project"), write_table(tmp_path / "items.csv")
    done = invoke(
        "run", "--data", items, "--model", f"{net}:make", *QUICK, "--out", tmp_path / "run"
    )
    assert done.exit_code == 0, done.output
    return tmp_path / "run", net, items


def make_foreign_run(tmp_path, name="{folder}/net.py:make"):
    """Copy the run as another user would: with code inside, named by the configuration."""
    run, net, items = make_own_run(tmp_path)
    foreign = tmp_path / "foreign"
    shutil.copytree(run, foreign)
    foreign_code = write_code(foreign)
    config = foreign / "config.toml"
    config.write_text(config.read_text().replace(f"{net}:make", name.format(folder=foreign)))
    return foreign, foreign_code, items


def test_own_code_runs_again_without_confirmation(tmp_path, switch_account):
    run, _, items = make_own_run(tmp_path)
    assert invoke("resume", run, "--labels=18").exit_code == 0
    assert invoke("predict", run, items).exit_code == 0
    assert invoke("export-model", run, "--to", tmp_path / "model", "--no-onnx").exit_code == 0
    assert len(la.load_model(run).predict(items)) == 60


@pytest.mark.parametrize("name", ["{folder}/net.py:make", "net.py:make", "net:make"])
@pytest.mark.parametrize("command", ["predict", "export-model", "resume"])
def test_code_inside_a_foreign_run_is_refused(tmp_path, switch_account, monkeypatch, command, name):
    foreign, foreign_code, items = make_foreign_run(tmp_path, name)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    monkeypatch.chdir(foreign)  # relative paths and modules are resolved in this folder
    more = {
        "predict": [items],
        "export-model": ["--to", tmp_path / "model", "--no-onnx"],
        "resume": [],
    }[command]
    result = invoke(command, ".", *more)
    assert result.exit_code != 0
    assert "--trust-code" in result.output
    assert "it was not run" in result.output
    assert not has_run(foreign_code)
    trusted = invoke(command, ".", *more, "--trust-code")
    assert trusted.exit_code == 0, trusted.output
    assert has_run(foreign_code)


def test_unused_code_outside_the_folder_is_refused(tmp_path, switch_account):
    run, net, items = make_own_run(tmp_path)
    net.with_suffix(".ran").unlink()
    net.write_text(CODE + "\n# edited: it would be run anew\n")
    switch_account("stranger")
    with pytest.raises(InputError, match="which you have not used on this account before"):
        la.load_model(run)
    with pytest.raises(InputError, match="which you have not used"):
        la.resume(run)
    assert not has_run(net)
    # the caller names the code
    assert len(la.load_model(run, network=f"{net}:make").predict(items)) == 60
    assert len(la.load_model(run, trust_code=True).predict(items)) == 60


def test_code_named_by_the_caller_runs(tmp_path, switch_account):
    run, _, _ = make_own_run(tmp_path)
    switch_account("stranger")
    moved = write_code(tmp_path / "moved")
    assert invoke("resume", run, "--labels=18", "--model", f"{moved}:make").exit_code == 0
    assert has_run(moved)
    assert invoke("resume", run, "--labels=22").exit_code == 0  # used before


def test_library_function_counts_as_code(tmp_path, switch_account):
    """An embedding `subprocess:call` would run the texts of a table as commands."""
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


def test_prediction_does_not_import_the_strategy(tmp_path, switch_account):
    run, _, items = make_own_run(tmp_path)
    foreign_code = write_code(tmp_path / "evil")
    config = run / "config.toml"
    config.write_text(
        config.read_text().replace('strategy = "flip"', f'strategy = "{foreign_code}:mine"')
    )
    assert str(foreign_code) in config.read_text()
    assert invoke("predict", run, items).exit_code == 0
    assert not has_run(foreign_code)


def make_comparison(tmp_path):
    net, items = write_code(tmp_path / "project"), write_table(tmp_path / "items.csv")
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


def test_foreign_comparison_is_neither_resumed_nor_reported(tmp_path, switch_account):
    folder, net = make_comparison(tmp_path)
    foreign_code = write_code(tmp_path / "evil")
    whole, single = folder / "compare.toml", folder / "random" / "seed-0" / "config.toml"
    model = (f"{net}:make", f"{foreign_code}:make")
    for file, old, new in (
        (whole, *model),
        (single, *model),
        (whole, '"random",', f'"random", "{foreign_code}:mine",'),
    ):
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        result = invoke("report", folder)
        assert result.exit_code != 0
        assert "it was not run" in result.output
        if file == whole:
            assert "--trust-code" in invoke("compare", "--out", folder, "--workers=1").output
        file.write_text(text)
    single.write_text(single.read_text().replace(*model))
    (single.parent / "rounds.jsonl").unlink()  # one campaign is left, which a worker would run
    result = invoke("compare", "--out", folder, "--workers=1")
    assert result.exit_code == 1
    assert "it was not run" in result.output
    assert not has_run(foreign_code)


def test_foreign_session_model_is_refused(tmp_path, switch_account):
    from labelahead.learner.config import parse_campaign
    from labelahead.server.session import SessionOptions, open_session

    images, net = photos(tmp_path / "photos"), write_code(tmp_path / "project")
    tables = {"data": {"name": str(images)}, "model": {"name": f"{net}:make"}, "threads": 1}
    with open_session(parse_campaign(tables), tmp_path / "session", SessionOptions(["a", "b"])):
        pass
    switch_account("stranger")
    for command in (
        ("predict", tmp_path / "session", images),
        ("export-model", tmp_path / "session", "--to", "m"),
    ):
        result = invoke(*command)
        assert result.exit_code != 0
        assert "--trust-code" in result.output
        assert not has_run(net)


def test_out_of_core_store_runs_no_code(tmp_path, switch_account):
    from labelahead.outofcore import LargePool, NetworkOptions, embed
    from tests.support.large_pools import Inline

    net = write_code(tmp_path / "project")
    np.save(tmp_path / "pool.npy", np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32))
    network = NetworkOptions(f"{net}:make", ["a", "b"], sketch=8)
    embed(tmp_path / "pool.npy", tmp_path / "store", network=network, executor=Inline())
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


def test_configuration_must_not_name_code_in_the_data(tmp_path, switch_account):
    images = photos(tmp_path / "photos")
    foreign_code = write_code(images)
    config = images / "labelahead.toml"
    config.write_text(f'[data]\nname = "{images}"\n[model]\nname = "{foreign_code}:make"\n')
    query = ("query", "--data", images, "--config", config, "--classes=a,b", "--n=2", "--threads=1")
    result = invoke(*query)
    assert result.exit_code == 2
    assert "--trust-code" in result.output
    assert not has_run(foreign_code)


def test_saved_learner_does_not_run_foreign_strategy(tmp_path, switch_account):
    import torch

    net = write_code(tmp_path / "project")
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    learner = la.Learner(torch.nn.Linear(4, 3), x, f"{net}:mine")
    learner.save(tmp_path / "learner.pt")
    assert (
        la.Learner.load(tmp_path / "learner.pt", torch.nn.Linear(4, 3), x).query_config.strategy
        == f"{net}:mine"
    )
    switch_account("stranger")
    with pytest.raises(InputError, match="trust_code=True"):
        la.Learner.load(tmp_path / "learner.pt", torch.nn.Linear(4, 3), x)
    assert la.Learner.load(tmp_path / "learner.pt", torch.nn.Linear(4, 3), x, trust_code=True)


@pytest.mark.skipif(os.name != "posix", reason="permissions of files")
def test_used_code_file_writable_by_others_is_ignored(tmp_path, switch_account):
    run, net, _ = make_own_run(tmp_path)
    listed = get_used_code_file()
    assert listed is not None
    assert [json.loads(line)["name"] for line in listed.read_text().splitlines()] == [f"{net}:make"]
    assert listed.stat().st_mode & 0o777 == 0o600
    listed.chmod(0o666)
    with pytest.raises(InputError, match="have not used"):
        la.load_model(run)


def test_truncated_line_in_used_code_file_is_skipped(tmp_path, switch_account):
    run, net, _ = make_own_run(tmp_path)
    listed = get_used_code_file()
    listed.write_text('{"name": "half\n' + listed.read_text())
    assert la.load_model(run)
    record_code([f"{net}:make"])
    assert len(listed.read_text().splitlines()) == 2  # it is recorded already


def test_unwritable_used_code_file_only_warns(tmp_path, switch_account, monkeypatch, caplog):
    (tmp_path / "blocked").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "blocked"))
    run, _, _ = make_own_run(tmp_path)
    assert Path(run / "rounds.jsonl").exists()
    assert "will need --trust-code" in caplog.text
