"""A labelling session: data, journal, labelling service and training schedule."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from labelahead import files
from labelahead.data import Answers, Data, read_labels
from labelahead.data.classes import normalise_name, require_distinct_classes
from labelahead.data.excel import resolve_source
from labelahead.data.folder import arrange_by_ids
from labelahead.data.joined_embeddings import map_joined_embedding, split_joined_embedding
from labelahead.data.labels import read_labelled_names
from labelahead.data.loading import get_data_name, load_source
from labelahead.data.vector_files import is_vector_file, resolve_vector_file
from labelahead.errors import InputError, count_noun
from labelahead.learner.config import (
    Campaign,
    campaign_code_names,
    parse_campaign,
    read_stored,
    read_toml,
    to_toml,
)
from labelahead.learner.encoding import describe_embedding
from labelahead.learner.export import ExportedModel
from labelahead.learner.guessers import CLASS_NAMES, describe_guesser, reads_class_names
from labelahead.learner.model_kind import get_model_kind
from labelahead.learner.preparation import choose_model_and_embedding
from labelahead.models import EXACT
from labelahead.models.encoder_names import looks_like_encoder, parse_encoder_name, resolve_encoder
from labelahead.models.trusted_code import record_code, resolve_code_name
from labelahead.outofcore.store import is_store
from labelahead.server.exchange import CONFIG_FORMAT, export_labels, import_labels
from labelahead.server.fitting import build_exported_model, predict_pool, reject_large_pool
from labelahead.server.items import IMAGE, SOUND, Items
from labelahead.server.journal import (
    Journal,
    JournalCopy,
    copy_journal,
    read_class_names,
    read_class_state,
    read_item_names,
)
from labelahead.server.large_pool import LargePoolWorker, PoolSizes
from labelahead.server.permissions import make_private_folder
from labelahead.server.schedule import Schedule
from labelahead.server.service import LabellingService
from labelahead.server.snapshot_builder import ProgressCallback, with_current_classes
from labelahead.server.task_session import (
    TaskInputs,
    choose_strategy,
    choose_test_answers,
    prepare_task,
    read_task_inputs,
)
from labelahead.server.worker import DATA_FILE, Worker
from labelahead.strategies import STRATEGIES, find_strategy

__all__ = [
    "TEMPORARY_PREFIX",
    "Session",
    "SessionOptions",
    "export_session",
    "open_session",
    "session_folder",
    "session_model",
]

MAX_NAMES_SHOWN = 5  # of files in a note
TEMPORARY_PREFIX = "temporary-"  # prefix of folders for files being exported or imported
FOLDER_ANNOTATOR = "folders"  # annotator of the labels that the data contain
TEST_FILE = "test.json"  # test items, which are never used for training, and their classes


@dataclass(frozen=True, eq=False)
class Session:
    """An open session.

    notes: decisions to show to the user. pool_worker: of an out-of-core pool, else None.
    """

    service: LabellingService
    schedule: Schedule
    folder: Path
    notes: tuple[str, ...]
    pool_worker: LargePoolWorker | None = None


@dataclass(frozen=True)
class SessionOptions:
    """How to open a session.

    Attributes:
        classes: Class names; default: those in the data.
        labels: A file of labels to import.
        start_from_folders: Import the labels that the data contain.
        test: Test set, never queried: a fraction of the data's own labels, or a file of
            `item,label`; default: the data's own test split.
        retrain_every: Labels between two trainings.
        overlap: Fraction of queries for a second opinion.
        budget: Number of labels after which the page stops.
        executor: What scores an out-of-core pool (`outofcore.connect_executor`).
        refresh_every: Labels after which such a pool is scored again.
        pool_sizes: How many of its items the page holds.
        read_only: Work on a copy of the labels in memory, also while a server has the folder open;
            no file in the folder is changed.
        show_guesses: Whether annotators see the guesses about an item before they answer.
        choose_prior: The campaign names no prior: an existing session keeps its own, and a new one
            of texts starts from the class names if they are words (docs/guesses.md).
    """

    classes: Sequence[str] = ()
    labels: str | Path | None = None
    start_from_folders: bool = False
    test: float | str | Path | None = None
    retrain_every: int = 10
    overlap: float = 0.0
    budget: int | None = None
    executor: Any = None
    refresh_every: int = 50
    pool_sizes: PoolSizes = field(default_factory=PoolSizes)
    read_only: bool = False
    show_guesses: bool = False
    choose_prior: bool = False

    def __post_init__(self) -> None:
        if self.retrain_every < 1:
            raise InputError(f"retrain-every is {self.retrain_every}; expected 1 or more")
        if self.read_only and (self.start_from_folders or self.labels is not None):
            raise InputError("a read-only session cannot import labels; open it for writing")


@contextmanager
def open_session(
    campaign: Campaign, out: str | Path | None = None, options: SessionOptions | None = None
) -> Iterator[Session]:
    """Open a folder of labels, or create one; nothing is trained before `schedule.start()`.

    out: folder for the labels; default: labels-NAME.
    """
    options = options or SessionOptions()
    classes = require_distinct_classes(options.classes or campaign.data.classes)
    campaign = _check_campaign(prepare_task(campaign), options.test)
    _check_large(campaign, options)
    campaign = _with_session_classes(_with_pinned_encoder(campaign, out), out, classes)
    inputs = _load_inputs(campaign, out, classes, options)
    data, folder, task = inputs.data, inputs.folder, inputs.task
    if task is not None:
        campaign = choose_strategy(campaign, task.task)
        classes = task.class_names
    campaign, prior_notes = _choose_prior(campaign, inputs, options)
    test_classes = _choose_test_items(inputs, options, campaign.data.classes)
    notes = [*data.notes, *inputs.model_notes, *prior_notes]
    if isinstance(options.test, str | Path):
        notes.append(f"{len(test_classes)} test items from {options.test}")
    classes = classes or list(dict.fromkeys(data.classes))
    known_names = {normalise_name(name) for name in classes}
    test_only = dict.fromkeys(
        n for n in test_classes.values() if task is None and normalise_name(n) not in known_names
    )
    items = _make_items(inputs)
    with Journal(
        folder,
        classes=[*classes, *test_only],
        items=data.ids,
        fingerprint=items.fingerprint,
        task=None if task is None else task.task,
        sizes=items.sizes,
        copy=inputs.copy,
    ) as journal:
        if not options.read_only:
            _remove_leftovers(folder)
        held_out = _find_held_out(journal, test_classes, notes)
        service = _make_service(journal, items, held_out, inputs, campaign.seed, options)
        if task is not None:
            service.test_answers = {p: test_classes[p] for p in held_out}
        notes += _describe_file_changes(service, len(inputs.recorded_ids))
        notes += _import_initial_labels(service, inputs, options)
        if not options.read_only:
            _record_settings(
                folder, campaign, {data.ids[p]: name for p, name in test_classes.items()}
            )
        schedule = _make_schedule(inputs, service, campaign, held_out, options)
        try:
            yield Session(service, schedule, folder, tuple(notes), inputs.pool_worker)
        finally:
            schedule.stop()


def _make_service(
    journal: Journal,
    items: Items,
    held_out: Mapping[int, int],
    inputs: "SessionInputs",
    seed: int,
    options: SessionOptions,
) -> LabellingService:
    pool_worker = inputs.pool_worker
    service = LabellingService(
        journal,
        items,
        held_out=held_out,
        seed=seed,
        overlap=options.overlap,
        budget=options.budget,
        order=pool_worker.random_positions if pool_worker else None,
    )
    service.show_guesses = options.show_guesses
    return service


def _record_settings(folder: Path, campaign: Campaign, test: Mapping[str, str]) -> None:
    """Store the settings of the session, for later exports of labels and models."""
    files.replace_file(folder / "session.toml", to_toml(campaign))
    files.replace_file(folder / TEST_FILE, json.dumps(test))
    record_code(campaign_code_names(campaign))


def _remove_leftovers(folder: Path) -> None:
    """Delete partial files of a server that was killed; the lock is ours."""
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in (*folder.glob("*.*.partial"), folder / DATA_FILE):
        leftover.unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class SessionInputs:
    """Data and settings to open a session with. recorded_ids: item names of an existing journal."""

    folder: Path
    recorded_ids: list[str]
    data: Data
    answers: Answers | None
    network: str
    embedding: str
    model_notes: Sequence[str] = ()
    pool_worker: LargePoolWorker | None = None  # of an out-of-core pool
    copy: JournalCopy | None = None  # of the journal, if the session is read-only
    task: TaskInputs | None = None  # unless labels are classes


def _make_items(inputs: SessionInputs) -> Items:
    label_column = None if inputs.answers is None else inputs.answers.column
    return Items(
        inputs.data,
        None if inputs.pool_worker is None else inputs.pool_worker.fingerprint,
        label_column,
    )


def _load_inputs(
    campaign: Campaign, out: str | Path | None, classes: Sequence[str], options: SessionOptions
) -> SessionInputs:
    """Load the data, in the order of the journal, or open an out-of-core pool."""
    if is_store(campaign.data.name):
        return _load_large_pool(campaign, out, classes, options)
    guess_classes, former = _find_guess_classes(campaign, out, classes)
    loaded = load_source(campaign.data, campaign.seed, guess_classes, former)
    folder, recorded, copy = _locate_journal(out, campaign.data.name, options.read_only)
    data, answers = arrange_by_ids(loaded, recorded)
    task = None
    if campaign.data.task != "classes":
        task, data = read_task_inputs(campaign, data, answers, campaign.data.classes)
    chosen = choose_model_and_embedding(campaign, data)
    return SessionInputs(folder, recorded, data, answers, *chosen, copy=copy, task=task)


def _find_guess_classes(
    campaign: Campaign, out: str | Path | None, given_classes: Sequence[str]
) -> tuple[list[str], Mapping[str, str | None]]:
    """Return the classes that guesses are about, and the former names that they may use."""
    state = read_class_state(session_folder(out, campaign.data.name))
    if not state.classes:
        return [], {}
    known_names = {*map(normalise_name, state.active_names), *state.former_classes}
    new_classes = [name for name in given_classes if normalise_name(name) not in known_names]
    return [*state.active_names, *new_classes], state.former_classes


def _choose_prior(
    campaign: Campaign, inputs: SessionInputs, options: SessionOptions
) -> tuple[Campaign, tuple[str, ...]]:
    """Return the campaign with the prior of the session, if it names none itself, and a note on it."""
    settings = inputs.folder / "session.toml"
    if campaign.data.guesses:
        names = ", ".join(map(describe_guesser, campaign.data.guesses))
        return campaign, (f"prior knowledge: {names}; its weight is estimated from the labels",)
    if not options.choose_prior or inputs.pool_worker is not None or inputs.task is not None:
        return campaign, ()
    if settings.exists():
        wanted = read_toml(settings).get("data", {}).get("prior") == CLASS_NAMES
    else:  # a session of labelahead 0.1 has items, but no settings
        wanted = not inputs.recorded_ids
    if not wanted or not reads_class_names(
        campaign.data, inputs.data, inputs.embedding, inputs.network
    ):
        return campaign, ()
    note = (
        "prior knowledge: the class names are words, and predictions start from their similarity "
        "to the texts; --prior none does without"
    )
    return replace(campaign, data=replace(campaign.data, prior=CLASS_NAMES)), (note,)


def _with_pinned_encoder(campaign: Campaign, out: str | Path | None) -> Campaign:
    """Return the campaign with the revision of its encoder, that of an existing session if it has one.

    Otherwise a new version on the hub would change the embeddings of a session that goes on.
    """
    embedding = campaign.data.embedding
    if embedding is None or is_store(campaign.data.name):
        return campaign
    path = session_folder(out, campaign.data.name) / "session.toml"
    stored = read_toml(path).get("data", {}).get("embedding") if path.exists() else None
    stored_parts = split_joined_embedding(stored) if isinstance(stored, str) else []
    pinned = map_joined_embedding(embedding, lambda part: _pin_encoder(part, stored_parts))
    return replace(campaign, data=replace(campaign.data, embedding=pinned))


def _pin_encoder(name: str, stored_names: Sequence[str]) -> str:
    """Return the name of an encoder with its revision, of a stored name if that is the same one."""
    if is_vector_file(name) or not looks_like_encoder(name):
        return name
    wanted = parse_encoder_name(name)
    for stored_name in stored_names:
        if looks_like_encoder(stored_name) and not wanted.revision:
            known = parse_encoder_name(stored_name)
            same = (known.name, known.pooling) == (wanted.name, wanted.pooling)
            name = stored_name if same and wanted.kind in ("", known.kind) else name
    return str(resolve_encoder(name))


def _with_session_classes(
    campaign: Campaign, out: str | Path | None, given_classes: Sequence[str]
) -> Campaign:
    """Return the campaign with the given classes and those of an existing session.

    They determine how labels in the data are interpreted.
    """
    if is_store(campaign.data.name):  # its items have no labels
        return replace(campaign, data=replace(campaign.data, classes=()))
    recorded = read_class_names(session_folder(out, campaign.data.name))
    names = {normalise_name(name): name for name in reversed([*given_classes, *recorded])}
    return replace(campaign, data=replace(campaign.data, classes=tuple(reversed(names.values()))))


def _load_large_pool(
    campaign: Campaign, out: str | Path | None, classes: Sequence[str], options: SessionOptions
) -> SessionInputs:
    """Open an out-of-core pool."""
    store = campaign.data.name
    folder, recorded, copy = _locate_journal(out, store, options.read_only)
    pool_worker = LargePoolWorker(
        campaign,
        folder,
        recorded,
        executor=options.executor,
        sizes=options.pool_sizes,
        classes=classes,
    )
    return SessionInputs(
        folder,
        recorded,
        pool_worker.data,
        None,
        EXACT,
        pool_worker.embedding,
        pool_worker=pool_worker,
        copy=copy,
    )


def _locate_journal(
    out: str | Path | None, source: str, read_only: bool
) -> tuple[Path, list[str], JournalCopy | None]:
    """Return the folder of the labels, its item names, and a copy of its journal if read-only."""
    if read_only:
        folder = session_folder(out, source)
        copy = copy_journal(folder)
        return folder, copy.items, copy
    folder = _make_folder(out, source)
    return folder, read_item_names(folder), None


def _find_held_out(
    journal: Journal, test_classes: Mapping[int, str], notes: list[str]
) -> dict[int, int]:
    """Return position and class of the test items that have not been labelled."""
    labelled, is_task = journal.label_state.labels, journal.label_state.task is not None
    class_numbers = {  # the answers of a task are no classes
        name: 0 if is_task else journal.find_class(name) for name in {*test_classes.values()}
    }  # None: the class was removed
    unlabelled = {p: class_numbers[n] for p, n in test_classes.items() if p not in labelled}
    if len(unlabelled) < len(test_classes):
        labelled_count = len(test_classes) - len(unlabelled)
        notes.append(
            f"{labelled_count} test items are labelled in this session and are not used for testing"
        )
    return {p: c for p, c in unlabelled.items() if c is not None}


def _make_schedule(
    inputs: SessionInputs,
    service: LabellingService,
    campaign: Campaign,
    held_out: Mapping[int, int],
    options: SessionOptions,
) -> Schedule:
    """Create the schedule with its worker process or pool worker."""
    threads = campaign.threads or max(1, (os.cpu_count() or 2) - 1)
    current, data = with_current_classes(campaign, inputs.data, service.label_state)
    worker = inputs.pool_worker or Worker(asdict(current), data, inputs.folder, threads, held_out)
    schedule = Schedule(
        service,
        worker,
        inputs.folder,
        campaign,
        retrain_every=options.retrain_every,
        needs_training=get_model_kind(inputs.network).needs_training,
        refresh_every=options.refresh_every if inputs.pool_worker else None,
    )
    inputs_description = describe_embedding(inputs.embedding)
    schedule.model_description = "; ".join(
        [
            f"{inputs.network} on {inputs_description}",
            *(n for n in inputs.model_notes if "pip install" in n),
        ]
    )
    return schedule


def _check_large(campaign: Campaign, options: SessionOptions) -> None:
    """Raise for options that an out-of-core pool does not support, or that need one."""
    if not is_store(campaign.data.name):
        if options.executor is not None:
            raise InputError(
                f"{campaign.data.name} is not a `pool embed` store, so a cluster cannot score it; leave "
                "out --cluster"
            )
        return
    if options.refresh_every < 1:
        raise InputError(f"refresh-every is {options.refresh_every}; expected 1 or more")
    if campaign.data.prior != "none":
        raise InputError(
            f"prior is {campaign.data.prior}, which needs the texts of all items; an out-of-core pool "
            "takes guesses of columns and files: leave out --prior"
        )
    if options.test is not None or options.start_from_folders:
        raise InputError(
            "test items and labels of class folders are not supported for an out-of-core pool; "
            "leave out --test and --start-from-folders"
        )
    if campaign.model.name not in ("auto", EXACT) or campaign.data.embedding not in (None, "auto"):
        raise InputError(
            f"model is {campaign.model.name!r}, embedding {campaign.data.embedding!r}; an "
            f"out-of-core pool expects {EXACT} "
            "on the features that `pool embed` wrote: leave them out"
        )
    if campaign.asking.goal != "accuracy":
        raise InputError(f"goal is {campaign.asking.goal!r}; an out-of-core pool expects accuracy")
    if campaign.asking.strategy not in STRATEGIES:
        raise InputError(
            f"strategy is {campaign.asking.strategy!r}; an out-of-core pool expects the name of a strategy"
        )


def session_folder(out: str | Path | None, source: str) -> Path:
    """Return the folder of the labels; it need not exist yet."""
    name = Path(source).name if is_store(source) else get_data_name(source)
    named_after = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "data"
    return Path(out) if out is not None else Path(f"labels-{named_after}")


def _make_folder(out: str | Path | None, source: str) -> Path:
    """Return the folder of the labels, created if necessary."""
    folder = session_folder(out, source)
    make_private_folder(folder)
    return folder


def _describe_file_changes(service: LabellingService, recorded: int) -> list[str]:
    """Exclude items whose file is missing, and return notes on new and missing files."""
    ids, sizes = service.items.ids, service.items.sizes
    notes: list[str] = []
    if sizes is None:
        return notes
    noun = {IMAGE: "pictures", SOUND: "sounds"}.get(service.items.kind, "texts")
    if 0 < recorded < len(ids):
        notes.append(
            f"{len(ids) - recorded} new {noun} since the last session are added to the pool"
        )
    missing = [p for p, size in enumerate(sizes) if size is None]
    if missing:
        service.exclude_items(dict.fromkeys(missing, "its file is missing"))
        names = ", ".join(ids[p] for p in missing[:MAX_NAMES_SHOWN]) + (
            ", ..." if len(missing) > MAX_NAMES_SHOWN else ""
        )
        notes.append(
            f"{len(missing)} {noun} are missing: {names}; they are not queried, and their labels "
            "are kept"
        )
    return notes


def export_session(
    session: Session,
    form: str,
    to: Path,
    *,
    rest: bool = False,
    on_progress: ProgressCallback | None = None,
    **options: Any,
) -> str:
    """Export the labels without a server, and return a sentence on the result.

    Args:
        session: An open session.
        form: Format of the export.
        to: Output file or folder.
        rest: Add predictions of a model fitted on all labels.
        on_progress: Called with the progress of computing embeddings.
        options: As for `export_labels`.
    """
    service = session.service
    if rest:
        session.schedule.restore()
        options["predicted"] = predict_pool(service, session.schedule, on_progress)
    rows, labels = export_labels(service, form, to, **options), len(service.label_state.labels)
    if form == CONFIG_FORMAT:
        return f"the labelling configuration for the tasks of --export label-studio is in {to}"
    if not rest:
        return f"{count_noun(labels, 'label is', 'labels are')} in {to}"
    unpredicted = len(service.items) - rows - len(service.held_out) - len(service.excluded)
    remark = (
        f"; no prediction for {count_noun(unpredicted, 'item')} without an embedding: use "
        "`labelahead predict`"
        if unpredicted > 0
        else ""
    )
    return (
        f"{count_noun(labels, 'label')} and {count_noun(rows - labels, 'prediction')} (by a model of "
        f"all {count_noun(labels, 'label')}) are in {to}{remark}"
    )


def session_model(
    folder: str | Path, *, device: str | None = None, trust_code: bool = False
) -> ExportedModel:
    """Fit a model on all labels in a session's folder, also while a server has it open.

    device, trust_code: see `labelahead.load_model`.
    """
    campaign = parse_campaign(read_stored(Path(folder) / "session.toml", trust_code=trust_code))
    campaign = campaign if device is None else replace(campaign, device=device)
    reject_large_pool(campaign)
    options = SessionOptions(test=campaign.data.test_fraction or None, read_only=True)
    with open_session(campaign, folder, options) as session:
        session.schedule.restore()
        return build_exported_model(session.service, session.schedule)


def _check_campaign(campaign: Campaign, test: float | str | Path | None) -> Campaign:
    """Raise for settings that the page does not support; return the campaign with full paths."""
    if not find_strategy(campaign.asking.strategy).look_ahead:
        able = ", ".join(name for name, s in STRATEGIES.items() if s.look_ahead)
        raise InputError(
            f"strategy is {campaign.asking.strategy!r}, which queries once per training; the page "
            f"needs a strategy that is updated after every answer: {able}"
        )
    if not isinstance(campaign.asking.strategy, str):
        raise InputError(
            f"strategy is {campaign.asking.strategy.name!r}, a Python object; the page trains "
            "in another process and expects a name, or your own strategy as file.py:name"
        )
    if campaign.asking.kernel == "full":
        raise InputError("kernel is 'full'; the page expects pseudo, single or trace")
    share = float(test) if isinstance(test, int | float) else 0.0
    name = resolve_source(campaign.data.name)
    # A symbolic link in an image folder could point to any picture on this machine.
    embedding = campaign.data.embedding
    if embedding is not None:
        embedding = map_joined_embedding(
            embedding,
            lambda part: (
                resolve_vector_file(part) if is_vector_file(part) else resolve_code_name(part)
            ),
        )
    source = replace(
        campaign.data,
        name=name,
        test_fraction=share,
        links=False,
        checked=False,
        embedding=embedding,
    )
    asking = replace(campaign.asking, strategy=resolve_code_name(campaign.asking.strategy))
    model = replace(campaign.model, name=resolve_code_name(campaign.model.name))
    return replace(campaign, data=source, asking=asking, model=model)


def _choose_test_items(
    inputs: SessionInputs, options: SessionOptions, classes: Sequence[str]
) -> dict[int, str]:
    """Return position and class name of the test items; of a copy, those of the last session."""
    stored = {}
    if options.read_only and options.test is None:
        stored = _read_test_items(inputs.folder, inputs.data)
    if inputs.task is not None:
        return stored or choose_test_answers(inputs.task, inputs.data, options.test)
    return stored or _find_test_items(inputs.data, inputs.answers, options.test, classes)


def _find_test_items(
    data: Data, answers: Answers | None, test: float | str | Path | None, classes: Sequence[str]
) -> dict[int, str]:
    """Return position and class name of the test items."""
    if isinstance(test, str | Path):
        at, numbers, names = read_labels(test, data, classes)
        rows = zip(at.tolist(), numbers.tolist(), strict=True)
        return {p: names[c] for p, c in rows}
    if test and answers is None:
        raise InputError(
            f"test is {test}, but the data contain no labels; expected a file of item,label"
        )
    if answers is None:
        return {}
    known = data.test[answers.has_label[data.test]]
    pairs = zip(known.tolist(), answers.take(known).tolist(), strict=True)
    return {p: data.classes[c] for p, c in pairs}


def _read_test_items(folder: Path, data: Data) -> dict[int, str]:
    """Return the test items of the folder's last session, so that a copy is fitted as the page."""
    path = folder / TEST_FILE
    if not path.exists():
        return {}
    names = json.loads(path.read_text(encoding="utf-8"))
    return {p: names[item] for p, item in enumerate(data.ids) if item in names}


