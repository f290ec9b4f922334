"""`labelahead encoders`: which embedding is best for these data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from labelahead.cli import shell
from labelahead.cli.shell import Option, UsageError, app, err, out, print_line, report_errors

BAR_CHARACTERS = 12
BAR_MIN_WIDTH = 100  # of the terminal, in characters: below, bars would squeeze the names


@app.command()
def encoders(
    context: typer.Context,
    data: Annotated[
        str, typer.Argument(help="Folder of images or sounds, table, or data set name.")
    ],
    embedding: Annotated[
        str, Option("--embedding", help="Embeddings to compare, comma-separated.")
    ],
    labels: Annotated[
        Path | None, Option("--labels", help="A file of labels. (default: those in the data)")
    ] = None,
    plot: Annotated[Path | None, Option("--plot", help="Also draw them into this .png.")] = None,
    classes: shell.ClassesOpt = None,
    target: shell.TargetOpt = None,
    id: shell.IdOpt = None,
    root: shell.RootOpt = None,
    batch_size: shell.BatchSizeOpt = None,
    encoder_workers: shell.WorkersOpt = None,
    seed: shell.SeedOpt = None,
    threads: shell.ThreadOpt = None,
    device: shell.DeviceOpt = None,
    config: shell.ConfigOpt = None,
    changes: shell.SetOpt = None,
    trust_code: shell.TrustOpt = False,
) -> None:
    """Compare embeddings by the leave-one-out accuracy on your labels.

    Only the labelled items and 500 others are encoded. The best embeddings are also joined (a+b).

    Example:

      labelahead encoders photos/ --labels labels.csv --embedding lite0,facebook/dinov2-small,clip.npy
    """
    with report_errors():
        from labelahead.cli.terminal import ProgressText
        from labelahead.learner.encoder_comparison import compare_embeddings, split_embedding_names

        names = split_embedding_names(embedding)
        context.params["embedding"] = None
        campaign, words = shell.build_campaign(context), ProgressText()
        shell.announce_device(campaign.device)
        with err.status("loading") as status:
            scores = compare_embeddings(
                campaign,
                names,
                labels=labels,
                progress=lambda what, done, total: status.update(words.describe(what, done, total)),
            )
        out.print(_build_table(scores, with_bars=out.width >= BAR_MIN_WIDTH))
        best = scores[0]
        close = [_shorten_name(s.embedding) for s in scores[1:] if s.p_value > 0.05]
        sentence = f"best on {best.labels} labels: {_shorten_name(best.embedding)}"
        if close:
            sentence += f"; not significantly better than {', '.join(close)} (sign test, 5 %)"
        print_line(sentence, on=out)
        if plot is not None:
            _write_plot(scores, plot)
            print_line(f"plot: {plot}", on=out)


def _build_table(scores: Sequence[Any], *, with_bars: bool) -> Any:
    """Build a table with a row for every embedding; narrow terminals have no room for bars."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("embedding", overflow="fold")
    bars = ("",) if with_bars else ()
    headers = ("leave-one-out", "95 % interval", *bars, "squared\nerror", "numbers", "seconds")
    for name in headers:
        table.add_column(name, no_wrap=True)
    for score in scores:
        filled = round(BAR_CHARACTERS * score.accuracy)
        bar = "█" * filled + "░" * (BAR_CHARACTERS - filled)
        table.add_row(
            _shorten_name(score.embedding),
            f"{score.accuracy:.1%}",
            f"{score.low:.1%} to {score.high:.1%}",
            *((bar,) if with_bars else ()),
            f"{score.squared_error:.3f}",
            str(score.width),
            f"{score.seconds:.1f}",
        )
    return table


def _shorten_name(embedding: str) -> str:
    """Return the file name of vectors or of a folder, else the name as typed."""
    from labelahead.data.joined_embeddings import map_joined_embedding

    return map_joined_embedding(
        embedding, lambda part: Path(part).name if Path(part).exists() else part
    )


def _write_plot(scores: Sequence[Any], path: Path) -> None:
    """Draw accuracies with their intervals."""
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot is {path}; expected a file that ends in .png")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = list(reversed(scores))
    right = [100 * s.accuracy for s in shown]
    errors = [
        [100 * (s.accuracy - s.low) for s in shown],
        [100 * (s.high - s.accuracy) for s in shown],
    ]
    height = 1.2 + 0.4 * len(shown)
    figure, axes = pyplot.subplots(figsize=(6.4, height), dpi=150, layout="constrained")
    axes.barh(
        [_shorten_name(s.embedding) for s in shown], right, xerr=errors, color="tab:blue", alpha=0.7
    )
    axes.set(xlabel=f"leave-one-out accuracy on {scores[0].labels} labels, %", xlim=(0, 100))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    pyplot.close(figure)
