"""The labelling page with sounds, in a real browser with a real server."""

from pathlib import Path

import pytest

from tests.support import browser_pages as pages
from tests.support.sounds import write_sounds

playwright = pytest.importorskip(
    "playwright.sync_api", reason="BROWSER TESTS SKIPPED: pip install playwright"
)
BROWSER = pages.browser_path()
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="BROWSER TESTS SKIPPED: no chromium; apt-get install chromium"
)
AXE = Path(__file__).with_name("axe.min.js")
SECONDS = 6
TIME = "document.querySelector('#item audio').currentTime"
PAUSED = "document.querySelector('#item audio').paused"


def test_sounds_are_played_sought_and_labelled_by_keyboard(tmp_path):
    folder = write_sounds(tmp_path / "sounds", 6, seconds=SECONDS)
    server = pages.Server(folder, tmp_path / "labels", "--classes", "noise,tone")
    try:
        with playwright.sync_playwright() as p:
            browser = p.chromium.launch(executable_path=BROWSER, args=pages.FLAGS)
            annotator = pages.Annotator(browser, server, viewport={"width": 1280, "height": 800})
            check_player(annotator, server)
            annotator.page.set_viewport_size({"width": 390, "height": 844})
            overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert annotator.page.evaluate(overflow) == 0
            annotator.close()
            browser.close()
    finally:
        server.kill()


def check_player(annotator, server):
    page, statuses = annotator.page, []
    page.on("response", lambda r: statuses.append(r.status) if "/sound" in r.url else None)
    page.wait_for_function("() => document.querySelector('#item audio').readyState >= 3")
    assert page.evaluate("document.querySelector('#item audio').duration") == pytest.approx(SECONDS)
    assert page.evaluate("document.querySelector('#item img').naturalWidth") > 500
    assert page.locator("#zoom").is_hidden()
    buttons = [node.bounding_box() for node in page.locator("#answering button").all()]
    assert all(box["y"] + box["height"] <= 800 for box in buttons if box)
    page.keyboard.press("ArrowRight")
    assert page.evaluate(TIME) == pytest.approx(SECONDS / 10)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(TIME) == 0
    page.keyboard.press("Space")
    page.wait_for_function(f"() => !{PAUSED} && {TIME} > 0.2")
    # A redraw, for example because another annotator added a class, does not stop the sound.
    page.evaluate("import('/static/label.js').then((label) => label.drawItem())")
    assert page.evaluate(PAUSED) is False
    page.keyboard.press("Space")
    assert page.evaluate(PAUSED) is True
    wave = page.locator("#item .wave").bounding_box()
    page.mouse.click(wave["x"] + 0.75 * wave["width"], wave["y"] + 20)
    assert page.evaluate(TIME) == pytest.approx(0.75 * SECONDS, abs=0.05)
    page.wait_for_function("() => parseFloat(document.querySelector('.head').style.left) > 74")
    page.keyboard.press("/")
    page.keyboard.press("Space")  # in a text field it is a space
    assert page.evaluate(PAUSED) is True
    assert page.input_value("#find") == " "
    page.keyboard.press("Escape")
    page.evaluate(AXE.read_text())
    page.keyboard.press("?")
    assert "play or pause a sound" in page.inner_text("#keys")
    page.keyboard.press("Escape")
    for _ in range(2):
        annotator.press_and_wait("2" if "tone" in annotator.item else "1")
    assert all(label in item for item, label in server.labels().items())
    page.wait_for_function("() => document.querySelector('#history img')?.naturalWidth > 50")
    page.check("#autoplay")
    page.locator("#stage").focus()
    annotator.press_and_wait("2" if "tone" in annotator.item else "1")
    page.wait_for_function(f"() => !{PAUSED}")
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []
    assert statuses
    assert set(statuses) == {206}
