"""The tables of docs/results.md: what is compared in each, read from studies/tables/*.toml."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from labelahead.config import Campaign, fill, gather, parse, read
from labelahead.errors import InputError
from labelahead.study.plan import Study, arms

TABLES = Path(__file__).parent / "tables"
POOL = "pool:"  # data that pools.py makes
PEERS = "peers"  # the group that peers.py runs, in an environment of its own


@dataclass(frozen=True)
class Written:
    """A table file as it is written. peers: what peers.py runs besides our own strategies."""

    title: str
    group: Literal["clean", "hard", "figure", "peers"]
    order: int = 100
    seeds: int = 10
    strategies: str = ""
    about: str = ""
    paper: str = ""
    short: str = ""
    campaign: Mapping[str, Any] | None = None
    variant: tuple[Mapping[str, Any], ...] = ()
    peers: tuple[str, ...] = ()
    contrasts: tuple[tuple[str, str], ...] = ()  # pairs that the paper speaks of


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

    def study(self, variant: str, data: Path, pool: Path | None = None) -> Study:
        """What is compared; pool: the file that stands for `pool:NAME`."""
        return Study(self.read_campaign(variant, data, pool), arms(self.strategies), self.numbers)

    def read_campaign(self, variant: str, data: Path, pool: Path | None = None) -> Campaign:
        """Its campaign, checked, with {data} and `pool:NAME` replaced by paths."""
        changes = dict(_dotted(self.variants[variant]))
        tables = gather(None, (), changes, self.campaign)
        source = dict(tables.get("data", {}))
        for key in ("name", "root"):
            if isinstance(source.get(key), str):
                source[key] = source[key].replace("{data}", str(data))
        if pool is not None:
            source["name"] = str(pool)
        return parse({**tables, "data": source})

    @property
    def pool(self) -> str | None:
        """The pool to be made, if it needs one."""
        name = self.campaign.get("data", {}).get("name", "")
        return name.removeprefix(POOL) if str(name).startswith(POOL) else None

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its seeds."""
        return tuple(range(self.seeds))


def read_tables(folder: Path = TABLES, only: Sequence[str] = ()) -> list[Table]:
    """All tables in their order on the page, or those that are named."""
    found = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if not found:
        raise InputError(f"{folder} holds no table; expected files NAME.toml in it")
    for name in only:
        if name not in found:
            near = get_close_matches(name, found, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"there is no table {name!r}; {hint}There are: {', '.join(found)}")
    tables = [read_table(path) for name, path in found.items() if not only or name in only]
    return sorted(tables, key=lambda t: (t.order, t.name))


def read_table(path: Path) -> Table:
    """One table file, checked but for its campaign, which `study` checks."""
    try:
        w = fill(Written, read(path))
        if w.seeds < 1:
            raise InputError(f"seeds is {w.seeds}; expected 1 or more")
        if not w.strategies.strip() or not w.campaign:
            raise InputError("strategies or [campaign] is missing; expected both")
        names = (*(a.name for a in arms(w.strategies)), *w.peers)
        return Table(
            path.stem, w.title, w.group, w.order, w.seeds, names, w.about, w.paper,
            w.short or w.title, w.campaign, _variants(w.variant), w.contrasts,
        )  # fmt: skip
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _variants(given: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    if not given:
        return {"": {}}
    found = {}
    for entry in given:
        name, campaign = entry.get("name"), entry.get("campaign")
        if set(entry) != {"name", "campaign"} or not name or not isinstance(campaign, Mapping):
            raise InputError(f"a [[variant]] has {sorted(entry)}; expected a name and a campaign")
        if name in found:
            raise InputError(f"there are two variants {name!r}; expected a name for each")
        found[str(name)] = campaign
    return found


def _dotted(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
