"""The documentation matches the code: its examples run, and it names every option and key."""

import importlib
import importlib.util
import json
import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.data import load_source
from labelahead.learner.config import Budget, Campaign, Network, Source
from labelahead.models import MODELS
from labelahead.models.training import Training
from labelahead.simulation.store import Round
from labelahead.strategies import STRATEGIES
from labelahead.strategies.base import QueryConfig
from labelahead.tasks import TASKS
from tests.support.chat_server import run_chat_server
from tests.support.public import PUBLIC

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "campaigns.md").read_text()


def test_campaigns_guide_code_runs(tmp_path, monkeypatch, capsys):
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


def test_models_guide_code_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "models.md").read_text(), re.DOTALL)
    outputs = []
    for block in code:
        names: dict[str, object] = {}
        exec(compile(block, "docs/models.md", "exec"), names)
        outputs.append(capsys.readouterr().out)
        if "la.load_model" in block:
            run_model, exported_model = (
                names["la"].load_model(tmp_path / name) for name in ("run", "model")
            )
            images = names["pictures"]
            assert list(exported_model.predict(images).labels) == list(
                run_model.predict(images).labels
            )
    assert len(code) == 4
    assert "tensor([[" in outputs[0]  # probabilities
    assert len(re.findall(r"\d+", outputs[1])) == 4  # items to label
    assert float(outputs[2]) > 0.8  # accuracy
    assert {path.name for path in (tmp_path / "model").iterdir()} >= {"weights.pt"}


def test_scale_guide_code_runs_and_lists_every_option(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "scale.md").read_text()
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/scale.md", "exec"), {"__name__": "__main__"})
    assert "ErrorRate(rate=" in capsys.readouterr().out
    assert len(list((tmp_path / "predictions").glob("*.parquet"))) == 5
    commands = typer.main.get_command(app).commands["pool"].commands
    options = {
        option
        for command in commands.values()
        for p in command.params
        for option in p.opts
        if "--" in option
    }
    assert [option for option in options if option not in text] == []


@pytest.mark.parametrize("kind", [Campaign, Source, Network, Training, QueryConfig, Budget])
def test_campaigns_guide_lists_every_configuration_key(kind):
    missing = [f.name for f in fields(kind) if not re.search(rf"\b{f.name}\b", GUIDE)]
    assert missing == []


