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
    head = ["figure", "what the paper shows", "what was run here", "does it hold?"]
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
        checks.check_speed,
    ),
    Claim(
        "LA",
        "1b, TH 2.1b, Table 2.1",
        "of four forms of look-ahead, only the one with the network's own kernel is better "
        "than random (MNIST, WRN)",
        f"the same, in batches ({_see('lookahead-mnist')}, {_see('lookahead')})",
        checks.check_lookahead_methods,
    ),
    Claim(
        "LA",
        "2, 4, TH 2.2, A.1, A.4",
        "MLMOC in batches is at least as good as entropy, margin, BADGE and LL4AL on SVHN, "
        "CIFAR-10 and -100",
        "10,000 images of CIFAR-10 at 16×16, WideResNet of two groups and 32 channels, 6,000 "
        "candidates, three seeds; "
        "SVHN and CIFAR-100 were not run ([below](#cifar-10-from-pixels-wide-residual-network))",
        checks.check_batches,
    ),
    Claim(
        "LA",
        "3a, TH 2.3 left",
        "MLMOC with a true label after each item beats MLMOC in batches (MNIST, WRN)",
        f"the same WideResNet ({_see('lookahead-mnist')}); MNIST, dense network, ten seeds "
        "([below](#one-by-one-or-in-batches))",
        checks.check_sequential,
    ),
    Claim(
        "LA",
        "3b, TH 2.3 middle",
        "MLMOC is better than random at every width (MNIST, WRN)",
        "digits, dense networks of 32 to 512 units, one by one, ten seeds "
        "([below](#networks-of-other-widths))",
        checks.check_widths,
    ),
    Claim(
        "TH",
        "2.3 right",
        "MLMOC and EMOC do not differ (MNIST, WRN)",
        f"the same WideResNet, in batches ({_see('lookahead-mnist')}); digits, dense network, ten "
        "seeds "
        "([clean pools](results-networks.md#digits-dense-network))",
        checks.check_acquisition_functions,
    ),
    Claim(
        "LA",
        "5a, TH A.2a, A.3",
        "LL4AL stays well below random at every learning rate (CIFAR-100)",
        "digits, dense network, three rates, five seeds ([below](#ll4al-and-the-learning-rate))",
        checks.check_ll4al,
    ),
    Claim(
        "LA",
        "5b, TH A.2b",
        "squared loss and cross-entropy give the same accuracy",
        "digits, dense network, ten seeds ([below](#squared-loss-and-cross-entropy))",
        checks.check_losses,
    ),
    Claim(
        "LA",
        "Theorem 3.1",
        "warm starts on growing training sets converge to the solution of one cold start on "
        "the last set",
        f"two-layer networks ({_see('linear')})",
        checks.check_nested_training,
    ),
    Claim(
        "TH",
        "3.15",
        "look-ahead with the pseudo-kernel is as accurate as with the full kernel, in 15 % of "
        "its time (MNIST)",
        "MNIST, dense network, 500 candidates, six seeds "
        "([below](#four-kernels-the-same-campaigns))",
        checks.check_kernels,
    ),
    Claim(
        "PN",
        "1, TH 3.1",
        "the pseudo-kernel of a pair takes a small fraction of the time of the full kernel "
        "(ResNets, 10 and 100 classes)",
        f"small WRNs and ResNet18, our own engine for both ({_see('wallclock')})",
        checks.check_pair_time,
    ),
    Claim(
        "PN",
        "2, TH 3.2, A.5",
        "off-diagonal entries of the full kernel shrink as the width grows, at initialisation "
        "(CIFAR-10, 1,000 items)",
        f"CIFAR-10, 500 items, fcn of 64 to 2,048 units, three seeds ({_see('kernel-cifar10')}); "
        "digits, 60 items, "
        f"narrow networks of four kinds, three seeds ({_see('kernel')})",
        checks.check_decrease_with_width("off_over_on", "off-diagonal over diagonal entries"),
    ),
    Claim(
        "PN",
        "3, TH 3.3, A.6",
        "the distance of the pseudo-kernel from the full one shrinks, too",
        f"the same ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.check_decrease_with_width("distance_pseudo", "relative distance"),
    ),
    Claim(
        "PN",
        "Theorem 1, TH 3.3.1",
        "this distance decreases as one over the square root of the width",
        f"digits, 12 items, eight seeds, four kinds of network ({_see('kernel')})",
        checks.check_rate,
    ),
    Claim(
        "PN",
        "4, TH 3.4, A.7",
        "the gap between the largest eigenvalues of the two kernels shrinks as the width grows",
        f"the same ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.check_decrease_with_width("largest_gap_pseudo", "relative gap"),
    ),
    Claim(
        "PN",
        "5, TH 3.5",
        "the gap between their smallest eigenvalues shrinks, too",
        f"the same ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.check_decrease_with_width("smallest_gap_pseudo", "relative gap"),
    ),
    Claim(
        "PN",
        "6, TH 3.6",
        "the gap between their condition numbers shrinks, too",
        f"the same ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.check_decrease_with_width("condition_gap_pseudo", "relative gap"),
    ),
    Claim(
        "PN",
        "7, TH 3.7, 3.13, A.8",
        "regressions with the two kernels approach each other during training",
        f"the same, widest networks ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.check_vanishing_difference,
    ),
    Claim(
        "PN",
        "8, TH 3.8",
        "regression with the pseudo-kernel is always at least as accurate as with the full one",
        f"the same, all widths ({_see('kernel-cifar10')}, {_see('kernel')})",
        checks.check_regression_accuracy,
    ),
    Claim(
        "PN",
        "9 to 12, TH 3.9 to 3.12, 3.14, A.9",
        "regression on all of CIFAR-10, four networks of several widths during 200 epochs",
        f"none of the paper's networks ({_see('regression')}; [what it would "
        "take](studies.md#not-run-here))",
        checks.check_whole_cifar10,
    ),
    Claim(
        "TH",
        "A.10",
        "the rate's bound is tight up to constants",
        f"digits, three items, eight seeds ({_see('kernel')})",
        checks.check_tightness,
    ),
    Claim(
        "DY",
        "1, 9",
        "MMD is far below the bound B, in every round",
        "all of CIFAR-10, nine rounds, five seeds, kernel of one convnet of 32 channels "
        f"({_see('dynamics-whole')})",
        checks.check_mmd,
    ),
    Claim(
        "DY",
        "2",
        "training dynamics with true labels are strongly correlated with the alignment",
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
        "training dynamics are negatively correlated with the bound B: τ is −0.253",
        "the same",
        checks.check_time_correlation(("true", "bound"), -0.253),
    ),
    Claim(
        "DY",
        "3, Table 2",
        "no strategy is better than dynamicAL in any round (CIFAR-10, CNN, 250 labels per round)",
        f"the same: all 50,000, nine rounds, five seeds ({_see('dynamics-whole')}, "
        "[below](#dynamical-on-cifar-10))",
        checks.check_lead,
    ),
    Claim(
        "DY",
        "Table 3",
        "with 500 labels per round only margin is better, by 0.01 points in the first round",
        "nothing ([what it would take](studies.md#not-run-here))",
        checks.check_larger_batches,
    ),
    Claim(
        "DY",
        "4",
        "the approximation ratio R tends to 1 as training converges",
        f"CIFAR-10, CNN, random batches, five seeds ({_see('dynamics-cifar10')})",
        checks.check_approximation_ratio,
    ),
    Claim("DY", "5", "γ = 2 is the best of 0, 1, 2, ∞ (CIFAR-10)", VARIED, checks.check_gamma),
    Claim(
        "DY",
        "Tables 1, 10",
        "splitting the same budget into more rounds gives a higher accuracy and a smaller "
        "MMD/B (CIFAR-10, SVHN, Caltech101)",
        VARIED,
        checks.check_rounds,
    ),
    Claim(
        "DY",
        "Tables 11, 12",
        "with new initial weights in each round dynamicAL is better than or competitive with "
        "the others (CIFAR-10, SVHN)",
        VARIED,
        checks.check_reset_weights,
    ),
    Claim(
        "DY",
        "8, 10, Tables 4 to 9",
        "dynamicAL leads in nearly all rounds with ResNet18 and VGG11 on CIFAR-10, SVHN and "
        "Caltech101",
        "a part of Table 8: Caltech101 at 64×64, ResNet18 of 16 channels, three rounds of 500 (nine "
        "there), three seeds "
        "([below](#caltech101-resnet18-from-scratch)); the rest was not run",
        checks.check_other_networks,
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
        "the kernel of a wide ReLU network converges to the arc-cosine kernel as m^(−1/2)",
        f"the same ({_see('linear')})",
        checks.check_exponent("limit", "error", -0.5),
    ),
    Claim(
        "LE",
        "gradient flow",
        "the training of a wide network follows the closed form of gradient flow",
        f"the same, tanh ({_see('linear')})",
        checks.check_gradient_flow,
    ),
    Claim(
        "LE",
        "scaling",
        "with a small scale, training follows the Taylor expansion around the initial weights "
        "(here: outputs times α, weights move by 1/α)",
        f"128 units, α from 0.3 to 100 ({_see('linear')})",
        checks.check_scaling,
    ),
    Claim(
        "LE",
        "ReLU's bound",
        "with probability 1 − δ no W within B of W₀ has a larger linearisation error than (2∛B⁴ + "
        "B∜log(1/δ))/⁶√m",
        "the supremum itself, 64 to 65,536 units, five seeds of 200 draws "
        f"({_see('linear-theory')})",
        checks.check_supremum,
    ),
    Claim(
        "LA",
        "(9)",
        "during training the kernel changes by O(1/√width), and so does the distance of the "
        "outputs from the linearised network's",
        "ReLU networks of 1, 2, 4 hidden layers, 32 to 1,024 units, five seeds "
        f"({_see('linear-theory')})",
        checks.check_kernel_movement,
    ),
    Claim(
        "LE",
        "Theorem 3.2",
        "a trained network κf converges to regression with the infinite kernel, for small κ "
        "and sufficient width",
        f"two hidden layers, 32 to 1,024 units, five seeds ({_see('linear-theory')})",
        checks.check_equivalence,
    ),
    Claim(
        "LE",
        "universality",
        "the arc-cosine kernel is universal where the last coordinate is 1/√2",
        f"an odd and an even target in four dimensions, five seeds ({_see('linear-theory')})",
        checks.check_universality,
    ),
    Claim(
        "LE",
        "separation",
        "some targets can be learnt by networks, but not by kernels",
        f"one ReLU unit, 10 to 40 dimensions, five seeds ({_see('linear-theory')})",
        checks.check_separation,
    ),
    Claim(
        "PN",
        "Theorem 5, TH 3.3.4",
        "the gap between the largest eigenvalues, divided by √w, decreases as w^(−1/2)",
        f"digits, fcn of 64 to 1,024 units, 20 items, eight seeds ({_see('kernel-theorems')})",
        checks.check_theorem("gap"),
    ),
    Claim(
        "PN",
        "Theorem 6, TH 3.3.5",
        "the distance between the regressions with the two kernels decreases at the same rate",
        f"the same, 20 items to regress at ({_see('kernel-theorems')})",
        checks.check_theorem("apart"),
    ),
    Claim(
        "TH",
        "Lemmas A.7.5 to A.7.8",
        "in each layer's kernel, diagonal entries grow no faster than n, others no faster than √n",
        f"ReLU, four hidden layers of 64 to 1,024 units, eight seeds ({_see('kernel-theorems')})",
        checks.check_lemmas,
    ),
    Claim(
        "DY",
        "Lemma 1",
        "for wide networks the residual during training is what the kernel predicts",
        f"digits, fcn of 16 to 1,024 units, 50 items, five seeds ({_see('dynamics-lemmas')})",
        checks.check_first_lemma,
    ),
    Claim(
        "DY",
        "App. B.3",
        "the terms beside MMD in the bound are negligible",
        f"digits, kernel of a new convnet, random batches, five seeds ({_see('dynamics-lemmas')})",
        checks.check_dropped_term,
    ),
)
