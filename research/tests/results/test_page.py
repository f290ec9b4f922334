"""docs/results.md and its pages: a small table is run, resumed and written; statistics are recomputed."""

import csv
import math
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from labelahead.errors import InputError
from labelahead.simulation.comparison.statistics import holm
from labelahead.simulation.store import Store
from research.results import pools
from research.results.__main__ import main
from research.results.estimates import summary
from research.results.figures import COLOURED, _choose_coloured, critical, table_figure
from research.results.lines import CSV, EstimateLine, Line, read_csv, write_csv
from research.results.numbers import contrast, rankings, read_numbers
from research.results.page import BEGIN, PAGES, Results, fill_pages, html
from research.results.table import TABLES, read_table, read_tables
from research.results.text import hard_block, overall_block, table_block

ROOT = Path(__file__).parents[3]

TINY = """
title = "Tiny"
group = "clean"
seeds = 2
strategies = "random,margin"
about = "Digits."
[campaign.data]
name = "digits"
[campaign.model]
name = "mlp"
width = 8
[campaign.training]
steps = 3
[campaign.budget]
initial = 10
labels = 18
retrain_every = 4
"""
MADE = """
title = "Made up"
group = "{group}"
order = {order}
short = "{short}"
seeds = {seeds}
strategies = "{strategies}"
about = "Numbers by hand."
[campaign.data]
name = "digits"
"""
POOL_CHANGED = re.compile("outliers|imbalance|duplicates")
PAGE = "# Results\n\nBy hand.\n\n<!-- begin table {} -->\nold\n<!-- end -->\n\nThe end.\n"


def make_table(folder, name, strategies, *, group="clean", order=1, seeds=4, short="", more=""):
    (folder / "tables").mkdir(exist_ok=True)
    path = folder / "tables" / f"{name}.toml"
    text = MADE.format(group=group, order=order, seeds=seeds, strategies=strategies, short=short)
    path.write_text(text + more)
    return read_table(path)


def write_numbers(folder, table, accuracy, labels=(10, 20, 30), variant=""):
    """Write strategy -> seed -> accuracies as CSV and read it; the last round has no query."""
    query_seconds = (0.5, 0.7, 0.0)
    lines = [
        Line(variant, name, seed, at, value, 1.0, spent)
        for name, curves in accuracy.items()
        for seed, curve in enumerate(curves)
        for at, value, spent in zip(labels, curve, query_seconds, strict=True)
    ]
    path = folder / f"{table.name}.csv"
    write_csv(path, Line, [*(read_csv(path, Line) if path.exists() else []), *lines])
    return read_numbers(table, folder)


# random, margin and flip: 4 seeds, 3 rounds
BY_HAND = {
    "random": [(0.50, 0.60, 0.70), (0.52, 0.64, 0.72), (0.48, 0.58, 0.66), (0.50, 0.66, 0.72)],
    "margin": [(0.50, 0.61, 0.69), (0.52, 0.62, 0.71), (0.48, 0.62, 0.70), (0.50, 0.63, 0.72)],
    "flip": [(0.50, 0.70, 0.80), (0.52, 0.73, 0.84), (0.48, 0.70, 0.77), (0.50, 0.74, 0.80)],
}


def naive_holm(p):
    """Return Holm's p: the maximum, over tests with smaller p, of p times the remaining tests."""
    return [min(1.0, max(q * sum(r >= q for r in p) for q in p if q <= own)) for own in p]


def compute_area(curve):
    """Return the area under three points 10 labels apart, per label."""
    return (curve[0] / 2 + curve[1] + curve[2] / 2) / 2


def compare_paired(one, two):
    """Return the mean difference, half of its 95 % interval and p by the textbook formulas."""
    gap = [
        compute_area(a) - compute_area(b) for a, b in zip(BY_HAND[one], BY_HAND[two], strict=True)
    ]
    error = statistics.stdev(gap) / math.sqrt(len(gap))
    t = statistics.fmean(gap) / error
    return statistics.fmean(gap), 3.182446305 * error, 2 * stats.t.sf(abs(t), 3)


