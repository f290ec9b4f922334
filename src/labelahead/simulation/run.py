"""Run and resume campaigns from a configuration."""

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.data.classes import refuse_unlisted_labels
from labelahead.data.dataset import Answers, Data, Loaded, hash_tensor
from labelahead.data.joined_embeddings import split_joined_embedding
from labelahead.data.pool import Pool
from labelahead.errors import InputError
from labelahead.learner.config import (
    Budget,
    Campaign,
    Progress,
    campaign_code_names,
    load_campaign,
    parse_campaign,
    read_stored,
    read_toml,
    to_toml,
)
from labelahead.learner.preparation import PreparedCampaign, prepare_campaign
from labelahead.models.trusted_code import record_code
from labelahead.simulation.loop import Labeller, Simulation, State, run_rounds
from labelahead.simulation.measures import Measure, find_measure
from labelahead.simulation.store import Round, Store
from labelahead.simulation.tracking import open_trackers
from labelahead.strategies import PYTHON_OBJECT_PREFIX, find_strategy
from labelahead.strategies.base import QueryConfig, Strategy
from labelahead.tasks import Task

__all__ = [
    "PreparedCampaign",
    "Result",
    "RunCallbacks",
    "build_simulation",
    "check_data_fingerprint",
    "fit_budget_to_pool",
    "iterate_rounds",
    "load_config",
    "prepare_campaign",
    "preserve_thread_count",
    "resume",
    "resume_prepared",
    "run",
    "run_prepared",
]

CHANGEABLE_KEYS = {
    "data.name",
    "data.root",
    "data.batch_size",
    "data.workers",
    "model.name",
    "asking.strategy",
    "device",
    "budget.labels",
    "threads",
}


@dataclass(frozen=True, eq=False)
class Result:
    """A finished campaign.

    >>> plan = {"model": {"name": "exact"}, "budget": {"initial": 10, "labels": 20}, "threads": 1}
    >>> result = la.run(plan)
    >>> [labels for labels, accuracy in result.curve]
    [10, 20]
    >>> len(result.pool), len(result.rounds)
    (20, 2)
    """

    campaign: Campaign
    rounds: tuple[Round, ...]
    pool: Pool
    model: nn.Module
    folder: Path | None
    guessers: tuple[str, ...] = ()  # a sentence on what each is worth

    @property
    def measure(self) -> Measure:
        """What the curve shows: accuracy, or the main measure of another task."""
        return find_measure(self.campaign.data.task, self.campaign.data.unit)

    @property
    def curve(self) -> list[tuple[int, float | None]]:
        """(labels, test accuracy) of every round; the main measure of another task."""
        return [(r.labels, self.measure.read(r)) for r in self.rounds]


@dataclass(frozen=True)
class RunCallbacks:
    """Functions that a running campaign calls.

    Attributes:
        progress: Called with the stage, the work done and its total.
        on_round: Called with every finished round.
        on_ready: Called once data and network are loaded.
    """

    progress: Progress | None = None
    on_round: Callable[[Round], None] | None = None
    on_ready: Callable[[PreparedCampaign], None] | None = None


Prepare = Callable[[Campaign], PreparedCampaign]


def run(
    config: Campaign | Mapping[str, Any] | str | Path | None = None,
    *,
    data: Loaded | None = None,
    labeller: Labeller | None = None,
    out: str | Path | None = None,
    callbacks: RunCallbacks | None = None,
    forecast: bool = True,
    shorten: bool = False,
) -> Result:
    """Run a whole campaign. Without arguments: the embedded digits, in about a minute.

    Args:
        config: A `Campaign`, tables as in TOML, or a TOML file.
        data: As `labelahead.data` returns it, instead of the configured data.
        labeller: Supplies labels instead of the data.
        out: A folder that keeps everything, for `resume`.
        callbacks: Called while the campaign runs, for example with every finished round.
        forecast: Whether every round estimates and forecasts its error.
        shorten: If the pool has fewer items than the budget has labels, label half of it, with a
            note, instead of refusing.

    >>> plan = {"model": {"name": "exact"}, "budget": {"initial": 0, "labels": 20}, "threads": 1}
    >>> result = la.run(plan, forecast=False)  # the embedded digits; from no label at all
    >>> result.curve[-1][1] > 0.5
    True
    """
    callbacks = callbacks or RunCallbacks()
    return run_prepared(
        load_config(config),
        lambda campaign: prepare_campaign(campaign, data, callbacks.progress),
        labeller=labeller,
        out=out,
        callbacks=callbacks,
        forecast=forecast,
        shorten=shorten,
    )