def test_recipes_of_guesses_run(tmp_path, monkeypatch, capsys):
    """Commands and code of the page, with a stub in place of the language model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABELAHEAD_LLM_FOLDER", str(tmp_path / "answers"))
    page = (ROOT / "docs" / "guesses.md").read_text()
    recipes = page.split("## Recipes")[1].split("\n## ")[0]
    heuristic = re.search(r"```python\n(# heuristic.py.*?)```", page, re.DOTALL)
    Path("heuristic.py").write_text(heuristic[1])
    said = re.search(r"```text\n(id,guess.*?)```", recipes, re.DOTALL)
    Path("said.csv").write_text(said[1])
    texts = ["it is broken", "works well", "a refund, please", "great value"] * 3
    rows = "".join(f'r{i},"{text}, says customer {i}"\n' for i, text in enumerate(texts))
    Path("reviews.csv").write_text(f"id,text\n{rows}")
    with run_chat_server() as server:
        for block in re.findall(r"```(?:sh|python)\n(.*?)```", recipes, re.DOTALL):
            here = block.replace("http://localhost:11434", server.url)
            if not block.startswith("labelahead "):
                exec(compile(here, "docs/guesses.md", "exec"), {})
                continue
            result = CliRunner().invoke(app, here.split()[1:])
            assert result.exit_code == 0, result.output
        assert len(server.requests) == len(texts) + 3
    assert "3 answers" in capsys.readouterr().out
    files = tuple(re.search(r"All of them at once: `(.*)`", recipes)[1].split("--guesses ")[1:])
    files = tuple(name.strip() for name in files)
    source = Source("reviews.csv", classes=("good", "bad"), guesses=files)
    data, _ = load_source(source, 0)
    assert tuple(data.guesses) == files
    assert all(guess.probabilities.any() for guess in data.guesses.values())
    assert data.guesses["old.csv"].probabilities.argmax(1).tolist() == [1, 0, 1, 0] * 3


def test_docs_list_every_strategy_and_model():
    text = GUIDE + (ROOT / "CHANGELOG.md").read_text()
    for name in (*STRATEGIES, *MODELS):
        assert re.search(rf"\b{re.escape(name)}\b", text), name


def test_campaigns_guide_lists_every_file_of_a_run():
    for name in ("config.toml", "labels.jsonl", "rounds.jsonl", "weights/", "data.json"):
        assert name in GUIDE
    assert {f.name for f in fields(Round)} >= {"accuracy", "gain", "loo"}


PAGES = [
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/tutorials/*.md")),
    ROOT / "README.md",
]


def list_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site derive from headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_of_a_page_are_valid(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" in target:
            assert re.fullmatch(r"https?://[\w.-]+(:\d+)?(/\S*)?", target), target
            continue
        path = (page.parent / target) if target else page
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in list_anchors(path) or f'<a id="{anchor}">' in path.read_text(), (
                f"{target}#{anchor}"
            )


def load_extension(name: str):
    """Import a module of docs/_ext."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "_ext" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_api_reference_lists_every_public_name():
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.rst"))
    listed = re.findall(r"(?:auto(?:function|class|exception)|py:data):: labelahead\.(\S+)", pages)
    assert len(listed) == len(set(listed))
    assert set(
        re.findall(r"^   (\w+)$", (ROOT / "docs/api/index.rst").read_text(), re.MULTILINE)
    ) == {path.stem for path in (ROOT / "docs" / "api").glob("*.rst") if path.stem != "index"}
    for module in PUBLIC:
        inside = module.removeprefix("labelahead").removeprefix(".")
        for name in importlib.import_module(module).__all__:
            own = f"{inside}.{name}".removeprefix(".")
            assert own in listed or name in listed or name == "__version__", own


