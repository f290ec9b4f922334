"""Reports of synthetic comparisons with known numbers."""

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from labelahead.errors import InputError, StorageError
from labelahead.learner.config import to_toml
from labelahead.simulation.comparison import read_comparison, report
from labelahead.simulation.comparison.curves import read_curves
from labelahead.simulation.comparison.figures import (
    _assign_styles,
    _draw_critical_difference,
    _draw_curves,
    _draw_differences,
    _draw_intervals,
)
from labelahead.simulation.comparison.plan import parse_contender
from labelahead.simulation.comparison.plot_style import RenderedFigure
from labelahead.simulation.comparison.summary import summarise
from labelahead.simulation.comparison.tables import headline, labels, p_text, seconds
from labelahead.simulation.store import Store
from labelahead.strategies import STRATEGIES
from tests.support.comparisons import LABELS, made_up, random_curves

FOUR = {"random": 0.0, "entropy": -0.01, "margin": 0.05, "flip": 0.1}


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take the time, and most tests look at numbers and words."""
    one = RenderedFigure("curves", b"png", b"svg", "<svg></svg>")
    monkeypatch.setattr(
        "labelahead.simulation.comparison.report_page.draw_figures", lambda s: {"curves": one}
    )


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Page(HTMLParser):
    """What a page holds: its text, and its tags with their attributes."""

    VOID = ("meta", "br", "link", "img", "hr")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).replace("\u00a0", " ").split())


def page(written):
    found = Page(written.page.read_text())
    assert found.open == []
    # nothing undefined is ever shown
    assert not re.search(r"\b(nan|inf|None|Estimate|undefined)\b", found.text), found.text
    return found


def test_report_numbers_match_scipy(tmp_path, undrawn):
    curves = random_curves(6, FOUR)
    report(made_up(tmp_path / "a", curves))
    folder = tmp_path / "a" / "report"
    width = LABELS[-1] - LABELS[0]
    areas = {
        name: np.array([np.trapezoid(c, LABELS) / width for c in by_seed.values()])
        for name, by_seed in curves.items()
    }
    for row in rows(folder / "summary.csv"):
        mine = areas[row["strategy"]]
        low, high = stats.t.interval(0.95, 5, mine.mean(), stats.sem(mine))
        assert float(row["area"]) == pytest.approx(mine.mean())
        assert (float(row["area_low"]), float(row["area_high"])) == pytest.approx((low, high))
        ends = [c[-1] for c in curves[row["strategy"]].values()]
        assert float(row["final"]) == pytest.approx(np.mean(ends))
        assert float(row["seconds_kernel"]) == 0.2
        assert "seconds_test" not in row
        if row["strategy"] != "random":
            gap = mine - areas["random"]
            assert float(row["area_minus_reference"]) == pytest.approx(gap.mean())
    for row in rows(folder / "tests.csv"):
        wanted = stats.ttest_rel(areas[row["first"]], areas[row["second"]])
        assert float(row["p_paired_t"]) == pytest.approx(wanted.pvalue)
        assert float(row["p_holm"]) >= float(row["p_paired_t"])
    s = summarise(read_curves(tmp_path / "a"))
    wanted = stats.friedmanchisquare(*areas.values())
    assert s.by_seed.p == pytest.approx(wanted.pvalue)
    assert s.by_seed.blocks == 6
    assert s.by_round.blocks == 6 * 3  # without the first round, which all share
    curve = [r for r in rows(folder / "curves.csv") if r["strategy"] == "flip"]
    at = np.array([c[2] for c in curves["flip"].values()])
    gap = at - np.array([c[2] for c in curves["random"].values()])
    assert float(curve[2]["accuracy"]) == pytest.approx(at.mean())
    low, high = stats.t.interval(0.95, 5, gap.mean(), stats.sem(gap))
    assert float(curve[2]["difference_low"]) == pytest.approx(low)
    assert float(curve[2]["difference_high"]) == pytest.approx(high)
    assert len(rows(folder / "rounds.csv")) == 4 * 6 * 4


def test_headline_of_winning_strategy(tmp_path, undrawn):
    curves = {
        "random": {s: [0.5, 0.6, 0.7, 0.8 + 0.001 * s] for s in (0, 1, 2)},
        "flip": {s: [0.5, 0.7, 0.9, 0.95 + 0.002 * s] for s in (0, 1, 2)},
    }
    written = report(made_up(tmp_path / "a", curves))
    # random's mean curve ends at 80.1 %; flip's passes it at 20 + 10·0.101/0.2 = 25.05
    assert written.headline == "random needs 40 labels for what flip reaches with 25."
    assert "1.6 times as many (95 % interval 1.6 to 1.6) for 80.1 % test accuracy" in (
        written.explanation
    )
    found = page(written)
    first = next(i for i, (tag, _) in enumerate(found.tags) if tag == "h1")
    assert "p" not in [tag for tag, a in found.tags[:first] if a.get("class") != "kicker"]
    assert found.text.index(written.headline) < found.text.index("Learning curves")


def test_headline_without_winner(tmp_path, undrawn):
    below = {"random": 0.05, "margin": 0.0, "entropy": 0.01}
    written = report(made_up(tmp_path / "a", random_curves(5, below)))
    assert written.headline == "No strategy beat random."
    assert "below random" in written.explanation
    page(written)
    early = {
        "random": {s: [0.5, 0.6, 0.7, 0.8] for s in range(3)},
        "margin": {s: [0.5, 0.7, 0.75, 0.76] for s in range(3)},
    }
    written = report(made_up(tmp_path / "b", early))
    assert "ahead of random along the way but does not reach the 80.0 %" in written.headline
    page(written)


def test_headline_marks_insignificant_lead(tmp_path, undrawn):
    written = report(made_up(tmp_path / "a", random_curves(3, {"random": 0, "flip": 0.004}, 0.03)))
    assert "may be chance" in written.explanation or "No strategy" in written.headline
    assert any("Only 3 seeds" in w for w in written.warnings)


def test_report_with_one_seed(tmp_path):
    written = report(made_up(tmp_path / "a", random_curves(1, FOUR)))
    text = page(written).text
    assert "one seed gives no interval and no test" in text
    assert "No test was made" in text
    assert "interval 1" not in written.explanation
    assert any("One seed" in w for w in written.warnings)
    assert not (written.page.parent / "critical-difference.png").exists()


def test_report_with_identical_curves(tmp_path):
    same = {s: [0.5, 0.6, 0.7, 0.8] for s in range(5)}
    written = report(made_up(tmp_path / "a", {"random": same, "margin": same, "flip": same}))
    text = page(written).text
    assert written.headline == "No strategy beat random."
    assert "p = 1.00" in text
    assert "does not differ significantly" in text
    for row in rows(written.page.parent / "tests.csv"):
        assert [float(row[k]) for k in ("p_paired_t", "p_holm", "p_nemenyi")] == [1, 1, 1]


def test_report_uses_wilcoxon_for_two_strategies(tmp_path, undrawn):
    curves = random_curves(6, {"random": 0, "flip": 0.1})
    written = report(made_up(tmp_path / "a", curves))
    assert "Wilcoxon’s signed-rank test" in page(written).text
    s = summarise(read_curves(tmp_path / "a"))
    assert s.by_seed.p == pytest.approx(2 / 2**6)
    assert s.ranks is None


def test_report_with_one_strategy(tmp_path):
    written = report(made_up(tmp_path / "a", random_curves(3, {"random": 0})))
    assert "nothing to compare it with" in written.headline
    page(written)


def test_report_with_one_round(tmp_path):
    curves = {"random": {0: [0.5], 1: [0.6]}, "margin": {0: [0.5], 1: [0.6]}, "flip": {0: [0.7]}}
    written = report(made_up(tmp_path / "a", curves, labels=(10,)))
    page(written)
    assert summarise(read_curves(tmp_path / "a")).by_round is None


def test_report_pairs_common_seeds(tmp_path, undrawn):
    curves = {k: dict(v) for k, v in random_curves(5, FOUR).items()}
    for seed in (0, 3):
        del curves["flip"][seed]
    folder = made_up(tmp_path / "a", curves)
    written = report(folder)
    assert any("2 campaigns are not finished" in w for w in written.warnings)
    s = summarise(read_curves(folder))
    assert s.pair(parse_contender("flip"), parse_contender("random")).difference.n == 3
    assert s.pair(parse_contender("margin"), parse_contender("random")).difference.n == 5
    assert s.by_seed.blocks == 3
    assert "flip, seed 0; flip, seed 3" in page(written).text
    curves["flip"] = {}  # none at all: left out, and said
    text = (folder / "compare.toml").read_text()
    again = made_up(tmp_path / "b", {k: v for k, v in curves.items() if v})
    (again / "compare.toml").write_text(text)
    written = report(again)
    assert any("5 campaigns are not finished" in w for w in written.warnings)
    page(written)


def test_report_without_common_seed(tmp_path):
    curves = random_curves(4, {"random": 0, "margin": 0.1})
    apart = {
        "random": {s: curves["random"][s] for s in (0, 1)},
        "margin": {s: curves["margin"][s] for s in (2, 3)},
    }
    written = report(made_up(tmp_path / "a", apart))
    page(written)
    assert "nothing to compare" in written.headline


def test_report_warns_of_unfair_comparison(tmp_path, undrawn):
    folder = made_up(tmp_path / "a", random_curves(2, {"random": 0, "margin": 0.1}))
    assert all(c.holds for c in read_curves(folder).checks)
    text = page(report(folder)).text
    assert "the same 10 initial labels, compared one by one" in text
    where = folder / "margin" / "seed-1"
    lines = (where / "labels.jsonl").read_text().replace('"position":3', '"position":77', 1)
    (where / "labels.jsonl").write_text(lines)
    comparison = read_comparison(folder)
    usual = comparison.campaign_for(parse_contender("margin"), 1)
    other = replace(usual, training={**usual.training, "steps": 7})
    (where / "config.toml").write_text(to_toml(other))
    (where / "data.json").write_text(json.dumps({"name": "y"}))
    found = read_curves(folder)
    assert [c.holds for c in found.checks] == [False, False, False]
    written = report(folder)
    text = page(written).text
    assert "first labels differ from those of the same seed's others: margin, seed 1" in text
    assert "training.steps" in text
    assert len(written.warnings) == 4


def test_curves_with_different_label_counts_are_interpolated(tmp_path, undrawn):
    folder = made_up(tmp_path / "a", random_curves(2, {"random": 0, "margin": 0.1}))
    path = folder / "margin" / "seed-0" / "rounds.jsonl"
    path.write_text(path.read_text().replace('"labels":30', '"labels":32'))
    found = read_curves(folder)
    assert found.labels.tolist() == [10, 20, 30, 32, 40]
    assert any("differing numbers of labels" in w for w in report(folder).warnings)


def test_report_page_is_self_contained(tmp_path):
    folder = made_up(tmp_path / "a", random_curves(6, FOUR))
    (folder / "events.jsonl").write_text(
        json.dumps({"campaign": "flip, seed 1", "what": "died", "detail": "by signal SIGKILL"})
        + '\n{"cut sho'
    )
    written = report(folder, accuracies=[0.7, 0.99])
    found = page(written)
    text = written.page.read_text()
    assert "<script" not in text
    assert not re.search(r'(src|href)="(http|//)|url\((?!#)|@import', text)
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids)) > 10
    targets = {a.get("xlink:href") or a.get("href") for tag, a in found.tags if tag == "use"}
    assert {t.removeprefix("#") for t in targets} <= set(ids)
    pictures = [a for _, a in found.tags if a.get("role") == "img"]
    assert len(pictures) == sum(tag == "svg" for tag, _ in found.tags) == 4
    assert all(len(a["aria-label"]) > 30 for a in pictures)
    for tag, attributes in found.tags:  # what it links to lies beside it
        if tag == "a":
            assert (written.page.parent / attributes["href"]).stat().st_size > 0
    assert all(a.get("scope") for tag, a in found.tags if tag == "th")
    assert "prefers-color-scheme: dark" in text
    assert "its worker died by signal SIGKILL" in found.text
    assert "labels to 70.0 %" in found.text
    assert "> 40" in found.text  # 99 % is never reached
    assert "Mohamadi" not in found.text
    assert STRATEGIES["margin"].paper in found.text
    for name in ("curves", "difference", "intervals", "critical-difference"):
        with Image.open(written.page.parent / f"{name}.png") as picture:
            assert picture.size[0] > 1000
            assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    before = {p.name: p.read_bytes() for p in written.page.parent.iterdir()}
    report(folder, accuracies=[0.7, 0.99])
    assert {p.name: p.read_bytes() for p in written.page.parent.iterdir()} == before


def test_report_contains_reproducing_command(tmp_path, undrawn):
    curves = random_curves(4, {"random": 0, "flip:greedy": 0.1})
    for by_seed in curves.values():
        by_seed[7] = by_seed.pop(3)
    written = report(made_up(tmp_path / "a", curves), out=tmp_path / "elsewhere")
    assert written.page.parent == tmp_path / "elsewhere"
    text = page(written).text
    assert "--strategies random,flip:greedy --seed 0 --seeds 3 --out again" in text
    assert "--seed 7 --seeds 1 --out again" in text
    from labelahead.learner.config import load_campaign

    again = load_campaign(tmp_path / "elsewhere" / "campaign.toml", [], {})
    assert again.budget == read_comparison(tmp_path / "a").campaign.budget


def test_report_escapes_names(tmp_path, undrawn):
    folder = made_up(tmp_path / "a", random_curves(2, {"random": 0, "margin": 0.1}))
    evil = "<script>alert(1)</script>&"
    for path in folder.rglob("*.toml"):
        path.write_text(path.read_text().replace('"digits"', json.dumps(evil)))
    written = report(folder)
    assert "<script" not in written.page.read_text()
    assert f'name = "{evil}"' in page(written).text


def test_contender_styles_are_distinct(tmp_path, undrawn):
    many = dict.fromkeys([*STRATEGIES][:11], 0.0) | {"flip:top": 0.0, "mlmoc:greedy": 0.0}
    folder = made_up(tmp_path / "a", random_curves(2, many, 0.05))
    s = summarise(read_curves(folder))
    styles = _assign_styles(s)
    looks = [(v.color, v.marker, str(v.dash)) for v in styles.values()]
    assert len(set(looks)) == len(looks) == len(many)
    for draw in (_draw_curves, _draw_differences, _draw_intervals, _draw_critical_difference):
        draw(s, styles)
    page(report(folder))


def test_report_invalid_folders_raise(tmp_path):
    with pytest.raises(InputError, match="no comparison"):
        report(tmp_path)
    folder = made_up(tmp_path / "a", random_curves(1, {"random": 0}))
    with pytest.raises(InputError, match="expected a fraction"):
        report(folder, accuracies=[90])
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        report(folder, out=tmp_path / "file")
    rounds = folder / "random" / "seed-0" / "rounds.jsonl"
    whole = rounds.read_text()
    rounds.write_text("\n".join(whole.splitlines()[:-1]) + "\n")
    with pytest.raises(InputError, match="no finished campaign"):
        report(folder)
    rounds.write_text(whole)
    with Store.open(folder / "random" / "seed-0") as store:
        last = store.read_rounds()[-1]
    rounds.write_text(whole.replace(f'"accuracy":{last.accuracy}', '"accuracy":null'))
    with pytest.raises(InputError, match="without a test accuracy"):
        report(folder)


def test_report_sentences():
    assert [p_text(p) for p in (0.0, 0.00049, 0.0123, 0.5, 1.0)] == [
        "p < 0.001",
        "p < 0.001",
        "p = 0.012",
        "p = 0.50",
        "p = 1.00",
    ]
    assert labels(float("inf"), 40) == "> 40"
    assert [seconds(v) for v in (None, 0.0, 0.0123, 1.26, 123.4)] == [
        "—",
        "< 0.001",
        "0.012",
        "1.3",
        "123",
    ]


def test_headline_with_equal_label_counts(tmp_path):
    curves = {
        "random": {s: [0.5, 0.8, 0.8, 0.8] for s in range(3)},
        "margin": {s: [0.5, 0.8, 0.9, 0.9] for s in range(3)},
    }
    s = summarise(read_curves(made_up(tmp_path / "a", curves)))
    assert "saves no labels" in headline(s)[0]
