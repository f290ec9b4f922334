"""A labelling session: data, journal, assignment and training, opened together and closed together."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labelahead import files
from labelahead.data import Answers, Data, read_labels
from labelahead.data.classes import alike, each_once
from labelahead.data.excel import absolute_source
from labelahead.data.folder import arranged
from labelahead.data.labels import names_in
from labelahead.data.loading import data_name, load_from
from labelahead.errors import InputError
from labelahead.inference.exact import EXACT
from labelahead.learner.config import Campaign, campaign_code, to_toml
from labelahead.learner.encoding import EMBEDDINGS
from labelahead.learner.preparation import decide
from labelahead.models.trusted_code import full_name, record_code
from labelahead.outofcore.store import is_store
from labelahead.server.exchange import CONFIG, export_labels, import_labels
from labelahead.server.fitting import predict_pool
from labelahead.server.items import Items
from labelahead.server.journal import (
    Journal,
    JournalCopy,
    copy_journal,
    recorded_classes,
    recorded_items,
)
from labelahead.server.large_pool import Holding
from labelahead.server.permissions import make_private_folder
from labelahead.server.schedule import Schedule
from labelahead.server.service import LabellingService
from labelahead.server.snapshot_builder import Tell
from labelahead.server.worker import Worker
from labelahead.strategies import STRATEGIES, find

__all__ = ["ROOM", "Session", "opened", "session_folder", "write_out"]

NAMED = 5  # files that a note names
ROOM = "temporary-"  # how folders begin that hold what is being sent or taken in
FOLDERS = "folders"  # who said what class folders say
TEST_FILE = "test.json"  # the items to measure on, which no model learns from, and their classes


@dataclass(frozen=True, eq=False)
class Session:
    """All that a server needs.

    `notes` says what was decided; `holding`: what is held of a pool of millions.
    """

    assignment: LabellingService
    schedule: Schedule
    folder: Path
    notes: tuple[str, ...]
    holding: Holding | None = None


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
    executor: Any = None,
    refresh_every: int = 50,
    read_only: bool = False,
) -> Iterator[Session]:
    """Open a folder of labels, or begin one; nothing is trained before `schedule.start()`.

    out: where the labels are kept; default: labels-NAME. classes: default: those that the data
    carry. labels: a file to take in. start_from_folders: take in the labels that the data carry
    themselves. test: items to measure on, never asked for: a share of the data's own labels, or a
    file of `item,label`; default: the data's own test part. every: labels between two trainings.
    overlap: share of second opinions. executor, refresh_every: who scores a pool of millions
    (`scale.at_work`), and after how many labels again. read_only: work on a copy of the labels in
    memory, also while a server has the folder open; nothing in the folder is changed.
    """
    _check_options(every, read_only, takes_labels=start_from_folders or labels is not None)
    named = each_once(classes or campaign.data.classes)
    campaign = _checked(campaign, test)
    _check_large(campaign, test, start_from_folders, refresh_every, executor)
    campaign = _with_session_classes(campaign, out, named)
    begun = _begun(campaign, out, named, executor, read_only)
    data, folder, holding = begun.data, begun.folder, begun.holding
    measured = (read_only and test is None and _recorded_test(folder, data)) or _test(
        data, begun.answers, test, campaign.data.classes
    )
    notes = [*data.notes, *begun.decided]
    if isinstance(test, str | Path):
        notes.append(f"{len(measured)} items to measure on: {test}")
    named = named or list(dict.fromkeys(data.classes))
    known = {alike(name) for name in named}
    more = dict.fromkeys(n for n in measured.values() if alike(n) not in known)
    items = _items(begun)
    about = {"items": data.ids, "fingerprint": items.fingerprint, "sizes": items.sizes}
    with Journal(folder, classes=[*named, *more], copy=begun.copy, **about) as journal:  # type: ignore[arg-type]
        if not read_only:
            _sweep(folder)
        held = _kept_apart(journal, measured, notes)
        how = {
            "seed": campaign.seed,
            "overlap": overlap,
            "budget": budget,
            "order": holding and holding.random,
        }
        assignment = LabellingService(journal, items, closed=held, **how)  # type: ignore[arg-type]
        notes += _come_and_gone(assignment, len(begun.recorded))
        if holding:
            holding.join(assignment, names_in(labels) if labels is not None else ())
        notes += _taken_in(assignment, begun, labels, start_from_folders)
        if not read_only:
            _record_settings(folder, campaign, {data.ids[p]: name for p, name in measured.items()})
        schedule = _schedule(begun, assignment, campaign, held, every, refresh_every)
        try:
            yield Session(assignment, schedule, folder, tuple(notes), holding)
        finally:
            schedule.stop()


def _record_settings(folder: Path, campaign: Campaign, test: Mapping[str, str]) -> None:
    """Keep what the session was opened with, for exports and models that are made without it."""
    files.replace(folder / "session.toml", to_toml(campaign))
    files.replace(folder / TEST_FILE, json.dumps(test))
    record_code(campaign_code(campaign))


def _sweep(folder: Path) -> None:
    """What a server that was killed was just writing; ours is the lock."""
    for left in folder.glob(f"{ROOM}*"):
        shutil.rmtree(left, ignore_errors=True)
    for left in folder.glob("*.*.partial"):
        left.unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class Begun:
    """What a session begins with. recorded: the items that the record in the folder knows."""

    folder: Path
    recorded: list[str]
    data: Data
    answers: Answers | None
    network: str
    embedding: str
    decided: Sequence[str] = ()
    holding: Holding | None = None  # of a pool of millions
    copy: JournalCopy | None = None  # of the record, where it is only read


def _items(begun: Begun) -> Items:
    labelled = None if begun.answers is None else begun.answers.column
    return Items(begun.data, None if begun.holding is None else begun.holding.fingerprint, labelled)


def _begun(
    campaign: Campaign,
    out: str | Path | None,
    classes: Sequence[str],
    executor: Any,
    read_only: bool,
) -> Begun:
    """Data that are held whole, in the order of the record, or what is held of a pool of millions."""
    if is_store(campaign.data.name):
        return _held(campaign, out, classes, executor, read_only)
    loaded = load_from(campaign.data, campaign.seed)
    folder, recorded, copy = _record(out, campaign.data.name, read_only)
    data, answers = arranged(loaded, recorded)
    return Begun(folder, recorded, data, answers, *decide(campaign, data), copy=copy)


def _with_session_classes(
    campaign: Campaign, out: str | Path | None, named: Sequence[str]
) -> Campaign:
    """The classes that were named and those of a session that goes on.

    They decide what a label of the data is.
    """
    if is_store(campaign.data.name):  # its items carry no labels
        return replace(campaign, data=replace(campaign.data, classes=()))
    recorded = recorded_classes(session_folder(out, campaign.data.name))
    known = {alike(name): name for name in reversed([*named, *recorded])}
    return replace(campaign, data=replace(campaign.data, classes=tuple(reversed(known.values()))))


def _held(
    campaign: Campaign,
    out: str | Path | None,
    classes: Sequence[str],
    executor: Any,
    read_only: bool,
) -> Begun:
    """What the page holds of a pool of millions."""
    store = campaign.data.name
    folder, recorded, copy = _record(out, store, read_only)
    how = {"strategy": str(campaign.asking.strategy), "seed": campaign.seed}
    held = Holding(store, folder, recorded, executor=executor, classes=classes, **how)  # type: ignore[arg-type]
    return Begun(folder, recorded, held.data, None, EXACT, held.embedding, holding=held, copy=copy)


def _record(
    out: str | Path | None, source: str, read_only: bool
) -> tuple[Path, list[str], JournalCopy | None]:
    """Return the folder of the labels, the items of its journal, and a copy of the journal if it is
    only read.
    """
    if read_only:
        folder = session_folder(out, source)
        copy = copy_journal(folder)
        return folder, copy.items, copy
    folder = _folder(out, source)
    return folder, recorded_items(folder), None


def _kept_apart(journal: Journal, measured: Mapping[int, str], notes: list[str]) -> dict[int, int]:
    """Position and class of the items to measure on, but for those that have been labelled."""
    labelled = journal.tally.labels
    number = {
        name: journal.number(name) for name in {*measured.values()}
    }  # None: the class was removed
    free = {p: number[n] for p, n in measured.items() if p not in labelled}
    if len(free) < len(measured):
        lost = len(measured) - len(free)
        notes.append(f"{lost} test items are labelled here already, so nothing is measured on")
    return {p: c for p, c in free.items() if c is not None}


def _schedule(
    begun: Begun,
    assignment: LabellingService,
    campaign: Campaign,
    held: Mapping[int, int],
    every: int,
    refresh_every: int,
) -> Schedule:
    """With whoever trains, or scores."""
    threads, exact = campaign.threads or max(1, (os.cpu_count() or 2) - 1), begun.network == EXACT
    worker = begun.holding or Worker(asdict(campaign), begun.folder, threads, held, begun.data.ids)
    again = refresh_every if begun.holding else None
    schedule = Schedule(
        assignment, worker, begun.folder, campaign, every=every, exact=exact, refresh_every=again
    )
    seen = EMBEDDINGS.get(begun.embedding, begun.embedding).partition(" (extra")[0]
    schedule.model = "; ".join(
        [f"{begun.network} on {seen}", *(n for n in begun.decided if "pip install" in n)]
    )
    return schedule


def _check_options(every: int, read_only: bool, *, takes_labels: bool) -> None:
    """Raise for options that no session can have."""
    if every < 1:
        raise InputError(f"retrain-every is {every}; expected 1 or more")
    if read_only and takes_labels:
        raise InputError("a session that is only read takes no labels in; open it for writing")


def _check_large(
    campaign: Campaign,
    test: float | str | Path | None,
    start_from_folders: bool,
    again: int,
    executor: Any,
) -> None:
    """What a page on a pool of millions can do nothing with is said before any work, and what needs
    such a pool.
    """
    if not is_store(campaign.data.name):
        if executor is not None:
            raise InputError(
                f"{campaign.data.name} is no store of `pool embed`, which others score; leave out "
                "--cluster"
            )
        return
    if again < 1:
        raise InputError(f"refresh-every is {again}; expected 1 or more")
    if test is not None or start_from_folders:
        raise InputError(
            "test items and labels of class folders are for data that are held whole; of a large "
            "pool expected "
            "neither: leave out --test and --start-from-folders"
        )
    if campaign.model.name not in ("auto", EXACT) or campaign.data.embedding not in (None, "auto"):
        raise InputError(
            f"model is {campaign.model.name!r}, embedding {campaign.data.embedding!r}; a large "
            f"pool expects {EXACT} "
            "on the features that `pool embed` wrote: leave them out"
        )
    if campaign.asking.strategy not in STRATEGIES:
        raise InputError(
            f"strategy is {campaign.asking.strategy!r}; a large pool expects one that has a name"
        )


def session_folder(out: str | Path | None, source: str) -> Path:
    """Return where the labels are kept; the folder need not exist yet."""
    name = Path(source).name if is_store(source) else data_name(source)
    named_after = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "data"
    return Path(out) if out is not None else Path(f"labels-{named_after}")


def _folder(out: str | Path | None, source: str) -> Path:
    """The folder of the labels, made if there is none."""
    folder = session_folder(out, source)
    make_private_folder(folder)
    return folder


def _come_and_gone(assignment: LabellingService, recorded: int) -> list[str]:
    """Files that are there for the first time, and those that are no more, which nobody is asked
    about.
    """
    ids, sizes = assignment.items.ids, assignment.items.sizes
    notes: list[str] = []
    if sizes is None:
        return notes
    if 0 < recorded < len(ids):
        kind = "pictures" if assignment.items.kind == "image" else "texts"
        notes.append(f"{len(ids) - recorded} new {kind} since the last time: they come into play")
    gone = [p for p, size in enumerate(sizes) if size is None]
    if gone:
        assignment.leave_out(dict.fromkeys(gone, "it is gone"))
        names = ", ".join(ids[p] for p in gone[:NAMED]) + (", ..." if len(gone) > NAMED else "")
        notes.append(
            f"{len(gone)} pictures are gone: {names}: nobody is asked about them, and their "
            "labels stay"
        )
    return notes


def write_out(
    session: Session,
    form: str,
    to: Path,
    *,
    rest: bool = False,
    tell: Tell | None = None,
    **options: Any,
) -> str:
    """Export without a server; what was written.

    rest: with predictions by a model of all labels. tell: is told how much of the looking at items
    is done. options: as for `export_labels`.
    """
    assignment = session.assignment
    if rest:
        session.schedule.remember()
        options["predicted"] = predict_pool(assignment, session.schedule, tell)
    rows, labels = export_labels(assignment, form, to, **options), len(assignment.tally.labels)
    if form == CONFIG:
        return f"the labelling configuration for the tasks of --export label-studio is in {to}"
    if not rest:
        return f"{labels} labels are in {to}"
    left = len(assignment.items) - rows - len(assignment.closed) - len(assignment.broken)
    more = (
        f"; {left} items that the page has not looked at have none: see `labelahead predict`"
        if left > 0
        else ""
    )
    return (
        f"{labels} labels and {rows - labels} predictions (by a model of all {labels} labels) "
        f"are in {to}{more}"
    )


def _checked(campaign: Campaign, test: float | str | Path | None) -> Campaign:
    """What the page can do nothing with is said before any work."""
    if not find(campaign.asking.strategy).look_ahead:
        able = ", ".join(name for name, s in STRATEGIES.items() if s.look_ahead)
        raise InputError(
            f"strategy is {campaign.asking.strategy!r}, which chooses once for each training; the "
            f"page expects one that learns from every answer: {able}"
        )
    if not isinstance(campaign.asking.strategy, str):
        raise InputError(
            f"strategy is {campaign.asking.strategy.name!r}, handed over in Python; the page, "
            "which trains in a "
            "process of its own, expects a name, or your own as file.py:name"
        )
    if campaign.asking.kernel == "full":
        raise InputError("kernel is 'full'; the page expects pseudo, single or trace")
    share = float(test) if isinstance(test, int | float) else 0.0
    name = absolute_source(campaign.data.name)
    # A link inside a folder of pictures could lead to any picture on this machine.
    own = campaign.data.embedding and full_name(campaign.data.embedding)
    source = replace(
        campaign.data, name=name, test_fraction=share, links=False, checked=False, embedding=own
    )
    asking = replace(campaign.asking, strategy=full_name(campaign.asking.strategy))
    model = replace(campaign.model, name=full_name(campaign.model.name))
    return replace(campaign, data=source, asking=asking, model=model)


def _test(
    data: Data, answers: Answers | None, test: float | str | Path | None, classes: Sequence[str]
) -> dict[int, str]:
    """What to measure on: positions, and the name of each one's class."""
    if isinstance(test, str | Path):
        at, numbers, names = read_labels(test, data, classes)
        rows = zip(at.tolist(), numbers.tolist(), strict=True)
        return {p: names[c] for p, c in rows}
    if test and answers is None:
        raise InputError(
            f"test is {test}, but the data carry no labels to measure with; expected a file of "
            "item,label"
        )
    if answers is None:
        return {}
    known = data.test[answers.known[data.test]]
    pairs = zip(known.tolist(), answers.take(known).tolist(), strict=True)
    return {p: data.classes[c] for p, c in pairs}


