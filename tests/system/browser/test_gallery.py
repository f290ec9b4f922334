"""The gallery in a real browser with a real server."""

import re

import pytest

from labelahead.server.client import Client
from tests.support import browser_pages as pages
from tests.support.waiting import PATIENCE
from tests.system.browser.test_page import AXE, NAMES, browser, find_accessibility_violations

pytestmark = pytest.mark.skipif(
    pages.browser_path() is None,
    reason="BROWSER TESTS SKIPPED: no chromium; apt-get install chromium",
)
__all__ = ["browser"]  # the fixture
SELECTED = "#gallery-grid .cell[aria-selected=true]"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A session with 240 digits, 40 of them labelled."""
    folder = tmp_path_factory.mktemp("gallery")
    data = pages.write_digits(folder / "digits", 240)
    names = sorted(path.name for path in data.iterdir())[:40]
    labels = folder / "given.csv"
    labels.write_text("\n".join(["item,label", *(f"{n},{n[-5]}" for n in names)]))
    options = ("--classes", NAMES, "--labels", str(labels))
    running = pages.Server(data, folder / "labels", *options)
    Client(running.url).wait(PATIENCE)
    yield running
    running.kill()


@pytest.fixture
def annotator(browser, server):
    new_annotator = pages.Annotator(browser, server)
    yield new_annotator
    new_annotator.close()


def open_gallery(annotator):
    annotator.page.keyboard.press("*")
    annotator.page.wait_for_selector("#gallery-grid .cell[data-position]")


def test_selection_by_keyboard_and_lasso_is_labelled_and_undone_as_one(annotator, server):
    page = annotator.page
    open_gallery(annotator)
    before = server.get("/api/progress")["labels"]
    page.click("#gallery [data-status=unlabelled]")
    page.wait_for_selector("#gallery-about:has-text('200 items')")
    page.wait_for_selector("#cell-0[data-position='40']")
    for key in (" ", "Shift+ArrowRight", "Shift+ArrowDown"):
        page.keyboard.press(key)
    page.wait_for_function(
        "s => document.querySelectorAll(s).length > 3", arg=SELECTED
    )  # a row and two cells
    chosen = page.locator(SELECTED).count()
    page.keyboard.press("7")
    page.wait_for_selector(f"#gallery-told:has-text('{chosen} items labelled “7”')")
    assert server.get("/api/progress")["labels"] == before + chosen
    page.wait_for_selector("#cell-0[aria-label$='labelled 7']")  # the order stays
    page.keyboard.press("Backspace")
    page.wait_for_selector(f"#gallery-told:has-text('Undone: {chosen} confirmations')")
    assert server.get("/api/progress")["labels"] == before
    page.wait_for_selector("#cell-0:not([aria-label*=labelled]), #cell-0[aria-label*=predicted]")
    box = page.locator("#cell-1").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] + 60, box["y"] + 40, steps=4)
    assert page.locator(".lasso").is_visible()
    page.mouse.up()
    page.wait_for_selector("#gallery-count:has-text('2 items selected')")
    assert page.locator("#cell-1, #cell-2").count() == 2
    assert page.get_attribute("#cell-2", "aria-selected") == "true"
    page.keyboard.press("Escape")
    page.wait_for_selector("#gallery-count:has-text('Select items')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#stage:visible")


def test_only_visible_cells_exist_and_the_last_item_is_reached(annotator):
    page = annotator.page
    open_gallery(annotator)
    cells = "document.querySelectorAll('#gallery-grid .cell').length"
    assert page.evaluate(cells) < 120
    page.keyboard.press("End")
    page.wait_for_selector("#cell-239[data-position='239']")
    assert page.evaluate(cells) < 120
    assert page.locator("#cell-0").count() == 0
    page.keyboard.press("Enter")
    page.wait_for_selector("#large[open] img")


def test_progress_opens_the_predictions_of_low_probability(annotator):
    page = annotator.page
    page.click("#tab-progress")
    page.wait_for_selector("#low-confidence:visible")
    count = re.search(r"[\d,]+", page.inner_text("#low-confidence"))[0]
    page.click("#low-confidence")
    page.wait_for_selector(f"#gallery-about:has-text('{count} item')")
    page.wait_for_selector("#cell-0[aria-label*=predicted]")
    shown = page.locator("#gallery-grid .cell[data-position]").evaluate_all(
        "cells => cells.map(cell => [+cell.id.slice(5), parseFloat(cell.innerText.split('?')[1])])"
    )
    chances = [p for _, p in sorted(shown)]
    assert chances == sorted(chances)
    assert max(chances) < 80
    page.go_back()
    page.wait_for_selector("#stage:visible")


def test_search_finds_names_similar_items_and_a_sought_class(annotator):
    page = annotator.page
    page.wait_for_selector("#more-like:visible")
    position = annotator.position
    page.click("#more-like")
    page.wait_for_selector(f"#cell-0[data-position='{position}']")
    page.fill("#gallery-text", "N0017")
    page.wait_for_selector("#gallery-about:has-text('1 item')")
    page.wait_for_selector("#cell-0[data-position='17']")
    page.click("#gallery-about button")  # clears the filters
    page.wait_for_selector("#gallery-about:has-text('240 items')")
    page.select_option("#gallery-sought", label="Find all “3”")
    page.wait_for_selector("#gallery-expected:has-text('95 % interval')")
    page.wait_for_selector("#cell-0[aria-label*='predicted 3']")


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_gallery_has_no_serious_accessibility_violation(browser, server, look):
    annotator = pages.Annotator(browser, server, color_scheme="dark" if look == "dark" else "light")
    if look == "phone":
        annotator.page.set_viewport_size({"width": 360, "height": 740})
    annotator.page.evaluate(AXE.read_text())
    open_gallery(annotator)
    annotator.page.keyboard.press(" ")
    annotator.page.wait_for_selector(SELECTED)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert annotator.page.evaluate(overflow) == 0
    assert find_accessibility_violations(annotator.page) == []
    annotator.close()


def test_lasso_on_the_map_opens_its_items_in_the_gallery(annotator):
    page = annotator.page
    page.click("#views [data-view=map]")
    page.wait_for_selector("#plane-about:has-text('240 items')")
    box = page.locator("#plane-canvas").bounding_box()
    left, top = box["x"] + 2, box["y"] + 2
    right, bottom = left + box["width"] - 4, top + box["height"] - 4
    page.mouse.move(left, top)
    page.keyboard.press("l")
    page.wait_for_selector("#plane-lasso[aria-pressed=true]")
    page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom)):
        page.mouse.move(x, y)
    page.mouse.up()
    page.wait_for_selector("#gallery-about:has-text('240 items')")
    page.evaluate(AXE.read_text())
    page.go_back()
    page.wait_for_selector("#plane-canvas:visible")
    assert find_accessibility_violations(page) == []


def test_key_without_a_class_is_answered_with_a_hint(annotator):
    annotator.page.keyboard.press("q")
    annotator.wait_for_message("The key “q” has no class")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080), (390, 844)])
def test_item_fills_the_window_and_the_answers_stay_in_sight(annotator, width, height):
    page = annotator.page
    page.set_viewport_size({"width": width, "height": height})
    stage = page.locator("#stage").bounding_box()
    assert stage["height"] >= (0.68 if width > 1000 else 0.58) * height
    shown = page.locator("button.class, #undo, #said").all()
    for box in (node.bounding_box() for node in shown):
        assert box["y"] >= stage["y"] + stage["height"]
        assert box["y"] + box["height"] <= height
    page.evaluate(
        "document.querySelector('#tab-doubts').append(Object.assign(document.createElement('span'),"
        " {className: 'badge', textContent: '88'}))"
    )
    tabs = page.locator("#tabs button").evaluate_all("tabs => tabs.map(t => t.offsetTop)")
    assert len(set(tabs)) == 1


def test_label_of_another_annotator_is_corrected_in_the_review_queue(annotator, server):
    page = annotator.page
    annotator.set_name("carl")
    page.click("#tab-doubts")
    row = page.locator("#review-queue li").first
    item = row.locator("strong").inner_text()
    wrong = server.labels()[item]
    right = "1" if wrong == "0" else "0"
    row.locator("select").select_option(label=right)
    annotator.wait_for_message(f"Saved: {right}")
    assert server.labels()[item] == right
    page.keyboard.press("Backspace")
    annotator.wait_for_message("Undone")
    assert server.labels()[item] == wrong


def test_answers_stay_in_sight_with_forty_classes(browser, server):
    client = Client(server.url)
    for n in range(30):  # the last test of this server: its classes stay
        client._post("/api/classes", {"name": f"a rather long class name {n}"})
    for size in ({"width": 1280, "height": 800}, {"width": 390, "height": 844}):
        annotator = pages.Annotator(browser, server, viewport=size)
        bar = annotator.page.locator("#answering").bounding_box()
        assert bar["y"] + bar["height"] <= size["height"] + 1
        assert annotator.page.locator("#stage").bounding_box()["height"] >= 0.55 * size["height"]
        annotator.close()
