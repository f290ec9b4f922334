"""Configuration of a campaign: typed values from TOML and the command line.

Unknown keys raise an error with a suggestion. Every value is checked before any work starts.
"""

import math
import os
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from labelahead.data.class_files import parse_class_list
from labelahead.errors import InputError, did_you_mean, import_extra
from labelahead.learner.simulated_source import (
    PAIRS,
    SOURCE_STRATEGIES,
    SimulatedSource,
    parse_source_text,
    require_two_sources,
)
from labelahead.models import EXACT, get_model_spec
from labelahead.models.training import Training
from labelahead.models.trusted_code import (
    find_code_names,
    refuse_code_in_folders,
    require_trusted_code,
)
from labelahead.strategies import PYTHON_OBJECT_PREFIX, find_strategy
from labelahead.strategies.base import QueryConfig, Strategy
from labelahead.tasks import TASKS

__all__ = [
    "Budget",
    "Campaign",
    "Network",
    "Progress",
    "Source",
    "TaskName",
    "campaign_code_names",
    "load_campaign",
    "merge_tables",
    "override_training",
    "parse_campaign",
    "parse_dataclass",
    "read_stored",
    "read_toml",
    "to_toml",
]

Progress = Callable[[str, int, int], None]
"""Reports progress: what is under way, how much of it is done, of how much."""


TaskName = Literal["classes", "multilabel", "number", "rating"]
T = TypeVar("T")
NONE = "none"
LIST_KEYS = ("without", "guesses", "label_columns", "limits")  # keys of [data] that may be a,b

MAX_THREADS_PER_CORE = 16  # for each core


@dataclass(frozen=True)
class Source:
    """Where the items come from: the name of a known data set, a file or a folder. See
    `labelahead.data.load`.

    >>> la.Source("photos/", size=128, test_fraction=0.1).size
    128
    """

    name: str = "digits"
    root: str | None = None
    size: int | None = None
    target: str | None = None
    limit: int | None = None
    test_fraction: float = 0.2
    download: bool = True
    links: bool = True  # whether links may lead out of a folder of images
    checked: bool = True  # whether every image is opened first
    without: tuple[str, ...] = ()  # columns of a table to ignore
    classes: tuple[
        str, ...
    ] = ()  # names of the classes; subfolders with other names are plain folders
    # what belongs to a class, and texts that do, by its name; class names as guesses use them
    class_descriptions: Mapping[str, str] = field(default_factory=dict)
    class_examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # the column of a table that names the items; auto: one called `id`; none: row numbers
    id: str = "auto"
    # the embedding of images and texts; None: the best installed one
    embedding: str | None = None
    # of an encoder by name; None: from the free memory, and from the number of cores
    batch_size: int | None = None
    workers: int | None = None
    # what somebody already says about the items: columns, files, model:FOLDER or file.py:function
    guesses: tuple[str, ...] = ()
    # class-names: the similarity of a text to the name of a class is a guess
    prior: Literal["none", "class-names"] = "none"
    # what a label is; see `labelahead.tasks`
    task: TaskName = "classes"
    # of a table: one column of 0 and 1 for each class, or one column for each number
    label_columns: tuple[str, ...] = ()
    # of numbers: their unit, and the least and the largest possible one
    unit: str = ""
    limits: tuple[float, float] | None = None

    @property
    def has_guesses(self) -> bool:
        """Whether something is known about the items before any label."""
        return bool(self.guesses) or self.prior != "none"

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise InputError(f"test_fraction is {self.test_fraction}; expected 0 up to below 1")
        for key in ("size", "limit", "batch_size", "workers"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise InputError(f"{key} is {value}; expected 1 or more")


@dataclass(frozen=True)
class Network:
    """Which network: "auto" chooses one from the data, "module:factory" is your own.

    >>> la.Network("cnn", width=32).name
    'cnn'
    """

    name: str = "auto"
    width: float | None = None
    dropout: float | None = None

    def __post_init__(self) -> None:
        if self.width is not None and not self.width > 0:
            raise InputError(f"width is {self.width}; expected a positive number")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}; expected 0 up to below 1")


