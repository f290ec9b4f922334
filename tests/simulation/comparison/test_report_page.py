"""Reports of synthetic comparisons with known numbers."""

import json
import re

import pytest
from PIL import Image

from labelahead.errors import InputError, StorageError
from labelahead.simulation.comparison import read_comparison, report
from labelahead.simulation.comparison.curves import read_curves
from labelahead.simulation.comparison.summary import summarise
from labelahead.simulation.store import Store
from labelahead.strategies import STRATEGIES
from tests.support.comparisons import made_up, random_curves
from tests.support.report_pages import parse_page, read_csv_rows

FOUR = {"random": 0.0, "entropy": -0.01, "margin": 0.05, "flip": 0.1}


def test_report_with_one_seed_makes_no_test(tmp_path):
    written_report = report(made_up(tmp_path / "a", random_curves(1, FOUR)))
    text = parse_page(written_report).text
    assert "one seed gives no interval and no test" in text
    assert "No test was made" in text
    assert "interval 1" not in written_report.explanation
    assert any("One seed" in w for w in written_report.warnings)
    assert not (written_report.page.parent / "critical-difference.png").exists()


def test_report_with_identical_curves_finds_no_difference(tmp_path):
    same = {s: [0.5, 0.6, 0.7, 0.8] for s in range(5)}
    written_report = report(made_up(tmp_path / "a", {"random": same, "margin": same, "flip": same}))
    text = parse_page(written_report).text
    assert written_report.headline == "No strategy beat random."
    assert "p = 1.00" in text
    assert "does not differ significantly" in text
    for row in read_csv_rows(written_report.page.parent / "tests.csv"):
        assert [float(row[k]) for k in ("p_paired_t", "p_holm", "p_nemenyi")] == [1, 1, 1]


def test_report_uses_wilcoxon_for_two_strategies(tmp_path, without_figures):
    curves = random_curves(6, {"random": 0, "flip": 0.1})
    written_report = report(made_up(tmp_path / "a", curves))
    assert "Wilcoxon’s signed-rank test" in parse_page(written_report).text
    s = summarise(read_curves(tmp_path / "a"))
    assert s.by_seed.p == pytest.approx(2 / 2**6)
    assert s.ranks is None


def test_report_with_one_strategy_compares_nothing(tmp_path):
    written_report = report(made_up(tmp_path / "a", random_curves(3, {"random": 0})))
    assert "no other strategy has finished" in written_report.headline
    parse_page(written_report)


def test_report_without_common_seed_compares_nothing(tmp_path):
    curves = random_curves(4, {"random": 0, "margin": 0.1})
    apart = {
        "random": {s: curves["random"][s] for s in (0, 1)},
        "margin": {s: curves["margin"][s] for s in (2, 3)},
    }
    written_report = report(made_up(tmp_path / "a", apart))
    parse_page(written_report)
    assert "no other strategy has finished on the same seeds" in written_report.headline


def test_report_page_is_self_contained(tmp_path):
    folder = made_up(tmp_path / "a", random_curves(6, FOUR))
    (folder / "events.jsonl").write_text(
        json.dumps({"campaign": "flip, seed 1", "what": "died", "detail": "by signal SIGKILL"})
        + '\n{"cut sho'
    )
    written_report = report(folder, accuracies=[0.7, 0.99])
    found = parse_page(written_report)
    text = written_report.page.read_text()
    assert "<script" not in text
    assert not re.search(r'(src|href)="(http|//)|url\((?!#)|@import', text)
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids)) > 10
    targets = {a.get("xlink:href") or a.get("href") for tag, a in found.tags if tag == "use"}
    assert {t.removeprefix("#") for t in targets} <= set(ids)
    pictures = [a for _, a in found.tags if a.get("role") == "img"]
    assert len(pictures) == sum(tag == "svg" for tag, _ in found.tags) == 4
    assert all(len(a["aria-label"]) > 30 for a in pictures)
    for tag, attributes in found.tags:  # the linked files are in the same folder
        if tag == "a":
            assert (written_report.page.parent / attributes["href"]).stat().st_size > 0
    assert all(a.get("scope") for tag, a in found.tags if tag == "th")
    assert "prefers-color-scheme: dark" in text
    assert "its worker died by signal SIGKILL" in found.text
    assert "labels to 70.0 %" in found.text
    assert "> 40" in found.text  # 99 % is never reached
    assert "Mohamadi" not in found.text
    assert STRATEGIES["margin"].paper in found.text
    for name in ("curves", "difference", "intervals", "critical-difference"):
        with Image.open(written_report.page.parent / f"{name}.png") as picture:
            assert picture.size[0] > 1000
            assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    before = {p.name: p.read_bytes() for p in written_report.page.parent.iterdir()}
    report(folder, accuracies=[0.7, 0.99])
    assert {p.name: p.read_bytes() for p in written_report.page.parent.iterdir()} == before


def test_report_contains_reproducing_command(tmp_path, without_figures):
    curves = random_curves(4, {"random": 0, "flip:greedy": 0.1})
    for by_seed in curves.values():
        by_seed[7] = by_seed.pop(3)
    written_report = report(made_up(tmp_path / "a", curves), out=tmp_path / "elsewhere")
    assert written_report.page.parent == tmp_path / "elsewhere"
    text = parse_page(written_report).text
    assert "--strategies random,flip:greedy --seed 0 --seeds 3 --out again" in text
    assert "--seed 7 --seeds 1 --out again" in text
    from labelahead.learner.config import load_campaign

    again = load_campaign(tmp_path / "elsewhere" / "campaign.toml", [], {})
    assert again.budget == read_comparison(tmp_path / "a").campaign.budget


def test_report_escapes_names(tmp_path, without_figures):
    folder = made_up(tmp_path / "a", random_curves(2, {"random": 0, "margin": 0.1}))
    evil = "<script>alert(1)</script>&"
    for path in folder.rglob("*.toml"):
        path.write_text(path.read_text().replace('"digits"', json.dumps(evil)))
    written_report = report(folder)
    assert "<script" not in written_report.page.read_text()
    assert f'name = "{evil}"' in parse_page(written_report).text


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