def test_read_numbers_equals_textbook_statistics(tmp_path):
    made = make_table(tmp_path, "made", "random,margin,flip")
    n = write_numbers(tmp_path, made, BY_HAND)[""]
    assert [r.name for r in n.rows] == ["flip", "margin", "random"]  # the highest curve first
    p = naive_holm([compare_paired("margin", "random")[2], compare_paired("flip", "random")[2]])
    for name, corrected in zip(("margin", "flip"), p, strict=True):
        mean, half, _ = compare_paired(name, "random")
        gain = n.row(name).gain
        assert gain.difference.mean == pytest.approx(mean)
        assert gain.difference.high - mean == pytest.approx(half)
        assert gain.p == pytest.approx(corrected)
    assert (n.row("flip").gain.verdict, n.row("margin").gain.verdict) == (1, 0)
    lead = naive_holm([compare_paired("flip", "random")[2], compare_paired("flip", "margin")[2]])
    assert n.row("margin").lead.difference.mean == pytest.approx(
        compare_paired("flip", "margin")[0]
    )
    assert n.row("margin").lead.p == pytest.approx(lead[1])
    assert n.row("flip").lead is None
    # random ends at 70 % on the mean; flip's mean curve is 50, 71.75: 20 labels and a bit less.
    need = 10 + 10 * (0.70 - 0.50) / (0.7175 - 0.50)
    assert n.row("flip").saving.other == pytest.approx(need)
    assert n.row("flip").saving.ratio == pytest.approx(30 / need)
    ranks = [[3, 2, 1], [2, 3, 1], [3, 2, 1], [2, 3, 1]]  # of random, margin, flip, seed by seed
    sums = np.sum(ranks, axis=0)
    assert n.friedman.statistic == pytest.approx(12 / (4 * 3 * 4) * (sums**2).sum() - 3 * 4 * 4)
    assert (n.row("flip").query, n.row("flip").whole) == pytest.approx((0.6, 4.2))


def test_table_block_contains_numbers(tmp_path):
    made = make_table(tmp_path, "made", "random,margin,flip,badge")
    text = table_block(made, write_numbers(tmp_path, made, BY_HAND))
    mean, half, _ = compare_paired("flip", "random")
    row = next(line for line in text.splitlines() if line.startswith("| **flip**"))
    assert f"| +{100 * mean:.1f} ± {100 * half:.1f} ▲ |" in row
    assert "| 19 (1.6×; " in row  # labels for random's end
    assert row.endswith("| 0.6 | 4.2 |")
    assert "### Made up" in text
    assert "`make results-made`" in text
    assert "Friedman’s test over 4 seeds" in text
    assert "badge (4)" in text  # requested, not run
    assert table_block(made, None).endswith("Not measured yet: `make results-made`.")


def test_table_block_without_random_and_default_omits_columns(tmp_path):
    made = make_table(tmp_path, "made", "margin,badge", seeds=1)
    curves = {"margin": [(0.5, 0.6, 0.7)], "badge": [(0.5, 0.6, 0.8)]}
    found = write_numbers(tmp_path, made, curves)
    text = table_block(made, found)
    assert "| badge | 80.0 | — | — | — | 0.6 | 4.2 |" in text
    assert "flip" not in text  # no empty columns
    assert "No test was made" in text
    assert table_figure("made", found).svg  # accuracies instead of differences


def test_table_block_has_a_column_per_variant(tmp_path):
    variants = "".join(
        f'[[variant]]\nname = "{n}"\n[variant.campaign.model]\nwidth = {n}\n' for n in (8, 16)
    )
    made = make_table(tmp_path, "made", "random,margin,flip", group="figure", more=variants)
    assert made.read_campaign("16", tmp_path).model.width == 16
    write_numbers(tmp_path, made, BY_HAND, variant="8")
    worse = {n: [tuple(v - 0.1 for v in c) for c in cs] for n, cs in BY_HAND.items()}
    text = table_block(made, write_numbers(tmp_path, made, worse, variant="16"))
    assert "| curve − random, points | 8 | 16 |" in text
    ends = [c[-1] for c in BY_HAND["random"]]
    assert f"| random, at the end, % | {100 * statistics.fmean(ends):.1f} ±" in text
    flip = next(line for line in text.splitlines() if line.startswith("| **flip**")).split("|")
    assert flip[2] == flip[3]  # a common shift does not change the difference from random
    assert "8, 16: Friedman’s test" in text


def test_holm_equals_definition():
    rng = np.random.default_rng(0)
    for count in (1, 2, 7):
        p = rng.random(count) ** 3
        assert holm(list(p)) == pytest.approx(naive_holm(list(p)))
    assert holm([]) == []


