"""Content of the page's panels: explanation, progress, map, review, annotators, history."""

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Any

from labelahead.data.dataset import NONE_OF_THESE
from labelahead.learner.guess_quality import describe_states
from labelahead.learner.guessers import describe_guesser
from labelahead.learner.stopping import MIN_LABELS as ENOUGH_LABELS
from labelahead.learner.stopping import stopping_progress
from labelahead.server.agreement import summarize_agreement
from labelahead.server.label_state import LabelState
from labelahead.server.page_model import PageModel
from labelahead.server.schedule import Schedule
from labelahead.server.service import LabellingService
from labelahead.server.snapshot import FORECAST_FIELDS, MIN_CONFUSION_LABELS, LeaveOneOutRow
from labelahead.server.task_display import count_outputs
from labelahead.server.task_page_model import TaskPageModel
from labelahead.server.task_review import MIN_REVIEW_LABELS, Suspect

__all__ = [
    "build_map",
    "describe_class_quality",
    "describe_session_guessers",
    "explain_item",
    "find_doubtful",
    "list_annotators",
    "list_doubts",
    "list_guesses",
    "list_history",
    "summarize_progress",
]

BIAS_WARNING = (
    "leave-one-out accuracy on queried labels, most of them hard: usually lower than the "
    "accuracy on the whole pool; use it only to follow the progress"
)
FEW_LABELS_WARNING = f"with fewer than {ENOUGH_LABELS} labels it may be inaccurate"
# Labels are reviewed from this many labels per class on average, if the leave-one-out output of
# another class exceeds that of the label by this much. With fewer labels, most reports are wrong.
MIN_LABELS_PER_CLASS, MIN_OUTPUT_GAP = 5, 0.2


def list_guesses(service: LabellingService, position: int, who: str) -> list[dict[str, Any]]:
    """Return what columns and files say about an item: guesser, class number and probability.

    People who see a guess tend to agree with it: there is none before `who` has answered, unless
    the session shows guesses.
    """
    answered = service.label_state.answered_positions.get(who, frozenset())
    if position not in answered and not service.show_guesses:
        return []
    guess_rows = []
    for name, guesses in service.items.data.guesses.items():
        p, best = guesses.probabilities[position].max(0)
        number = service.journal.find_class(guesses.classes[int(best)]) if p > 0 else None
        if number is not None:
            row = {"guesser": describe_guesser(name), "label": number, "p": round(float(p), 4)}
            guess_rows.append(row)
    return guess_rows


