"""docs/studies.md: its code runs and it names every study."""

import re
from pathlib import Path

from research.studies import EXPERIMENTS

ROOT = Path(__file__).parents[2]


def test_studies_guide_runs_and_names_every_study(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "studies.md").read_text()
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/studies.md", "exec"), {})
    assert "identity/index.html" in capsys.readouterr().out
    for name in EXPERIMENTS:
        assert f"\n## {name}\n" in text, name
