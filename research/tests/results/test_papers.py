"""Verdicts on the papers' figures follow from the numbers: constructed ones and the kept ones."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from research.results.checks import NO, NOT, OPEN, PART, YES, Evidence, Found, correlation_times
from research.results.findings import FOUND, format_findings, gains_of, pair_seeds
from research.results.lines import Line, read_csv, write_csv
from research.results.numbers import read_numbers
from research.results.papers import CLAIMS, Claim, judge_claim, papers_block
from research.results.table import read_table, read_tables
from research.results.text import table_block
from research.studies import experiment, settings_of
from research.studies.dynamics.figures import PAPER
from research.studies.execution import table_text

ROOT = Path(__file__).parents[3]
STUDIES = ROOT / "research" / "data" / "studies"
MADE = """
title = "Made"
group = "figure"
seeds = 3
strategies = "{strategies}"
about = "By hand."
[campaign.data]
name = "digits"
"""


def write_numbers(folder, name, by_variant, spent=None):
    """Write variant -> strategy -> accuracies of each seed at 10 and 20 labels, and read them."""
    names = list(dict.fromkeys(s for curves in by_variant.values() for s in curves))
    variants = "".join(
        f'[[variant]]\nname = "{v}"\n[variant.campaign.model]\nwidth = 8\n' for v in by_variant if v
    )
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


def make_flat_curves(*values):
    """Return a constant curve for each seed."""
    return [(v, v) for v in values]


def find_claim(figure):
    return next(c for c in CLAIMS if f"{c.paper} {c.figure}".startswith(figure))


def test_claims_without_numbers_are_not_run(tmp_path):
    empty = Evidence({}, tmp_path)
    assert all(judge_claim(c, empty) == Found(NOT, "") for c in CLAIMS)
    text = papers_block(empty)
    assert "results/studies" not in text  # no link to missing studies
    assert (
        f"Of {len(CLAIMS)} lines: yes 0, in part 0, no 0, inconclusive 0, not run {len(CLAIMS)}."
        in text
    )


@pytest.mark.parametrize(
    ("pseudo", "seconds", "verdict"),
    [
        (make_flat_curves(0.80, 0.84, 0.79), 0.1, YES),  # equal accuracy in a tenth of the time
        (make_flat_curves(0.80, 0.84, 0.79), 0.9, PART),
        (make_flat_curves(0.701, 0.711, 0.691), 0.1, PART),  # faster, but 10 points lower
        (make_flat_curves(0.701, 0.711, 0.691), 0.9, NO),
    ],
)
def test_pseudo_kernel_claim_needs_equal_accuracy_and_less_time(tmp_path, pseudo, seconds, verdict):
    full = {
        "random": make_flat_curves(0.7, 0.7, 0.7),
        "mlmoc:top": make_flat_curves(0.80, 0.81, 0.80),
    }
    by_variant = {"pseudo": full | {"mlmoc:top": pseudo}, "full": full}
    made = write_numbers(tmp_path, "fig-kernel", by_variant, {"pseudo": seconds, "full": 1.0})
    found = judge_claim(find_claim("TH 3.15"), Evidence({"fig-kernel": made}, tmp_path))
    assert found.verdict == verdict
    assert f"{100 * seconds:.0f} % of its time" in found.text
    table = read_table(tmp_path / "fig-kernel.toml")
    assert f"{100 * seconds:.1f} % of the seconds" in format_findings(table, made)
    assert "not finished" in format_findings(table, {"full": made["full"]})
    assert "not finished" in format_findings(table, None)


def test_effects_are_paired_means_over_other_factors(tmp_path):
    """The single kernel adds 2 points, a regulariser of 1e-1 adds 4, the recipe nothing.

    Sequential selection adds 1 point.
    """
    by_variant = {}
    for recipe in ("ours", "the paper's"):
        for kernel in ("pseudo", "single"):
            for noise in ("1e-3", "1e-1"):
                gain = -0.01 + 0.02 * (kernel == "single") + 0.04 * (noise == "1e-1")
                base = [0.5, 0.53, 0.56]
                noise_of_seed = [0.001, -0.001, 0.0] if recipe == "ours" else [-0.001, 0.001, 0.0]
                top = [b + gain + e for b, e in zip(base, noise_of_seed, strict=True)]
                by_variant[f"{recipe}, {kernel}, {noise}"] = {
                    "random": make_flat_curves(*base),
                    "mlmoc:top": make_flat_curves(*top),
                    "mlmoc": make_flat_curves(*(t + 0.01 for t in top)),
                }
    made = write_numbers(tmp_path, "fig-mlmoc-mnist", by_variant)
    assert gains_of(made["ours, pseudo, 1e-3"], "mlmoc:top") == pytest.approx(
        {0: -0.009, 1: -0.011, 2: -0.01}
    )
    text = FOUND["fig-mlmoc-mnist"](made)
    assert "single-logit kernel instead of the pseudo-kernel +2.0 ± 0.0" in text
    assert "a regulariser of 1e-1 instead of 1e-3 +4.0 ± 0.0" in text
    assert "going on after each pick (`mlmoc`) instead of a batch at once +1.0 ± 0.0" in text
    assert re.search(r"the paper's recipe instead of ours [+−]?0\.0 ± 0\.", text)
    assert "The largest effect beyond its interval is a regulariser of 1e-1" in text
    assert "above it in 6 of them" in text
    assert pair_seeds({0: 1.0, 1: 2.0}, {0: 0.5, 1: 1.5, 2: 9.0}).mean == pytest.approx(0.5)


ARMS = (
    "random",
    "ntk",
    "ntk-few",
    "naive",
    "one-step",
    "infinite-ntk",
    "gp",
    "ntk-sequential",
    "emoc",
)


def write_lookahead_study(folder, name, ends, naive_seconds):
    """Write a look-ahead study with one round.

    ends: arm -> final accuracy of each seed; missing arms end like random.
    """
    seeds = range(len(ends["random"]))
    study_design = experiment("lookahead")
    study = folder / name
    study.mkdir()
    arms = "".join(f'"{a}", ' for a in ARMS)
    (study / "settings.toml").write_text(
        f'experiment = "lookahead"\nseeds = {len(seeds)}\narms = [{arms}]\nrounds = 1\nfew = '
        "10\ncandidates = 100\n"
    )
    (study / "machine.json").write_text("{}")
    lines = ["arm,seed,round,labels,accuracy,process_accuracy,candidates,seconds,train_seconds"]
    for cell in study_design.cells(settings_of(study_design, file=study / "settings.toml")):
        arm, seed = cell["arm"], cell["seed"]
        end = ends.get(arm, ends["random"])[seed]
        spent = naive_seconds if arm == "naive" else 0.1
        lines += [f"{arm},{seed},0,10,0.5,,100,{spent},1", f"{arm},{seed},1,20,{end},,100,,1"]
    (study / "rows.csv").write_text("\n".join(lines) + "\n")


def test_lookahead_verdicts_follow_network_of_the_paper(tmp_path):
    base = [0.80, 0.82, 0.81]
    above = [v + d for v, d in zip(base, (0.050, 0.051, 0.049), strict=True)]
    write_lookahead_study(tmp_path, "lookahead", {"random": base, "ntk": above, "gp": above}, 2.0)
    tables = {
        "fig-sequential": write_numbers(
            tmp_path,
            "fig-sequential",
            {"": {"mlmoc": make_flat_curves(*above), "mlmoc:top": make_flat_curves(*base)}},
        ),
        "digits-mlp": write_numbers(
            tmp_path,
            "digits-mlp",
            {"": {"emoc:top": make_flat_curves(*base), "mlmoc:top": make_flat_curves(*above)}},
        ),
    }
    digits = Evidence(tables, tmp_path)
    assert [
        judge_claim(find_claim(c), digits).verdict
        for c in ("LA 1a", "LA 1b", "LA 3a", "TH 2.3 right")
    ] == [PART, PART, YES, NO]
    wide = {"random": base, "ntk": above, "ntk-few": above, "emoc": above, "ntk-sequential": above}
    write_lookahead_study(tmp_path, "lookahead-mnist", wide, 20.0)
    both = Evidence(tables, tmp_path)
    speed_found, baselines_found, sequential_found, emoc_found = (
        judge_claim(find_claim(c), both) for c in ("LA 1a", "LA 1b", "LA 3a", "TH 2.3 right")
    )
    assert speed_found.verdict == YES
    assert "200 times on the same 10 candidates (2000 extrapolated" in speed_found.text
    assert "; digits, dense network: 20 times" in speed_found.text
    # the network's own kernel only; digits had the Gaussian process too
    assert baselines_found.verdict == YES
    assert "beyond the interval: ntk, gp" in baselines_found.text
    assert sequential_found.verdict == OPEN  # the same curve
    assert emoc_found.verdict == PART  # no difference with the WideResNet, one on digits
    assert "results/studies/lookahead-mnist/README.md" in papers_block(both)


BASELINES = ("random", "entropy", "margin", "badge", "ll4al")


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ({}, OPEN),  # the seeds vary by two points
        (dict.fromkeys(BASELINES, -0.05), YES),
        ({"random": -0.05, "ll4al": -0.05}, OPEN),
        (dict.fromkeys(BASELINES, 0.001), YES),  # equivalent within a point
        (dict.fromkeys(BASELINES, 0.05), NO),
        ({**dict.fromkeys(BASELINES, -0.05), "margin": 0.05}, PART),
        (
            {**dict.fromkeys(BASELINES, -0.05), "margin": 0.005},
            YES,
        ),  # significantly above, but by half a point only
        ({**dict.fromkeys(BASELINES, -0.05), "margin": 0.0105}, OPEN),  # about a point
    ],
)
def test_mlmoc_batch_claim_needs_demonstrated_equivalence(tmp_path, gains, verdict):
    own = [0.50, 0.53, 0.51]
    wide, narrow = (0.02, -0.02, 0.0), (0.0005, -0.0005, 0.0)
    curves = {
        name: make_flat_curves(
            *(
                v + gains.get(name, 0.0) + e
                for v, e in zip(own, narrow if name in gains else wide, strict=True)
            )
        )
        for name in BASELINES
    }
    dense = {
        "random": make_flat_curves(0.5, 0.5, 0.5),
        "mlmoc:top": make_flat_curves(0.51, 0.52, 0.51),
    }
    made = {
        f"{name}-mlp": write_numbers(tmp_path, f"{name}-mlp", {"": dense})
        for name in ("digits", "mnist", "fashion")
    } | {
        "fig-cifar10": write_numbers(
            tmp_path, "fig-cifar10", {"": curves | {"mlmoc:top": make_flat_curves(*own)}}
        )
    }
    found = judge_claim(find_claim("LA 2"), Evidence(made, tmp_path))
    assert found.verdict == verdict
    assert "dense networks elsewhere, `mlmoc:top` − random: digits +1.3" in found.text
    text = format_findings(read_table(tmp_path / "fig-cifar10.toml"), made["fig-cifar10"])
    pairs = text.partition("each by itself): ")[2]
    # random is corrected for all comparisons, in the sentence before
    assert "random" not in pairs
    assert pairs.count("▼") == sum(gain > 0.002 for name, gain in gains.items() if name != "random")
    write_csv(
        tmp_path / "fig-cifar10.csv", Line, read_csv(tmp_path / "fig-cifar10.csv", Line)[:-2]
    )  # one campaign less
    unfinished = read_numbers(read_table(tmp_path / "fig-cifar10.toml"), tmp_path)
    for unfinished_tables in ({"fig-cifar10": unfinished}, {"fig-cifar10": None}):
        found = judge_claim(find_claim("LA 2"), Evidence(made | unfinished_tables, tmp_path))
        assert found.verdict == NOT
        assert found.text.startswith("dense networks elsewhere")


@pytest.mark.parametrize(
    ("gain", "verdict", "firsts"),
    [(0.05, YES, 1), (0.001, OPEN, 1), (-0.05, NO, 0), (-0.001, OPEN, 0)],
)
def test_dynamical_claim_on_photographs_follows_rounds(tmp_path, gain, verdict, firsts):
    base = [0.40, 0.42, 0.41]
    own = [v + gain + e for v, e in zip(base, (0.002, -0.002, 0.0), strict=True)]
    by_variant = {
        "": {
            "random": make_flat_curves(*base),
            "coreset": make_flat_curves(*base),
            "dynamical": make_flat_curves(*own),
        }
    }
    made = write_numbers(tmp_path, "fig-caltech", by_variant)
    found = judge_claim(find_claim("DY 8"), Evidence({"fig-caltech": made}, tmp_path))
    assert found.verdict == verdict
    assert found.text.startswith(
        f"first in {firsts} of 1 rounds, rank {1 if firsts else 3} of 3 at the end, "
    )
    table = read_table(tmp_path / "fig-caltech.toml")
    assert f"first in {firsts} of 1 rounds" in format_findings(table, made)
    write_csv(tmp_path / "fig-caltech.csv", Line, read_csv(tmp_path / "fig-caltech.csv", Line)[:-2])
    unfinished = Evidence({"fig-caltech": read_numbers(table, tmp_path)}, tmp_path)
    assert judge_claim(find_claim("DY 8"), unfinished) == Found(NOT, "")


PEERS = ("random", "margin", "dynamical")


def write_dynamics_study(
    folder, name, ends, *, splits=(), cold=None, gammas=None, rounds=2, lost=()
):
    """Write a study of dynamicAL's campaigns.

    ends: strategy -> final accuracy of each seed (earlier rounds have half of it); splits: (batch,
    rounds) -> the same; cold: strategy -> the same; gammas: γ -> the same; lost: rounds in which
    dynamicAL is last.
    """
    splits, cold, gammas = dict(splits), cold or {}, {"2": ends["dynamical"]} | (gammas or {})
    seeds = len(ends["random"])
    study = folder / name
    study.mkdir()
    (study / "settings.toml").write_text(
        f'experiment = "dynamics"\nseeds = {seeds}\nparts = ["rounds"]\nquery = 250\nrounds = '
        f"{rounds}\n"
        f"strategies = {list(PEERS)}\ngammas = [{', '.join(gammas)}]\n"
        f"splits = {[list(s) for s in splits]}\ncold = {list(cold)}\n".replace("'", '"')
    )
    (study / "machine.json").write_text("{}")
    study_design = experiment("dynamics")
    rows = []
    for cell in study_design.cells(settings_of(study_design, file=study / "settings.toml")):
        seed, split = cell["seed"], splits.get((cell["batch"], cell["rounds"]))
        ends_of_cell = (
            cold
            if cell["start"] == "cold"
            else {**ends, "dynamical": split or gammas[cell["gamma"]]}
        )
        for n in range(cell["rounds"] + 1):
            value = ends_of_cell[cell["strategy"]][seed] * (1 if n == cell["rounds"] else 0.5)
            value = 0.0 if n in lost and cell["strategy"] == "dynamical" else value
            drift = 0.001 * cell["batch"] if cell["kernel"] and n else None
            rows.append(
                cell
                | {
                    "round": n,
                    "labels": 500 + n * cell["batch"],
                    "accuracy": value,
                    "mmd_over_bound": drift,
                }
            )
    (study / "rows.csv").write_text(table_text(rows))


def test_dynamical_verdicts_prefer_whole_cifar10_study(tmp_path):
    base = [0.40, 0.42, 0.41]
    above, far = (
        [b + gain + e for b, e in zip(base, (0.001, -0.001, 0), strict=True)]
        for gain in (0.02, 0.05)
    )
    level = {"random": base, "margin": base, "dynamical": [0.402, 0.418, 0.41]}
    lines = ("DY 3, Table 2", "DY 5", "DY Tables 1, 10", "DY Tables 11", "DY Table 3")
    write_dynamics_study(
        tmp_path,
        "dynamics",
        level,
        splits={(50, 3): base, (150, 1): above},
        cold=level,
        gammas={"0": above, "inf": base},
    )
    digits = Evidence({}, tmp_path)
    verdicts = [NOT, NO, PART, YES, NOT]  # in part: MMD/B is smaller nevertheless
    assert [judge_claim(find_claim(c), digits).verdict for c in lines] == verdicts
    leading = {"random": base, "margin": above, "dynamical": far}
    write_dynamics_study(tmp_path, "dynamics-whole", leading)
    write_dynamics_study(
        tmp_path,
        "dynamics-varied",
        leading,
        splits={(100, 10): far, (1000, 1): above},
        cold=leading,
    )
    write_dynamics_study(
        tmp_path, "dynamics-500", leading | {"margin": far, "dynamical": above}, rounds=3
    )
    both = Evidence({}, tmp_path)
    led, gamma, split, reset, larger = (judge_claim(find_claim(c), both) for c in lines)
    assert led.verdict == YES
    assert led.text.startswith(
        "first in 2 of 2 rounds, rank 1 of 3 at the end, 5.0 [4.8, 5.2] points from random"
    )
    assert gamma.verdict == NO  # γ was varied on digits only
    assert gamma.text.startswith("digits: ")
    assert split.verdict == YES
    assert (
        "CIFAR-10: 10 rounds − 1: 3.0 [3.0, 3.0] points; MMD/B 0.1000 against 1.0000; digits: 3 "
        "rounds − 1" in split.text
    )
    assert reset.verdict == YES
    assert (
        "CIFAR-10: dynamicAL with new weights, at the end: 5.0 [4.8, 5.2] points from random, 3.0"
        in reset.text
    )
    assert larger.verdict == NO
    assert "first in 0 of 3 rounds, rank 2 of 3 at the end" in larger.text


@pytest.mark.parametrize(
    ("dynamical", "lost", "verdict"),
    [
        ([0.452, 0.468, 0.46], (), YES),
        ([0.401, 0.419, 0.41], (), YES),  # not distinguishable from the best in every round
        ([0.452, 0.468, 0.46], (1,), PART),  # significantly ahead at the end, behind once
        ([0.43, 0.42, 0.45], (1,), OPEN),
        ([0.352, 0.368, 0.36], (), NO),
    ],
)
def test_dynamical_verdict_depends_on_significance(tmp_path, dynamical, lost, verdict):
    base = [0.40, 0.42, 0.41]
    level = [0.401, 0.419, 0.41]
    write_dynamics_study(
        tmp_path,
        "dynamics-whole",
        {"random": base, "margin": level, "dynamical": dynamical},
        lost=lost,
    )
    assert judge_claim(find_claim("DY 3, Table 2"), Evidence({}, tmp_path)).verdict == verdict


def test_study_without_a_part_falls_back_to_another_study(tmp_path):
    base = [0.40, 0.42, 0.41]
    ends = {"random": base, "margin": base, "dynamical": base}
    write_dynamics_study(tmp_path, "dynamics", ends, cold=ends)
    write_dynamics_study(tmp_path, "dynamics-varied", ends)
    settings = tmp_path / "dynamics-varied" / "settings.toml"
    settings.write_text(settings.read_text().replace('["rounds"]', '["identity"]'))
    rows = "".join(f"identity,{seed},40,2.0,2.0,0.0\n" for seed in range(len(base)))
    (settings.parent / "rows.csv").write_text(
        "part,seed,items,definition,gradient,relative_difference\n" + rows
    )
    assert judge_claim(find_claim("DY Tables 11"), Evidence({}, tmp_path)).text.startswith(
        "digits: "
    )


SEEDS = (0.9, 1.0, 1.12)  # factors by which the seeds of one network differ


def write_kernel_study(folder, name, gaps, widest_factors=(1.0, 1.0, 1.0)):
    """Write a study of kernels during training with three seeds.

    gaps: network -> gap of the smallest eigenvalue by width, None if unknown. widest_factors:
    factors on the widest network, by seed.
    """
    study = folder / name
    study.mkdir()
    widths = "".join(
        f"{n} = [{', '.join(str(8 * 2**k) for k in range(len(g)))}]\n" for n, g in gaps.items()
    )
    left_out = "".join(
        f"{n} = []\n" for n in ("fcn", "convnet", "resnet18", "wrn16") if n not in gaps
    )
    (study / "settings.toml").write_text(
        'experiment = "kernel"\nseeds = 3\nparts = ["training"]\ncheckpoints = '
        f"[1.0]\n{widths}{left_out}"
    )
    (study / "machine.json").write_text("{}")
    study_design = experiment("kernel")
    rows = []
    for cell in study_design.cells(settings_of(study_design, file=study / "settings.toml")):
        at = int(cell["width"]).bit_length() - 4
        gap = gaps[cell["network"]][at]
        factor = SEEDS[cell["seed"]] * (widest_factors[cell["seed"]] if at else 1.0)
        value = None if gap is None else gap * factor
        rows.append(cell | {"checkpoint": 1.0, "smallest_gap_pseudo": value})
    (study / "rows.csv").write_text(table_text(rows))


SMALL_FACTORS = (0.98, 1.0, 1.02)


def test_kernel_claim_uses_networks_of_both_studies(tmp_path):
    write_kernel_study(tmp_path, "kernel-cifar10", {"fcn": (None, None)})
    assert judge_claim(find_claim("PN 5"), Evidence({}, tmp_path)) == Found(
        NOT, ""
    )  # unknown values do not support the claim
    write_kernel_study(
        tmp_path, "kernel", {"fcn": (0.5, 0.1), "convnet": (0.5, 0.6)}, SMALL_FACTORS
    )
    assert judge_claim(find_claim("PN 5"), Evidence({}, tmp_path)).verdict == PART
    (tmp_path / "more").mkdir()
    write_kernel_study(tmp_path / "more", "kernel-cifar10", {"fcn": (0.4, 0.3)}, SMALL_FACTORS)
    write_kernel_study(
        tmp_path / "more", "kernel", {"fcn": (0.5, 0.1), "convnet": (0.5, 0.6)}, SMALL_FACTORS
    )
    found = judge_claim(find_claim("PN 5"), Evidence({}, tmp_path / "more"))
    assert found.verdict == PART  # the first study alone would give yes
    assert (
        "widest over narrowest, paired over 3 seeds (Holm): CIFAR-10 fcn ×0.75 [0.71, 0.79] falls"
        in found.text
    )
    assert "digits convnet ×1.2 [1.1, 1.3] rises, digits fcn ×0.2 [0.19, 0.21] falls" in found.text


@pytest.mark.parametrize(
    ("wide", "wobble", "verdict", "word"),
    [
        (0.3, SMALL_FACTORS, YES, "falls"),
        (0.46, (0.7, 1.0, 1.4), OPEN, "open"),  # the median falls, not significantly
        (0.9, SMALL_FACTORS, NO, "rises"),
        (0.5, (1.0, 1.0, 1.0), OPEN, "open"),  # equal to the last digit
    ],
)
def test_width_claim_is_decided_by_paired_test(tmp_path, wide, wobble, verdict, word):
    write_kernel_study(tmp_path, "kernel", {"fcn": (0.5, wide)}, wobble)
    found = judge_claim(find_claim("PN 5"), Evidence({}, tmp_path))
    assert found.verdict == verdict
    assert found.text.endswith(word)


def write_correlation_study(folder, name, strengths, times):
    """Write a study of training dynamics and alignment.

    strengths: time -> weight of A in G for true labels; pseudo-labels have half of it.
    """
    study = folder / name
    study.mkdir()
    (study / "settings.toml").write_text(
        'experiment = "dynamics"\nseeds = 3\nparts = ["correlation"]\ntimes = '
        f"[{', '.join(map(str, times))}]\n"
    )
    (study / "machine.json").write_text("{}")
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(3):
        a, noise = rng.normal(size=(2, 200))
        for i in range(200):
            row = {
                "part": "correlation",
                "seed": seed,
                "draw": i,
                "alignment": a[i],
                "bound": -a[i],
            }
            for t in times:
                for kind, share in (("true", 1.0), ("pseudo", 0.5)):
                    weight = share * strengths[t]
                    row[f"{kind}_{t:g}"] = weight * a[i] + (1 - weight) * noise[i]
            rows.append(row)
    (study / "rows.csv").write_text(table_text(rows))


def test_correlation_claims_are_judged_by_training_time(tmp_path):
    times = (0.0, 0.1, 0.3, 1.0, math.inf)
    strengths = {0.0: 1.0, 0.1: 0.95, 0.3: 0.9, 1.0: 0.1, math.inf: 0.0}
    for name in ("dynamics-cifar10", "dynamics"):
        write_correlation_study(tmp_path, name, strengths, times)
    true, pseudo = (judge_claim(find_claim(c), Evidence({}, tmp_path)) for c in ("DY 2", "DY 6"))
    assert true.verdict == PART  # an early time holds, convergence does not
    assert pseudo.verdict == PART
    assert re.search(
        r"CIFAR-10 0\.9\d \[.*?\] at t = 0\.3, .*? at t = 1, .*? at convergence; digits", true.text
    )
    assert correlation_times(times) == [0.3, 1.0, math.inf]
    assert correlation_times((0.0, 1.0, 10.0, math.inf)) == [1.0, math.inf]


def test_inconclusive_table_leaves_claim_open(tmp_path):
    own = [0.50, 0.53, 0.51]
    curves = {name: make_flat_curves(*(v - 0.05 for v in own)) for name in BASELINES} | {
        "mlmoc:top": make_flat_curves(*own)
    }
    dense = {
        "random": make_flat_curves(0.5, 0.5, 0.5),
        "mlmoc:top": make_flat_curves(0.51, 0.52, 0.51),
    }
    made = {
        f"{name}-mlp": write_numbers(tmp_path, f"{name}-mlp", {"": dense})
        for name in ("digits", "mnist", "fashion")
    }
    made |= {"fig-cifar10": write_numbers(tmp_path, "fig-cifar10", {"": curves})}
    assert judge_claim(find_claim("LA 2"), Evidence(made, tmp_path)).verdict == YES
    found = judge_claim(
        find_claim("LA 2"), Evidence(made, tmp_path, {"fig-cifar10": "It had not converged."})
    )
    assert found.verdict == OPEN
    assert found.text.startswith(
        "as run, not conclusive: It had not converged. `mlmoc:top` along the curve"
    )


def test_table_block_shows_pending_and_inconclusive_notes_first(tmp_path):
    made = write_numbers(
        tmp_path,
        "fig-kernel",
        {"": {"random": make_flat_curves(0.5, 0.5, 0.5), "flip": make_flat_curves(0.6, 0.6, 0.6)}},
    )
    path = tmp_path / "fig-kernel.toml"
    plain = table_block(read_table(path), made)
    assert "Rerun pending" not in plain
    assert "not conclusive" not in plain
    notes = 'pending = "LL4AL has changed."\ninconclusive = "Too short."\n'
    path.write_text(path.read_text().replace("[campaign.data]", f"{notes}[campaign.data]"))
    text = table_block(read_table(path), made)
    assert (
        "**Rerun pending**: LL4AL has changed.\n\n**As run, not conclusive**: Too short.\n\n| "
        "queried by" in text
    )


def test_last_round_is_correlated_with_differences_of_the_paper(tmp_path):
    """Eight strategies end like the paper's up to a constant, so the correlation is one."""
    study = tmp_path / "dynamics-whole"
    study.mkdir()
    names = list(PAPER[250])
    (study / "settings.toml").write_text(
        'experiment = "dynamics"\nseeds = 3\nparts = ["rounds"]\nquery = 250\nrounds = 9\ngammas '
        "= [2.0]\nsplits = []\n"
        f"cold = []\nstrategies = {names}\n".replace("'", '"')
    )
    (study / "machine.json").write_text("{}")
    study_design = experiment("dynamics")
    rows = [
        cell
        | {
            "round": n,
            "labels": 500 + 250 * n,
            "accuracy": PAPER[250][cell["strategy"]][-1] / 100 + 0.01 * cell["seed"],
        }
        for cell in study_design.cells(settings_of(study_design, file=study / "settings.toml"))
        for n in range(10)
    ]
    (study / "rows.csv").write_text(table_text(rows))
    found = judge_claim(find_claim("DY 3, Table 2"), Evidence({}, tmp_path))
    assert (
        "end − random agrees with the paper's (paper / here, r = 1.00): margin 0.90 / 0.90"
        in found.text
    )
    assert (
        "dynamical 1.06 / 1.06; with standard deviations of 0.8 to 1.9 points over 5 runs"
        in found.text
    )
    assert "standard error of dynamicAL − random 1.0)" in found.text


