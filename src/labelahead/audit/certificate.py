"""The certificate of an audit: a page to print or hand over, and the same as JSON."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from labelahead.audit.folder import Audit
from labelahead.audit.quality import ClassQuality, Look, Quality
from labelahead.audit.sequence import Interval
from labelahead.errors import count_noun
from labelahead.files import replace_file

__all__ = ["build_certificate", "render_certificate", "write_certificate"]

METHOD = (
    "Items were drawn at random without replacement, from strata by the predicted probability of an "
    "error; the order was fixed by the seed before the first answer. The estimate is the mean "
    "predicted error plus the stratified mean of its deviations from the answers "
    "(prediction-powered inference). The interval is a betting confidence sequence (Waudby-Smith and "
    "Ramdas 2024; Shekhar et al. 2023): it holds at all times at which it was looked at, together, "
    "whether or not the predicted probabilities are right."
)
POINTWISE = (
    "Each interval of a class holds at all times with the confidence given, for itself; they do not "
    "hold all together."
)
FEW_LABELS = 20  # below which the numbers of a class say little
WIDTH, HEIGHT = 640, 180  # of the chart
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2430;background:#fff;max-width:46rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:1.8rem 0 .4rem}
.big{font-size:2.6rem;font-weight:600;margin:.8rem 0 0;letter-spacing:-.02em}
.sub{color:#566274;margin:.1rem 0}
table{border-collapse:collapse;width:100%;font-size:.86rem}
th,td{text-align:right;padding:.3rem .5rem;border-bottom:1px solid #e3e7ed;vertical-align:top}
th{font-weight:600;color:#566274}th:first-child,td:first-child{text-align:left}
td small{display:block;color:#566274;white-space:nowrap}
.few td:first-child::after{content:" *";color:#a15c00}
code{font-size:.78rem;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:9rem 1fr;gap:.2rem .8rem;font-size:.86rem;margin:0}
dt{color:#566274}dd{margin:0}svg{width:100%;height:auto}
@media print{body{margin:0;max-width:none;font-size:12px}h2,table,svg{break-inside:avoid}}
"""


def build_certificate(audit: Audit, quality: Quality | None = None) -> dict[str, Any]:
    """Return the certificate as plain data."""
    quality = audit.estimate_quality() if quality is None else quality
    settings, answers = audit.settings, audit.list_answers()
    people = sorted({answer.who for answer in answers})
    checked = [0] * audit.plan.n_strata
    for position in audit.plan.order[: len(answers)].tolist():
        checked[int(audit.plan.strata[position])] += 1
    strata = [
        {
            "predicted_error": [row.low, row.high],
            "items": row.items,
            "share_of_draws": row.share,
            "labels": n,
        }
        for row, n in zip(audit.plan.describe_strata(), checked, strict=True)
    ]
    return {
        "accuracy": _as_dict(quality.accuracy),
        "confidence": quality.confidence,
        "items": quality.items,
        "labels": quality.labels,
        "wrong": quality.wrong,
        "classes": [_class_as_dict(row) for row in quality.classes],
        "strata": strata,
        "over_time": [vars(look) for look in quality.looks],
        "method": METHOD,
        "class_intervals": POINTWISE,
        "source": settings.source,
        "model_fingerprint": settings.model,
        "predictions_fingerprint": settings.predictions,
        "data_fingerprint": settings.data,
        "seed": settings.seed,
        "target": settings.target,
        "annotators": people,
        "started": settings.started,
        "finished": answers[-1].at if answers else None,
        "issued": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "program": f"labelahead {version('labelahead')}",
    }


def write_certificate(audit: Audit, page: str | Path | None = None) -> tuple[Path, Path]:
    """Write the certificate as HTML and JSON, record that it was issued, and return both paths.

    page: the HTML file; default: certificate.html in the folder of the audit. The JSON file is
        beside it.
    """
    page = audit.folder / "certificate.html" if page is None else Path(page)
    content = build_certificate(audit)
    audit.mark_issued()
    beside = page.with_suffix(".json")
    replace_file(beside, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    replace_file(page, render_certificate(content))
    return page, beside


def render_certificate(content: dict[str, Any]) -> str:
    """Return the page of a certificate; it needs no other file."""
    a, confidence = content["accuracy"], content["confidence"]
    few = any(row["labels"] < FEW_LABELS for row in content["classes"])
    note = f" * fewer than {FEW_LABELS} labels of this class." if few else ""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1">',
        f"<title>Certificate: {escape(content['source'])}</title><style>{STYLE}</style>",
        f"<h1>Quality of predictions</h1><p class=sub>{escape(content['source'])}</p>",
        f"<p class=big>{a['value']:.1%} right</p>",
        f"<p class=sub>With {confidence:.0%} confidence between <b>{a['low']:.1%}</b> and "
        f"<b>{a['high']:.1%}</b> of the {count_noun(content['items'], 'prediction')}, by "
        f"{count_noun(content['labels'], 'randomly drawn label')}; {content['wrong']} of them "
        "differ from the prediction. Errors were looked for where they are likely, so their share "
        "among the labels is not the estimate.</p>",
        "<h2>The interval over time</h2>",
        _draw_chart([Look(**look) for look in content["over_time"]], content["items"]),
        "<h2>Classes</h2>",
        _render_table(
            ("class", "predicted", "labels", "precision", "recall", "F1", "share of items"),
            (_class_row(row) for row in content["classes"]),
        ),
        f"<p class=sub>{escape(content['class_intervals'])}{note}</p>",
        "<h2>Allocation of the labels</h2>",
        _render_table(
            ("predicted error", "items", "share of the draws", "labels"),
            (("", _stratum_row(row)) for row in content["strata"]),
        ),
        f"<h2>Method</h2><p class=sub>{escape(content['method'])}</p>",
        "<h2>Provenance</h2>",
        _render_facts(content),
    ]
    return "".join(parts) + "\n"


