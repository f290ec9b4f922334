"""The search of the documentation site, opened as a file in a real browser."""

import json

import pytest

from tests.support import browser_pages as pages
from tests.test_docs import ROOT

playwright = pytest.importorskip(
    "playwright.sync_api", reason="BROWSER TESTS SKIPPED: pip install playwright"
)
BROWSER = pages.browser_path()
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="BROWSER TESTS SKIPPED: no chromium; apt-get install chromium"
)


def test_texts_of_pages_are_fetched_without_a_server(tmp_path):
    static = tmp_path / "_static"
    static.mkdir()
    script = (ROOT / "docs" / "_static" / "offline_search.js").read_text()
    (static / "offline_search.js").write_text(script)
    texts = json.dumps({"api/a b.html": '<article role="main">Devices</article>'})
    (static / "page_texts.js").write_text(f"window.PAGE_TEXTS = {texts};")
    (tmp_path / "search.html").write_text('<script src="_static/offline_search.js"></script>')
    fetched = "fetch('api/a%20b.html#gpu').then((response) => response.text())"
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=pages.FLAGS)
        page = browser.new_page()
        page.goto((tmp_path / "search.html").as_uri())
        assert page.evaluate(fetched) == '<article role="main">Devices</article>'
        browser.close()