@pytest.mark.slow
def test_verdicts_of_kept_results_match_documented_ones():
    tables = {t.name: read_numbers(t, ROOT / "research" / "data" / "tables") for t in read_tables()}
    evidence = Evidence(
        tables, STUDIES, {t.name: t.inconclusive for t in read_tables() if t.inconclusive}
    )
    found = {f"{c.paper} {c.figure}": judge_claim(c, evidence) for c in CLAIMS}
    assert found["LA 3a, TH 2.3 left"].verdict == OPEN
    assert "dense network: `mlmoc` − `mlmoc:top` +1.0" in found["LA 3a, TH 2.3 left"].text
    assert found["DY 3, Table 2"].verdict == OPEN
    assert "rank 3 of 8" in found["DY 3, Table 2"].text
    assert "agrees with the paper's (paper / here, r = 0.98)" in found["DY 3, Table 2"].text
    assert found["TH 2.3 right"].verdict == PART
    assert found["LA 2, 4, TH 2.2, A.1, A.4"].verdict == OPEN
    assert found["LA 2, 4, TH 2.2, A.1, A.4"].text.startswith("as run, not conclusive")
    for figure in ("PN 2, TH 3.2, A.5", "PN 3, TH 3.3, A.6"):
        assert found[figure].verdict == PART
        assert re.search(
            r"CIFAR-10 fcn \S+ \[[^]]*\] falls, digits convnet \S+ \[[^]]*\] open",
            found[figure].text,
        )
    for figure in ("DY 1, 9", "DY App. B.3"):
        assert "at mean diagonal 1" in found[figure].text
    assert "not measured" in found["LA 1a, TH 2.1a"].text
    text = papers_block(evidence)
    assert text.count("\n| ") == len(CLAIMS) + 1
    counts = re.search(
        r"Of (\d+) lines: yes (\d+), in part (\d+), no (\d+), inconclusive (\d+), not run (\d+)",
        text,
    ).groups()
    sentence = "Of {} claims, {} hold, {} hold in part, {} do not, {} remain inconclusive, and {} were not run"
    overview = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    assert sentence.format(*counts) in overview
    page = (ROOT / "docs" / "results-papers.md").read_text(encoding="utf-8")
    assert all(f"{c.paper} {c.figure} |" in page for c in CLAIMS)


def test_judged_propagates_programming_errors(tmp_path):
    broken = Claim("LA", "0", "", "", lambda e: Found(1 / 0, ""))
    with pytest.raises(ZeroDivisionError):
        judge_claim(broken, Evidence({}, tmp_path))


def test_every_figure_table_has_a_finding_block_on_the_page():
    page = (ROOT / "docs" / "results-papers.md").read_text(encoding="utf-8")
    for table in read_tables():
        if table.group == "figure":
            assert table.name in FOUND
            assert f"<!-- begin found {table.name} -->" in page
