"""Tables in which the baselines are computed by other packages' own code, beside our strategies.

    .venv-peers/bin/python studies/peers.py --out runs/results [peers-digits ...]

What is compared stands in studies/tables/NAME.toml; finished campaigns are kept in
<out>/NAME/campaigns.jsonl and never run twice; the numbers go to docs/results/tables/NAME.csv, and
the packages' versions to NAME.versions.json beside it.
"""

import argparse
import csv
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout

from labelahead.campaign import prepare, simulation
from labelahead.config import parse, read
from labelahead.data.dataset import hashed
from labelahead.errors import InputError, LabelaheadError
from labelahead.loop import Plan
from peer_arms import PEERS, Peer
from peer_campaigns import Row, arm, campaign

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "results" / "tables"
COLUMNS = ("variant", "strategy", "seed", "labels", "accuracy", "train_seconds", "query_seconds")


@dataclass(frozen=True)
class Table:
    """What is compared: arms × seeds of one campaign."""

    name: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    chosen: tuple[str, ...]  # arms to be run now
    settings: Mapping[str, Any]  # the tables of the campaign


class Source(NamedTuple):
    """Folders: of the data sets that pools are made from, and of all that is made."""

    data: Path
    out: Path


def read_table(path: Path, seeds: int | None = None, arms: Sequence[str] = ()) -> Table:
    """From the file; seeds, arms: those to be run now, instead of the file's own."""
    tables = read(path)
    wanted = ("strategies", "peers", "seeds", "campaign")
    missing = [key for key in wanted if key not in tables]
    if missing:
        raise InputError(f"{path} has no {missing[0]}; expected {', '.join(wanted)}")
    ours = [s.strip() for s in tables["strategies"].split(",")]
    named = tuple(dict.fromkeys((*ours, *tables["peers"])))
    for name in named:
        arm(name)
    unknown = [name for name in arms if name not in named]
    if unknown:
        raise InputError(f"{path.stem} has no {unknown[0]!r}; expected of {', '.join(named)}")
    numbers = tuple(range(tables["seeds"] if seeds is None else seeds))
    return Table(path.stem, named, numbers, tuple(arms) or named, tables["campaign"])


def plan_of(table: Table, seed: int, source: Source) -> Plan:
    """The campaign of that seed: nothing in it depends on the arm."""
    settings = {**table.settings, "seed": seed, "threads": 1, "device": "cpu"}
    name = settings["data"]["name"]
    if name.startswith("pool:"):
        import pools  # beside this file

        file = pools.make(name.removeprefix("pool:"), source.data, source.out / "pools")
        settings["data"] = {**settings["data"], "name": str(file)}
    return simulation(prepare(parse(settings)))


class Ledger:
    """Finished campaigns, a line each; a line is there whole or does not count."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self.done = path, dict[tuple[str, int], dict[str, Any]]()
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # a kill cuts the last line short
        if len(whole) < len(text):
            os.truncate(path, len(whole))
        lines = [json.loads(line) for line in whole.splitlines()]
        if not lines:
            self._append(about)
        elif lines[0] != json.loads(json.dumps(about)):
            raise InputError(
                f"{path} was made with other settings or data than the table has now; expected "
                "the same: move it away to run the table anew, or choose another --out"
            )
        for line in lines[1:]:
            self.done[line["strategy"], line["seed"]] = line

    def add(self, strategy: str, seed: int, rows: Sequence[Row], package: str) -> None:
        line = {"strategy": strategy, "seed": seed, "package": package}
        line |= {"rows": [asdict(row) for row in rows]}
        self._append(line)
        self.done[strategy, seed] = line

    def _append(self, line: Mapping[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def opened(table: Table, source: Source) -> Iterator[Ledger]:
    """The table's ledger, for this process alone."""
    folder = source.out / table.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / "lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise InputError(f"{folder} is in use: wait for the other process or stop it") from None
    try:
        data = hashed(plan_of(table, 0, source).inputs)
        yield Ledger(folder / "campaigns.jsonl", {"campaign": table.settings, "data": data})
    finally:
        lock.release()


