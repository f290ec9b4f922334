"""What the page shows beside the question: why, how it goes, the map, doubts, people, history."""

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from typing import Any

from labelahead.learner.stopping import ENOUGH as ENOUGH_LABELS
from labelahead.learner.stopping import enough
from labelahead.server.label_state import LabelState
from labelahead.server.page_model import PageModel
from labelahead.server.schedule import OUTLOOK, Schedule
from labelahead.server.service import LabellingService

__all__ = ["doubts", "history", "people", "pool_map", "progress", "why"]

BIASED = (
    "leave-one-out on labels that were chosen, most of them hard ones: commonly lower than the "
    "accuracy on the whole pool; only progress is to be read from it"
)
FEW = f"with fewer than {ENOUGH_LABELS} labels it may be far off"
# Doubts are shown from so many labels of a class on, on average, and where the others' outputs for
# another class exceed those for the label by so much: with fewer, most of them are wrong.
ENOUGH, CLEARLY = 5, 0.2


def why(assignment: LabellingService, position: int) -> dict[str, Any]:
    """What each answer would change, whom most, and which labels speak for the guess.

    learnt: it has a label, so that a guess says what was learnt. effect: what its label would do to
    the other predictions, in words.
    """
    opinion = assignment.informed()
    if opinion is None or position not in opinion.belief:
        nothing: dict[str, Any] = {
            "now": [],
            "if": [],
            "affected": [],
            "because": [],
            "against": [],
        }
        return {"position": position, "learnt": False, "effect": None, **nothing}
    reasons, describe = opinion.why(position), assignment.items.describe
    effect = reasons["effect"]
    return {
        "position": position,
        "learnt": position in opinion.belief.labels,
        "effect": None if effect is None else effect.sentence(assignment.tally.classes),
        "now": [{"label": c, "p": round(p, 4)} for c, p in reasons["now"]],
        "if": [{"label": c, "changes": n} for c, n in reasons["if"]],
        "affected": [
            {**describe(p), "before": b, "after": a, "shift": round(s, 4)}
            for p, b, a, s in reasons["affected"]
        ],
        **{
            side: [{**describe(p), "label": c, "weight": round(w, 4)} for p, c, w in reasons[side]]
            for side in ("because", "against")
        },
    }


def progress(assignment: LabellingService, schedule: Schedule) -> dict[str, Any]:
    """How far it is, how good, and whether to go on."""
    with assignment.lock:
        opinion, tally = assignment.opinion, assignment.tally
        status, rounds = schedule.status(), list(schedule.rounds)
    classes, last = len(tally.classes), rounds[-1] if rounds else {}
    measured, estimated = None, None
    if last.get("accuracy") is not None:
        measured = {"value": last["accuracy"], "labels": last["labels"]}
    if last.get("error_rate") is not None:
        ends = {"low": 1 - last["error_high"], "high": 1 - last["error_low"]}
        few = "" if last["labels"] >= ENOUGH_LABELS else FEW
        estimated = {
            "value": 1 - last["error_rate"],
            **ends,
            "squared_error": last.get("loo_error"),
            "warning": few,
        }
    for name, warning in (("loo", ""), ("loo_all", BIASED)):
        if (
            estimated is None and schedule.exact and last.get(name) is not None
        ):  # it says nothing of a trained network
            estimated = {
                "value": last[name],
                "squared_error": last.get("loo_error"),
                "warning": warning,
            }
    given, predicted, gain = Counter(tally.labels.values()), Counter[int](), None
    if opinion is not None and opinion.snapshot.round:
        predicted.update(opinion.belief.guesses.tolist())
        gain = opinion.gain()
    names = ("labels", "accuracy", "loo", "loo_all", "gain", "drift", "seconds", *OUTLOOK)
    return {
        "labels": len(tally.labels),
        "items": len(assignment.items) - len(assignment.closed) - len(assignment.broken),
        "budget": assignment.budget,
        "skipped": len(tally.skipped),
        "unsure": len(tally.unsure),
        "per_class": [given[c] for c in range(classes)],
        "predicted_per_class": [predicted[c] for c in range(classes)],
        "curve": [{k: r.get(k) for k in names} for r in rounds],
        "accuracy": {"measured": measured, "estimated": estimated},
        "gain": gain,
        "advice": schedule.advice(),
        "enough": enough(schedule.readings()),
        "doubts": len(_doubtful(opinion, tally)),
        "confirmed": len(tally.confirmed),
        "classes_seq": tally.classes_seq,
        "training": status,
    }


