"""Docs cannot drift: their code runs, and every option and key is in them."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import typer

from labelahead.campaign.config import Budget, Campaign, Network, Source
from labelahead.campaign.store import Round
from labelahead.cli import app
from labelahead.models import MODELS
from labelahead.strategies import STRATEGIES
from labelahead.strategies.asking import Asking
from labelahead.studies import EXPERIMENTS
from labelahead.train import Training

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "campaigns.md").read_text()


def test_the_guide_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    code = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert code
    try:
        for block in code:
            exec(compile(block, "docs/campaigns.md", "exec"), {})
    finally:
        torch.set_num_threads(threads)
    assert (tmp_path / "learner.pt").exists()
    assert "torch.Size([1797, 10])" in capsys.readouterr().out


def test_the_guide_to_studies_runs_and_names_every_study(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "studies.md").read_text()
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/studies.md", "exec"), {})
    assert "identity/index.html" in capsys.readouterr().out
    for name in EXPERIMENTS:
        assert f"\n## {name}\n" in text, name


def test_the_guide_to_models_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "models.md").read_text(), re.DOTALL)
    said = []
    for block in code:
        names: dict[str, object] = {}
        exec(compile(block, "docs/models.md", "exec"), names)
        said.append(capsys.readouterr().out)
        if "la.load_model" in block:
            whole, taken = (names["la"].load_model(tmp_path / name) for name in ("run", "model"))
            pictures = names["pictures"]
            assert list(taken.predict(pictures).labels) == list(whole.predict(pictures).labels)
    assert len(code) == 4
    assert "tensor([[" in said[0]  # probabilities
    assert len(re.findall(r"\d+", said[1])) == 4  # items to label
    assert float(said[2]) > 0.8  # accuracy
    assert {path.name for path in (tmp_path / "model").iterdir()} >= {"weights.pt"}


def test_the_guide_to_large_pools_runs_and_names_every_option(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "scale.md").read_text()
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/scale.md", "exec"), {"__name__": "__main__"})
    assert "ErrorRate(rate=" in capsys.readouterr().out
    assert len(list((tmp_path / "predictions").glob("*.parquet"))) == 5
    commands = typer.main.get_command(app).commands["pool"].commands
    options = {option for command in commands.values() for p in command.params for option in p.opts if "--" in option}
    assert [option for option in options if option not in text] == []


@pytest.mark.parametrize("kind", [Campaign, Source, Network, Training, Asking, Budget])
def test_every_key_is_in_the_guide(kind):
    missing = [f.name for f in fields(kind) if not re.search(rf"\b{f.name}\b", GUIDE)]
    assert missing == []


def test_every_strategy_and_model_is_in_the_docs():
    text = GUIDE + (ROOT / "CHANGELOG.md").read_text()
    for name in (*STRATEGIES, *MODELS):
        assert re.search(rf"\b{re.escape(name)}\b", text), name


def test_the_files_of_a_run_are_in_the_guide():
    for name in ("config.toml", "labels.jsonl", "rounds.jsonl", "weights/", "data.json"):
        assert name in GUIDE
    assert {f.name for f in fields(Round)} >= {"accuracy", "gain", "loo"}


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=str)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