def run(table: Table, ledger: Ledger, source: Source) -> list[str]:
    """Every campaign that is not there yet; what failed, in a sentence each."""
    packages = {
        name: _package(name) for name in table.chosen
    }  # what is not installed is said first
    failed = []
    for seed in table.seeds:  # outside: an interrupted table has whole seeds
        left = [name for name in table.chosen if (name, seed) not in ledger.done]
        plan = plan_of(table, seed, source) if left else None
        for name in left:
            start = time.perf_counter()
            try:
                rows = list(campaign(plan, name)) if plan else []
            except Exception as error:  # one strategy's failure must not end the others
                failed.append(f"{name}, seed {seed}: {type(error).__name__}: {error}")
                print(failed[-1], flush=True)
                continue
            ledger.add(name, seed, rows, packages[name])
            took = time.perf_counter() - start
            last = f"{100 * rows[-1].accuracy:.1f} % at {rows[-1].labels} labels"
            print(f"{table.name}: {name}, seed {seed}: {last}, {took:.0f} s", flush=True)
    return failed


def _package(name: str) -> str:
    who = arm(name)
    if isinstance(who, Peer):
        return f"{who.package} {who.version()}"
    return f"labelahead {version('labelahead')}"


def export(table: Table, ledger: Ledger, docs: Path) -> Path:
    """The raw numbers, and beside them whose code made them."""
    docs.mkdir(parents=True, exist_ok=True)
    lines = [line for (name, _), line in sorted(ledger.done.items()) if name in table.arms]
    lines.sort(key=lambda line: (table.arms.index(line["strategy"]), line["seed"]))
    target = docs / f"{table.name}.csv"
    partial = target.with_name(target.name + ".partial")
    with partial.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for line in lines:
            for row in line["rows"]:
                seconds = (f"{row[k]:.3f}" for k in ("train_seconds", "query_seconds"))
                numbers = (row["labels"], f"{row['accuracy']:.5f}", *seconds)
                writer.writerow(("", line["strategy"], line["seed"], *numbers))
    partial.replace(target)
    filled = {n: sum(r["filled"] for x in lines if x["strategy"] == n for r in x["rows"])
              for n in table.arms}  # fmt: skip
    notes = {
        "packages": sorted({line["package"] for line in lines} | {f"torch {torch.__version__}"}),
        # items drawn at random because a package named fewer distinct ones than asked for
        "filled_at_random": {name: count for name, count in filled.items() if count},
    }
    (docs / f"{table.name}.versions.json").write_text(json.dumps(notes, indent=1) + "\n")
    return target


def work(given: argparse.Namespace) -> list[str]:
    """All tables asked for; what failed."""
    failed = []
    files = sorted((HERE / "tables").glob("peers-*.toml"))
    for name in given.tables or [file.stem for file in files]:
        table = read_table(HERE / "tables" / f"{name}.toml", given.seeds, given.arms or ())
        there, runs = given.docs / f"{name}.csv", given.out / name / "campaigns.jsonl"
        if there.exists() and not runs.exists() and not given.again:
            print(f"{there} is there and its runs are not: left as it is (--again runs it anew)")
            continue
        source = Source(given.data, given.out)
        with opened(table, source) as ledger:
            failed += run(table, ledger, source)
            print(export(table, ledger, given.docs))
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", help="names of studies/tables/peers-*.toml")
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="of the pools")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the CSV goes")
    parser.add_argument("--seeds", type=int, help="0 up to below this, instead of the table's")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help=f"of ours, or {', '.join(PEERS)}")
    parser.add_argument("--again", action="store_true", help="run although the CSV is there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    try:
        failed = work(given)
    except LabelaheadError as error:
        sys.exit(f"error: {error}")
    if failed:
        sys.exit("failed:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
