"""Metrics for TensorBoard and MLflow, when their extras are installed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labelahead.errors import InputError, import_extra
from labelahead.simulation.store import Round

__all__ = ["open_trackers"]

Track = Callable[[Round], None]


@contextmanager
def open_trackers(names: Sequence[str], folder: Path | None) -> Iterator[Track]:
    """Yield one function that sends a round to all these trackers, and close them afterwards."""
    with ExitStack() as stack:
        open_ = {"tensorboard": _tensorboard, "mlflow": _mlflow}
        tracks = [stack.enter_context(open_[name](folder)) for name in names]

        def track(entry: Round) -> None:
            for one in tracks:
                one(entry)

        yield track


def _metrics(entry: Round) -> dict[str, float]:
    """Return the metrics of a round by name."""
    numbers = {
        "accuracy/test": entry.accuracy,
        "accuracy/train": entry.train_accuracy,
        "accuracy/leave_one_out": entry.loo,
        "loss/train": entry.train_loss,
        "loss/leave_one_out": entry.loo_error,
        "gain": entry.gain,
    }
    numbers |= {f"seconds/{part}": value for part, value in entry.seconds.items()}
    return {name: value for name, value in numbers.items() if value is not None}


@contextmanager
def _tensorboard(folder: Path | None) -> Iterator[Track]:
    """Write event files into the campaign's folder, one step per label."""
    if folder is None:
        raise InputError("track names tensorboard, which needs a folder: give `out` as well")
    import_extra("tensorboard", "tensorboard", "track = tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    # A resumed campaign reports its earlier rounds again, so earlier event files are replaced.
    target = folder / "tensorboard"
    for old in target.glob("events.*"):
        old.unlink()
    writer = SummaryWriter(str(target))

    def track(entry: Round) -> None:
        for name, value in _metrics(entry).items():
            writer.add_scalar(name, value, entry.labels)
        writer.flush()

    try:
        yield track
    finally:
        writer.close()


@contextmanager
def _mlflow(folder: Path | None) -> Iterator[Track]:
    """Log a run at MLflow's configured tracking address (MLFLOW_TRACKING_URI)."""
    mlflow = import_extra("mlflow", "mlflow", "track = mlflow")

    def track(entry: Round) -> None:
        mlflow.log_metrics(_metrics(entry), step=entry.labels)

    with mlflow.start_run(run_name=folder.name if folder else None):
        yield track
