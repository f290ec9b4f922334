"""The guided audit in a real browser with a real server."""

import json

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
ANSWERS = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A session with 120 digits, 40 of them labelled."""
    folder = tmp_path_factory.mktemp("audit")
    data = pages.write_digits(folder / "digits")
    names = sorted(path.name for path in data.iterdir())[:40]
    labels = folder / "given.csv"
    labels.write_text("\n".join(["item,label", *(f"{n},{n[-5]}" for n in names)]))
    options = ("--classes", NAMES, "--labels", str(labels))
    running = pages.Server(data, folder / "labels", *options)
    Client(running.url).wait(PATIENCE)
    yield running
    running.kill()


def answer_item(page, count):
    """Press the key of the digit that the item's name ends with, and wait until it is stored."""
    digit = page.inner_text("#audit .caption").removesuffix(".png")[-1]
    page.keyboard.press(digit)
    page.wait_for_selector(f"#audit-count:has-text('{count} answer')")


def check_layout(page):
    """The item is large, with the result beside it; on a phone both have the whole width."""
    shown, result = (page.locator(f"#audit {x}").bounding_box() for x in ("img", "aside"))
    assert shown["height"] > 0.5 * 900
    assert result["x"] >= shown["x"] + shown["width"]
    page.set_viewport_size({"width": 390, "height": 844})
    boxes = [page.locator(f"#audit {x}").bounding_box() for x in ("section", "aside")]
    assert all(350 < box["width"] <= 390 for box in boxes)
    page.set_viewport_size({"width": 1280, "height": 900})


def test_audit_survives_a_kill_and_ends_in_a_certificate(browser, server, tmp_path):
    annotator = pages.Annotator(browser, server)
    page = annotator.page
    page.click("#views [data-view=audit]")
    page.click("#audit-start:enabled")
    page.wait_for_selector("#audit .audit-classes")
    page.evaluate(AXE.read_text())
    assert find_accessibility_violations(page) == []
    check_layout(page)
    for count in range(1, ANSWERS + 1):
        answer_item(page, count)
    between = page.inner_text("#audit-between")
    assert between.startswith("between ")
    server.kill()
    server.start()
    page.reload()
    page.wait_for_selector(f"#audit-count:has-text('{ANSWERS} answers')")
    assert page.inner_text("#audit-between") == between
    assert server.get("/api/progress")["labels"] == 40  # nothing was taught
    with page.expect_download() as download:
        page.click("#audit-issue")
    download.value.save_as(tmp_path / "certificate.html")
    assert "right</p>" in (tmp_path / "certificate.html").read_text()
    beside = server.log.with_suffix("") / "audit-1" / "certificate.json"
    assert json.loads(beside.read_text())["labels"] == ANSWERS
    page.click("#audit-teach")
    page.wait_for_selector("#audit-note:has-text('12 answers have become labels')")
    assert server.get("/api/progress")["labels"] == 40 + ANSWERS
    annotator.close()
