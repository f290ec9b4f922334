"""What was tried to make `flip` better: runs what is missing, into docs/results/tuning.csv.

    python studies/tuning.py run --data ../shared/data --out runs/results [--only TABLE ...]
        [--variants NAME ...] [--seeds 8]

Seeds are 100 and up: those of the tables on the page, 0 to 9, are kept for judging. On three of
these tables (digits-mlp, mnist-mlp, fashion-mlp) `flip` as first built is run, and nothing else, to
be compared with what it became. What the CSV holds is not run again; a campaign is added as soon as
it is finished, also by several processes at a time. The variants are in tuning_variants.py;
results_tuning.py makes their part of the page.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from choice_loop import Row, campaign_by
from labelahead.campaign import prepare, simulation
from labelahead.config import parse
from labelahead.errors import InputError, LabelaheadError
from labelahead.loop import Plan
from labelahead.study.plan import arm
from results_tables import POOL, read_tables
from results_tuning import CSV, FIRST_SEED, HELD_OUT, Line, read_trials, write_trials
from tuning_variants import DEFAULT, PLAIN, VARIANTS

SEEDS = 8
BUDGET = {"initial": 20, "labels": 200, "retrain_every": 20}
CANDIDATES = 1000


class Table(NamedTuple):
    """Where the items come from, and the network that learns them."""

    data: str
    model: str


TABLES = {
    "digits": Table("digits", "mlp"),
    "fashion": Table("pool:fashion", "mlp"),
    "mnist": Table("pool:mnist", "mlp"),
    "cifar10": Table("{data}/cifar10_12k.npz", "backbone"),
    "svhn": Table("{data}/svhn_12k.npz", "backbone"),
    "digits-cnn": Table("digits", "cnn"),
    "digits-outliers": Table("pool:digits-outliers", "mlp"),
    "digits-noise": Table("pool:digits-noise", "mlp"),
    "digits-imbalance": Table("pool:digits-imbalance", "mlp"),
}


def plan_of(name: str, seed: int, data: Path, out: Path) -> Plan:
    """The campaign of that seed: nothing in it depends on the variant."""
    if name in HELD_OUT:  # as the table on the page has it
        (held,) = read_tables(only=[name])
        pool = None if held.pool is None else _pool(held.pool, data, out)
        return simulation(prepare(held.study("", data, pool).of(arm(DEFAULT), seed)))
    table = TABLES[name]
    source = table.data.replace("{data}", str(data))
    if source.startswith(POOL):
        source = str(_pool(source.removeprefix(POOL), data, out))
    settings = {
        "data": {"name": source}, "model": {"name": table.model}, "budget": BUDGET,
        "asking": {"candidates": CANDIDATES}, "seed": seed, "threads": 1, "device": "cpu",
    }  # fmt: skip
    return simulation(prepare(parse(settings)))


def _pool(name: str, data: Path, out: Path) -> Path:
    import pools  # beside this file

    made: Path = pools.make(name, data, out / "pools")
    return made


def run(
    tables: Sequence[str], variants: Sequence[str], seeds: Sequence[int], *, data: Path, out: Path,
    numbers: Path,
) -> list[str]:  # fmt: skip
    """Every campaign that is not there yet; what failed, in a sentence each."""
    failed = []
    for seed in seeds:  # outside: an interrupted run has whole seeds
        for table in tables:
            plan = None
            for variant in variants:
                if (table, variant, seed) in {x.campaign for x in read_trials(numbers)}:
                    continue
                what = f"{table}: {variant}, seed {seed}"
                try:
                    plan = plan or plan_of(table, seed, data, out)
                    start = time.perf_counter()
                    rows = list(campaign_by(plan, VARIANTS[variant].how.begin()))
                except Exception as error:  # one campaign's failure must not end the others
                    failed.append(f"{what}: {type(error).__name__}: {error}")
                    print(failed[-1], flush=True)
                    continue
                seconds = time.perf_counter() - start
                add(numbers, out, lines_of(table, variant, seed, rows, seconds))
                last = f"{100 * rows[-1].accuracy:.1f} % at {rows[-1].labels} labels"
                print(f"{what}: {last}, {seconds:.0f} s", flush=True)
    return failed


def lines_of(
    table: str, variant: str, seed: int, rows: Sequence[Row], seconds: float
) -> list[Line]:
    return [Line(table, variant, seed, r.labels, r.accuracy, seconds) for r in rows]


def add(numbers: Path, out: Path, new: Sequence[Line]) -> None:
    """Into the CSV, beside what other processes have put there meanwhile."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / "tuning.lock"):
        there = read_trials(numbers)
        fresh = {x.campaign for x in new} - {x.campaign for x in there}
        write_trials(numbers, [*there, *(x for x in new if x.campaign in fresh)])


def _named(given: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"there is no {what} {name!r}; {hint}There are: {', '.join(known)}")
    return list(given or known)


class Work(NamedTuple):
    """Every table with every variant and every seed."""

    tables: list[str]
    variants: list[str]
    seeds: Sequence[int]


def wanted(only: Sequence[str], names: Sequence[str], seeds: int | None) -> list[Work]:
    """What the command line asks for; of the tables kept for judging only what they are for."""
    tables = _named(only, [*TABLES, *HELD_OUT], "table")
    variants = _named(names, list(VARIANTS), "variant")
    if PLAIN not in variants:
        held = [t for t in only if t in HELD_OUT]
        if held:
            raise InputError(
                f"{', '.join(variants)} asked for on {held[0]}, which is kept for judging; "
                f"expected the variant {PLAIN!r} there: run the others on {', '.join(TABLES)}"
            )
        tables = [t for t in tables if t in TABLES]
    tried = [t for t in tables if t in TABLES]
    judged = [t for t in read_tables(only=HELD_OUT) if t.name in tables]
    count = SEEDS if seeds is None else seeds
    return [
        Work(tried, variants, range(FIRST_SEED, FIRST_SEED + count)),
        *(Work([t.name], [PLAIN], t.numbers[:seeds]) for t in judged),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 if all went well."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=about)
    jobs = parser.add_subparsers(dest="job", required=True)
    job = jobs.add_parser("run", help="run what is missing, into the CSV")
    job.add_argument("--data", type=Path, default=Path("../shared/data"), help="data sets")
    job.add_argument("--out", type=Path, default=Path("runs/results"), help="folder of the pools")
    job.add_argument(
        "--only", nargs="+", default=[], metavar="TABLE", help=", ".join([*TABLES, *HELD_OUT])
    )
    job.add_argument("--variants", nargs="+", default=[], metavar="NAME", help=", ".join(VARIANTS))
    many = f"so many ({SEEDS}) from {FIRST_SEED} on; from 0 on (10) in tables kept for judging"
    job.add_argument("--seeds", type=int, help=many)
    job.add_argument("--numbers", type=Path, default=CSV, help="the CSV")
    given = parser.parse_args(arguments)
    try:
        places = {"data": given.data, "out": given.out, "numbers": given.numbers}
        parts = wanted(given.only, given.variants, given.seeds)
        failed = [text for part in parts for text in run(*part, **places)]
    except LabelaheadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    for text in failed:
        print(f"error: {text}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
