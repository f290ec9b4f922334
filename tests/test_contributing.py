"""The worked examples of CONTRIBUTING.md run as they are written."""

import re
from pathlib import Path

import torch

GUIDE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


def test_examples_of_contributing_run(tmp_path, monkeypatch, capsys):
    """A block that begins with `# NAME.py` is a file; every other block is executed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LABELAHEAD_DATA", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    curves = []
    try:
        for block in blocks:
            file = re.match(r"# (\w+\.py)\n", block)
            if file:
                (tmp_path / file[1]).write_text(block)
                continue
            names = {}
            exec(compile(block, "CONTRIBUTING.md", "exec"), names)
            if "result" in names:
                curves.append(names["result"].curve)
    finally:
        torch.set_num_threads(threads)
    assert len(blocks) == 8
    printed = capsys.readouterr().out.splitlines()
    assert printed.pop() == "True"  # of the task
    assert len(printed) == len(curves) == 3
    for curve in curves:
        assert curve[-1][1] > curve[0][1] or curve[-1][1] == 1.0
    assert curves[0] == sorted(curves[0])
    shown = re.search(r"print\(result.curve\)  # \[\((.*)\)\]", GUIDE)[1]
    for (_, accuracy), text in zip(curves[0], shown.split("), ("), strict=True):
        assert abs(accuracy - float(text.split(", ")[1])) < 0.1
