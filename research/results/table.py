"""The tables of docs/results.md.

What is compared in each, read from research/results/tables/*.toml.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labelahead.errors import InputError, did_you_mean
from labelahead.learner.config import (
    Campaign,
    merge_tables,
    parse_campaign,
    parse_dataclass,
    read_toml,
)
from labelahead.simulation.comparison.plan import parse_contenders

TABLES = Path(__file__).parent / "tables"
# how the trainings of all recorded numbers began; `same` has become the usual way since
START = "cold"
PEERS = "peers"  # the group that peers.py runs, in an environment of its own


@dataclass(frozen=True)
class WrittenReport:
    """A table file as it is written. peers: what peers.py runs besides our own strategies.

    peers_learner: what learns from the labels that those choose, if not the campaign's own model.
    pending: what a later change of the program has made out of date, until it is run again.
    inconclusive: why the table, as it was run, decides nothing. Both are shown above the numbers.
    """

    title: str
    group: Literal["clean", "hard", "exact", "figure", "peers"]
    order: int = 100
    seeds: int = 10
    strategies: str = ""
    about: str = ""
    paper: str = ""
    short: str = ""
    campaign: Mapping[str, Any] | None = None
    variant: tuple[Mapping[str, Any], ...] = ()
    peers: tuple[str, ...] = ()
    peers_learner: Literal["", "logistic"] = ""
    contrasts: tuple[tuple[str, str], ...] = ()  # pairs that the paper speaks of
    seconds: bool = False  # of a query, beside each variant
    pending: str = ""
    inconclusive: str = ""
    outdated: tuple[
        str, ...
    ] = ()  # strategies measured before a correction; delete it after running the table again


@dataclass(frozen=True)
class Table:
    """One table. short: its name at the head of a column. variants: name -> changed keys."""

    name: str
    title: str
    group: str
    order: int
    seeds: int
    strategies: tuple[str, ...]  # as Arm.name; after them those of other packages
    about: str
    paper: str
    short: str
    campaign: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]]  # {"": {}} when the table has none
    contrasts: tuple[tuple[str, str], ...] = ()  # pairs to be compared with each other
    peers_learner: str = ""
    seconds: bool = False
    pending: str = ""
    inconclusive: str = ""
    outdated: tuple[str, ...] = ()

    def read_campaign(self, variant: str, data: Path, pool: Path | None = None) -> Campaign:
        """Its campaign, checked, with {data} and `pool:NAME` replaced by paths.

        Pool: the latter's file.
        """
        changes = dict(_list_dotted_names(self.variants[variant]))
        training = {"start": START, **self.campaign.get("training", {})}
        tables = merge_tables(None, (), changes, {**self.campaign, "training": training})
        source = dict(tables.get("data", {}))
        for key in ("name", "root"):
            if isinstance(source.get(key), str):
                source[key] = source[key].replace("{data}", str(data))
        if pool is not None:
            source["name"] = str(pool)
        return parse_campaign({**tables, "data": source})

    @property
    def source(self) -> str:
        """Its data, as the file names them."""
        return str(self.campaign.get("data", {}).get("name", ""))


def read_tables(folder: Path = TABLES, only: Sequence[str] = ()) -> list[Table]:
    """All tables in their order on the page, or those that are named."""
    paths = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if not paths:
        raise InputError(f"{folder} holds no table; expected files NAME.toml in it")
    wanted = check_names(only, paths, "table")
    return sorted((read_table(paths[name]) for name in wanted), key=lambda t: (t.order, t.name))


def check_names(given: Sequence[str], known: Iterable[str], what: str) -> list[str]:
    """Names that were given, checked; all, if none was."""
    every = list(known)
    for name in given:
        if name not in every:
            hint = did_you_mean(name, every)
            raise InputError(f"there is no {what} {name!r}; {hint}There are: {', '.join(every)}")
    return list(given or every)


def read_table(path: Path) -> Table:
    """One table file, checked but for its campaign, which `read_campaign` checks."""
    try:
        w = parse_dataclass(WrittenReport, read_toml(path))
        if w.seeds < 1:
            raise InputError(f"seeds is {w.seeds}; expected 1 or more")
        if not w.strategies.strip() or not w.campaign:
            raise InputError("strategies or [campaign] is missing; expected both")
        names = (*(a.name for a in parse_contenders(w.strategies)), *w.peers)
        unknown = [name for name in w.outdated if name not in names]
        if unknown:
            raise InputError(
                f"outdated names {unknown[0]!r}; expected some of the strategies: "
                f"{', '.join(names)}"
            )
        return Table(
            path.stem,
            w.title,
            w.group,
            w.order,
            w.seeds,
            names,
            w.about,
            w.paper,
            w.short or w.title,
            w.campaign,
            _variants(w.variant),
            w.contrasts,
            w.peers_learner,
            w.seconds,
            w.pending.strip(),
            w.inconclusive.strip(),
            w.outdated,
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _variants(given: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    if not given:
        return {"": {}}
    variants: dict[str, Mapping[str, Any]] = {}
    for entry in given:
        name, campaign = entry.get("name"), entry.get("campaign")
        if set(entry) != {"name", "campaign"} or not name or not isinstance(campaign, Mapping):
            raise InputError(f"a [[variant]] has {sorted(entry)}; expected a name and a campaign")
        if name in variants:
            raise InputError(f"there are two variants {name!r}; expected a name for each")
        variants[str(name)] = campaign
    return variants


def _list_dotted_names(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _list_dotted_names(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