@dataclass(frozen=True)
class Budget:
    """How many labels: the seed set, the total, and the number between two trainings.

    In the modes top and greedy the labels between two trainings are one batch; in sequential mode
    they are queried one by one.

    Simulations only: with `confirm`, the annotator looks at that many of the most confident
    predictions in grids after every training, as on the labelling page. An item in a grid costs
    `confirm_cost` labels, which are deducted from the labels of the round, so that `labels` counts
    the total cost. The annotator overlooks the share `missed` of wrong predictions, which get the
    wrong label; the other wrong ones stay unlabelled.

    Simulations with sources (`Campaign.sources`) count `money` in place of labels; None: the price of
    labels of the dearer source for all items.

    >>> la.Budget(initial=0, labels=60).retrain_every
    10
    """

    initial: int = 20
    labels: int = 100
    retrain_every: int = 10
    balanced: bool = False  # the same number of initial labels from every class
    absent: int = 0  # so many classes, the last by number, are excluded from the seed set
    confirm: int = 0
    confirm_cost: float = 0.2
    missed: float = 0.1
    money: float | None = None

    @property
    def price(self) -> int:
        """Cost of the grids of one round, in labels."""
        return math.ceil(round(self.confirm * self.confirm_cost, 9))

    def __post_init__(self) -> None:
        if self.initial < 0 or self.retrain_every < 1:
            raise InputError(
                f"initial is {self.initial}, retrain_every {self.retrain_every}; expected 0 or "
                "more, and 1 or more"
            )
        if self.labels < max(self.initial, 1):
            raise InputError(
                f"labels is {self.labels}, less than the {self.initial} initial ones; it counts all"
                " labels, so expected at least that many"
            )
        if self.absent < 0:
            raise InputError(f"absent is {self.absent}; expected a number of classes, 0 or more")
        if self.confirm < 0 or not self.confirm_cost >= 0 or not 0 <= self.missed <= 1:
            raise InputError(
                f"confirm is {self.confirm}, confirm_cost {self.confirm_cost}, missed "
                f"{self.missed}; expected a number "
                "of items, a share of an answer's cost, and a share from 0 to 1"
            )
        if self.money is not None and not (math.isfinite(self.money) and self.money >= 0):
            raise InputError(f"money is {self.money}; expected a number >= 0")
        if self.price >= self.retrain_every:
            raise InputError(
                f"to confirm {self.confirm} items costs {self.price} answers of the "
                f"{self.retrain_every} between two "
                "trainings (retrain_every); expected fewer, so that some labels are queried"
            )


@dataclass(frozen=True)
class Campaign:
    """Everything a campaign depends on; equal configurations give equal campaigns.

    `training` holds changes to the network's own recipe (`labelahead.models.training.recipe`).
    `threads` is the number of torch threads; sums depend on it in the last digit, so a run records
    it. With `sources`, labels are simulated with their prices and errors
    (`labelahead.simulation.source_campaign`).

    >>> plan = la.Campaign(seed=3, asking=la.QueryConfig("resolve"), budget=la.Budget(labels=60))
    >>> plan.data.name, plan.asking.strategy
    ('digits', 'resolve')
    """

    seed: int = 0
    data: Source = field(default_factory=Source)
    model: Network = field(default_factory=Network)
    training: Mapping[str, Any] = field(default_factory=dict)
    asking: QueryConfig = field(default_factory=QueryConfig)
    budget: Budget = field(default_factory=Budget)
    threads: int | None = None
    device: str = "auto"
    track: tuple[Literal["tensorboard", "mlflow"], ...] = ()
    sources: tuple[SimulatedSource, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; expected 0 or more")
        most = MAX_THREADS_PER_CORE * (os.cpu_count() or 1)  # torch crashes with a million
        if self.threads is not None and not 1 <= self.threads <= most:
            raise InputError(f"threads is {self.threads}; expected 1 to {most}")
        if self.sources:
            require_two_sources(self.sources)
        if not (self.sources and self.asking.strategy in SOURCE_STRATEGIES):
            strategy = find_strategy(self.asking.strategy)
            strategy.resolve_mode(self.asking.mode, has_oracle=True)
            strategy.check_goal(self.asking.goal)
        elif self.asking.goal != "accuracy":
            raise InputError(
                f"goal is {self.asking.goal!r}; pairs of item and source expect the goal accuracy"
            )
        _check_keys(self.training, Training, "training")


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read the tables of a TOML file."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; expected a TOML configuration file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); expected a TOML text file") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is no valid TOML: {error}") from error


