"""The tables of query.py, and whether its goals are met."""

from typing import Any

Row = dict[str, Any]
READING = ("labelahead-query", "distil")


def print_queries(rows: list[Row]) -> None:
    """Seconds and forward passes of every strategy, networks side by side."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    by_case = {(r["strategy"], r["mode"], r["network"]): r for r in rows}
    print(
        f"\n{'strategy':17} {'mode':10}"
        + "".join(f" {n + ' s':>9} {'passes':>7}" for n in networks)
    )
    for strategy, mode in dict.fromkeys((r["strategy"], r["mode"]) for r in rows):
        cells = [by_case[strategy, mode, n] for n in networks if (strategy, mode, n) in by_case]
        text = "".join(f" {c['seconds']:9.3f} {c.get('passes', 1):7.1f}" for c in cells)
        print(f"{strategy:17} {mode:10}{text}")


def print_choices(rows: list[Row]) -> None:
    """Each library's time and memory beside ours, and how many picks are the same."""
    names = f"{'items':>6} {'network':7} {'strategy':10} {'library':16}"
    print(f"\n{names} {'seconds':>8} {'x ours':>7} {'peak MB':>8} {'x ours':>7} {'same':>5}")
    for row in rows:
        ours = _ours(rows, row)
        head = f"{row['items']:6} {row['network']:7} {row['strategy']:10} {row['library']:16}"
        if row["failure"]:
            print(f"{head} {row['failure']}")
            continue
        times = row["best_seconds"] / ours["best_seconds"] if ours else float("nan")
        space = row["peak_mb"] / ours["peak_mb"] if ours and ours["peak_mb"] else float("nan")
        same = len(set(row["picks"]) & set(ours["picks"])) if ours else 0
        numbers = f"{row['best_seconds']:8.3f} {times:7.1f} {row['peak_mb']:8.0f} {space:7.1f}"
        print(f"{head} {numbers} {same:5}")


def _ours(rows: list[Row], row: Row) -> Row | None:
    """Ours to compare with: the whole query for those that read the embedding off the network."""
    key = ("items", "network", "strategy")
    library = "labelahead-query" if row["library"] in READING else "labelahead"
    for other in rows:
        mine = other["library"] == library and not other["failure"]
        if mine and all(other[k] == row[k] for k in key):
            return other
    return None


def goals(queries: list[Row], choices: list[Row]) -> list[str]:
    """One line a goal: what was hoped for, what was measured, met or missed."""
    lines = []
    seconds = {(r["network"], r["strategy"], r["mode"]): r["seconds"] for r in queries}
    for network in dict.fromkeys(r["network"] for r in queries):
        for name in ("flip", "mlmoc"):
            ahead = seconds.get((network, name, "sequential"))
            badge = seconds.get((network, "badge", "top"))
            if ahead and badge:
                ratio = ahead / badge
                lines.append(_line(f"{network}: {name} at most 10 x badge", ratio <= 10, ratio))
    largest = max((r["items"] for r in choices), default=0)
    for row in choices:
        ours = _ours(choices, row)
        if row["items"] != largest or row["library"].startswith("labelahead") or ours is None:
            continue
        what = f"{row['strategy']} at {largest}: ahead of {row['library']}"
        if row["failure"]:
            lines.append(f"met     {what}: it failed ({row['failure']})")
            continue
        time = row["best_seconds"] / ours["best_seconds"]
        space = row["peak_mb"] / max(ours["peak_mb"], 1e-9)
        lines.append(_line(f"{what} in time", time > 1, time))
        lines.append(_line(f"{what} in memory", space > 1, space))
    return lines


def _line(what: str, met: bool, ratio: float) -> str:
    return f"{'met' if met else 'MISSED':7} {what}: {ratio:.2f} times"
