"""What was tried to make `flip` better: its raw numbers, their statistics, its part of the page."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelahead.errors import InputError
from labelahead.study.statistics import SAME, Estimate, area, pairs, t_interval
from labelahead.study.words import p_text
from results_numbers import Versus, holm
from results_text import MARKS, Found, grid
from tuning_variants import DEFAULT, PLAIN, VARIANTS

FILE = "tuning.csv"
CSV = Path(__file__).parents[1] / "docs" / "results" / FILE
COMMAND = "make results-tuning"
FEW = 4  # campaigns, below which an interval says nothing
FIRST_SEED = 100  # those below are kept for judging what was chosen from here on
HELD_OUT = ("digits-mlp", "mnist-mlp", "fashion-mlp")  # tables of the page, where it is judged
ALL = "all"
FIRST_BUILT = f"`{DEFAULT}` as first built"


class Line(NamedTuple):
    """A round of a campaign. seconds: of the whole campaign, the same in all its lines."""

    table: str
    variant: str
    seed: int
    labels: int
    accuracy: float
    seconds: float

    @property
    def campaign(self) -> tuple[str, str, int]:
        """Which campaign it belongs to."""
        return self.table, self.variant, self.seed


def read_trials(path: Path) -> list[Line]:
    """All lines of the CSV, checked one by one; none while there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    advice = f"restore {path} from a copy, or delete it and run `{COMMAND}`"
    if not rows or tuple(rows[0]) != Line._fields:
        given = ",".join(rows[0]) if rows else "nothing"
        raise InputError(f"it begins with {given!r}; expected {','.join(Line._fields)}: {advice}")
    found: dict[tuple[str, str, int, int], Line] = {}
    for number, row in enumerate(rows[1:], 2):
        try:
            table, variant, seed, labels, accuracy, seconds = row
            line = Line(table, variant, int(seed), int(labels), float(accuracy), float(seconds))
            if not 0 <= line.accuracy <= 1 or not math.isfinite(line.seconds):
                raise ValueError
        except ValueError:
            raise InputError(
                f"line {number} is {','.join(row)!r}; expected six values such as "
                f"'digits,plain,100,20,0.8125,31.2', the accuracy from 0 to 1: {advice}"
            ) from None
        if variant not in VARIANTS:
            raise InputError(
                f"line {number} has the variant {variant!r}; expected one of "
                f"{', '.join(VARIANTS)}: {advice}"
            )
        if found.setdefault(line[:4], line) is not line:
            raise InputError(f"line {number} is a round that was there before: {advice}")
    return list(found.values())