def explain_item(service: LabellingService, position: int, who: str) -> dict[str, Any]:
    """Explain an item to an annotator: effect of each answer, affected items, contributing labels.

    In the result, "learnt" is whether the model is fitted on a label of the item, "effect"
    describes the effect of its label on the other predictions, and "guesses" is what was said about
    the item beforehand.
    """
    guesses = list_guesses(service, position, who)
    page_model = service.wait_for_page_model()
    if page_model is None or position not in page_model.pool_posterior:
        nothing: dict[str, Any] = {
            "now": [],
            "if": [],
            "affected": [],
            "because": [],
            "against": [],
        }
        return {
            "position": position,
            "learnt": False,
            "effect": None,
            "guesses": guesses,
            **nothing,
        }
    reasons, describe = page_model.explain(position), service.items.describe_item
    if isinstance(page_model, TaskPageModel):
        return _explain_task_item(service, page_model, position, reasons)
    effect = reasons["effect"]
    return {
        "position": position,
        "learnt": position in page_model.pool_posterior.labels,
        "effect": None if effect is None else effect.sentence(service.label_state.classes),
        "guesses": guesses,
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


def _explain_task_item(
    service: LabellingService, page_model: TaskPageModel, position: int, reasons: dict[str, Any]
) -> dict[str, Any]:
    """Return the explanation of an item of a task: "prediction", "effect" and "similar" labels."""
    label_state, describe = service.label_state, service.items.describe_item
    similar = [
        {**describe(p), "label": c, "answer": label_state.name_label(c), "weight": round(w, 4)}
        for p, c, w in reasons["similar"]
    ]
    empty: dict[str, Any] = {"now": [], "if": [], "affected": [], "because": [], "against": []}
    return {
        "position": position,
        "learnt": position in page_model.pool_posterior.labels,
        "effect": reasons["effect"],
        "guesses": [],
        **empty,
        "prediction": page_model.describe_prediction(position),
        "similar": similar,
    }


def summarize_progress(service: LabellingService, schedule: Schedule) -> dict[str, Any]:
    """Return number of labels, accuracy, learning curve, advice and state of training."""
    with service.lock:
        page_model, label_state = service.page_model, service.label_state
        status, rounds = schedule.describe_status(), list(schedule.rounds)
    classes, last = len(label_state.classes), rounds[-1] if rounds else {}
    if label_state.task is not None:
        classes, last = 0, {}  # errors have another unit: see `describe_task_progress`
    measured, estimated = None, None
    if last.get("accuracy") is not None:
        measured = {"value": last["accuracy"], "labels": last["labels"]}
    if last.get("error_rate") is not None:
        ends = {"low": 1 - last["error_high"], "high": 1 - last["error_low"]}
        few = "" if last["labels"] >= ENOUGH_LABELS else FEW_LABELS_WARNING
        estimated = {
            "value": 1 - last["error_rate"],
            **ends,
            "squared_error": last.get("loo_error"),
            "warning": few,
        }
    for name, warning in (("loo", ""), ("loo_all", BIAS_WARNING)):
        if (
            estimated is None and not schedule.needs_training and last.get(name) is not None
        ):  # not informative for a trained network
            estimated = {
                "value": last[name],
                "squared_error": last.get("loo_error"),
                "warning": warning,
            }
    given, predicted, gain = Counter(label_state.labels.values()), Counter[int](), None
    if page_model is not None and page_model.snapshot.round and label_state.task is None:
        predicted.update(page_model.pool_posterior.predicted_classes.tolist())
        gain = page_model.best_score()
    names = ("labels", "accuracy", "loo", "loo_all", "gain", "drift", "seconds", *FORECAST_FIELDS)
    found = {
        "labels": len(label_state.labels),
        "items": len(service.items) - len(service.held_out) - len(service.excluded),
        "budget": service.budget,
        "skipped": len(label_state.skipped),
        "unsure": len(label_state.unsure),
        "per_class": [given[c] for c in range(classes)],
        "predicted_per_class": [predicted[c] for c in range(classes)],
        "curve": [{k: r.get(k) for k in names} for r in rounds],
        "accuracy": {"measured": measured, "estimated": estimated},
        "gain": gain,
        "guessers": describe_session_guessers(schedule),
        "advice": schedule.advise_stopping(),
        "enough": stopping_progress(schedule.list_error_readings()),
        "class_quality": describe_class_quality(schedule.rounds, label_state),
        "doubts": len(find_doubtful(page_model, label_state))
        + len(find_open_suspects(page_model, label_state)),
        "confirmed": len(label_state.confirmed),
        "none_of_these": given[NONE_OF_THESE],
        "classes_seq": label_state.classes_seq,
        "training": status,
    }
    return found | describe_task_progress(page_model, label_state, rounds)


def describe_class_quality(
    rounds: Sequence[dict[str, Any]], label_state: LabelState
) -> dict[str, Any] | None:
    """Return the newest estimates of every class, with class names; None without any.

    There are none for a trained network and for other tasks than classes. Classes that were merged
    or removed since are left out.
    """
    last: dict[str, Any] = next((r for r in reversed(rounds) if r.get("labels")), {})
    found = last.get("class_quality")
    if found is None or label_state.task is not None:
        return None
    active = set(label_state.active_classes)
    kept = [i for i, row in enumerate(found["classes"]) if row["number"] in active]
    names, rows, matrix = label_state.classes, found["classes"], found["confusion"]
    return {
        "labels": last["labels"],
        "macro_f1": found["macro_f1"],
        "classes": [{**rows[i], "name": names[rows[i]["number"]]} for i in kept],
        "confusion": matrix and [[matrix[i][j] for j in kept] for i in kept],
    }


def describe_task_progress(
    page_model: PageModel | None, label_state: LabelState, rounds: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the progress of a task that differs from that of classes; nothing for classes.

    "error" is the estimated error, its forecast and the measures on test items.
    """
    if label_state.task is None:
        return {}
    predicted = page_model.count_predicted() if isinstance(page_model, TaskPageModel) else []
    return {
        "per_class": count_outputs(label_state.task, label_state.labels),
        "predicted_per_class": predicted,
        "class_quality": None,
        "enough": None,  # the rules of stopping were derived for error rates
        "error": _describe_error(rounds),
    }


def _describe_error(rounds: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the newest error estimate and the newest measures; None without both."""
    last: dict[str, Any] = next(
        (r for r in reversed(rounds) if r.get("error_rate") is not None), {}
    )
    measures: dict[str, float] = next(
        (r["measures"] for r in reversed(rounds) if r.get("measures")), {}
    )
    if not last and not measures:
        return None
    labels = last.get("labels", 0)  # none with an estimate if all items were labelled at once
    return {
        "value": last.get("error_rate"),
        "low": last.get("error_low"),
        "high": last.get("error_high"),
        "fall": last.get("fall"),
        "labels": labels,
        "few": labels < ENOUGH_LABELS,
        "measures": measures,
    }


def describe_session_guessers(schedule: Schedule) -> list[str]:
    """Return a sentence on every guesser, as of the last refresh; none before it."""
    last = schedule.rounds[-1] if schedule.rounds else {}
    if not schedule.campaign.data.has_guesses:
        return []  # the last round may be of an earlier session, which had guesses
    return describe_states(last.get("guessers"), schedule.service.label_state.classes)


def build_map(
    service: LabellingService, coordinates: Mapping[int, tuple[float, float]] | None = None
) -> dict[str, Any]:
    """Return the pool on a plane: on other coordinates, or its two leading kernel components."""
    with service.lock:
        page_model, label_state = service.page_model, service.label_state
        labels: dict[int, int | None] = dict(label_state.labels)
    if page_model is None:
        return {"points": [], "labelled": [], "round": None}
    pool_map = page_model.snapshot.pool_facts.map
    shown = list(zip(pool_map.points, pool_map.x, pool_map.y, strict=True))
    if coordinates:
        shown = [(p, *coordinates[p]) for p, _, _ in shown if p in coordinates]
    if label_state.has_codes:  # codes of answers are no classes
        labels = dict.fromkeys(labels)
    labelled = [[p, x, y, labels[p]] for p, x, y in shown if p in labels]
    rest = [row for row in shown if row[0] not in labels]
    guesses: list[int | None] = [None] * len(rest)
    sure: list[float | None] = [None] * len(rest)
    if isinstance(page_model, TaskPageModel):
        guesses, sure = page_model.predict_levels([p for p, _, _ in rest])
    elif page_model.has_labels:
        at = page_model.pool_posterior.rows_of([p for p, _, _ in rest])
        guesses = page_model.pool_posterior.predicted_classes[at].tolist()
        sure = [round(chance, 3) for chance in page_model.confidence[at].tolist()]
    points = [[*row, guess, chance] for row, guess, chance in zip(rest, guesses, sure, strict=True)]
    return {"points": points, "labelled": labelled, "round": page_model.snapshot.round}


def _get_leave_one_out_rows(page_model: PageModel | None) -> Sequence[LeaveOneOutRow]:
    """Return the leave-one-out prediction of every label, as of the last training."""
    if page_model is None:
        return ()
    facts = page_model.snapshot.fit_facts.leave_one_out
    return () if facts is None else facts.rows


def _has_enough_rows(judged: Sequence[LeaveOneOutRow]) -> bool:
    return len(judged) >= MIN_LABELS_PER_CLASS * max(1, len({row.label for row in judged}))


def find_doubtful(page_model: PageModel | None, label_state: LabelState) -> list[LeaveOneOutRow]:
    """Return the leave-one-out rows that contradict their label, the most suspicious first."""
    if label_state.task is not None:
        return []
    judged, active_classes = _get_leave_one_out_rows(page_model), set(label_state.active_classes)
    rows = [
        row
        for row in judged
        if row.output - row.output_of_label > MIN_OUTPUT_GAP
        and label_state.labels.get(row.position) == row.label
        and row.position not in label_state.kept_labels
        and row.suggested in active_classes
    ]
    # Ordered by the difference of the outputs of the suggested class and of the label.
    if not _has_enough_rows(judged):
        return []
    return sorted(rows, key=lambda row: row.output_of_label - row.output)


def find_open_suspects(page_model: PageModel | None, label_state: LabelState) -> list[Suspect]:
    """Return the answers to a task that the last fit contradicts, and that nobody changed since."""
    if page_model is None or label_state.task is None:
        return []
    return [
        row
        for row in page_model.snapshot.fit_facts.suspects
        if label_state.labels.get(row.position) == row.label
        and row.position not in label_state.kept_labels
    ]


def list_doubts(service: LabellingService, n: int = 24) -> dict[str, Any]:
    """Return labels that clearly differ from their leave-one-out prediction.

    Predictions are those of the last training. A label that was changed since is left out until the
    next training, and a kept label until it is changed. In the result, "enough" is whether there
    were enough labels, "kept" has the newest n kept labels and "kept_count" their total number.
    """
    with service.lock:
        page_model, label_state, describe = (
            service.page_model,
            service.label_state,
            service.items.describe_item,
        )
    judged = _get_leave_one_out_rows(page_model)
    rows = [
        {
            **describe(row.position),
            "label": row.label,
            "who": label_state.find_deciding_answer(row.position).who,
            "suggested": row.suggested,
            "output": row.output,
            "output_of_label": row.output_of_label,
        }
        for row in find_doubtful(page_model, label_state)[:n]
    ]
    rows += [
        {
            **describe(row.position),
            "label": row.label,
            "answer": label_state.name_label(row.label),
            "who": label_state.find_deciding_answer(row.position).who,
            "suggested": row.suggested,
            "probability": row.probability,
        }
        for row in find_open_suspects(page_model, label_state)[:n]
    ]
    newest = sorted(label_state.kept_labels.items(), key=lambda pair: -pair[1].seq)[:n]
    enough, least = bool(judged) and _has_enough_rows(judged), MIN_LABELS_PER_CLASS
    if label_state.task is not None:
        enough, least = len(label_state.labels) >= MIN_REVIEW_LABELS, MIN_REVIEW_LABELS
    return {
        "enough": enough,
        "per_class": least,
        "doubts": rows,
        "kept_count": len(label_state.kept_labels),
        "kept": [
            {
                **describe(p),
                **a.pick_fields("label", "who", "at"),
                **_name_answer(label_state, a.label),
            }
            for p, a in newest
        ],
    }


def _name_answer(label_state: LabelState, label: int | None, key: str = "answer") -> dict[str, Any]:
    """Return the written answer of a label to a task; nothing for classes."""
    if label_state.task is None:
        return {}
    return {key: None if label is None else label_state.name_label(label)}


def list_annotators(service: LabellingService) -> dict[str, Any]:
    """Return annotators with their numbers of labels, reliability, agreement and conflicts.

    "reliability" is that of the last fit; None while one annotator has given all labels, or if the
    learner cannot tell sources apart.
    """
    with service.lock:
        page_model = service.page_model
        label_state, leases, here = (
            service.label_state,
            service.journal.list_leases(),
            service.list_active_annotators(),
        )
    labels: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    for answers in label_state.answers.values():
        for a in answers:
            (skips if a.label is None else labels)[a.who] += 1
    names = sorted(set(labels) | set(skips) | here)
    facts = () if page_model is None else page_model.snapshot.fit_facts.sources
    known = {row.who: {**row._asdict(), "few": row.labels < MIN_CONFUSION_LABELS} for row in facts}
    agreement = summarize_agreement(label_state)
    return {
        "people": [
            {
                "who": w,
                "labels": labels[w],
                "skips": skips[w],
                "active": w in here,
                "reliability": known.get(w),
            }
            for w in names
        ],
        "pairs": [pair._asdict() for pair in agreement.pairs],
        "alpha": agreement.alpha,
        "leases": len(leases),
        "compared": label_state.agreement.compared,
        "agree": label_state.agreement.agreeing,
        "conflicts": [
            {
                **service.items.describe_item(p),
                "counts": label_state.labels[p],
                **_name_answer(label_state, label_state.labels[p], "counts_answer"),
                "answers": [
                    a.pick_fields("who", "label", "at") | _name_answer(label_state, a.label)
                    for a in label_state.answers[p]
                    if a.label is not None
                ],
            }
            for p in label_state.conflicts
        ],
    }


def list_history(
    service: LabellingService, n: int = 50, who: str | None = None
) -> list[dict[str, Any]]:
    """Return the newest valid answers with the current label of their item."""
    with service.lock:
        label_state, describe = service.label_state, service.items.describe_item
    positions = label_state.answers if who is None else label_state.answered_positions.get(who, ())
    given = [(a, p) for p in positions for a in label_state.answers[p]]
    given += [(a, p) for p, a in label_state.settlements.items()]
    newest = nlargest(
        n, ((a, p) for a, p in given if who is None or a.who == who), key=lambda pair: pair[0].seq
    )
    return [
        {
            "seq": a.seq,
            **describe(p),
            **a.pick_fields("kind", "label", "who", "at"),
            "current": label_state.labels.get(p),
            **_name_answer(label_state, a.label),
            **_name_answer(label_state, label_state.labels.get(p), "current_answer"),
        }
        for a, p in newest
    ]
