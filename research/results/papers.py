"""What each paper shows, what was run here, and whether it holds: one line a figure, from the
numbers.

A claim says in words what the paper shows and what was run. Whether it holds is computed by its
function in `checks`, whenever the page is written.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from research.results import checks
from research.results.checks import NO, NOT, OPEN, PART, YES, Evidence, Found
from research.results.text import grid

NAMES = {
    "LA": "look-ahead",
    "TH": "the thesis",
    "PN": "the pseudo-NTK",
    "DY": "dynamicAL",
    "LE": "the lecture",
}


STUDY = re.compile(r"\[([\w-]+)\]\(results/studies/\1/README\.md\)")


@dataclass(frozen=True)
class Claim:
    """One line. where: a link to what was measured, as Markdown.

    Holds: None where nothing was run.
    """

    paper: str
    figure: str
    shows: str
    ran: str
    holds: Callable[[Evidence], Found] | None = None


def papers_block(evidence: Evidence) -> str:
    """The table, and how often each verdict came."""
    rows, count = [], dict.fromkeys((YES, PART, NO, OPEN, NOT), 0)
    for claim in CLAIMS:
        found = judge_claim(claim, evidence)
        count[found.verdict] += 1
        result = f"**{found.verdict}**" + (f": {found.text}" if found.text else "")
        rows.append(
            [f"{claim.paper} {claim.figure}", claim.shows, _reachable(claim.ran, evidence), result]
        )
    total = ", ".join(f"{verdict} {number}" for verdict, number in count.items())
    head = ["figure", "what the paper shows", "what was run here", "does it hold there"]
    table = grid(head, rows).replace("---:", "---")
    names = "; ".join(f"{short} {name}" for short, name in NAMES.items())
    return (
        f"{table}\n\n{names}. Of {len(rows)} lines: {total}. The last column is computed from "
        "the numbers kept here."
    )


def _reachable(text: str, evidence: Evidence) -> str:
    """Without links to studies that are not kept yet."""
    return STUDY.sub(lambda link: link[0] if evidence.has(link[1]) else link[1], text)


def judge_claim(claim: Claim, evidence: Evidence) -> Found:
    """What is known of a claim; not run, as long as its numbers are missing."""
    try:
        return Found(NOT, "") if claim.holds is None else claim.holds(evidence)
    except KeyError:
        return Found(NOT, "")


def _see(name: str) -> str:
    return f"[{name}](results/studies/{name}/README.md)"


WRN = (
    "MNIST at 14×14, WideResNet of one block and 32 channels, 1,000 candidates, six seeds "
    f"({_see('lookahead-mnist')})"
)
VARIED = (
    f"all of CIFAR-10, the paper's CNN, four seeds ({_see('dynamics-varied')}); digits, small "
    "CNN, three seeds "
    f"({_see('dynamics')})"
)
# What a line says was run is what was run, its reductions included; what would be needed is in
# docs/studies.md.
CLAIMS = (
    Claim(
        "LA",
        "1a, TH 2.1a",
        "look-ahead by the NTK is over 100 times faster than retraining for each candidate, and "
        "better (MNIST, WRN)",
        f"{WRN}; digits, dense network, retrained many at a time, five seeds ({_see('lookahead')})",
        checks.speed,
    ),
    Claim(
        "LA",
        "1b, TH 2.1b, Table 2.1",
        "of four ways to look ahead only the network's own kernel beats random (MNIST, WRN)",
        f"the same, in batches ({_see('lookahead-mnist')}, {_see('lookahead')})",
        checks.rivals,
    ),
    Claim(
        "LA",
        "2, 4, TH 2.2, A.1, A.4",
        "MLMOC in batches is level with or better than entropy, margin, BADGE and LL4AL on SVHN, "
        "CIFAR-10 and -100",
        "10,000 images of CIFAR-10 at 16×16, WideResNet of two groups and 32 channels, 6,000 "
        "candidates, three seeds; "
        "nothing of SVHN and CIFAR-100 ([below](#cifar-10-from-pixels-wide-residual-network))",
        checks.batches,
    ),
    Claim(
        "LA",
        "3a, TH 2.3 left",
        "MLMOC with a true label after each item beats MLMOC in batches (MNIST, WRN)",
        f"the same WideResNet ({_see('lookahead-mnist')}); MNIST, dense network, ten seeds "
        "([below](#one-by-one-or-in-batches))",
        checks.sequential,
    ),
    Claim(
        "LA",
        "3b, TH 2.3 middle",
        "whatever the width, MLMOC is above random (MNIST, WRN)",
        "digits, dense networks of 32 to 512 units, one by one, ten seeds "
        "([below](#networks-of-other-widths))",
        checks.widths,
    ),
    Claim(
        "TH",
        "2.3 right",
        "MLMOC and EMOC do not differ (MNIST, WRN)",
        f"the same WideResNet, in batches ({_see('lookahead-mnist')}); digits, dense network, ten "
        "seeds "
        "([below](#digits-dense-network))",
        checks.check_acquisition_functions,
    ),
    Claim(
        "LA",
        "5a, TH A.2a, A.3",
        "with no learning rate does LL4AL come near random (CIFAR-100)",
        "digits, dense network, three rates, five seeds ([below](#ll4al-and-the-learning-rate))",
        checks.ll4al,
    ),
    Claim(
        "LA",
        "5b, TH A.2b",
        "squared loss and cross-entropy do not differ",
        "digits, dense network, ten seeds ([below](#squared-loss-and-cross-entropy))",
        checks.losses,
    ),
    Claim(
        "LA",
        "Theorem 3.1",
        "warm starts on growing sets end where one cold start on the last set does",
        f"two-layer networks ({_see('linear')})",
        checks.check_nested_training,
    ),
    Claim(
        "TH",
        "3.15",
        "look-ahead by the pseudo-kernel is as accurate as by the full one in 15 % of its time "
        "(MNIST)",
        "MNIST, dense network, 500 candidates, six seeds "
        "([below](#four-kernels-the-same-campaigns))",
        checks.kernels,
    ),
    Claim(
        "PN",
        "1, TH 3.1",
        "the pseudo-kernel of a pair takes a small part of the full kernel's time (ResNets, 10 "
        "and 100 classes)",
        f"small WRNs and ResNet18, our own engine for both ({_see('wallclock')})",
        checks.pair_time,
    ),
    Claim(
        "PN",
        "2, TH 3.2, A.5",
        "off-diagonal entries of the full kernel fall with the width at initialisation (CIFAR-10, "
        "1,000 items)",
        f"CIFAR-10, 500 items, fcn of 64 to 2,048 units, three seeds ({_see('kernel-cifar10')}); "
        "digits, 60 items, "
        f"narrow networks of four kinds, three seeds ({_see('kernel')})",
        checks.falling("off_over_on", "off over on the diagonal"),
    ),
    Claim(
        "PN",
        "3, TH 3.3, A.6",
        "so does the pseudo-kernel's distance from the full one",
        f"the same ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.falling("distance_pseudo", "relative distance"),
    ),
    Claim(
        "PN",
        "Theorem 1, TH 3.3.1",
        "that distance falls as one over the root of the width",
        f"digits, 12 items, eight seeds, four kinds of network ({_see('kernel')})",
        checks.rate,
    ),
    Claim(
        "PN",
        "4, TH 3.4, A.7",
        "the gap of the largest eigenvalue falls with the width",
        f"the same ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.falling("largest_gap_pseudo", "relative gap"),
    ),
    Claim(
        "PN",
        "5, TH 3.5",
        "so does that of the smallest",
        f"the same ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.falling("smallest_gap_pseudo", "relative gap"),
    ),
    Claim(
        "PN",
        "6, TH 3.6",
        "and that of the condition number",
        f"the same ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.falling("condition_gap_pseudo", "relative gap"),
    ),
    Claim(
        "PN",
        "7, TH 3.7, 3.13, A.8",
        "both kernels' regressions come together as training goes on",
        f"the same, widest networks ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.vanishing,
    ),
    Claim(
        "PN",
        "8, TH 3.8",
        "regression by the pseudo-kernel is always at least as accurate",
        f"the same, all widths ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.ahead,
    ),
    Claim(
        "PN",
        "9 to 12, TH 3.9 to 3.12, 3.14, A.9",
        "regression on all of CIFAR-10, four networks of several widths along 200 epochs",
        f"none of its networks ({_see('regression')}; [what it would "
        "take](studies.md#not-run-here))",
        checks.whole,
    ),
    Claim(
        "TH",
        "A.10",
        "the rate's bound is tight up to constants",
        f"digits, three items, eight seeds ({_see('kernel')})",
        checks.tight,
    ),
    Claim(
        "DY",
        "1, 9",
        "MMD is far below the bound B, in every round",
        "all of CIFAR-10, nine rounds, five seeds, kernel of one convnet of 32 channels "
        f"({_see('dynamics-whole')})",
        checks.drift,
    ),
    Claim(
        "DY",
        "2",
        "training dynamics with true labels go with the alignment: “a strong agreement”",
        "the same kernel, 2,000 items, five seeds, and digits, three "
        f"({_see('dynamics-cifar10')}, {_see('dynamics')})",
        checks.check_time_correlation(("true", "alignment"), 0.46),
    ),
    Claim(
        "DY",
        "6",
        "with pseudo-labels Kendall's τ is 0.46",
        "the same",
        checks.check_time_correlation(("pseudo", "alignment"), 0.46),
    ),
    Claim(
        "DY",
        "7",
        "training dynamics go against the bound B: τ is −0.253",
        "the same",
        checks.check_time_correlation(("true", "bound"), -0.253),
    ),
    Claim(
        "DY",
        "3, Table 2",
        "nothing is ahead of dynamicAL in any round (CIFAR-10, CNN, 250 a round)",
        f"the same: all 50,000, nine rounds, five seeds ({_see('dynamics-whole')}, "
        "[below](#dynamical-on-cifar-10))",
        checks.leads,
    ),
    Claim(
        "DY",
        "Table 3",
        "with 500 a round only margin is, by 0.01 points in the first",
        "nothing ([what it would take](studies.md#not-run-here))",
        checks.larger_batches,
    ),
    Claim(
        "DY",
        "4",
        "the approximation ratio R comes to 1 as training converges",
        f"CIFAR-10, CNN, random batches, five seeds ({_see('dynamics-cifar10')})",
        checks.ratio,
    ),
    Claim("DY", "5", "γ = 2 is best of 0, 1, 2, ∞ (CIFAR-10)", VARIED, checks.gamma),
    Claim(
        "DY",
        "Tables 1, 10",
        "one budget in more rounds is more accurate, with smaller MMD/B (CIFAR-10, SVHN, "
        "Caltech101)",
        VARIED,
        checks.rounds,
    ),
    Claim(
        "DY",
        "Tables 11, 12",
        "from new weights in each round dynamicAL is better than or competitive with others "
        "(CIFAR-10, SVHN)",
        VARIED,
        checks.reset,
    ),
    Claim(
        "DY",
        "8, 10, Tables 4 to 9",
        "dynamicAL leads in nearly all rounds with ResNet18 and VGG11 on CIFAR-10, SVHN and "
        "Caltech101",
        "of Table 8: Caltech101 at 64×64, ResNet18 of 16 channels, three rounds of 500 (nine "
        "there), three seeds "
        "([below](#caltech101-resnet18-from-scratch)); nothing else of it",
        checks.other_networks,
    ),
    Claim(
        "LE",
        "linearisation",
        "the error of the linearised two-layer network is below its bounds, for smooth σ and for "
        "ReLU",
        f"tanh and ReLU, 16 to 4,096 units, five seeds ({_see('linear')})",
        checks.check_linear_bounds,
    ),
    Claim(
        "LE",
        "arc-cosine",
        "the kernel of a wide ReLU network comes to the arc-cosine kernel as m^(−1/2)",
        f"the same ({_see('linear')})",
        checks.power("limit", "error", -0.5),
    ),
    Claim(
        "LE",
        "gradient flow",
        "a wide network follows gradient flow in closed form",
        f"the same, tanh ({_see('linear')})",
        checks.flow,
    ),
    Claim(
        "LE",
        "scaling",
        "a small scale “zooms in” on the Taylor expansion (here: outputs times α, weights move "
        "1/α)",
        f"128 units, α from 0.3 to 100 ({_see('linear')})",
        checks.lazy,
    ),
    Claim(
        "LE",
        "ReLU's bound",
        "with probability 1 − δ no W within B of W₀ has a larger linearisation error than (2∛B⁴ + "
        "B∜log(1/δ))/⁶√m",
        "the supremum itself, 64 to 65,536 units, five seeds of 200 draws "
        f"({_see('linear-theory')})",
        checks.supremum,
    ),
    Claim(
        "LA",
        "(9)",
        "in training the kernel moves, and the outputs leave the linearised network's, by "
        "O(1/√width)",
        "ReLU networks of 1, 2, 4 hidden layers, 32 to 1,024 units, five seeds "
        f"({_see('linear-theory')})",
        checks.moving,
    ),
    Claim(
        "LE",
        "Theorem 3.2",
        "a trained network κf comes to regression with the infinite kernel, for small κ and "
        "enough width",
        f"two hidden layers, 32 to 1,024 units, five seeds ({_see('linear-theory')})",
        checks.equivalent,
    ),
    Claim(
        "LE",
        "universality",
        "the arc-cosine kernel is universal where the last coordinate is 1/√2",
        f"an odd and an even target in four dimensions, five seeds ({_see('linear-theory')})",
        checks.everything,
    ),
    Claim(
        "LE",
        "separation",
        "there are targets that networks learn and kernels do not",
        f"one ReLU unit, 10 to 40 dimensions, five seeds ({_see('linear-theory')})",
        checks.check_separation,
    ),
    Claim(
        "PN",
        "Theorem 5, TH 3.3.4",
        "the gap of the largest eigenvalues, over √w, falls as w^(−1/2)",
        f"digits, fcn of 64 to 1,024 units, 20 items, eight seeds ({_see('kernel-theorems')})",
        checks.theorem("gap"),
    ),
    Claim(
        "PN",
        "Theorem 6, TH 3.3.5",
        "so does the distance of both kernels' regressions",
        f"the same, 20 items to regress at ({_see('kernel-theorems')})",
        checks.theorem("apart"),
    ),
    Claim(
        "TH",
        "Lemmas A.7.5 to A.7.8",
        "entries of each layer's kernel grow no faster than n on and √n off the diagonal",
        f"ReLU, four hidden layers of 64 to 1,024 units, eight seeds ({_see('kernel-theorems')})",
        checks.lemmas,
    ),
    Claim(
        "DY",
        "Lemma 1",
        "the residual along training is what the kernel says, for wide networks",
        f"digits, fcn of 16 to 1,024 units, 50 items, five seeds ({_see('dynamics-lemmas')})",
        checks.first_lemma,
    ),
    Claim(
        "DY",
        "App. B.3",
        "what stands beside MMD in the bound may be left out",
        f"digits, kernel of a new convnet, random batches, five seeds ({_see('dynamics-lemmas')})",
        checks.check_dropped_term,
    ),
)