def run_prepared(
    campaign: Campaign,
    prepare: Prepare,
    *,
    labeller: Labeller | None = None,
    out: str | Path | None = None,
    callbacks: RunCallbacks | None = None,
    forecast: bool = True,
    shorten: bool = False,
) -> Result:
    """Run a whole campaign with data and network from `prepare`; otherwise as `run`."""
    callbacks = callbacks or RunCallbacks()
    if out is not None:
        Store.require_no_campaign(out)
    with preserve_thread_count():
        prepared = prepare(campaign)
        if shorten:
            prepared = fit_budget_to_pool(prepared, labeller)
        plan = replace(build_simulation(prepared, labeller), forecast=forecast)
        if callbacks.on_ready:
            callbacks.on_ready(prepared)
        if out is None:
            return _run_rounds(prepared, plan, None, callbacks)
        existed = Path(out).exists()
        with Store.create(out, to_toml(prepared.campaign)) as store:
            record_code(campaign_code_names(prepared.campaign))
            check_data_fingerprint(store, prepared)
            try:
                return _run_rounds(prepared, plan, store, callbacks)
            except Exception:
                # A campaign that fails in its first round would fail again, and its folder holds
                # nothing of value, unless a person has labelled.
                if labeller is None and not existed and not store.read_rounds():
                    shutil.rmtree(store.folder)
                raise


def iterate_rounds(campaign: Campaign, prepare: Prepare = prepare_campaign) -> Iterator[Round]:
    """Yield the rounds of a campaign without storing or forecasting anything; the caller may stop
    early.
    """
    with preserve_thread_count():
        yield from run_rounds(replace(build_simulation(prepare(campaign)), forecast=False))


def resume(
    folder: str | Path,
    changes: Mapping[str, Any] | None = None,
    *,
    data: Loaded | None = None,
    labeller: Labeller | None = None,
    strategy: Strategy | None = None,
    callbacks: RunCallbacks | None = None,
    forecast: bool = True,
    trust_code: bool | Collection[str] = False,
) -> Result:
    """Resume an interrupted campaign; the result is the same as without the interruption.

    Args:
        folder: The campaign's folder.
        changes: By dotted key, what has moved ("data.name", "data.root"; "model.name" and
            "asking.strategy" if they are your own), another "device", or a larger budget
            ("budget.labels"), which also continues a finished campaign.
        data: The data, if they were given in Python.
        labeller: Supplies labels instead of the data.
        strategy: The strategy, if it was given in Python.
        callbacks: Called while the campaign runs, for example with every finished round.
        forecast: Whether every round estimates and forecasts its error.
        trust_code: Whether code that the folder names (a network, an embedding or a strategy) may
            run although neither `changes` nor this account has named it before; or which names may.

    >>> plan = {"model": {"name": "exact"}, "budget": {"initial": 10, "labels": 20}, "threads": 1}
    >>> half = la.run(plan, out="half", forecast=False)
    >>> len(la.resume("half", {"budget.labels": 30}, forecast=False).pool)  # a larger budget
    30
    """
    callbacks = callbacks or RunCallbacks()
    return resume_prepared(
        folder,
        lambda campaign: prepare_campaign(campaign, data, callbacks.progress),
        changes,
        labeller=labeller,
        strategy=strategy,
        callbacks=callbacks,
        forecast=forecast,
        trust_code=trust_code,
    )