def make_three_tables(tmp_path, group):
    """Make three tables: flip beats random in all, margin in none; the third lacks badge."""
    rng = np.random.default_rng(1)
    found, tables = {}, []
    for i, names in enumerate(("random,margin,badge,flip",) * 2 + ("random,margin,flip",)):
        made = make_table(tmp_path, f"set-{i}", names, group=group, order=i, short=f"s{i}")
        curves = {
            name: [
                tuple(0.5 + gain * k + 0.002 * rng.standard_normal() for k in range(3))
                for _ in range(4)
            ]
            for name, gain in {"random": 0.1, "margin": 0.05, "badge": 0.12, "flip": 0.2}.items()
            if name in names.split(",")
        }
        tables.append(made)
        found[made.name] = write_numbers(tmp_path, made, curves)
    return tables, found


def test_rankings_over_tables_equal_manual_computation(tmp_path):
    tables, found = make_three_tables(tmp_path, "clean")
    blocks = {t.short: found[t.name][""] for t in tables}
    everywhere, wide = rankings(blocks)
    assert everywhere.names == ("flip", "random", "margin")
    assert everywhere.mean.tolist() == [1, 2, 3]
    # n (k - 1): the order is the same in all tables
    assert everywhere.friedman.statistic == pytest.approx(6)
    assert wide.names == ("flip", "badge", "random", "margin")
    assert wide.blocks == ("s0", "s1")
    text = overall_block(blocks, (everywhere, wide))
    lines = {line.split(" | ")[0]: line for line in text.splitlines()}
    assert lines["| **flip**"].startswith("| **flip** | 3 | 1.0 | 1.0 | +10.0 | 3 / 0 / 0 | — |")
    assert lines["| margin"].startswith("| margin | 3 | 3.0 | 4.0 | −5.0 | 0 / 0 / 3 | 3 / 0 / 0 |")
    assert lines["| badge"].startswith("| badge | 2 | — | 2.0 |")
    assert critical("overall", wide).png.startswith(b"\x89PNG")
    assert rankings({"s0": blocks["s0"]}) == []  # a ranking needs two tables
    assert "needs two tables" in overall_block({"s0": blocks["s0"]}, [])
    assert overall_block({}, []).startswith("Not measured yet")


def test_rankings_use_common_seeds_only(tmp_path):
    """badge lacks the hard seed: it beats flip by its own mean, not on the common seeds."""
    blocks = {}
    for short in ("a", "b"):
        made = make_table(tmp_path, f"set-{short}", "random,badge,flip", seeds=3, short=short)
        curves = {
            "random": [(0.5, 0.6, 0.7), (0.5, 0.6, 0.7), (0.1, 0.2, 0.3)],
            "badge": [(0.5, 0.7, 0.7), (0.5, 0.7, 0.7)],
            "flip": [(0.5, 0.8, 0.8), (0.5, 0.8, 0.8), (0.2, 0.3, 0.4)],
        }
        blocks[short] = write_numbers(tmp_path, made, curves)[""]
    assert blocks["a"].rows[0].name == "badge"
    (found,) = rankings(blocks)
    assert found.names == ("flip", "badge", "random")
    assert found.mean.tolist() == [1, 2, 3]
    assert rankings({"a": blocks["a"], "b": _write_numbers_without_common_seeds(tmp_path)}) == []


def _write_numbers_without_common_seeds(tmp_path):
    made = make_table(tmp_path, "apart", "random,badge,flip", seeds=2, short="apart")
    path = tmp_path / "apart.csv"
    at = ((0, "random"), (0, "flip"), (1, "badge"))
    write_csv(path, Line, [Line("", n, s, x, 0.5, 1.0, 1.0) for s, n in at for x in (10, 20)])
    return read_numbers(made, tmp_path)[""]


def test_hard_block_shows_gains_by_pool(tmp_path):
    tables, found = make_three_tables(tmp_path, "hard")
    found["set-1"] = None  # not measured yet
    text = hard_block(tables, found)
    assert "| curve − random, points | s0 | s2 | mean |" in text
    cells = next(x for x in text.splitlines() if x.startswith("| **flip**")).split(" | ")
    gains = [found[n][""].row("flip").gain.difference.mean for n in ("set-0", "set-2")]
    assert all(cell.endswith("▲") for cell in cells[1:3])
    assert cells[3] == f"+{100 * statistics.fmean(gains):.1f} |"
    assert "▼" in next(x for x in text.splitlines() if x.startswith("| margin"))
    badge = next(x for x in text.splitlines() if x.startswith("| badge")).split(" | ")
    assert badge[2:] == ["—", "— |"]  # no mean over other pools than those of the other strategies


