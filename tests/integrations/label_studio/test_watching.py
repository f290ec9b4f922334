"""The page beside Label Studio, in a real browser, is read-only."""

import pytest

from tests.support import browser_pages as pages
from tests.support.label_studio import RealBridge, replay
from tests.support.waiting import PATIENCE

playwright = pytest.importorskip(
    "playwright.sync_api", reason="BROWSER TESTS SKIPPED: pip install playwright"
)
pytestmark = pytest.mark.skipif(
    pages.browser_path() is None, reason="BROWSER TESTS SKIPPED: no chromium"
)
EDITING_CONTROLS = "#answering, #first, #me, #help, #classes-of, #importing, #panel .looks button"


def test_page_beside_label_studio_offers_no_change_of_labels(tmp_path, start_program):
    with replay() as studio, playwright.sync_playwright() as play:
        bridge = start_program(
            RealBridge, studio, studio.project, tmp_path / "out", "--embedding", "words"
        )
        browser = play.chromium.launch(executable_path=pages.browser_path(), args=pages.FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(1000 * PATIENCE)
        errors, changes = [], []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda message: errors.append(message.text) if message.type == "error" else None,
        )
        page.on(
            "request",
            lambda request: changes.append(request.url) if request.method != "GET" else None,
        )
        page.goto(bridge.url)
        link = page.locator("#item a")
        link.wait_for()
        assert link.get_attribute("href") == f"{studio.url}/projects/{studio.project}/data"
        assert page.get_attribute("#tab-progress", "aria-selected") == "true"
        page.wait_for_selector("#history button")
        assert "recent answers" in page.inner_text("#answers-title").lower()
        for tab in ("why", "progress", "doubts", "people", "data"):
            page.click(f"#tab-{tab}")
            page.wait_for_selector("#panel:not(.stale) h2, #panel:not(.stale) > p")
            assert not any(node.is_visible() for node in page.locator(EDITING_CONTROLS).all()), tab
        assert page.locator("#panel a[data-form=csv]").is_visible()
        page.locator("#history button").first.click()
        page.wait_for_selector("#mode:has-text('anna@example.org: ')")
        for key in ("1", "Enter", "Backspace", "-", ".", ","):
            page.keyboard.press(key)
        page.keyboard.press("Escape")
        link.wait_for()
        page.wait_for_timeout(300)
        assert errors == changes == []
        browser.close()