def parse_campaign(tables: Mapping[str, Any]) -> Campaign:
    """Check plain tables, as in a TOML file, and return the campaign."""
    _check_keys(tables, Campaign, "")
    for name, kind in get_type_hints(Campaign).items():
        if isinstance(kind, type) and is_dataclass(kind) and name in tables:
            _check_keys(tables[name], kind, name)
    plain = _replace_none(dict(tables), Campaign)
    if isinstance(plain.get("track"), str):  # one tracker needs no brackets
        plain["track"] = [plain["track"]]
    data = plain.get("data")
    if isinstance(data, Mapping):  # nor do columns: a,b
        plain["data"] = {
            key: _split_commas(value) if key in LIST_KEYS and isinstance(value, str) else value
            for key, value in data.items()
        }
    data = plain.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("classes"), str):
        plain["data"] = {**data, **_parse_classes(data["classes"])}
    if isinstance(plain.get("training"), Mapping):
        plain["training"] = _replace_none(plain["training"], Training)
        override_training(plain["training"], Training())  # checked before any work
    plain = _choose_default_strategy(_parse_sources(plain))
    asking = plain.get("asking")
    strategy = asking.get("strategy", "") if isinstance(asking, Mapping) else ""
    if not isinstance(strategy, str | Strategy):
        raise InputError(
            f"asking.strategy is {strategy!r}; expected a name, or your own as file.py:name"
        )
    campaign = _validate(Campaign, plain)
    if campaign.model.name not in ("auto", EXACT) and ":" not in campaign.model.name:
        get_model_spec(campaign.model.name)
    return campaign


