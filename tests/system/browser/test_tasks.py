"""Several classes at once and numbers by keyboard alone, in a real browser with a real server."""

import pytest

from tests.support import browser_pages as pages
from tests.support.task_sessions import make_rows, write_table
from tests.support.waiting import until
from tests.system.browser.test_page import AXE, browser, find_accessibility_violations

__all__ = ["browser"]  # the fixture
pytestmark = pytest.mark.skipif(
    pages.browser_path() is None,
    reason="BROWSER TESTS SKIPPED: no chromium; apt-get install chromium",
)


@pytest.fixture
def open_page(browser, tmp_path):
    """Return a function that serves a table for a task and opens its page."""
    opened = []

    def open_task(*options, **how):
        data = write_table(tmp_path / "items.csv", make_rows(30))
        server = pages.Server(data, tmp_path / "out", *options)
        opened.append(server.kill)
        annotator = pages.Annotator(browser, server, **how)
        opened.append(annotator.close)
        return annotator

    yield open_task
    for close in reversed(opened):
        close()


def newest(annotator) -> dict:
    return annotator.server.get("/api/history?n=1")[0]


def check_accessibility(annotator) -> None:
    annotator.page.evaluate(AXE.read_text())
    assert find_accessibility_violations(annotator.page) == []


def test_classes_are_ticked_and_submitted_by_keyboard(open_page):
    annotator = open_page("--task", "multilabel", "--classes", "cat,dog")
    page = annotator.page
    first = annotator.position
    page.keyboard.press("1")
    page.keyboard.press("2")
    page.keyboard.press("1")  # unticked again
    assert page.get_attribute("button.class[data-label='1']", "aria-pressed") == "true"
    assert page.get_attribute("button.class[data-label='0']", "aria-pressed") == "false"
    annotator.press_and_wait("Enter")
    assert (newest(annotator)["answer"], str(newest(annotator)["position"])) == ("dog", first)
    assert page.locator("button.class[aria-pressed=true]").count() == 0  # nothing is ticked ahead
    annotator.press_and_wait("Enter")  # no class is an answer, too
    assert newest(annotator)["answer"] == "[]"
    annotator.wait_for_message("no class")
    page.keyboard.press("Backspace")
    annotator.wait_for_message("Undone")
    page.keyboard.press("/")
    page.keyboard.type("fox")
    page.keyboard.press("Enter")  # a new class
    annotator.wait_for_message("New class “fox” added")
    page.keyboard.press("Enter")  # tick it
    page.wait_for_selector("button.class[data-label='2'][aria-pressed=true]")
    annotator.press_and_wait("Enter")
    assert newest(annotator)["answer"] == "fox"
    page.click("#history button >> nth=-1")  # the first answer is there to be changed
    page.wait_for_selector("#mode:visible")
    assert page.get_attribute("button.class[data-label='1']", "aria-pressed") == "true"
    check_accessibility(annotator)


def test_numbers_are_typed_and_wrong_ones_explained(open_page):
    options = ("--task", "number", "--unit", "kg", "--limits", "0,20")
    annotator = open_page(*options, color_scheme="dark", viewport={"width": 390, "height": 844})
    page = annotator.page
    page.keyboard.type("7,25 kg")  # the first digit focuses the field
    annotator.press_and_wait("Enter")
    assert newest(annotator)["answer"] == "7.25"
    annotator.wait_for_message("Saved: 7.25 kg")
    page.keyboard.type("25")  # the field has the focus now
    page.keyboard.press("Enter")
    page.wait_for_selector("#number-wrong:has-text('expected 0 to 20 kg')")
    assert page.input_value("#number-0") == "25"
    page.keyboard.press("Control+a")
    page.keyboard.type("1.2.3")
    page.keyboard.press("Enter")
    page.wait_for_selector("#number-wrong:has-text('is not a number; type one such as 3.5')")
    page.fill("#number-0", "")
    before = annotator.position
    page.keyboard.press("s")  # skip
    annotator.wait_for_next_item(before)
    assert newest(annotator)["kind"] == "skip"
    page.fill("#task input[type=range]", "12.5")
    assert page.input_value("#number-0") == "12.5"
    before = annotator.position
    page.click("#submit")
    annotator.wait_for_next_item(before)
    page.keyboard.type("3")
    annotator.press_and_wait("Enter")
    until(lambda: annotator.server.get("/api/progress")["training"]["round"])
    predicted = until(lambda: annotator.server.get("/api/question")["prediction"])
    page.reload()
    page.wait_for_selector("#guess strong:has-text('kg')")
    page.keyboard.press(";")  # enter the prediction
    assert page.input_value("#number-0") == f"{predicted['value']:g}"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    check_accessibility(annotator)
