"""The kernel benchmark's one table, from its results."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]

COLUMNS = (
    "network",
    "N",
    "threads",
    "seconds",
    "peak MB",
    "vmap",
    "loop",
    "nt",
    "nt's best",
    "nt.batch",
    "blocks",
    "MB/vmap",
    "MB/plain",
    "GEMM",
    "roofline",
    "agree",
    "agree64",
)
SHORT = {
    "JACOBIAN_CONTRACTION": "jacobian",
    "STRUCTURED_DERIVATIVES": "structured",
    "NTK_VECTOR_PRODUCTS": "products",
    "AUTO": "auto",
}
LEGEND = """\
seconds, peak MB   ours: best of the repetitions; peak memory above import, weights, inputs
vmap, loop, nt     how many times longer the rival takes: torch.func vmap(grad)+GEMM with its best
                   chunk, a loop of backward passes, neural-tangents' best implementation (named)
nt.batch           the same once neural-tangents works in blocks (so many a side); ~ extrapolated
                   from two blocks a side
MB/vmap, MB/plain  our peak memory over that of vmap(grad): as timed, and as usually written
GEMM, roofline     GFLOP/s of a matrix product, measured in turn with the contenders; unavoidable
                   FLOPs at that rate over our seconds
agree, agree64     largest |K − K'|/√(K_ii K_jj) to any rival: float32 (a ReLU input that rounds to
                   the other side of 0 shows here), and float64 on a few samples"""


def _ratio(case: Case, name: str) -> str:
    ours = case["contenders"].get("ours", {}).get("best_seconds")
    rival = case["contenders"].get(name, {})
    if not ours or not rival.get("best_seconds"):
        return "-"
    mark = "~" if rival["extrapolation_factor"] > 1 else ""
    return f"{mark}{rival['best_seconds'] / ours:.2f}"


def _memory(case: Case, name: str) -> str:
    ours = case["contenders"].get("ours", {})
    rival = case["contenders"].get(name, {})
    if not ours.get("best_seconds") or rival.get("failure") or not rival.get("peak_mb"):
        return "-"
    return f"{ours['peak_mb'] / rival['peak_mb']:.3f}"


def _largest(values: dict[str, float | None]) -> str:
    known = [value for value in values.values() if value is not None]
    return f"{max(known):.0e}" if known else "-"


def _row(case: Case, double: dict[str, float | None]) -> list[str]:
    contenders = case["contenders"]
    ours = contenders.get("ours", {})
    seconds = ours.get("best_seconds")
    implementation = contenders.get("nt", {}).get("implementation")
    return [
        case["network"],
        str(case["n"]),
        str(case["threads"]),
        f"{seconds:.3f}" if seconds else "-",
        f"{ours['peak_mb']:.0f}" if seconds else "-",
        _ratio(case, "vmap"),
        _ratio(case, "loop"),
        _ratio(case, "nt"),
        SHORT.get(implementation or "", "-"),
        _ratio(case, "nt-batch"),
        str(contenders.get("nt-batch", {}).get("blocks_a_side", "-")),
        _memory(case, "vmap"),
        _memory(case, "vmap-plain"),
        f"{case['gemm_flops_per_second'] / 1e9:.0f}",
        f"{case['roofline_seconds'] / seconds:.2f}" if seconds else "-",
        _largest(case["disagreement"]),
        _largest(double),
    ]


def _remarks(case: Case) -> list[str]:
    """What the numbers of a row leave unsaid: rivals that failed or did not fit."""
    where = f"{case['network']}, N={case['n']}, {case['threads']} thread(s)"
    notes = []
    for name, outcome in case["contenders"].items():
        if outcome["failure"] and name != "nt NTK_VECTOR_PRODUCTS":
            notes.append(f"{where}: {name}: {outcome['failure']}")
        if name == "vmap" and outcome.get("parameter_groups", 1) > 1:
            groups = outcome["parameter_groups"]
            notes.append(f"{where}: vmap and loop work in {groups} groups of parameters")
    return notes


def render(results: dict[str, Any]) -> str:
    """The table, its remarks and its legend as plain text."""
    cases = results["cases"].values()
    doubles = results.get("disagreement_float64", {})
    rows = [list(COLUMNS)] + [_row(case, doubles.get(case["network"], {})) for case in cases]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    remarks = [remark for case in cases for remark in _remarks(case)]
    return "\n".join([*lines, "", LEGEND, *remarks])