def _parse_sources(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the tables with sources as tables; their default strategy chooses sources, too."""
    given = plain.get("sources")
    if not given:
        return plain
    listed = given if isinstance(given, list | tuple) else [given]
    sources = [parse_source_text(one) if isinstance(one, str) else one for one in listed]
    for one in sources:
        _check_keys(one, SimulatedSource, "sources")
    asking = plain.get("asking", {})
    if isinstance(asking, Mapping):
        plain["asking"] = {"strategy": PAIRS, **asking}
    return {**plain, "sources": sources}


def _choose_default_strategy(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the tables with the default strategy of their task, unless they name one."""
    data, asking = plain.get("data"), plain.get("asking", {})
    task = TASKS.get(str(data.get("task"))) if isinstance(data, Mapping) else None
    if task is None or not isinstance(asking, Mapping):
        return plain
    return {**plain, "asking": {"strategy": next(iter(task.acquisitions)), **asking}}


def _split_commas(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _parse_classes(text: str) -> dict[str, Any]:
    """Return the keys of `Source` for a list of class names, or for a file of classes."""
    listed = parse_class_list(text)
    described = {"class_descriptions": listed.descriptions, "class_examples": listed.examples}
    return {"classes": list(listed.names), **{k: dict(v) for k, v in described.items() if v}}


def load_campaign(
    file: str | Path | None,
    changes: Sequence[str],
    options: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
    *,
    trust_code: bool = False,
) -> Campaign:
    """Build a campaign from a configuration file, KEY=VALUE texts and options; see `merge_tables`.

    Code that only the file names is refused if it lies in the data, or in the folder of a run or a
    session, unless `trust_code` is set. Configurations stored by labelahead are read with
    `read_stored`.
    """
    tables = merge_tables(file, changes, options, base)
    if file is not None:
        named, data = find_code_names(tables), tables.get("data", {})
        typed = find_code_names(merge_tables(None, changes, options)).values()
        folders = [str(data["name"])] if isinstance(data, Mapping) and "name" in data else []
        refuse_code_in_folders(named, file, folders, trust_code or list(typed))
    return parse_campaign(tables)


def campaign_code_names(campaign: Campaign) -> set[str]:
    """Return the names of the user's own code that a campaign runs."""
    strategy = campaign.asking.strategy
    named = {
        "data": {"embedding": campaign.data.embedding, "guesses": campaign.data.guesses},
        "model": {"name": campaign.model.name},
        "asking": {"strategy": strategy if isinstance(strategy, str) else None},
    }
    return set(find_code_names(named).values())


def read_stored(
    path: Path,
    options: Mapping[str, Any] | None = None,
    *,
    trust_code: bool | Collection[str] = False,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Read the tables of a stored configuration, which another person may have written.

    Args:
        path: The file.
        options: Changes by the caller, by dotted key; code named here may run.
        trust_code: Whether all code named by the file may run, or which names may.
        without: Tables to leave out.

    Raises:
        InputError: The file names code that must not run (`labelahead.models.trusted_code`).
    """
    stored = {key: value for key, value in read_toml(path).items() if key not in without}
    tables = merge_tables(None, (), options or {}, stored)
    data = tables.get("data")
    source = data.get("name") if isinstance(data, Mapping) else None
    folders: list[str | Path] = [path.parent, *([source] if isinstance(source, str) else [])]
    given = set(find_code_names(merge_tables(None, (), options or {})).values())
    trusted = (
        trust_code if isinstance(trust_code, bool) and trust_code else given.union(trust_code or ())
    )
    require_trusted_code(find_code_names(tables), path, folders, trusted)
    return tables


def merge_tables(
    file: str | Path | None,
    changes: Sequence[str],
    options: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Merge the tables of a file, KEY=VALUE texts and options; later ones override earlier ones.

    Args:
        file: A TOML file.
        changes: KEY=VALUE texts.
        options: Values by dotted key; None: not set.
        base: Tables that all others override.
    """
    tables = _merge(base or {}, read_toml(file) if file else {})
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set {change!r}; expected KEY=VALUE, e.g. training.rate=0.1")
        tables = _set_key(tables, key.strip(), _parse_value(value.strip()))
    for key, given in options.items():
        if given is not None:
            tables = _set_key(tables, key, given)
    return tables


def parse_dataclass(kind: type[T], tables: Mapping[str, Any]) -> T:
    """Check plain tables and return a value of this flat dataclass."""
    _check_keys(tables, kind, "")
    return _validate(kind, _replace_none(dict(tables), kind))


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables; values of the second override those of the first."""
    both = dict(below)
    for key, value in above.items():
        inner = both.get(key)
        tables = isinstance(inner, Mapping) and isinstance(value, Mapping)
        both[key] = _merge(inner, value) if tables else value  # type: ignore[arg-type]
    return both


def _parse_value(text: str) -> Any:
    """Parse a TOML value, or return the text itself, so that a shell needs no quotes."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _set_key(tables: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the tables with one value replaced, by a dotted key such as "training.rate"."""
    name, dot, rest = key.partition(".")
    inner = tables.get(name, {})
    if dot and not isinstance(inner, Mapping):
        raise InputError(f"{name} is {inner!r}, so there is no {key}; expected a table [{name}]")
    return {**tables, name: _set_key(inner, rest, value) if dot else value}


def override_training(changes: Mapping[str, Any], recipe: Training) -> Training:
    """Return the recipe with some values changed, after checking them."""
    _check_keys(changes, Training, "training")
    return _validate(Training, asdict(recipe) | dict(changes), "training.")


def _validate(kind: type[T], values: dict[str, Any], prefix: str = "") -> T:
    """Build a value of this dataclass; validation errors become an `InputError`."""
    pydantic = import_extra("pydantic", "app", "a campaign's configuration")
    try:
        return pydantic.TypeAdapter(kind).validate_python(values)  # type: ignore[no-any-return]
    except pydantic.ValidationError as error:
        raise InputError("; ".join(_describe_error(e, prefix) for e in error.errors())) from None


def to_toml(settings: Any) -> str:
    """Write a dataclass as TOML that reads back as the same value; None is written as "none"."""
    return str(import_extra("tomli_w", "app", "keeping a configuration").dumps(_to_plain(settings)))


def _to_plain(value: Any) -> Any:
    """Convert None and strategies, which TOML cannot express, to text."""
    if isinstance(value, Strategy):
        return PYTHON_OBJECT_PREFIX + value.name
    if is_dataclass(value):
        return {f.name: _to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k: _to_plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_to_plain(v) for v in value]
    return NONE if value is None else value


def _replace_none(value: Any, kind: Any) -> Any:
    """Replace "none" by None where the key may be None."""
    if not isinstance(value, Mapping):
        return None if value == NONE and type(None) in get_args(kind) else value
    hints = get_type_hints(kind) if isinstance(kind, type) and is_dataclass(kind) else {}
    return {k: _replace_none(v, hints.get(k)) for k, v in value.items()}


def _check_keys(given: Any, kind: type[Any], where: str) -> None:
    """Raise on a key that the dataclass does not have, and suggest the closest one."""
    if not isinstance(given, Mapping):
        if is_dataclass(given):
            return
        raise InputError(f"{where} is {given!r}; expected a table of keys and values")
    names = [f.name for f in fields(kind)]
    for key in given:
        if key not in names:
            hint = did_you_mean(key, names)
            table = f" in [{where}]" if where else ""
            raise InputError(f"unknown key {key!r}{table}; {hint}There are: {', '.join(names)}")


def _describe_error(error: Any, prefix: str = "") -> str:
    """Describe one validation error of pydantic."""
    where = (prefix + ".".join(str(part) for part in error["loc"])).rstrip(".")
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where} is {error['input']!r}; {message[:1].lower()}{message[1:]}"
