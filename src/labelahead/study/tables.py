"""The numbers of a report as CSV, for whoever wants to work on with them."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from math import isinf

from labelahead.study.statistics import Estimate, t_interval
from labelahead.study.summary import Summary

__all__ = ["csv_files"]


def csv_files(s: Summary) -> dict[str, str]:
    """File name -> content. An empty cell: not known, or never reached."""
    return {
        "rounds.csv": _rounds(s),
        "curves.csv": _curves(s),
        "summary.csv": _summary(s),
        "labels-to-accuracy.csv": _labels(s),
        "tests.csv": _tests(s),
    }


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue()


def _ends(e: Estimate | None) -> tuple[float | None, ...]:
    return (None, None, None) if e is None else (e.mean, e.low, e.high)


def _number(value: float | None) -> float | None:
    return None if value is None or isinf(value) else value


def _rounds(s: Summary) -> str:
    done = s.curves.done
    parts = list(dict.fromkeys(p for d in done for r in d.rounds for p in r.seconds))
    header = [
        "strategy", "mode", "seed", "round", "labels", "accuracy", "train_accuracy", "asked",
        "gain", "leave_one_out", *(f"seconds_{p}" for p in parts),
    ]  # fmt: skip
    rows = (
        (
            d.arm.strategy, d.arm.mode, d.seed, r.number, r.labels, r.accuracy, r.train_accuracy,
            r.asked, r.gain, r.loo, *(r.seconds.get(p) for p in parts),
        )
        for d in done
        for r in d.rounds
    )  # fmt: skip
    return _csv(header, rows)


def _curves(s: Summary) -> str:
    header = [
        "strategy", "labels", "seeds", "accuracy", "accuracy_low", "accuracy_high", "paired_seeds",
        "difference", "difference_low", "difference_high",
    ]  # fmt: skip
    rows = []
    for arm in s.arms:
        own = s.curves.stack(arm, s.curves.seeds(arm))
        common = s.curves.seeds(arm, s.reference)
        gap = s.curves.stack(arm, common) - s.curves.stack(s.reference, common) if common else None
        for i, count in enumerate(s.curves.labels):
            found = None if gap is None else t_interval(gap[:, i])
            mean = _ends(t_interval(own[:, i]))
            rows.append((arm.name, f"{count:g}", len(own), *mean, len(common), *_ends(found)))
    return _csv(header, rows)


def _summary(s: Summary) -> str:
    parts = list(dict.fromkeys(p for row in s.rows for p in row.seconds))
    header = ["strategy", "mode", "seeds"]
    for name in ("area", "area_minus_reference", "final", "final_minus_reference"):
        header += [name, f"{name}_low", f"{name}_high"]
    header += [f"seconds_{p}" for p in parts]
    rows = (
        (
            r.arm.strategy, r.arm.mode, r.area.n, *_ends(r.area), *_ends(r.gain), *_ends(r.final),
            *_ends(r.final_gain), *(r.seconds.get(p) for p in parts),
        )
        for r in s.rows
    )  # fmt: skip
    return _csv(header, rows)


def _labels(s: Summary) -> str:
    """seed "mean": on the mean curve, with its bootstrapped interval."""
    rows: list[tuple[object, ...]] = []
    for row in s.rows:
        for found in row.needs:
            if found is None:
                continue
            v, name = found.saving, row.arm.name
            ends = (_number(v.other_low), _number(v.other_high))
            ratio = (_number(v.ratio), _number(v.ratio_low), _number(v.ratio_high))
            rows.append((name, v.accuracy, "mean", _number(v.other), *ends, *ratio))
            for seed, count in found.per_seed.items():
                rows.append((name, v.accuracy, seed, _number(count)))
    header = ["strategy", "accuracy", "seed", "labels", "labels_low", "labels_high"]
    return _csv([*header, "reference_per_label", "ratio_low", "ratio_high"], rows)


def _tests(s: Summary) -> str:
    header = [
        "first", "second", "seeds", "difference", "difference_low", "difference_high", "p_paired_t",
        "p_holm", "p_nemenyi",
    ]  # fmt: skip
    rows = []
    for pair in s.pairs:
        rank = None if s.ranks is None else float(s.ranks.p[pair.first, pair.second])
        gap = pair.difference
        names = (s.arms[pair.first].name, s.arms[pair.second].name)
        rows.append((*names, gap.n, *_ends(gap), pair.p, pair.holm, rank))
    return _csv(header, rows)
