"""A labelling session: data, record, desk and training, opened together and closed together."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from labelahead.config import Campaign, to_toml
from labelahead.data import Answers, Data, load, read_labels
from labelahead.errors import InputError
from labelahead.strategy import STRATEGIES, find
from labelahead.web.book import Book
from labelahead.web.conductor import Conductor
from labelahead.web.desk import Desk
from labelahead.web.items import Items
from labelahead.web.names import alike
from labelahead.web.overview import able
from labelahead.web.trainer import Trainer
from labelahead.web.transfer import take_in, write_export

__all__ = ["Session", "opened", "write_out"]

FOLDERS = "folders"  # who said what class folders say


@dataclass(frozen=True, eq=False)
class Session:
    """All that a server needs. `notes` says what was decided."""

    desk: Desk
    conductor: Conductor
    folder: Path
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Test:
    """What to measure on: positions, and the name of each one's class."""

    labels: dict[int, str]
    notes: tuple[str, ...] = ()


@contextmanager
def opened(
    campaign: Campaign,
    out: str | Path | None = None,
    *,
    classes: Sequence[str] = (),
    labels: str | Path | None = None,
    start_from_folders: bool = False,
    test: float | str | Path | None = None,
    every: int = 10,
    overlap: float = 0.0,
    budget: int | None = None,
) -> Iterator[Session]:
    """Open a folder of labels, or begin one; nothing is trained before `conductor.start()`.

    out: where the labels are kept; default: labels-NAME. classes: default: those that the data
    carry. labels: a file to take in. start_from_folders: take in the labels that the data carry
    themselves. test: items to measure on, never asked for: a share of the data's own labels, or a
    file of `item,label`; default: the data's own test part. every: labels between two trainings.
    overlap: share of second opinions.
    """
    if every < 1:
        raise InputError(f"retrain-every is {every}; expected 1 or more")
    campaign = _checked(campaign, test)
    data, answers = _load(campaign)
    measured = _test(data, answers, test)
    named = list(dict.fromkeys(classes or data.classes))
    known = {alike(name) for name in named}
    more = dict.fromkeys(n for n in measured.labels.values() if alike(n) not in known)
    items = Items(data, campaign.data.name)
    folder = Path(out) if out is not None else Path(f"labels-{_file_name(data.name)}")
    notes = [*data.notes, *measured.notes]
    with Book(
        folder, items=data.ids, fingerprint=items.fingerprint, classes=[*named, *more]
    ) as book:
        number = {alike(name): i for i, name in enumerate(book.standing.classes)}
        labelled = book.standing.labels
        held = {p: number[alike(n)] for p, n in measured.labels.items() if p not in labelled}
        if len(held) < len(measured.labels):
            lost = len(measured.labels) - len(held)
            notes.append(f"{lost} test items are labelled here already, so nothing is measured on")
        desk = Desk(
            book, items, closed=held, seed=campaign.seed, overlap=overlap, budget=budget
        )  # fmt: skip
        if start_from_folders:
            notes.append(_from_folders(desk, data, answers))
        if labels is not None:
            found = take_in(desk, Path(labels))
            notes.append(f"{labels}: " + ", ".join(f"{v or 0} {k}" for k, v in _counts(found)))
        (folder / "session.toml").write_text(to_toml(campaign), encoding="utf-8")
        threads = campaign.threads or max(1, (os.cpu_count() or 2) - 1)
        trainer = Trainer(asdict(campaign), folder, threads, held)
        conductor = Conductor(desk, trainer, folder, every=every)
        try:
            yield Session(desk, conductor, folder, tuple(notes))
        finally:
            conductor.stop()


def write_out(session: Session, form: str, to: Path, *, rest: bool = False) -> str:
    """Export without a server; what was written. rest: predictions by the last stored network."""
    desk, kind = session.desk, ""
    if rest:
        session.conductor.remember()
        if not able(desk):
            raise InputError(
                f"{session.folder} holds no network that knows a label, so there are no "
                "predictions; leave out --rest, or label on the page until it has trained once"
            )
        trained = len(desk.mind.snapshot.labels) if desk.mind else 0
        kind = f"by the training with {trained} labels" if trained else "before any training"
    rows, labels = write_export(desk, form, to, rest=rest), len(desk.standing.labels)
    more = f" and {rows - labels} predictions ({kind})" if rest else ""
    return f"{labels} labels{more} are in {to}"


def _checked(campaign: Campaign, test: float | str | Path | None) -> Campaign:
    """What the page can do nothing with is said before any work."""
    if not find(campaign.asking.strategy).look_ahead:
        able = ", ".join(name for name, s in STRATEGIES.items() if s.look_ahead)
        raise InputError(
            f"strategy is {campaign.asking.strategy!r}, which chooses once for each training; the "
            f"page expects one that learns from every answer: {able}"
        )
    if campaign.asking.kernel == "full":
        raise InputError("kernel is 'full'; the page expects pseudo, single or trace")
    share = float(test) if isinstance(test, int | float) else 0.0
    path = Path(campaign.data.name).expanduser()
    name = str(path.resolve()) if path.exists() else campaign.data.name
    # A link inside a folder of pictures could lead to any picture on this machine.
    source = replace(campaign.data, name=name, test_fraction=share, links=False)
    return replace(campaign, data=source)


def _load(campaign: Campaign) -> tuple[Data, Answers | None]:
    source = campaign.data
    return load(
        source.name, root=source.root, size=source.size, target=source.target, limit=source.limit,
        test_fraction=source.test_fraction, seed=campaign.seed, download=source.download,
        links=source.links,
    )  # fmt: skip


def _test(data: Data, answers: Answers | None, test: float | str | Path | None) -> _Test:
    if isinstance(test, str | Path):
        at, numbers, names = read_labels(test, data)
        rows = zip(at.tolist(), numbers.tolist(), strict=True)
        return _Test({p: names[c] for p, c in rows}, (f"{len(at)} items to measure on: {test}",))
    if test and answers is None:
        raise InputError(
            f"test is {test}, but the data carry no labels to measure with; expected a file of "
            "item,label"
        )
    if answers is None:
        return _Test({})
    known = data.test[answers.known[data.test]]
    pairs = zip(known.tolist(), answers.take(known).tolist(), strict=True)
    return _Test({p: data.classes[c] for p, c in pairs})


def _from_folders(desk: Desk, data: Data, answers: Answers | None) -> str:
    if answers is None:
        raise InputError(
            f"{data.name} carries no labels to start from; expected one folder for each class, or "
            "a table with a target column"
        )
    known = [p for p in answers.known.nonzero().flatten().tolist() if p not in desk.closed]
    rows = [(p, data.classes[answers(p)], FOLDERS) for p in known]
    desk.bring_in(rows)
    return f"{len(rows)} labels taken from the data themselves, as {FOLDERS!r}"


def _counts(found: dict[str, object]) -> list[tuple[str, int]]:
    words = {"labels": "labels", "unknown": "of unknown items", "unclear": "unclear",
             "held_out": "of test items"}  # fmt: skip
    counts = [(words[key], int(str(found[key]))) for key in words]
    return [counts[0], *(pair for pair in counts[1:] if pair[1])]


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "data"