def test_command_reference_lists_every_option():
    command = re.compile(r"^##+ (labelahead[^\n]*)\n(.*?)(?=^##|\Z)", re.DOTALL | re.MULTILINE)
    sections = dict(command.findall(load_extension("commands").reference()))
    todo, visited = [("labelahead",)], set()
    while todo:
        words = todo.pop()
        visited.add(" ".join(words))
        # Compare with the output of --help, not with the objects that generate the reference.
        help_text = (
            CliRunner()
            .invoke(app, [*words[1:], "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
            .output
        )
        options = set(re.findall(r"^\W+(--[a-z-]+)", help_text, re.MULTILINE)) - {"--help"}
        assert [o for o in options if f"`{o}`" not in sections[" ".join(words)]] == [], words
        if "Commands" in help_text:
            todo += [
                (*words, name)
                for name in re.findall(
                    r"^│ ([a-z-]+)  ", help_text.split("Commands")[1], re.MULTILINE
                )
            ]
    assert visited == set(sections)
    assert "labelahead pool query" in visited


def test_papers_page_has_a_heading_for_every_cited_equation():
    page = (ROOT / "docs" / "papers.md").read_text()
    for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/*.md")):
        text = path.read_text()
        for tag in set(re.findall(r"\b(?:LA|PN|DY)-\d+\b", text)):
            assert f"\n### {tag}\n" in page, f"{path.name} cites {tag}"
        assert not re.search(r"METHOD\b.§", text), f"{path.name}: nobody else has that page"


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ('<a href="other.html#there">', ""),
        ('<a href="https://arxiv.org/abs/2206.12569">', ""),
        ('<a href="other.html#gone">', "#gone, which is not on other.html"),
        ('<a href="gone.html">', "gone.html, which is not there"),
        ('<img src="gone.png">', "gone.png, which is not there"),
        ('<a href="http:///nowhere">', "is no address"),
        ('<script src="https://cdn.example/x.js">', "is loaded from elsewhere"),
    ],
)
def test_link_checker_reports_broken_links(link, fault, tmp_path, capsys):
    (tmp_path / "index.html").write_text(link)
    (tmp_path / "other.html").write_text('<h1 id="there">Other</h1>')
    assert load_extension("links").main(tmp_path) == (1 if fault else 0)
    assert fault in capsys.readouterr().out


def test_docstring_extension_converts_to_restructured_text():
    convert = load_extension("docstrings").converted
    text = "\n".join(
        convert(
            ["The *k* of `x_1` (LA-12).", "", "at, mode: where|how.", "", ">>> 1", "1"],
            ["at", "mode"],
        )
    )
    assert r"The \*k\* of \ ``x_1``\  (\ `LA-12 <../papers.html#la-12>`__\ )." in text
    assert r"\ ``at``\ , \ ``mode``\ : where\|how." in text
    assert text.endswith("\n>>> 1\n1\n")


def test_docstring_extension_converts_google_sections_to_lists():
    lines = ["Do it.", "", "Args:", "    at: Where, over", "        two lines.", "    mode: How."]
    lines += [
        "",
        "Returns:",
        "    (n,) of",
        "    scores.",
        "",
        "Raises:",
        "    InputError: If not.",
    ]
    text = "\n".join(load_extension("docstrings").converted(lines, ["at", "mode"]))
    assert "**Parameters:**\n\n- ``at``\\ : Where, over two lines.\n" in text.replace(r"\ ``", "``")
    assert "**Returns:** (n,) of scores.\n" in text
    assert "**Raises:**\n\n- ``InputError``\\ : If not." in text.replace(r"\ ``", "``")


def test_sources_guide_code_runs(capsys):
    page = (ROOT / "docs" / "sources.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    torch.manual_seed(0)
    exec(compile(code, "docs/sources.md", "exec"), {})
    assert capsys.readouterr().out == "60\ntorch.Size([120, 2])\n40 (30,)\n"


def test_tasks_guide_code_prints_what_it_shows(capsys):
    text = (ROOT / "docs" / "tasks.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == text.count("```python") == 4
    for code, shown in blocks:
        exec(compile(code, "docs/tasks.md", "exec"), {})
        assert capsys.readouterr().out == shown


def test_tasks_guide_names_every_task_and_its_default_strategy():
    text = (ROOT / "docs" / "tasks.md").read_text()
    for task in TASKS.values():
        line = next(row for row in text.splitlines() if row.startswith(f"| `{task.__name__}` |"))
        assert f"`{next(iter(task.acquisitions))}`" in line
        assert all(f"`{name}`" in text for name in task.baselines)


def test_site_search_words_lead_to_one_page_each():
    """The words become main entries of the index, which the site's search ranks first."""
    pages: dict[str, list[str]] = {}
    search = load_extension("site_search")
    for page in sorted(ROOT.glob("docs/*.md")):
        for comment in re.findall(r"<!--.*?-->", page.read_text(), re.DOTALL):
            for word in search.read_words(comment):
                pages.setdefault(word, []).append(page.stem)
    assert {word: found for word, found in pages.items() if len(found) > 1} == {}
    expected = {"embeddings": "encoders", "llm": "guesses", "video": "faq", "precomputed": "faq"}
    expected |= {"rare class": "faq", "gpu": "devices", "multi-label": "tasks"}
    assert {word: pages.get(word) for word in expected} == {w: [p] for w, p in expected.items()}


def test_site_search_reads_only_its_own_comments():
    read_words = load_extension("site_search").read_words
    assert read_words("<!-- search: GPU, rare class -->\n") == ["gpu", "rare class"]
    assert read_words("<!-- table of results -->") == []


def test_site_search_writes_the_text_of_every_page(tmp_path):
    """The main part alone: menus would be found with every word."""
    (tmp_path / "_static").mkdir()
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "a.html").write_text(
        '<nav>menu</nav>\n<article role="main" id="x">\n<p>a "b"</p>\n</article><p>foot</p>'
    )
    (tmp_path / "search.html").write_text("<p>no article</p>")
    app = SimpleNamespace(outdir=tmp_path, builder=SimpleNamespace(format="html"))
    load_extension("site_search").write_texts(app, None)
    script = (tmp_path / "_static" / "page_texts.js").read_text()
    texts = json.loads(script.removeprefix("window.PAGE_TEXTS = ").removesuffix(";\n"))
    assert texts == {"api/a.html": '<article role="main" id="x">\n<p>a "b"</p>\n</article>'}
