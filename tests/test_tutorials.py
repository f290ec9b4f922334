"""Tutorials and guides run, and print the output that they show.

Blocks of a page share one namespace, as in a notebook. ```python runs; ```bash runs its
`labelahead` commands in this process; ```text is the output of the blocks since the last one: words
must be equal, numbers may differ by a sixth, because they depend on the machine.
"""

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from labelahead.cli import app

ROOT = Path(__file__).parents[1]
TUTORIALS = ("digits", "photographs", "texts", "compare", "ntk")
PAGES = [f"tutorials/{name}.md" for name in TUTORIALS] + [
    "attribution.md",
    "faq.md",
    "hugging-face.md",
    "ntk-users.md",
    "own-network.md",
    "principles.md",
    "tables.md",
    "which-strategy.md",
]
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def run_command(line: str) -> str:
    """Run one labelahead command and return its output."""
    program, *arguments = shlex.split(line)
    assert program == "labelahead", line
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def check_similar(printed: str, shown: str) -> None:
    assert NUMBER.sub("#", printed.strip()) == NUMBER.sub("#", shown.strip())
    for printed_number, shown_number in zip(
        NUMBER.findall(printed), NUMBER.findall(shown), strict=True
    ):
        assert float(printed_number) == pytest.approx(float(shown_number), rel=1 / 6), (
            f"{printed}\nthe page has\n{shown}"
        )


@pytest.mark.parametrize("page", PAGES)
def test_page_runs_and_prints_the_output_shown(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = re.findall(
        r"```(python|bash|text)\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL
    )
    assert "python" in dict(blocks)
    try:
        for kind, block in blocks:
            if kind == "python":
                file = re.match(r"# (\w+\.py)\n", block)  # a file of the user, by its first line
                if file:
                    Path(file[1]).write_text(block)
                exec(compile(block, page, "exec"), names)
            elif kind == "bash":
                for line in block.splitlines():
                    run_command(line)
            else:
                check_similar(capsys.readouterr().out, block)
    finally:
        torch.set_num_threads(threads)
    if page == "own-network.md":
        accuracy = re.search(r"tensor\((0\.\d+|1\.)", capsys.readouterr().out)
        assert accuracy
        assert float(accuracy[1]) > 0.9
    if page.startswith("tutorials/"):
        assert "text" in dict(blocks), "a tutorial shows what comes out"


def test_check_similar_requires_equal_words_and_similar_numbers():
    check_similar("asked: 92 % right\n", "asked: 90 % right")
    for other in ("asked: 60 % right", "said: 92 % right", "asked: 92 % right, 3"):
        with pytest.raises(AssertionError):
            check_similar("asked: 92 % right", other)
