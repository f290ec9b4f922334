"""The quality of each class in a real browser with a real server."""

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


def test_progress_shows_the_quality_of_each_class_on_a_phone(browser, tmp_path):
    data = pages.write_digits(tmp_path / "digits")
    names = sorted(path.name for path in data.iterdir())[:40]
    labels = tmp_path / "given.csv"
    labels.write_text("\n".join(["item,label", *(f"{n},{n[-5]}" for n in names)]))
    options = ("--classes", NAMES, "--labels", str(labels))
    server = pages.Server(data, tmp_path / "labels", *options)
    try:
        Client(server.url).wait(PATIENCE)
        annotator = pages.Annotator(browser, server)
        page = annotator.page
        page.set_viewport_size({"width": 390, "height": 844})
        page.click("#tab-progress")
        page.wait_for_selector("#quality tbody tr")
        quality = server.get("/api/progress")["class_quality"]
        rows = page.locator("#quality table.quality tbody tr:not(.note)")
        assert rows.count() == len(quality["classes"]) == 10
        for row, found in zip(rows.all(), quality["classes"], strict=True):
            assert row.inner_text().split("\t")[0].strip() == found["name"]
            assert row.locator("span.faint").count() >= 2  # intervals
        notes = page.locator("#quality .note").all_inner_texts()
        assert notes == [f"{c['name']}: {c['warning']}" for c in quality["classes"] if c["warning"]]
        page.click("#quality summary:has-text('confusion')")
        assert page.locator("#quality .confusion td").count() == 100
        page.evaluate(AXE.read_text())
        assert find_accessibility_violations(page) == []
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) == 0
        page.locator("#quality").screenshot(path=tmp_path / "quality.png")
        annotator.close()
    finally:
        server.kill()
