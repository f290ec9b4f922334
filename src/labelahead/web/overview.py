"""What the page shows beside the question: why, how it goes, the map, doubts, people, history."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from labelahead.web.conductor import Conductor
from labelahead.web.desk import Desk, counted

__all__ = ["able", "doubts", "history", "people", "pool_map", "predictions", "progress", "why"]

BIASED = (
    "leave-one-out on labels that were chosen, most of them hard ones: commonly lower than the "
    "accuracy on the whole pool; only progress is to be read from it"
)
# Doubts are shown from so many labels of a class on, on average, and where the others' outputs for
# another class exceed those for the label by so much: with fewer, most of them are wrong.
ENOUGH, CLEARLY = 5, 0.2


def why(desk: Desk, position: int) -> dict[str, Any]:
    """What each answer would change, whom most, and which labels speak for the guess."""
    with desk.lock:
        mind = desk.mind
    if mind is None or position not in mind.place:
        return {"position": position, "now": [], "if": [], "affected": [], "because": []}
    found = mind.why(position)
    return {
        "position": position,
        "now": [{"label": c, "p": round(p, 4)} for c, p in found["now"]],
        "if": [{"label": c, "changes": n} for c, n in found["if"]],
        "affected": [
            {"position": p, **desk.items.describe(p), "before": b, "after": a,
             "shift": round(s, 4)}
            for p, b, a, s in found["affected"]
        ],
        "because": [
            {"position": p, **desk.items.describe(p), "label": c, "weight": round(w, 4)}
            for p, c, w in found["because"]
        ],
    }  # fmt: skip


def progress(desk: Desk, conductor: Conductor) -> dict[str, Any]:
    """How far it is, how good, and whether to go on."""
    with desk.lock:
        mind, standing = desk.mind, desk.standing
        status, rounds = conductor.status(), list(conductor.rounds)
    classes, last = len(standing.classes), rounds[-1] if rounds else {}
    measured, estimated = None, None
    if last.get("accuracy") is not None:
        measured = {"value": last["accuracy"], "labels": last["labels"]}
    for name, warning in (("loo", ""), ("loo_all", BIASED)):
        if estimated is None and last.get(name) is not None:
            estimated = {
                "value": last[name], "squared_error": last.get("loo_error"), "warning": warning,
            }  # fmt: skip
    predicted = [0] * classes
    gain = None
    if mind is not None and mind.snapshot.round:
        for label, n in Counter(mind.guesses.tolist()).items():
            if label < classes:
                predicted[label] = n
        gain = float(mind.scores.max()) if len(mind.view.candidates) else 0.0
    names = ("labels", "accuracy", "loo", "loo_all", "gain", "seconds")
    return {
        "labels": len(standing.labels), "items": len(desk.items) - len(desk.closed),
        "budget": desk.budget, "skipped": len(standing.skipped), "unsure": len(standing.unsure),
        "per_class": counted(standing.labels, classes), "predicted_per_class": predicted,
        "curve": [{k: r.get(k) for k in names} for r in rounds],
        "accuracy": {"measured": measured, "estimated": estimated},
        "gain": gain, "advice": conductor.advice(), "training": status,
    }  # fmt: skip


def pool_map(desk: Desk) -> dict[str, Any]:
    """The pool in the plane of its two leading kernel components."""
    with desk.lock:
        mind, labels = desk.mind, dict(desk.standing.labels)
    facts = mind.snapshot.facts.get("map") if mind else None
    if mind is None or not facts:
        return {"points": [], "labelled": [], "round": None}
    points, labelled = [], []
    knows = bool(mind.snapshot.round or mind.labels)
    for p, x, y in zip(facts["points"], facts["x"], facts["y"], strict=True):
        if p in labels:
            labelled.append([p, x, y, labels[p]])
        else:
            i = mind.place[p]
            guess = int(mind.guesses[i]) if knows else None
            sure = round(float(mind.probabilities[i].max()), 3) if knows else None
            points.append([p, x, y, guess, sure])
    return {"points": points, "labelled": labelled, "round": mind.snapshot.round}


def doubts(desk: Desk, n: int = 24) -> dict[str, Any]:
    """Labels that the others contradict clearly, the most doubtful first.

    By leave-one-out of a network that has seen no label, as of the last training; a label that was
    changed since is left out until the next one, and one that somebody kept until it is changed.
    enough: whether there were labels to judge by. kept: the newest n of those, kept_count: of all.
    """
    with desk.lock:
        mind, standing = desk.mind, desk.standing
    found = mind.snapshot.facts.get("second_look", ()) if mind else ()
    enough = len(found) >= ENOUGH * max(1, len({row[1] for row in found}))
    rows: list[dict[str, Any]] = []
    for p, label, suggested, _, output, own in sorted(found, key=_margin) if enough else ():
        clear = standing.labels.get(p) == label and output - own > CLEARLY
        if not clear or p in standing.kept or len(rows) == n:
            continue
        rows.append(
            {"position": p, **desk.items.describe(p), "label": label,
             "who": standing.counts(p).who, "suggested": suggested, "output": output,
             "output_of_label": own}
        )  # fmt: skip
    newest = sorted(standing.kept.items(), key=lambda pair: -pair[1].seq)[:n]
    return {
        "enough": bool(found) and enough, "per_class": ENOUGH, "doubts": rows,
        "kept_count": len(standing.kept),
        "kept": [
            {"position": p, **desk.items.describe(p), "label": a.label, "who": a.who, "at": a.at}
            for p, a in newest
        ],
    }  # fmt: skip


def _margin(row: Sequence[float]) -> float:
    """Minus how much more the other labels say for another class than for the one given."""
    return row[5] - row[4]


def people(desk: Desk) -> dict[str, Any]:
    """Who has labelled how much, and where two disagree."""
    with desk.lock:
        standing, leases, here = desk.standing, desk.book.leases(), desk.present()
    labels: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    for answers in standing.answers.values():
        for a in answers:
            (labels if a.kind == "label" else skips)[a.who] += 1
    names = sorted(set(labels) | set(skips) | here)
    return {
        "people": [
            {"who": w, "labels": labels[w], "skips": skips[w], "active": w in here} for w in names
        ],
        "leases": len(leases),
        "compared": standing.agreement.compared,
        "agree": standing.agreement.agreeing,
        "conflicts": [
            {"position": p, **desk.items.describe(p), "counts": standing.labels[p], "answers": [
                {"who": a.who, "label": a.label, "at": a.at}
                for a in standing.answers[p] if a.kind == "label"
            ]}
            for p in standing.conflicts
        ],
    }  # fmt: skip


def history(desk: Desk, n: int = 50, who: str | None = None) -> list[dict[str, Any]]:
    """The newest answers that stand, with what counts for their item now."""
    with desk.lock:
        standing = desk.standing
    given = [(a, p) for p, answers in standing.answers.items() for a in answers]
    given += [(a, p) for p, a in standing.settled.items()]
    found = [(a, p) for a, p in given if who is None or a.who == who]
    found.sort(key=lambda pair: -pair[0].seq)
    return [
        {"seq": a.seq, "position": p, **desk.items.describe(p), "kind": a.kind, "label": a.label,
         "who": a.who, "at": a.at, "current": standing.labels.get(p)}
        for a, p in found[:n]
    ]  # fmt: skip


def able(desk: Desk) -> bool:
    """Whether there is anything to predict by: a kernel, and a label that it knows of."""
    mind = desk.mind
    return mind is not None and bool(mind.snapshot.round or mind.labels)


def predictions(desk: Desk) -> dict[int, tuple[int, float]]:
    """Class and probability of every unlabelled item in play, for pre-labelling."""
    with desk.lock:
        mind, labels = desk.mind, desk.standing.labels
    if mind is None or not able(desk):
        return {}
    sure, best = mind.probabilities.max(1)
    rows = zip(mind.snapshot.points.tolist(), best.tolist(), sure.tolist(), strict=True)
    return {p: (c, s) for p, c, s in rows if p not in labels}
