"""What is said of the papers' figures follows from the numbers: on numbers made by hand, and on those kept here."""

import re
from pathlib import Path

import pytest

from labelahead.studies import experiment, settings_of
from results.checks import NO, NOT, OPEN, PART, YES, Evidence, Found
from results.found import FOUND, found_block, gains_of, paired
from results.lines import Line, write_csv
from results.numbers import read_numbers
from results.papers import CLAIMS, Claim, judged, papers_block
from results.table import read_table, read_tables

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "docs" / "results" / "studies"
MADE = """
title = "Made"
group = "figure"
seeds = 3
strategies = "{strategies}"
about = "By hand."
[campaign.data]
name = "digits"
"""


def numbers(folder, name, by_variant, spent=None):
    """variant -> strategy -> the accuracies of each seed at 10 and 20 labels."""
    names = list(dict.fromkeys(s for curves in by_variant.values() for s in curves))
    variants = "".join(f'[[variant]]\nname = "{v}"\n[variant.campaign.model]\nwidth = 8\n' for v in by_variant if v)
    (folder / f"{name}.toml").write_text(MADE.format(strategies=",".join(names)) + variants)
    lines = [
        Line(variant, strategy, seed, labels, value, 1.0, (spent or {}).get(variant, 0.5))
        for variant, curves in by_variant.items()
        for strategy, seeds in curves.items()
        for seed, curve in enumerate(seeds)
        for labels, value in zip((10, 20), curve, strict=True)
    ]
    write_csv(folder / f"{name}.csv", Line, lines)
    return read_numbers(read_table(folder / f"{name}.toml"), folder)


def flat(*values):
    """A level curve for each seed."""
    return [(v, v) for v in values]


def claim(figure):
    return next(c for c in CLAIMS if f"{c.paper} {c.figure}".startswith(figure))


def test_a_claim_without_numbers_was_not_run(tmp_path):
    empty = Evidence({}, tmp_path)
    assert all(judged(c, empty) == Found(NOT, "") for c in CLAIMS)
    text = papers_block(empty)
    assert "results/studies" not in text  # no link to what is not there
    assert f"Of {len(CLAIMS)} lines: yes 0, in part 0, no 0, cannot be told 0, not run {len(CLAIMS)}." in text


@pytest.mark.parametrize(
    ("pseudo", "seconds", "verdict"),
    [
        (flat(0.80, 0.84, 0.79), 0.1, YES),  # level, and a tenth of the time
        (flat(0.80, 0.84, 0.79), 0.9, PART),
        (flat(0.701, 0.711, 0.691), 0.1, PART),  # faster, and 10 points lower
        (flat(0.701, 0.711, 0.691), 0.9, NO),
    ],
)
def test_the_pseudo_kernel_must_be_level_and_fast(tmp_path, pseudo, seconds, verdict):
    full = {"random": flat(0.7, 0.7, 0.7), "mlmoc:top": flat(0.80, 0.81, 0.80)}
    by = {"pseudo": full | {"mlmoc:top": pseudo}, "full": full}
    made = numbers(tmp_path, "fig-kernel", by, {"pseudo": seconds, "full": 1.0})
    found = judged(claim("TH 3.15"), Evidence({"fig-kernel": made}, tmp_path))
    assert found.verdict == verdict
    assert f"{100 * seconds:.0f} % of its seconds" in found.text
    table = read_table(tmp_path / "fig-kernel.toml")
    assert f"{100 * seconds:.1f} % of the seconds" in found_block(table, made)
    assert "not finished" in found_block(table, {"full": made["full"]})
    assert "not finished" in found_block(table, None)


def test_effects_are_means_over_the_other_factors_paired_by_seed(tmp_path):
    """The single kernel adds 2 points, a regulariser of 1e-1 adds 4, the recipe nothing; one by one adds 1."""
    by = {}
    for recipe in ("ours", "the paper's"):
        for kernel in ("pseudo", "single"):
            for noise in ("1e-3", "1e-1"):
                gain = -0.01 + 0.02 * (kernel == "single") + 0.04 * (noise == "1e-1")
                base = [0.5, 0.53, 0.56]
                wobble = [0.001, -0.001, 0.0] if recipe == "ours" else [-0.001, 0.001, 0.0]
                top = [b + gain + e for b, e in zip(base, wobble, strict=True)]
                by[f"{recipe}, {kernel}, {noise}"] = {
                    "random": flat(*base),
                    "mlmoc:top": flat(*top),
                    "mlmoc": flat(*(t + 0.01 for t in top)),
                }
    made = numbers(tmp_path, "fig-mlmoc-mnist", by)
    assert gains_of(made["ours, pseudo, 1e-3"], "mlmoc:top") == pytest.approx({0: -0.009, 1: -0.011, 2: -0.01})
    text = FOUND["fig-mlmoc-mnist"](made)
    assert "single-logit kernel instead of the pseudo-kernel +2.0 ± 0.0" in text
    assert "a regulariser of 1e-1 instead of 1e-3 +4.0 ± 0.0" in text
    assert "going on after each pick (`mlmoc`) instead of a batch at once +1.0 ± 0.0" in text
    assert re.search(r"the paper's recipe instead of ours [+−]?0\.0 ± 0\.", text)
    assert "The largest effect beyond its interval is a regulariser of 1e-1" in text
    assert "above it in 6 of them" in text
    assert paired({0: 1.0, 1: 2.0}, {0: 0.5, 1: 1.5, 2: 9.0}).mean == pytest.approx(0.5)