def resume_prepared(
    folder: str | Path,
    prepare: Prepare,
    changes: Mapping[str, Any] | None = None,
    *,
    labeller: Labeller | None = None,
    strategy: Strategy | None = None,
    callbacks: RunCallbacks | None = None,
    forecast: bool = True,
    trust_code: bool | Collection[str] = False,
) -> Result:
    """Resume an interrupted campaign with data and network from `prepare`; otherwise as `resume`."""
    callbacks = callbacks or RunCallbacks()
    with Store.open(folder) as store, preserve_thread_count():
        if set(changes or {}) - CHANGEABLE_KEYS:
            wrong, every = sorted(set(changes or {}) - CHANGEABLE_KEYS)[0], sorted(CHANGEABLE_KEYS)
            raise InputError(f"{wrong} cannot be changed; expected one of {', '.join(every)}")
        store.require_complete_labels()
        given = {} if strategy is None else {"asking.strategy": strategy}
        now = {**(changes or {}), **given}
        if "asking.strategy" in now:
            _require_same_strategy(store, now["asking.strategy"])
        campaign = parse_campaign(
            read_stored(Path(folder) / "config.toml", now, trust_code=trust_code)
        )
        prepared = prepare(campaign)
        record_code(campaign_code_names(prepared.campaign))
        plan = replace(build_simulation(prepared, labeller), forecast=forecast)
        check_data_fingerprint(store, prepared)
        if changes:
            store.write("config.toml", to_toml(prepared.campaign).encode())
        if callbacks.on_ready:
            callbacks.on_ready(prepared)
        return _run_rounds(prepared, plan, store, callbacks)


def _require_same_strategy(store: Store, now: str | Strategy) -> None:
    """Raise unless the strategy has the name that the campaign started with, wherever its file is now."""
    before = str(
        read_toml(store.folder / "config.toml")
        .get("asking", {})
        .get("strategy", QueryConfig.strategy)
    )
    called = PYTHON_OBJECT_PREFIX + now.name if isinstance(now, Strategy) else now
    files = all(
        ":" in name and not name.startswith(PYTHON_OBJECT_PREFIX) for name in (before, called)
    )
    moved = files and called.rpartition(":")[2] == before.rpartition(":")[2]
    if called != before and not moved:
        raise InputError(
            f"this campaign uses {before}, not {called}; expected the same strategy, or start a "
            "new campaign"
        )


def _run_rounds(
    prepared: PreparedCampaign, plan: Simulation, store: Store | None, callbacks: RunCallbacks
) -> Result:
    last: list[State] = []
    seen: list[Round] = []
    folder = store.folder if store else None
    with open_trackers(prepared.campaign.track, folder) as track:
        for entry in run_rounds(plan, store, callbacks.progress, last.append):
            del last[:-1]
            seen.append(entry)
            track(entry)
            if callbacks.on_round:
                callbacks.on_round(entry)
    pool, model = last[0]
    guessers: tuple[str, ...] = ()
    if prepared.guesses is not None:
        guessers = prepared.guesses.describe_quality(model, pool.labels)
    return Result(prepared.campaign, tuple(seen), pool, model, folder, guessers)


