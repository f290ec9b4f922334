"""`labelahead encoders`, and `--embedding auto:`."""

from typer.testing import CliRunner

from labelahead.cli import app
from tests.learner.test_encoder_comparison import source

__all__ = ["source"]


def test_command_compares_draws_and_queries(source):
    names = f"{source / 'bad.npy'},{source / 'good.npy'},words"
    done = CliRunner().invoke(
        app,
        ["encoders", str(source / "t.csv"), "--labels", str(source / "labels.csv"),
         "--embedding", names, "--plot", str(source / "plot.png"), "--threads", "1"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "best on 24 labels: good.npy" in done.output
    assert (source / "plot.png").read_bytes().startswith(b"\x89PNG")
    done = CliRunner().invoke(
        app,
        ["query", "--data", str(source / "t.csv"), "--labels", str(source / "labels.csv"),
         "--embedding", f"auto:{names}", "--n", "2", "--out", str(source / "next.csv")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["run", "--embedding", "auto:a,b"])
    assert done.exit_code == 2
    assert "a simulation has yet to query" in done.output