def write_trials(path: Path, lines: Iterable[Line]) -> None:
    """In one step, in an order that does not depend on which campaign ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Line._fields)
        for x in sorted(lines):
            writer.writerow([*x[:4], f"{x.accuracy:.5f}", f"{x.seconds:.1f}"])
    partial.replace(path)


@dataclass(frozen=True)
class Trial:
    """A variant minus `flip` as first built along the curve, over all campaigns that both have.

    p: of a paired t-test, after Holm over the variants; None for a single campaign. ahead: on how
    many of the campaigns the variant's curve is higher.
    """

    name: str
    difference: Estimate
    p: float | None
    ahead: int

    @property
    def verdict(self) -> int:
        """1 above what it is compared with, -1 below, 0 not told apart from it."""
        return 0 if self.p is None else Versus(self.difference, self.p).verdict


def trials(lines: Sequence[Line]) -> list[Trial]:
    """Every variant that shares a campaign with `flip` as first built, the best first.

    Seeds that are kept for judging do not count.
    """
    areas = _areas([x for x in lines if x.seed >= FIRST_SEED])
    plain = areas.pop(PLAIN, {})
    # All pairs in one call, though only those with plain count: each call ends in a slow clean-up.
    tested = {x.second: x.p for x in pairs([plain, *areas.values()]) if x.first == 0}
    found: list[tuple[str, Estimate, float | None, int]] = []
    for i, (name, own) in enumerate(areas.items(), 1):
        gaps = _gaps(own, plain)
        if len(gaps):
            ahead = int((gaps > SAME).sum())
            found.append((name, t_interval(gaps), tested.get(i), ahead))
    corrected = iter(holm([p for *_, p, _ in found if p is not None]))
    made = [Trial(n, gap, None if p is None else next(corrected), k) for n, gap, p, k in found]
    return sorted(made, key=lambda t: (-t.difference.mean, t.name))


def _areas(lines: Sequence[Line]) -> dict[str, dict[int, float]]:
    """Variant -> number of the campaign (table and seed) -> mean accuracy along the curve."""
    rounds: dict[tuple[str, str, int], list[Line]] = {}
    for line in sorted(lines):
        rounds.setdefault(line.campaign, []).append(line)
    numbers: dict[tuple[str, int], int] = {}
    budgets: dict[str, tuple[list[int], str]] = {}
    found: dict[str, dict[int, float]] = {}
    for (table, variant, seed), own in rounds.items():
        labels = [x.labels for x in own]
        expected, other = budgets.setdefault(table, (labels, f"{variant}, seed {seed}"))
        if labels != expected:
            raise InputError(
                f"{FILE}: {table}, {variant}, seed {seed}, has rounds at {labels} labels; expected "
                f"{expected} as {other} has: delete its lines and run `{COMMAND}`"
            )
        number = numbers.setdefault((table, seed), len(numbers))
        curve = np.array(labels, dtype=np.float64), np.array([x.accuracy for x in own])
        found.setdefault(variant, {})[number] = float(area(*curve))
    return found


def judged(lines: Sequence[Line], found: Mapping[str, Found]) -> list[Trial]:
    """`flip` as it is now minus as first built, on the seeds kept for it: by table, then over all.

    found: the tables of the page, where `flip` is as it is now. p is after Holm over the tables;
    that of all together is a test by itself. A table that lacks either of the two is left out.
    """
    parts = {}
    for table in HELD_OUT:
        own = [x for x in lines if (x.table, x.variant) == (table, PLAIN) and x.seed < FIRST_SEED]
        parts[table] = [*own, *_present(table, found)]
    parts[ALL] = [x for part in parts.values() for x in part]
    areas = [_areas(part) for part in parts.values()]
    columns = [a.get(name, {}) for a in areas for name in (DEFAULT, PLAIN)]
    tested = {(x.first, x.second): x.p for x in pairs(columns)}
    p = {name: tested.get((2 * i, 2 * i + 1)) for i, name in enumerate(parts)}
    single = {name: value for name, value in p.items() if name != ALL and value is not None}
    p |= dict(zip(single, holm(list(single.values())), strict=True))
    made = []
    for i, name in enumerate(parts):
        gaps = _gaps(*columns[2 * i : 2 * i + 2])
        if len(gaps):
            made.append(Trial(name, t_interval(gaps), p[name], int((gaps > SAME).sum())))
    return made


def _present(table: str, found: Mapping[str, Found]) -> list[Line]:
    """The campaigns of `flip` on the page."""
    numbers = (found.get(table) or {}).get("")
    if numbers is None:
        return []
    return [
        Line(table, DEFAULT, seed, int(at), float(value), 0.0)
        for seed, curve in numbers.curves.accuracy.get(DEFAULT, {}).items()
        for at, value in zip(numbers.curves.labels, curve, strict=True)
    ]


def _gaps(own: Mapping[int, float], plain: Mapping[int, float]) -> NDArray[np.float64]:
    return np.array([own[c] - plain[c] for c in sorted(own.keys() & plain.keys())])


def tuning_block(lines: Sequence[Line], found: Mapping[str, Found]) -> str:
    """The table of the variants, what follows from it, and how the choice fares on other seeds."""
    made = trials(lines)
    if not made:
        return f"Not measured yet: `{COMMAND}`."
    head = ["what was changed", "campaigns", "curve − as first built, points", "p", "ahead on"]
    rows = [
        [VARIANTS[t.name].about, str(t.difference.n), _points(t), _p(t), str(t.ahead)]
        for t in made
        if t.difference.n >= FEW
    ]
    held = _held_out(judged(lines, found))
    return "\n\n".join([grid(head, rows), _verdict(made) + _dropped(made), held, _sources(made)])


def _dropped(made: Sequence[Trial]) -> str:
    """Variants of which too little is known for a row; they count in the correction, too."""
    few = [t for t in made if t.difference.n < FEW]
    names = [f"{VARIANTS[t.name].about} ({_points(t).split(' ')[0]})" for t in few]
    return f" On fewer than {FEW} campaigns, then left: {'; '.join(names)}." if few else ""


def _held_out(made: Sequence[Trial]) -> str:
    """How the choice fares on seeds that it was not made on."""
    there = [t.name for t in made]
    lacking = ", ".join(f"`{name}`" for name in HELD_OUT if name not in there)
    about = (
        f"`{DEFAULT}` as it is now minus {FIRST_BUILT}, on seeds that nothing was chosen on (0 to "
        "9) of tables above; p after Holm over the tables, for all together by itself"
    )
    if not made:
        return f"{about}: not measured yet."
    head = ["table", "campaigns", "curve − as first built, points", "p", "ahead on"]
    rows = [
        [t.name if t.name == ALL else f"`{t.name}`", str(t.difference.n), _points(t), _p(t),
         str(t.ahead)]
        for t in made
    ]  # fmt: skip
    end = f"{about}." if not lacking else f"{about}; not measured yet: {lacking}."
    return f"{end}\n\n{grid(head, rows)}"


def _points(t: Trial) -> str:
    """+0.42 ± 0.31: the differences are too small for one digit."""
    e = t.difference
    half = "" if e.low is None or e.high is None else f" ± {50 * (e.high - e.low):.2f}"
    text = f"{100 * e.mean:+.2f}"
    text = {"+0.00": "0.00", "-0.00": "0.00"}.get(text, text).replace("-", "−")
    return f"{text}{half}{MARKS[t.verdict]}"


def _p(t: Trial) -> str:
    return "—" if t.p is None else p_text(t.p).removeprefix("p ").removeprefix("= ")


def _verdict(made: Sequence[Trial]) -> str:
    tested = [t for t in made if not VARIANTS[t.name].rival and t.p is not None]
    above, below = (sum(t.verdict == v for t in tested) for v in (1, -1))
    return (
        f"Of {len(tested)} changes with two campaigns or more, {above or 'none'} can be told to be "
        f"better than {FIRST_BUILT}, {below or 'none'} to be worse."
    )


def _sources(made: Sequence[Trial]) -> str:
    there = {PLAIN, *(t.name for t in made)}
    lacking = ", ".join(v.about for n, v in VARIANTS.items() if n not in there)
    sources = f"`{COMMAND}` · [numbers](results/{FILE})"
    return f"{sources} · not run yet: {lacking}" if lacking else sources