def _import_initial_labels(
    service: LabellingService, inputs: SessionInputs, options: SessionOptions
) -> Iterator[str]:
    """Import the labels in the data and those of a file; yield a note on each."""
    labels = options.labels
    if inputs.pool_worker:
        named = () if labels is None else read_labelled_names(labels)
        inputs.pool_worker.connect(service, named)
    if options.start_from_folders:
        yield _import_own_labels(service, inputs)
    if labels is not None:
        yield f"{labels}: {_describe_import(import_labels(service, Path(labels)))}"


def _import_own_labels(service: LabellingService, inputs: SessionInputs) -> str:
    data, answers = inputs.data, inputs.answers
    if answers is None:
        raise InputError(
            f"{data.name} contains no labels to start from; expected one folder for each class, "
            "or a table with a target column"
        )
    known = [p for p in answers.has_label.nonzero().flatten().tolist() if p not in service.held_out]
    own = inputs.task.own_answers if inputs.task else None
    rows = [(p, own[p] if own else data.classes[answers(p)], FOLDER_ANNOTATOR) for p in known]
    service.add_labels(rows)
    return f"{count_noun(len(rows), 'label')} imported from the data, as annotator {FOLDER_ANNOTATOR!r}"


def _describe_import(imported: dict[str, Any]) -> str:
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