def pool_map(assignment: LabellingService) -> dict[str, Any]:
    """The pool in the plane of its two leading kernel components."""
    with assignment.lock:
        opinion, labels = assignment.opinion, dict(assignment.tally.labels)
    facts = opinion.snapshot.facts.get("map") if opinion else None
    if opinion is None or not facts:
        return {"points": [], "labelled": [], "round": None}
    shown = list(zip(facts["points"], facts["x"], facts["y"], strict=True))
    labelled = [[p, x, y, labels[p]] for p, x, y in shown if p in labels]
    rest = [row for row in shown if row[0] not in labels]
    guesses: list[int | None] = [None] * len(rest)
    sure: list[float | None] = [None] * len(rest)
    if opinion.informed:
        at = opinion.belief.places([p for p, _, _ in rest])
        guesses = opinion.belief.guesses[at].tolist()
        sure = [round(chance, 3) for chance in opinion.sure[at].tolist()]
    points = [[*row, guess, chance] for row, guess, chance in zip(rest, guesses, sure, strict=True)]
    return {"points": points, "labelled": labelled, "round": opinion.snapshot.round}


def _judged(opinion: PageModel | None) -> Sequence[Any]:
    """What the others say of every label, as of the last training."""
    return opinion.snapshot.facts.get("second_look", ()) if opinion else ()


def _enough(judged: Sequence[Any]) -> bool:
    return len(judged) >= ENOUGH * max(1, len({row[1] for row in judged}))


def _doubtful(opinion: PageModel | None, tally: LabelState) -> list[Any]:
    """Rows of the second look whose labels are in doubt, the most doubtful first."""
    judged, alive = _judged(opinion), set(tally.alive)
    rows = [
        row
        for row in judged
        if row[4] - row[5] > CLEARLY
        and tally.labels.get(row[0]) == row[1]
        and row[0] not in tally.kept
        and row[2] in alive
    ]
    # How much more the other labels say for another class than for the one given decides the order.
    return sorted(rows, key=lambda row: row[5] - row[4]) if _enough(judged) else []


def doubts(assignment: LabellingService, n: int = 24) -> dict[str, Any]:
    """Labels that the others contradict clearly, the most doubtful first.

    By leave-one-out of a network that has seen no label, as of the last training; a label that was
    changed since is left out until the next one, and one that somebody kept until it is changed.
    enough: whether there were labels to judge by. kept: the newest n of those, kept_count: of all.
    """
    with assignment.lock:
        opinion, tally, describe = assignment.opinion, assignment.tally, assignment.items.describe
    judged = _judged(opinion)
    rows = [
        {
            **describe(p),
            "label": label,
            "who": tally.counts(p).who,
            "suggested": suggested,
            "output": output,
            "output_of_label": own,
        }
        for p, label, suggested, _, output, own in _doubtful(opinion, tally)[:n]
    ]
    newest = sorted(tally.kept.items(), key=lambda pair: -pair[1].seq)[:n]
    return {
        "enough": bool(judged) and _enough(judged),
        "per_class": ENOUGH,
        "doubts": rows,
        "kept_count": len(tally.kept),
        "kept": [{**describe(p), **a.said("label", "who", "at")} for p, a in newest],
    }


def people(assignment: LabellingService) -> dict[str, Any]:
    """Who has labelled how much, and where two disagree."""
    with assignment.lock:
        tally, leases, here = assignment.tally, assignment.journal.leases(), assignment.present()
    labels: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    for answers in tally.answers.values():
        for a in answers:
            (skips if a.label is None else labels)[a.who] += 1
    names = sorted(set(labels) | set(skips) | here)
    return {
        "people": [
            {"who": w, "labels": labels[w], "skips": skips[w], "active": w in here} for w in names
        ],
        "leases": len(leases),
        "compared": tally.agreement.compared,
        "agree": tally.agreement.agreeing,
        "conflicts": [
            {
                **assignment.items.describe(p),
                "counts": tally.labels[p],
                "answers": [
                    a.said("who", "label", "at") for a in tally.answers[p] if a.label is not None
                ],
            }
            for p in tally.conflicts
        ],
    }


def history(
    assignment: LabellingService, n: int = 50, who: str | None = None
) -> list[dict[str, Any]]:
    """The newest answers that stand, with what counts for their item now."""
    with assignment.lock:
        tally, describe = assignment.tally, assignment.items.describe
    positions = tally.answers if who is None else tally.answered.get(who, ())
    given = [(a, p) for p in positions for a in tally.answers[p]]
    given += [(a, p) for p, a in tally.settled.items()]
    newest = nlargest(
        n, ((a, p) for a, p in given if who is None or a.who == who), key=lambda pair: pair[0].seq
    )
    return [
        {
            "seq": a.seq,
            **describe(p),
            **a.said("kind", "label", "who", "at"),
            "current": tally.labels.get(p),
        }
        for a, p in newest
    ]
