"""Tables in which the baselines are computed by other packages' own code, beside our strategies.

    .venv-competitors/bin/python -m research.results.competitors --out runs/results [peers-digits
    ...]

What is compared stands in research/results/tables/NAME.toml; finished campaigns are kept in
<out>/NAME/campaigns.jsonl and never run twice; the numbers go to research/data/tables/NAME.csv, and
the packages' versions to NAME.versions.json beside it.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from labelahead.data.dataset import hash_tensor
from labelahead.errors import InputError
from labelahead.files import JsonLinesFile, lock_folder, read_complete_lines
from labelahead.simulation.loop import Simulation
from labelahead.simulation.run import build_simulation, prepare_campaign
from labelahead.simulation.store import Round
from labelahead.strategies import find_strategy
from labelahead.strategies.base import QueryConfig
from research.competitors.adapters import PEERS
from research.competitors.logistic import LogisticLearner
from research.results.lines import CSV, Line, write_csv
from research.results.pools import pool_file
from research.results.runs import exit_code, run_plan
from research.results.table import TABLES, Table
from research.results.table import read_table as read_whole


@dataclass(frozen=True)
class Wanted:
    """Of a table, the strategies and seeds to be run now."""

    table: Table
    names: tuple[str, ...]
    seeds: tuple[int, ...]


class Source(NamedTuple):
    """Folders: of the data sets that pools are made from, and of all that is made."""

    data: Path
    out: Path


def read_table(path: Path, seeds: int | None = None, names: Sequence[str] = ()) -> Wanted:
    """From the file; seeds, names: those to be run now, instead of the file's own."""
    table = read_whole(path)
    for name in table.strategies:
        asking_by(name, QueryConfig())
    unknown = [name for name in names if name not in table.strategies]
    if unknown:
        raise InputError(
            f"{path.stem} has no {unknown[0]!r}; expected of {', '.join(table.strategies)}"
        )
    return Wanted(
        table,
        tuple(names) or table.strategies,
        tuple(range(table.seeds if seeds is None else seeds)),
    )


def asking_by(name: str, usual: QueryConfig) -> QueryConfig:
    """How a campaign asks by a package's strategy, or by one of ours as `flip` or `flip:greedy`."""
    if name in PEERS:
        return replace(usual, strategy=PEERS[name].value, mode=None)
    if "(" in name:
        raise InputError(f"strategy is {name!r}; expected one of {', '.join(PEERS)}")
    strategy, _, mode = name.partition(":")
    find_strategy(strategy)
    return replace(usual, strategy=strategy, mode=mode or None)


def plan_of(table: Table, seed: int, source: Source) -> Simulation:
    """The campaign of that seed: nothing in it depends on the strategy."""
    campaign = table.read_campaign("", source.data, pool_file(table.source, *source))
    return build_simulation(prepare_campaign(replace(campaign, seed=seed, threads=1, device="cpu")))


def for_peers(plan: Simulation) -> Simulation:
    """The same items, splits, first labels and budget, learnt by logistic regression."""
    return replace(plan, learner=LogisticLearner.beside(plan.learner))


class Ledger:
    """Finished campaigns, a line each; a line is there whole or does not count."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._lines = JsonLinesFile(path)
        first, *rest = [line for line, _ in read_complete_lines(path)] or [None]
        if first is None:
            self._lines.append(about)
        elif first != json.loads(json.dumps(about)):
            raise InputError(
                f"{path} was made with other settings or data than the table has now; expected "
                "the same: move it away to run the table anew, or choose another --out"
            )
        self.done = {(line["strategy"], line["seed"]): line for line in rest}

    def add(self, strategy: str, seed: int, rounds: Sequence[Round], package: str) -> None:
        """A campaign that has come to its end."""
        rows = [
            {
                **Line.of("", strategy, seed, entry)._asdict(),
                "filled": (entry.memory or {}).get("filled", 0),
            }
            for entry in rounds
        ]
        line = {"strategy": strategy, "seed": seed, "package": package, "rows": rows}
        self._lines.append(line)
        self.done[strategy, seed] = line


@contextmanager
def open_ledger(table: Table, source: Source) -> Iterator[Ledger]:
    """The table's ledger, for this process alone."""
    folder = source.out / table.name
    with lock_folder(folder):
        data = hash_tensor(plan_of(table, 0, source).learner.inputs)
        about = {"campaign": table.campaign, "data": data}
        if table.peers_learner:
            about["peers_learner"] = table.peers_learner
        yield Ledger(folder / "campaigns.jsonl", about)