def _recorded_test(folder: Path, data: Data) -> dict[int, str]:
    """Return the items to measure on that the folder's last session had, so that a copy is fitted
    as the page is.
    """
    path = folder / TEST_FILE
    if not path.exists():
        return {}
    names = json.loads(path.read_text(encoding="utf-8"))
    return {p: names[item] for p, item in enumerate(data.ids) if item in names}


def _taken_in(
    assignment: LabellingService, begun: Begun, labels: str | Path | None, start_from_folders: bool
) -> Iterator[str]:
    """Take in the labels that the data carry and those of a file, and say how many."""
    if start_from_folders:
        yield _from_folders(assignment, begun.data, begun.answers)
    if labels is not None:
        yield f"{labels}: {_counted(import_labels(assignment, Path(labels)))}"


def _from_folders(assignment: LabellingService, data: Data, answers: Answers | None) -> str:
    if answers is None:
        raise InputError(
            f"{data.name} carries no labels to start from; expected one folder for each class, or "
            "a table with a target column"
        )
    known = [p for p in answers.known.nonzero().flatten().tolist() if p not in assignment.closed]
    rows = [(p, data.classes[answers(p)], FOLDERS) for p in known]
    assignment.bring_in(rows)
    return f"{len(rows)} labels taken from the data themselves, as {FOLDERS!r}"


def _counted(imported: dict[str, Any]) -> str:
    words = {
        "labels": "labels",
        "unknown": "of unknown items",
        "unclear": "unclear",
        "held_out": "of test items",
    }
    counts = [(of, int(imported[key])) for key, of in words.items()]
    return ", ".join(
        f"{count} {of}" for of, count in [counts[0], *(pair for pair in counts[1:] if pair[1])]
    )