def _as_dict(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _class_as_dict(row: ClassQuality) -> dict[str, Any]:
    measures = {m: _as_dict(getattr(row, m)) for m in ("precision", "recall", "f1", "share")}
    counts = {"predicted": row.predicted, "labels": row.labelled, "checked": row.checked}
    return {"name": row.name, **counts, **measures}


def _class_row(row: dict[str, Any]) -> tuple[str, Sequence[str]]:
    cells = [escape(row["name"]), str(row["predicted"]), str(row["labels"])]
    for measure in ("precision", "recall", "f1", "share"):
        m = row[measure]
        cells.append(f"{m['value']:.0%}<small>{m['low']:.0%} to {m['high']:.0%}</small>")
    return ("few" if row["labels"] < FEW_LABELS else "", cells)


def _stratum_row(row: dict[str, Any]) -> Sequence[str]:
    low, high = row["predicted_error"]
    between = f"{low:.1%}" if low == high else f"{low:.1%} to {high:.1%}"
    return [between, str(row["items"]), f"{row['share_of_draws']:.0%}", str(row["labels"])]


def _render_table(header: Iterable[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        f"<tr class='{kind}'>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        for kind, cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _render_facts(content: dict[str, Any]) -> str:
    facts = {
        "data": f"{content['items']} items, ids sha256 {content['data_fingerprint']}",
        "model": f"sha256 {content['model_fingerprint']}",
        "predictions": f"sha256 {content['predictions_fingerprint']}",
        "annotators": ", ".join(content["annotators"]) or "nobody yet",
        "begun": content["started"],
        "last answer": content["finished"] or "none yet",
        "issued": content["issued"],
        "seed": str(content["seed"]),
        "made by": content["program"],
    }
    return (
        "<dl>"
        + "".join(
            f"<dt>{escape(name)}</dt><dd><code>{escape(value)}</code></dd>"
            for name, value in facts.items()
        )
        + "</dl>"
    )


def _draw_chart(looks: Sequence[Look], items: int) -> str:
    """Return an SVG of the interval against the number of labels."""
    most = max((look.labels for look in looks), default=0)
    if not most:
        return "<p class=sub>No label yet.</p>"
    floor = min((look.low for look in looks[len(looks) // 3 :]), default=0.0)
    floor = min(0.95, max(0.0, int(floor * 20) / 20 - 0.05))

    def place(labels: float, value: float) -> str:
        share = (max(value, floor) - floor) / (1 - floor)
        return f"{44 + (WIDTH - 60) * labels / most:.1f},{12 + (HEIGHT - 36) * (1 - share):.1f}"

    band = [place(look.labels, look.low) for look in looks]
    band += [place(look.labels, look.high) for look in reversed(looks)]
    line = " ".join(place(look.labels, look.value) for look in looks if look.labels)
    ticks = ""
    for value in (floor, (1 + floor) / 2, 1.0):
        y = place(0, value).split(",")[1]
        ticks += (
            f'<line x1=44 x2={WIDTH - 16} y1={y} y2={y} stroke="#e3e7ed"/>'
            f"<text x=38 y={float(y) + 4:.1f} text-anchor=end>{value:.0%}</text>"
        )
    for labels in (0, most):
        x = place(labels, floor).split(",")[0]
        ticks += f"<text x={x} y={HEIGHT - 6} text-anchor=middle>{labels}</text>"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img aria-label="The interval of the accuracy '
        f'after each number of labels" font-size=11 fill="#566274">{ticks}'
        f'<polygon points="{" ".join(band)}" fill="#3b6fb6" opacity=".2"/>'
        f'<polyline points="{line}" fill=none stroke="#3b6fb6" stroke-width=2 />'
        f"<text x={WIDTH / 2} y={HEIGHT - 6} text-anchor=middle>labels (of {items} items)</text></svg>"
    )