ARMS = ("random", "ntk", "ntk-few", "naive", "one-step", "infinite-ntk", "gp", "ntk-sequential", "emoc")


def looked_ahead(folder, name, ends, naive_seconds):
    """A study of looking ahead, one round: arm -> what it ends with for each seed; else as random."""
    seeds = range(len(ends["random"]))
    wanted = experiment("lookahead")
    study = folder / name
    study.mkdir()
    arms = "".join(f'"{a}", ' for a in ARMS)
    (study / "settings.toml").write_text(
        f'experiment = "lookahead"\nseeds = {len(seeds)}\narms = [{arms}]\nrounds = 1\nfew = 10\ncandidates = 100\n'
    )
    (study / "machine.json").write_text("{}")
    lines = ["arm,seed,round,labels,accuracy,process_accuracy,candidates,seconds,train_seconds"]
    for cell in wanted.cells(settings_of(wanted, file=study / "settings.toml")):
        arm, seed = cell["arm"], cell["seed"]
        end = ends.get(arm, ends["random"])[seed]
        spent = naive_seconds if arm == "naive" else 0.1
        lines += [f"{arm},{seed},0,10,0.5,,100,{spent},1", f"{arm},{seed},1,20,{end},,100,,1"]
    (study / "rows.csv").write_text("\n".join(lines) + "\n")


def test_the_papers_kind_of_network_has_the_verdict_and_the_other_stands_beside_it(tmp_path):
    base = [0.80, 0.82, 0.81]
    above = [v + d for v, d in zip(base, (0.050, 0.051, 0.049), strict=True)]
    looked_ahead(tmp_path, "lookahead", {"random": base, "ntk": above, "gp": above}, 2.0)
    tables = {
        "fig-sequential": numbers(tmp_path, "fig-sequential", {"": {"mlmoc": flat(*above), "mlmoc:top": flat(*base)}}),
        "digits-mlp": numbers(tmp_path, "digits-mlp", {"": {"emoc:top": flat(*base), "mlmoc:top": flat(*above)}}),
    }
    digits = Evidence(tables, tmp_path)
    assert [judged(claim(c), digits).verdict for c in ("LA 1a", "LA 1b", "LA 3a", "TH 2.3 right")] == [
        PART,
        PART,
        YES,
        NO,
    ]
    wide = {"random": base, "ntk": above, "ntk-few": above, "emoc": above, "ntk-sequential": above}
    looked_ahead(tmp_path, "lookahead-mnist", wide, 20.0)
    both = Evidence(tables, tmp_path)
    speed, rivals, one_by_one, emoc = (judged(claim(c), both) for c in ("LA 1a", "LA 1b", "LA 3a", "TH 2.3 right"))
    assert speed.verdict == YES
    assert "200 times on the same 10 candidates (2000 extrapolated" in speed.text
    assert "; digits, dense network: 20 times" in speed.text
    assert rivals.verdict == YES  # only the network's own kernel, where digits had the process too
    assert "beyond the interval ntk, gp" in rivals.text
    assert one_by_one.verdict == OPEN  # the same curve
    assert emoc.verdict == YES
    assert "results/studies/lookahead-mnist/README.md" in papers_block(both)


def test_every_claim_holds_what_was_kept_against_the_paper():
    tables = {t.name: read_numbers(t, ROOT / "docs" / "results" / "tables") for t in read_tables()}
    evidence = Evidence(tables, STUDIES)
    found = {f"{c.paper} {c.figure}": judged(c, evidence) for c in CLAIMS}
    assert found["LA 3a, TH 2.3 left"].verdict == OPEN
    assert "dense network: `mlmoc` − `mlmoc:top` +1.4" in found["LA 3a, TH 2.3 left"].text
    assert found["DY 3, Table 2"].verdict == NO
    assert "rank 7 of 8" in found["DY 3, Table 2"].text
    assert "not measured" in found["LA 1a, TH 2.1a"].text
    text = papers_block(evidence)
    assert text.count("\n| ") == len(CLAIMS) + 1
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert all(f"{c.paper} {c.figure} |" in page for c in CLAIMS)


def test_a_mistake_is_not_taken_for_something_that_was_not_run(tmp_path):
    broken = Claim("LA", "0", "", "", lambda e: Found(1 / 0, ""))
    with pytest.raises(ZeroDivisionError):
        judged(broken, Evidence({}, tmp_path))


def test_every_figure_has_its_sentence_on_the_page():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for table in read_tables():
        if table.group == "figure":
            assert table.name in FOUND
            assert f"<!-- begin found {table.name} -->" in page