def run(wanted: Wanted, ledger: Ledger, source: Source) -> list[str]:
    """Every campaign that is not there yet; what failed, in a sentence each."""
    packages = {
        name: _package(name) for name in wanted.names
    }  # what is not installed is said first
    failed = []
    for seed in wanted.seeds:  # outside: an interrupted table has whole seeds
        plan = None
        for name in wanted.names:
            if (name, seed) in ledger.done:
                continue
            plan = plan or plan_of(wanted.table, seed, source)
            theirs = name in PEERS and wanted.table.peers_learner
            start = time.perf_counter()
            try:
                rounds = run_plan(for_peers(plan) if theirs else plan, asking_by(name, plan.asking))
            except Exception as error:  # one strategy's failure must not end the others
                failed.append(f"{name}, seed {seed}: {type(error).__name__}: {error}")
                print(failed[-1], flush=True)
                continue
            ledger.add(name, seed, rounds, packages[name])
            last = f"{rounds[-1].accuracy:.1%} at {rounds[-1].labels} labels"
            took = time.perf_counter() - start
            print(f"{wanted.table.name}: {name}, seed {seed}: {last}, {took:.0f} s", flush=True)
    return failed


def _package(name: str) -> str:
    if name in PEERS:
        return f"{PEERS[name].package} {PEERS[name].version()}"
    return f"labelahead {version('labelahead')}"


def export(table: Table, ledger: Ledger, docs: Path) -> Path:
    """The raw numbers, and beside them whose code made them."""
    campaigns = [line for (name, _), line in ledger.done.items() if name in table.strategies]
    target = docs / f"{table.name}.csv"
    lines = [
        Line("", c["strategy"], c["seed"], *(row[k] for k in Line._fields[3:]))
        for c in campaigns
        for row in c["rows"]
    ]
    write_csv(target, Line, lines)
    filled: dict[str, int] = {}
    for c in campaigns:
        filled[c["strategy"]] = filled.get(c["strategy"], 0) + sum(
            row["filled"] for row in c["rows"]
        )
    learners = {f"scikit-learn {version('scikit-fit')}"} if table.peers_learner else set()
    notes = {
        "packages": sorted(
            {c["package"] for c in campaigns} | {f"torch {torch.__version__}"} | learners
        ),
        # items drawn at random because a package named fewer distinct ones than asked for
        "filled_at_random": {name: count for name, count in filled.items() if count},
    }
    (docs / f"{table.name}.versions.json").write_text(json.dumps(notes, indent=1) + "\n")
    return target


def work(given: argparse.Namespace) -> list[str]:
    """All tables asked for; what failed."""
    failed = []
    for name in given.tables or [file.stem for file in sorted(TABLES.glob("peers-*.toml"))]:
        wanted = read_table(TABLES / f"{name}.toml", given.seeds, given.arms or ())
        there, runs = given.docs / f"{name}.csv", given.out / name / "campaigns.jsonl"
        if there.exists() and not runs.exists() and not given.again:
            print(f"{there} is there and its runs are not: left as it is (--again runs it anew)")
            continue
        source = Source(given.data, given.out)
        with open_ledger(wanted.table, source) as ledger:
            failed += run(wanted, ledger, source)
            print(export(wanted.table, ledger, given.docs))
    return failed


def main() -> int:
    """Exit code: 0 if all went well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", help="names of results/tables/peers-*.toml")
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="of the pools")
    parser.add_argument("--docs", type=Path, default=CSV, help="where the CSV goes")
    parser.add_argument("--seeds", type=int, help="0 up to below this, instead of the table's")
    parser.add_argument("--arms", nargs="+", metavar="NAME", help=f"of ours, or {', '.join(PEERS)}")
    parser.add_argument("--again", action="store_true", help="run although the CSV is there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    return exit_code(lambda: work(given))


if __name__ == "__main__":
    sys.exit(main())