@contextmanager
def preserve_thread_count() -> Iterator[None]:
    """Restore the caller's number of torch threads afterwards."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_config(config: Campaign | Mapping[str, Any] | str | Path | None) -> Campaign:
    """Return the campaign of a configuration: tables as in TOML, or a TOML file."""
    if isinstance(config, Campaign):
        return config
    if config is None:
        return Campaign()
    return parse_campaign(config) if isinstance(config, Mapping) else load_campaign(config, (), {})


def build_simulation(prepared: PreparedCampaign, labeller: Labeller | None = None) -> Simulation:
    """Build the simulation; raise if the data cannot be simulated on."""
    data, answers, budget = prepared.data, prepared.answers, prepared.campaign.budget
    if labeller is None and answers is None:
        raise InputError(
            f"{data.name} has no labels, which a simulated campaign needs: "
            f"{_label_column_hint(data)}"
            "for unlabelled data use `labelahead query`, or pass a labeller"
        )
    refuse_prices(prepared.campaign)
    if prepared.task is None:
        refuse_unlisted_labels(data.classes, prepared.campaign.data.classes)
        if len(data.classes) < 2:
            raise InputError(f"{data.name} has {len(data.classes)} class; expected at least two")
    else:
        _check_task_campaign(prepared.task, data, answers, budget)
    test = data.test if answers is not None else data.test[:0]
    excluded = _excluded_items(prepared, labeller)
    askable = int((~excluded).sum())
    if budget.labels > askable:
        raise InputError(
            f"labels is {budget.labels}, but the pool has {askable} items; expected at most that"
        )
    strategy = find_strategy(prepared.campaign.asking.strategy)
    strategy.check_task(prepared.task)
    learner = prepared.make_learner(len(data.classes), strategy.objective)
    learner.network(prepared.campaign.seed)  # fails early
    return Simulation(
        learner=learner,
        # A user's strategy is read once: later edits do not affect a running campaign.
        asking=replace(prepared.campaign.asking, strategy=strategy),
        budget=budget,
        labeller=labeller or answers,  # type: ignore[arg-type]
        test=test,
        test_labels=answers.take(test) if answers is not None else test,
        excluded=excluded.nonzero().squeeze(1),
        ids=data.ids,
        names=data.classes,
        seed=prepared.campaign.seed,
        task=prepared.task,
    )


def _check_task_campaign(task: Task, data: Data, answers: Answers | None, budget: Budget) -> None:
    """Raise if all labels are equal, or if the budget has what only single classes know."""
    has_one_answer = answers is not None and (
        len(set(answers.take(answers.has_label.nonzero()[:, 0]).tolist())) < 2
    )
    if has_one_answer:
        raise InputError(
            f"all labels of {data.name} are equal; expected at least two different ones"
        )
    given = {"balanced": budget.balanced, "absent": budget.absent, "confirm": budget.confirm}
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise InputError(
            f"budget.{wrong[0]} is for one class per item, but the task is {task.name}; leave it out"
        )


def refuse_prices(campaign: Campaign) -> None:
    """Raise if labels have prices: such campaigns are run by another function."""
    if campaign.sources or campaign.budget.money is not None:
        raise InputError(
            "the campaign counts money; expected labelahead.simulation.source_campaign."
            "run_with_sources, or no sources and no budget.money"
        )


def _label_column_hint(data: Data) -> str:
    """Name the columns of a table that may hold labels."""
    if data.rows is None or data.rows.files:
        return ""
    return (
        "name the column that has them with --target (data.target), one of "
        f"{', '.join(data.rows.columns)}; "
    )


def _excluded_items(prepared: PreparedCampaign, labeller: Labeller | None) -> Tensor:
    """Return a mask (n,) of the items that must not be queried."""
    excluded = torch.zeros(len(prepared.data), dtype=torch.bool)
    excluded[prepared.data.test] = True
    if labeller is None and prepared.answers is not None:
        excluded |= ~prepared.answers.has_label  # these have no label
    return excluded


def fit_budget_to_pool(prepared: PreparedCampaign, labeller: Labeller | None) -> PreparedCampaign:
    """Return the campaign with a budget that the pool can satisfy."""
    budget, askable = prepared.campaign.budget, int((~_excluded_items(prepared, labeller)).sum())
    if budget.labels <= askable or budget.initial > askable:
        return prepared
    labels = min(askable, max(askable // 2, budget.initial + budget.retrain_every))
    fewer = (
        f"the pool has {askable} items: {labels} labels are queried, not {budget.labels}; "
        "set the number with --labels"
    )
    campaign = replace(prepared.campaign, budget=replace(budget, labels=labels))
    return replace(prepared, campaign=campaign, notes=(*prepared.notes, fewer))


def _hash_names(data: Data, ids: Sequence[str]) -> str:
    """Return a hash of the classes, ids and test items."""
    text = "\0".join([str(len(data)), *data.classes, *ids, *map(str, data.test.tolist())])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check_data_fingerprint(store: Store, prepared: PreparedCampaign) -> None:
    """Store the fingerprint of the data, or raise if it differs from the stored one."""
    data, embedding = prepared.data, prepared.campaign.data.embedding or ""
    names = [embedding] if embedding in data.vectors else split_joined_embedding(embedding)
    if not data.shape and data.rows is not None:
        content = data.rows.content_hash()
    else:
        held = data.images or data.sounds or data.samples
        content = hash_tensor(data.inputs) if held is None else held.content_hash()
    for name in names:
        if name in data.vectors:
            content += hash_tensor(data.vectors[name])
    now = {"items": len(data), "names": _hash_names(data, data.ids), "content": content}
    path = store.folder / "data.json"
    if not path.exists():
        store.write("data.json", json.dumps(now, indent=1).encode())
        return
    try:
        before = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): restore it from a copy") from error
    rows = None if data.records is None else data.records.positions_by_row_number()
    former = (
        now if rows is None else {**now, "names": _hash_names(data, list(rows))}
    )  # older versions did not read ids from a column
    if before not in (now, former):
        known = before.get("items") if isinstance(before, dict) else "?"
        what = "other content, names, classes or test items"
        if known != now["items"]:
            what = f"{known} items then, {now['items']} now"
        raise InputError(
            f"the data have changed since this campaign began ({what}): restore them, or start a "
            "new campaign"
        )