def test_figure_of_many_strategies_colours_best_and_default(tmp_path):
    names = "random,entropy,margin,least-confidence,coreset,badge,bald,typiclust,egl,albl,eer,flip"
    made = make_table(tmp_path, "made", names, seeds=2)
    order = names.split(",")
    curves = {n: [(0.5, 0.9 - 0.02 * i, 0.9)] * 2 for i, n in enumerate(order)}
    found = write_numbers(tmp_path, made, curves)
    coloured = _choose_coloured(list(found.values()))
    assert coloured == [*order[1:COLOURED], "flip"]  # random is the zero line


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: s.replace("labels,", "labls,", 1), "expected the columns variant,strategy"),
        (lambda s: "", "begins with 'nothing'"),
        (lambda s: s.rsplit(",", 2)[0], "line 37, .*expected seven values"),
        (lambda s: s.replace("0.70000", "70.0"), "accuracy from 0 to 1"),
        (lambda s: s.replace("0.70000", "nan"), "accuracy from 0 to 1"),
        (lambda s: s + s.splitlines()[-1] + "\n", "random, 3, 30 twice"),
        (
            lambda s: s.replace(",margin,2,20,0.62000,1.000,0.700\n", ""),
            "margin, seed 2, has 2 rounds, others 3 .*at 20 labels.*make results-made",
        ),
        (
            lambda s: (
                s.replace(",margin,", ",entropy,")
                .replace(",flip,", ",bald,")
                .replace(",random,", ",egl,")
            ),
            "no campaign that made.toml asks for",
        ),
    ],
)
def test_damaged_csv_raises(tmp_path, capsys, damage, message):
    made = make_table(tmp_path, "made", "random,margin,flip")
    write_numbers(tmp_path, made, BY_HAND)
    path = tmp_path / "made.csv"
    path.write_text(damage(path.read_text()))
    with pytest.raises(InputError, match=message):
        read_numbers(made, tmp_path)
    (tmp_path / "results.md").write_text(PAGE.format("made"))
    arguments = ["page", "--docs", tmp_path, "--tables", tmp_path / "tables", "--numbers", tmp_path]
    assert main([str(g) for g in arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert "old" in (tmp_path / "results.md").read_text()  # the page is unchanged


def test_filled_replaces_blocks_only(tmp_path):
    made = make_table(tmp_path, "made", "random,margin,flip")
    results = Results([made], {"made": write_numbers(tmp_path, made, BY_HAND)}, [])
    page = PAGE.format("made")
    hand = "# By hand\n"
    filled = fill_pages({"results.md": hand, "results-made.md": page}, results)
    assert filled["results.md"] == hand
    text = filled["results-made.md"]
    assert text.startswith(page[: page.index("old")])
    assert text.endswith("<!-- end -->\n\nThe end.\n")
    assert "old" not in text
    assert fill_pages(filled, results) == filled
    for wrong, message in {
        page.replace("<!-- end -->", ""): "results-made.md: .* has no end",
        page.replace(
            "table made", "table mde"
        ): "results-made.md: .* is unknown; expected `table NAME` with one of made",
        "# Nothing\n": "no place for made",
    }.items():
        with pytest.raises(InputError, match=message):
            fill_pages({"results.md": hand, "results-made.md": wrong}, results)


def test_html_contains_tables_figures_and_style(tmp_path):
    made = make_table(tmp_path, "made", "random,margin,flip")
    results = Results([made], {"made": write_numbers(tmp_path, made, BY_HAND)}, [])
    text = PAGE.format("made") + "[There](results-other.md#x) and [here](errata.md).\n"
    page = html(fill_pages({"results.md": text}, results)["results.md"])
    assert 'href="results-other.html#x"' in page  # another page of results
    assert 'href="errata.md"' in page
    assert '<h3 id="made-up">Made up</h3>' in page
    assert '<div class="wide"><table>' in page
    assert page.count("<table>") == page.count("</table></div>") == 1
    assert 'src="results/figures/made.png"' in page
    assert "research/data/tables/made.csv" in page
    assert "--paper: #fff" in page  # the style sheet of the reports
    assert "<link" not in page
    assert "begin table" not in page


def test_every_table_has_valid_campaigns_and_a_block():
    texts = [path.read_text() for path in (ROOT / "docs").glob(PAGES)]
    blocks = {tuple(block.split()) for text in texts for block in BEGIN.findall(text)}
    for made in read_tables():
        for variant in made.variants:
            pool = Path("/pool.npz") if made.source.partition(":")[0] in pools.MADE else None
            campaign = made.read_campaign(variant, Path("/data"), pool)
            assert "{" not in campaign.data.name
        assert made.title
        assert made.about
        assert "random" in made.strategies
        assert {("table", made.name), ("group", made.group)} & blocks, made.name


def count_gains(tables, row="random"):
    """Count the tables in which flip is better than, level with and worse than a strategy."""
    found = [read_numbers(t, CSV) for t in tables]
    rows = [n[""].row("flip") if row == "random" else n[""].row(row) for n in found if n]
    verdicts = [(r.gain if row == "random" else r.lead).verdict for r in rows if r]
    return tuple(verdicts.count(v) for v in (1, 0, -1))


def test_overview_states_the_counts_of_the_tables():
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    tables = read_tables()
    clean = [t for t in tables if t.group == "clean"]
    hard = [t for t in tables if t.group == "hard"]
    others = ("cifar10-exact-0", "caltech-exact-20", "caltech8-exact")  # other seed sets or classes
    exact = [
        t
        for t in tables
        if t.group == "exact" and t.name not in others and not POOL_CHANGED.search(t.name)
    ]
    assert count_gains(exact) == (12, 3, 0)
    assert "better than random in 12 of 15 tables, not distinguishable in 3, and never" in text
    assert count_gains(clean) == (6, 1, 0)
    assert "better than random in 6 of 7 clean tables" in text
    assert count_gains(hard) == (6, 1, 0)
    assert "better than random in 6 of 7 pools, and equal where" in text
    assert count_gains(clean, "resolve") == (0, 7, 0)
    ratios = [
        n[""].row("flip").saving.ratio
        for n in (read_numbers(t, CSV) for t in clean)
        if n and n[""].row("flip").gain.verdict > 0
    ]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times fewer labels" in text


def test_overview_states_the_comparisons_with_other_packages():
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    level = {}
    for name in ("peers-digits", "peers-cifar10"):
        rows = read_numbers(read_table(TABLES / f"{name}.toml"), CSV)[""].rows
        level[name] = [r.name for r in rows if r.lead and r.lead.verdict == 0]
        assert all(r.lead.verdict >= 0 for r in rows if r.lead)
    assert level["peers-digits"] == ["maxherding (scikit-activeml)"]
    assert "better than every other strategy but MaxHerding" in text
    assert set(level["peers-cifar10"]) == {
        "maxherding (scikit-activeml)",
        "typiclust (scikit-activeml)",
        *("uherding", "resolve", "resolve:greedy"),  # our own
    }
    assert "MaxHerding and TypiClust do not differ significantly from it" in text


def test_overview_states_the_errors_of_the_estimates():
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    rows = summary(read_csv(CSV.parent / "estimates.csv", EstimateLine))
    mean = {s: next(r for r in rows if r.startswith(f"| all | {s} |")) for s in ("random", "flip")}
    errors = [mean[s].split(" | ")[2] for s in ("random", "flip")]
    assert (
        f"off by {errors[0]} points on average with random labels and by {errors[1]} with" in text
    )


def test_table_block_names_outdated_strategies(tmp_path):
    made = make_table(tmp_path, "made", "random,mlmoc:top,flip")
    assert "rerun pending" not in table_block(made, None)
    path = tmp_path / "tables" / "made.toml"
    path.write_text('outdated = ["mlmoc:top"]\n' + path.read_text())
    assert "**From before a correction; rerun pending:** `mlmoc:top`" in table_block(
        read_table(path), None
    )
    path.write_text(path.read_text().replace('["mlmoc:top"]', '["mlmoc"]'))
    with pytest.raises(
        InputError,
        match="outdated names 'mlmoc'; expected some of the strategies: random, mlmoc:top",
    ):
        read_table(path)


def test_invalid_table_files_raise(tmp_path):
    good = make_table(tmp_path, "made", "random,flip")
    path = tmp_path / "tables" / "made.toml"
    text = path.read_text()
    for wrong, message in {
        text.replace("order", "ordr"): "did you mean 'order'",
        text.replace("clean", "cleen"): "group is 'cleen'",
        text.replace("random,flip", "random,flop"): "did you mean 'flip'",
        text.replace("seeds = 4", "seeds = 0"): "seeds is 0",
        text + '[[variant]]\nname = "x"\n': "expected a name and a campaign",
    }.items():
        path.write_text(wrong)
        with pytest.raises(InputError, match=message) as error:
            read_table(path)
        assert "made.toml" in str(error.value)
    path.write_text(text)
    assert read_table(path) == good
    with pytest.raises(InputError, match="did you mean 'made'"):
        read_tables(tmp_path / "tables", ["mode"])


@pytest.mark.slow
def test_results_command_runs_resumes_and_writes_page(tmp_path, capsys):
    tables, runs, docs = tmp_path / "tables", tmp_path / "runs", tmp_path / "docs"
    tables.mkdir()
    docs.mkdir()
    (tables / "tiny.toml").write_text(TINY)
    (docs / "results.md").write_text("# Overview\n\n[Tiny](results-tiny.md).\n")
    (docs / "results-tiny.md").write_text(PAGE.format("tiny"))
    path = tmp_path / "data" / "tables" / "tiny.csv"
    options = ["--tables", str(tables), "--numbers", str(path.parent)]
    run = ["run", *options, "--out", str(runs), "--workers", "1"]
    assert main(run) == 0
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 3
    for row in rows:  # each round equals the record in the campaign's folder
        folder = next((runs / "tiny").glob(f"{row['strategy']}*/seed-{row['seed']}"))
        entry = next(r for r in Store(folder).read_rounds() if r.labels == int(row["labels"]))
        assert float(row["accuracy"]) == pytest.approx(entry.accuracy, abs=1e-5)
        query_seconds = sum(
            v for k, v in entry.seconds.items() if k not in ("train", "test", "leave-one-out")
        )
        assert float(row["query_seconds"]) == pytest.approx(query_seconds, abs=1e-3)
        assert float(row["train_seconds"]) == pytest.approx(entry.seconds["train"], abs=1e-3)
    before = path.read_bytes()
    shutil.rmtree(runs)  # as in a fresh copy of the repository
    capsys.readouterr()
    assert main(run) == 0
    assert "tiny: all there" in capsys.readouterr().out
    assert not runs.exists()
    (tables / "tiny.toml").write_text(TINY.replace("random,margin", "random,margin,entropy"))
    assert main(run) == 0
    # only the missing campaigns
    assert "1 strategies × 2 seeds = 2 campaigns" in capsys.readouterr().out
    assert set(before.splitlines()) < set(path.read_bytes().splitlines())
    assert main(["page", *options, "--docs", str(docs)]) == 0
    figures = docs / "results" / "figures"
    assert [p.name for p in figures.iterdir()] == ["tiny.png"]  # each figure once, and small
    assert Image.open(figures / "tiny.png").mode == "P"
    final = [float(r["accuracy"]) for r in rows if (r["strategy"], r["labels"]) == ("random", "18")]
    tiny = (docs / "results-tiny.md").read_text()
    assert f"| random | {100 * statistics.fmean(final):.1f} ±" in tiny
    assert "The end." in (docs / "results-tiny.html").read_text()
    assert 'href="results-tiny.html"' in (docs / "results.html").read_text()
    assert main(["forget", "margin", *options, "--out", str(runs)]) == 0
    assert {line.strategy for line in read_csv(path, Line)} == {"random", "entropy"}


def test_contrast_equals_scipy():
    kept_table = read_table(TABLES / "fig-sequential.toml")
    (n,) = (read_numbers(kept_table, CSV) or {}).values()
    areas = [n.curves.areas(name) for name in ("mlmoc", "mlmoc:top")]
    gaps = [areas[0][s] - areas[1][s] for s in sorted(areas[0])]
    found = contrast(n.curves, "mlmoc", "mlmoc:top")
    assert found is not None
    assert found.difference.mean == pytest.approx(sum(gaps) / len(gaps))
    assert found.p == pytest.approx(float(stats.ttest_1samp(gaps, 0).pvalue))
    assert contrast(n.curves, "mlmoc", "margin") is None
    assert "mlmoc − mlmoc:top" in table_block(kept_table, {"": n})
