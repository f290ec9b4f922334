"""The login page in a real browser with a real server."""

import pytest

from labelahead.server.accounts import save_account
from tests.support import browser_pages as pages
from tests.support.waiting import PATIENCE
from tests.system.browser.test_page import AXE, browser, find_accessibility_violations

pytestmark = pytest.mark.skipif(
    pages.browser_path() is None,
    reason="BROWSER TESTS SKIPPED: no chromium; apt-get install chromium",
)
__all__ = ["browser"]  # the fixture


def test_user_logs_in_labels_under_the_name_of_the_account_and_logs_out(browser, tmp_path):
    users = tmp_path / "users.json"
    save_account(users, "anna", "annotator", "correct horse")
    data = pages.write_digits(tmp_path / "digits", 12)
    options = ("--classes", "0,1,2", "--users", str(users))
    server = pages.Server(data, tmp_path / "labels", *options)
    try:
        context = browser.new_context(reduced_motion="reduce")
        context.set_default_timeout(1000 * PATIENCE)
        page = context.new_page()
        page.goto(server.url + "/")
        page.evaluate(AXE.read_text())
        assert find_accessibility_violations(page) == []
        page.fill("[name=name]", "anna")
        page.fill("[name=password]", "wrong password")
        page.keyboard.press("Enter")
        page.wait_for_selector("#login-told:has-text('the name or the password is wrong')")
        page.fill("[name=password]", "correct horse")
        page.keyboard.press("Enter")
        page.wait_for_selector("#stage[data-position]:not([data-position=''])")
        page.wait_for_selector("#me:has-text('You: anna')")
        page.keyboard.press("1")
        page.wait_for_selector("#said:has-text('Saved: 1')")
        page.click("#tab-data")
        page.wait_for_selector("#panel:has-text('needs the role admin; yours is annotator')")
        assert page.locator("#panel a[data-form], #take-model, #class-rename").count() == 0
        page.click("#me")
        page.wait_for_selector("#role:has-text('logged in as anna, with the role annotator')")
        page.evaluate(AXE.read_text())
        assert find_accessibility_violations(page) == []
        page.click("#account .log-out")
        page.wait_for_selector("#login [name=password]")
        page.goto(server.url + "/")
        page.wait_for_selector("#login [name=password]")
        context.close()
    finally:
        server.kill()
