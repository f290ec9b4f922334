"""The labelling page in a real browser with a real server."""

import csv
import re
import zipfile
from pathlib import Path

import pytest

import labelahead as la
from labelahead.server.client import Client
from tests.support import browser_pages as pages
from tests.support.slow import slow
from tests.support.waiting import PATIENCE

playwright = pytest.importorskip(
    "playwright.sync_api", reason="BROWSER TESTS SKIPPED: pip install playwright"
)
BROWSER = pages.browser_path()
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="BROWSER TESTS SKIPPED: no chromium; apt-get install chromium"
)
AXE = Path(__file__).with_name("axe.min.js")
NAMES = ",".join("0123456789")
AFTER_PAINT = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=BROWSER, args=pages.FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    data = pages.write_digits(folder / "digits")
    running = pages.Server(data, folder / "labels", "--classes", NAMES)
    yield running
    running.kill()


@pytest.fixture
def annotator(browser, server):
    new_annotator = pages.Annotator(browser, server)
    yield new_annotator
    new_annotator.close()


@pytest.fixture
def intercepted(browser, server):
    """An annotator whose answers and polls a test can intercept."""
    new_annotator = pages.Annotator(browser, server, intercepts=True)
    yield new_annotator
    new_annotator.close()


def test_keyboard_labels_30_digits_and_undoes_3(annotator, server):
    before = server.labels()
    labelled = annotator.label_items(30)
    assert len(labelled) == 30
    assert server.labels() == before | labelled
    for item in reversed(list(labelled)[-3:]):
        annotator.press_and_wait("Backspace")
        assert annotator.item == item
        del labelled[item]
        assert server.labels() == before | labelled
        count = len(before | labelled)
        annotator.page.wait_for_selector(f"#tally:text-matches('^{count} labelled of ')")
    annotator.page.wait_for_selector("#history button")
    assert "chosen" in annotator.page.inner_text("#reason") or "again" in annotator.page.inner_text(
        "#reason"
    )


def test_earlier_answer_can_be_changed_from_the_history(annotator, server):
    labelled = annotator.label_items(3)
    queried = annotator.item
    first, second = list(labelled)[:2]
    strip = annotator.page.locator("#history button")
    strip.filter(has=annotator.page.locator("img")).first.wait_for()
    annotator.page.click(f'#history button[aria-label^="{second}:"]')
    assert annotator.item == second
    annotator.page.keyboard.press("Escape")
    assert annotator.item == queried
    annotator.page.click(f'#history button[aria-label^="{second}:"]')
    annotator.press_and_wait("0" if labelled[second] != "0" else "1")
    assert server.labels()[second] == ("0" if labelled[second] != "0" else "1")
    assert annotator.item == queried  # back at the query
    annotator.page.focus(f'#history button[aria-label^="{first}:"]')
    annotator.page.keyboard.press("7")
    annotator.wait_for_message("Saved: 7")
    assert server.labels()[first] == "7"
    assert annotator.item == queried


def test_keyboard_adds_a_class_skips_and_marks_unsure(annotator, server):
    item = annotator.item
    annotator.page.keyboard.press("/")
    annotator.page.keyboard.type("smudge")
    assert "New class" in annotator.page.inner_text("#hint")
    annotator.page.keyboard.press("Enter")
    annotator.wait_for_message("New class")
    assert item not in server.labels()  # added, not yet used
    before = annotator.position
    annotator.page.keyboard.press("Enter")
    annotator.wait_for_next_item(before)
    assert server.labels()[item] == "smudge"
    item = annotator.item
    before = annotator.position
    annotator.page.keyboard.press("/")
    annotator.page.keyboard.type("MUD")  # part of the name suffices
    annotator.page.keyboard.press("Enter")
    annotator.wait_for_next_item(before)
    assert server.labels()[item] == "smudge"
    progress = server.get("/api/progress")
    annotator.press_and_wait("-")
    annotator.press_and_wait(".")
    after = server.get("/api/progress")
    assert (after["skipped"], after["unsure"]) == (progress["skipped"] + 1, progress["unsure"] + 1)


def test_reload_keeps_the_queried_item(annotator, server):
    annotator.label_items(2)
    item, labels = annotator.item, server.labels()
    annotator.page.reload()
    annotator.page.wait_for_selector("#stage[data-position]")
    assert annotator.item == item
    assert server.labels() == labels


def test_held_key_gives_one_answer(annotator, server):
    before, position, key = len(server.labels()), annotator.position, annotator.digit
    annotator.page.keyboard.down(key)
    for _ in range(5):
        annotator.page.keyboard.down(key)  # as a held key repeats, without a release
    annotator.page.keyboard.up(key)
    annotator.wait_for_next_item(position)
    annotator.page.wait_for_timeout(200)
    assert len(server.labels()) == before + 1


def test_answer_during_a_server_kill_is_saved_after_the_restart(annotator, server):
    labelled = annotator.label_items(2)
    item, key = annotator.item, annotator.digit
    labels = server.labels()
    server.kill()
    annotator.page.keyboard.press(key)
    annotator.page.wait_for_selector("#trouble:has-text('not saved yet')")
    assert annotator.item == item  # the page waits until the answer is saved
    before = annotator.position
    server.start()
    annotator.wait_for_next_item(before)
    annotator.page.wait_for_selector("#trouble", state="hidden")
    assert server.labels() == labels | labelled | {item: key}
    events = [h for h in server.get("/api/history?n=1000") if h["item"] == item]
    assert len(events) == 1
    annotator.label_items(1)


def test_answer_with_a_lost_reply_is_recorded_once(intercepted, server):
    item, key, dropped = intercepted.item, intercepted.digit, []

    def drop_first_reply(route) -> None:
        """Let the first answer arrive, but drop its reply."""
        if dropped:
            route.continue_()
        else:
            dropped.append(route.fetch())
            route.abort()

    intercepted.interceptors["/api/answers"] = drop_first_reply
    intercepted.press_and_wait(key)
    assert dropped
    assert server.labels()[item] == key
    intercepted.press_and_wait("Backspace")  # a duplicate would leave one label
    assert intercepted.item == item
    assert item not in server.labels()


def skip_labelled_items(annotator, server):
    """Answer until the query is not for a second label of an item that somebody else labelled."""
    while annotator.item in server.labels():
        annotator.label_items(1)


def test_answer_is_resent_until_a_full_server_accepts_it(intercepted, server):
    """The server is busy, then full, then available.

    The page shows the error, keeps the answer and sends it again by itself.
    """
    skip_labelled_items(intercepted, server)
    item, key, before, sent = intercepted.item, intercepted.digit, intercepted.position, []
    pending = []  # requests to answer after the page was checked
    intercepted.interceptors["/api/answers"] = pending.append
    intercepted.send_answer(key)
    for status, error in [
        (503, "the server cannot use its files now"),
        (507, ("the server's disk is full")),
    ]:
        route = intercepted.wait_until(lambda: pending.pop(0) if pending else None)
        sent.append(route.request.post_data_json["key"])
        route.fulfill(status=status, json={"error": error}, headers={"Retry-After": "2"})
        shown = f"Your answer is not saved yet: {error}. Retrying automatically"
        intercepted.page.wait_for_selector(f'#trouble:has-text("{shown}")')
        assert intercepted.item == item
        assert item not in server.labels()
    route = intercepted.wait_until(lambda: pending.pop(0) if pending else None)
    sent.append(route.request.post_data_json["key"])
    route.continue_()
    intercepted.wait_for_next_item(before)
    intercepted.page.wait_for_selector("#trouble", state="hidden")
    assert len(sent) == 3
    assert len(set(sent)) == 1
    assert server.labels()[item] == key
    full = {"error": "the server's disk is full"}
    intercepted.interceptors = {"/api/progress": lambda route: route.fulfill(status=507, json=full)}
    intercepted.page.wait_for_selector("#trouble:has-text('The server\\'s disk is full.')")
    intercepted.interceptors = {}
    intercepted.page.wait_for_selector("#trouble", state="hidden")
    intercepted.label_items(1)


def test_answer_interrupted_by_a_reload_is_resent(intercepted, server):
    skip_labelled_items(intercepted, server)
    item, key = intercepted.item, intercepted.digit
    intercepted.interceptors["/api/answers"] = lambda route: route.abort()
    intercepted.page.on("dialog", lambda dialog: dialog.accept())
    intercepted.send_answer(key)
    intercepted.page.wait_for_selector("#trouble:has-text('not saved yet')")
    rows = [row for row in server.get("/api/history?n=1000") if row["item"] == item]
    assert item not in server.labels(), (rows, intercepted.item, intercepted.traffic)
    intercepted.interceptors = {}
    intercepted.page.reload()
    intercepted.page.wait_for_function(
        "item => (document.getElementById('asked').textContent || item) !== item", arg=item
    )
    assert server.labels()[item] == key


def test_two_annotators_get_different_items_and_conflicts_are_settled(browser, server):
    anna, bob = pages.Annotator(browser, server), pages.Annotator(browser, server)
    anna.set_name("anna")
    bob.set_name("bob")
    labelled = {}
    for _ in range(6):
        assert anna.position != bob.position
        for annotator in (anna, bob):
            assert annotator.item not in labelled
            labelled |= annotator.label_items(1)
    people = {p["who"]: p["labels"] for p in server.get("/api/people")["people"]}
    assert people["anna"] == people["bob"] == 6
    item = next(iter(labelled))  # anna's first; bob disagrees, cleo settles it
    other = "0" if labelled[item] != "0" else "1"
    assert bob.page.locator(f'#history button[aria-label^="{item}:"]').count() == 0
    position = next(h["position"] for h in server.get("/api/history") if h["item"] == item)
    Client(server.url, who="bob").add_answer(position, other)
    assert [c["item"] for c in server.get("/api/people")["conflicts"]] == [item]
    cleo = pages.Annotator(browser, server)
    cleo.set_name("cleo")
    cleo.page.click("#tab-people")
    cleo.page.click(f'#panel button[aria-label="It is {labelled[item]}: {item}"]')
    cleo.wait_for_message(f"Saved: {labelled[item]}")
    people = server.get("/api/people")
    assert (people["conflicts"], people["compared"], people["agree"]) == ([], 1, 0)
    assert server.labels()[item] == labelled[item]
    before = cleo.position
    cleo.page.keyboard.press("Backspace")
    cleo.wait_for_next_item(before)
    assert [c["item"] for c in server.get("/api/people")["conflicts"]] == [item]
    for annotator in (anna, bob, cleo):
        annotator.close()


def test_exported_labels_can_be_imported_again(annotator, server, tmp_path):
    annotator.label_items(3)
    labels = server.labels()
    annotator.page.click("#tab-data")
    with annotator.page.expect_download() as download:
        annotator.page.click("a[data-form=csv]")
    file = tmp_path / "labels.csv"
    download.value.save_as(file)
    for _ in range(3):
        annotator.press_and_wait("Backspace")
    assert len(server.labels()) == len(labels) - 3
    annotator.page.set_input_files("#importing", file)
    annotator.page.wait_for_selector("#imported:has-text('imported')")
    assert server.labels() == labels


def test_downloaded_model_predicts_as_the_export_does(annotator, server, tmp_path):
    annotator.label_items(12)
    annotator.page.click("#tab-data")
    with annotator.page.expect_download() as download:
        annotator.page.click("#take-model")
    file = tmp_path / "model.zip"
    download.value.save_as(file)
    assert download.value.suggested_filename == "digits-model.zip"
    annotator.page.wait_for_selector("#model-told:has-text('Downloaded')")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "model")
    model = la.load_model(tmp_path / "model")
    assert sum(model.about["labels"].values()) == len(server.labels())
    annotator.page.check("#rest")
    with annotator.page.expect_download() as download:
        annotator.page.click("a[data-form=csv]")
    download.value.save_as(tmp_path / "all.csv")
    annotator.page.wait_for_selector("#exported:has-text('Downloaded')")
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text(encoding="utf-8").splitlines()))
    predicted = {
        r["id"]: (r["prediction"], float(r["probability"]))
        for r in rows
        if r["source"] == "prediction"
    }
    predictions = model.predict(server.data)
    expected = dict(
        zip(
            predictions.items,
            zip(predictions.labels, predictions.probabilities.amax(1).tolist(), strict=True),
            strict=True,
        )
    )
    assert predicted
    for item, (label, probability) in predicted.items():
        assert expected[item][0] == label
        assert expected[item][1] == pytest.approx(probability, abs=1e-6)
    class_names = {
        c["name"] for c in server.get("/api/session")["classes"]
    }  # other tests may have added some
    assert {*model.predict(server.data).labels} <= class_names


def test_panels_show_predictions_progress_map_and_doubts(annotator, server):
    annotator.label_items(12)
    # Predictions are shown after the training; an item that has a label shows other details.
    annotator.page.wait_for_selector("#panel h2:has-text('Predicted class')")
    annotator.page.wait_for_selector("#panel .bars")
    annotator.label_items(1)
    item, predicted = annotator.item, annotator.page.inner_text("#guess strong")
    annotator.press_and_wait("Enter")  # accepts the prediction
    assert server.labels()[item] == predicted
    annotator.page.click("#tab-progress")
    annotator.page.wait_for_selector("#map canvas")
    annotator.page.wait_for_selector("#map :text-matches('[0-9]+ unlabelled items')")
    annotator.page.locator("#map canvas").scroll_into_view_if_needed()
    box = annotator.page.locator("#map canvas").bounding_box()
    for step in range(400):  # search for an item; it shows its name
        x, y = step % 20 / 20 * box["width"], step // 20 / 20 * box["height"]
        annotator.page.mouse.move(box["x"] + x + 1, box["y"] + y + 1)
        annotator.page.evaluate(AFTER_PAINT)
        name = re.search(r"n\d{4}-\d\.png:", annotator.page.inner_text("#map .hover"))
        if name:
            break
    assert name
    labels = len(server.labels())
    annotator.page.wait_for_selector(f".figures strong:text-is('{labels}')")
    annotator.page.click("#tab-doubts")
    annotator.page.wait_for_selector("#panel h2:has-text('Review')")

    def shows_whether_there_are_enough_labels():
        enough = server.get("/api/doubts")["enough"]  # a training may change it meanwhile
        return ("Too few labels yet" in annotator.page.inner_text("#panel")) == (not enough)

    annotator.wait_until(shows_whether_there_are_enough_labels)


@pytest.mark.slow
def test_kept_label_is_not_doubted_again_after_a_server_kill(browser, tmp_path):
    """The label stays kept after a kill, until an annotator reviews it again."""
    data = tmp_path / "shades"
    data.mkdir()
    for i in range(20):
        shade = (40 if i % 2 else 200) + i
        pages.Image.new("L", (8, 8), shade).save(data / f"{i:02d}.png")
    label_file, wrong = tmp_path / "given.csv", 6
    rows = [f"{i:02d}.png,{'dark' if i % 2 or i == wrong else 'light'}" for i in range(16)]
    label_file.write_text("\n".join(["item,label", *rows]))
    options = ("--classes", "light,dark", "--model", "mlp", "--width", "16")
    server = pages.Server(data, tmp_path / "labels", *options, "--labels", str(label_file))
    try:
        Client(server.url).wait(PATIENCE)
        assert [d["item"] for d in server.get("/api/doubts")["doubts"]] == ["06.png"]
        annotator = pages.Annotator(browser, server)
        annotator.page.click("#tab-doubts")
        annotator.page.click("#panel button:has-text('Keep dark')")
        annotator.wait_for_message("Saved: dark kept")
        annotator.page.wait_for_selector("#panel summary:has-text('1 kept')")
        annotator.page.wait_for_selector("#panel p:has-text('No label needs a review')")
        annotator.page.keyboard.press("Backspace")
        annotator.wait_for_message("open for review again")
        annotator.page.click("#panel button:has-text('Keep dark')")
        annotator.page.wait_for_selector("#panel summary:has-text('1 kept')")
        server.kill()
        server.command = server.command[:-2]  # the labels are already imported
        server.start()
        annotator.page.reload()
        annotator.page.click("#tab-doubts")
        annotator.page.wait_for_selector("#panel p:has-text('No label needs a review')")
        annotator.page.press("#panel summary", "Enter")
        annotator.page.wait_for_selector("#panel details li:has-text('kept by me')")
        annotator.page.evaluate(AXE.read_text())
        assert find_accessibility_violations(annotator.page) == []
        annotator.page.click("#panel button:has-text('Review again')")
        annotator.page.wait_for_selector("#panel button:has-text('Keep dark')")
        annotator.page.wait_for_selector("#panel summary", state="detached")
        assert server.labels()["06.png"] == "dark"
        annotator.close()
    finally:
        server.kill()


@pytest.mark.parametrize("look", ["light", slow("dark"), "phone"])
def test_page_has_no_serious_accessibility_violation(browser, server, look):
    scheme = "dark" if look == "dark" else "light"
    annotator = pages.Annotator(browser, server, color_scheme=scheme, reduced_motion="reduce")
    if look == "phone":
        annotator.page.set_viewport_size({"width": 360, "height": 740})
        annotator.page.wait_for_selector("#tally:text-matches('of')")
        assert annotator.page.locator("header").bounding_box()["height"] < 90  # two rows
    annotator.page.evaluate(AXE.read_text())
    for tab in ("why", "progress", "doubts", "people", "data"):
        annotator.page.click(f"#tab-{tab}")
        annotator.page.wait_for_selector("#panel:not(.stale) :is(h2, p):visible")
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert annotator.page.evaluate(overflow) == 0
        assert find_accessibility_violations(annotator.page) == [], tab
    annotator.page.keyboard.press("?")
    assert find_accessibility_violations(annotator.page) == []
    annotator.close()


def test_first_visit_from_class_names_to_the_last_item(browser, tmp_path):
    posts = [f"Post {i}: <b>the arm</b> cannot lift its own weight." for i in range(4)]
    (tmp_path / "posts.csv").write_text("\n".join(["text", *posts]) + "\n")
    server = pages.Server(tmp_path / "posts.csv", tmp_path / "labels")
    try:
        annotator = pages.Annotator(browser, server)
        page = annotator.page
        page.evaluate(AXE.read_text())
        assert find_accessibility_violations(page) == []
        page.fill("#first [name=names]", "space, Space")
        page.click("#first button")
        page.wait_for_selector("#first .lost:has-text('twice')")
        page.fill("#first [name=names]", "space\ncars,\n\n")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#classes button")
        assert page.inner_text(".prose") in posts  # markup in the data is shown as text
        for _ in posts:
            annotator.press_and_wait("1")
        page.wait_for_selector("#item h2:has-text('Nothing left to label')")
        assert page.locator(".commands button:visible").all_inner_texts() == ["Undo ⌫"]
        assert set(server.labels().values()) == {"space"}
        assert len(server.labels()) == len(posts)
        page.keyboard.press("1")  # no query: the key has no effect
        annotator.press_and_wait("Backspace")
        assert len(server.labels()) == len(posts) - 1
        annotator.close()
    finally:
        server.kill()


def test_grid_is_confirmed_by_keyboard_and_undone_as_one(browser, tmp_path):
    data = pages.write_digits(tmp_path / "digits", 300)
    server = pages.Server(data, tmp_path / "labels", "--classes", NAMES, "--model", "exact")
    try:
        client = Client(server.url)
        client.wait(PATIENCE)
        query = client.get_query()
        for _ in range(60):
            query = client.add_answer(query["position"], query["item"][-5])["next"]
        client.wait(PATIENCE)
        annotator = pages.Annotator(browser, server)
        page, before = annotator.page, server.labels()
        page.keyboard.press(",")
        page.wait_for_selector("#many[open] #manyitems button")
        page.evaluate(AXE.read_text())
        assert find_accessibility_violations(page) == []
        digit = re.search(r"“(\d)”", page.inner_text("#manytitle"))[1]
        shown = [
            b.get_attribute("title").split(":")[0] for b in page.locator("#manyitems button").all()
        ]
        wrong = [i for i, name in enumerate(shown) if name[-5] != digit]
        for i in {0, *wrong}:  # by key, then by arrows and space bar
            page.keyboard.press("123456789abcdefghijklmnopqrstuvwxyz"[i])
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Space")
        assert page.locator("#manyitems [aria-pressed=true]").count() == len({0, 1, *wrong})
        confirmed = [name for i, name in enumerate(shown) if i not in {0, 1, *wrong}]
        page.keyboard.press("Enter")
        page.wait_for_selector("#manytold:has-text('Saved')")
        assert server.labels() == before | dict.fromkeys(confirmed, digit)
        server.kill()  # the whole grid is saved
        server.start()
        assert server.labels() == before | dict.fromkeys(confirmed, digit)
        next_shown = [
            b.get_attribute("title").split(":")[0] for b in page.locator("#manyitems button").all()
        ]
        assert not {*next_shown} & {*shown}
        page.focus("#manyback")
        page.keyboard.press("Enter")  # like a click or Backspace
        page.wait_for_selector(f"#manytold:has-text('Undone: {len(confirmed)} ')")
        assert server.labels() == before
        page.wait_for_selector("#manyitems button")
        exceptions = [
            page.locator("#manyitems button").nth(i).get_attribute("title").split(":")[0]
            for i in (0, 1)
        ]
        for key in ("1", "2", "Enter"):
            page.keyboard.press(key)
        page.wait_for_selector("#manytold:has-text('2 exceptions will be queried afterwards')")
        page.keyboard.press("Escape")
        for name in exceptions:
            page.wait_for_selector("#mode:has-text('You marked it as not')")
            assert annotator.item == name
            annotator.press_and_wait(annotator.digit)
            assert server.labels()[name] == name[-5]
        assert page.locator("#mode").is_hidden()
        annotator.close()
    finally:
        server.kill()


def test_classes_are_renamed_merged_removed_and_restored_on_the_page(browser, tmp_path):
    data = pages.write_digits(tmp_path / "digits", 40)
    server = pages.Server(
        data, tmp_path / "labels", "--classes", "odd,even,other,more", "--model", "exact"
    )
    try:
        annotator, other = pages.Annotator(browser, server), pages.Annotator(browser, server)
        page = annotator.page
        for key in "123":
            annotator.press_and_wait(key)
        page.click("#tab-data")
        page.evaluate(AXE.read_text())
        assert find_accessibility_violations(page) == []
        page.select_option("#class-which", label="other")
        page.fill("#class-name", "neither")
        page.click("#class-rename")
        annotator.wait_for_message("Renamed “other” to “neither”")
        page.select_option("#class-which", label="neither")
        page.select_option("#class-into", label="even")
        page.click("#class-merge")
        annotator.wait_for_message("Merged “neither” into “even”")
        assert sorted(server.labels().values()) == ["even", "even", "odd"]
        other.page.wait_for_function(
            "() => document.querySelectorAll('#classes button').length === 3"
        )
        page.select_option("#class-which", label="odd")
        page.click("#class-remove")
        annotator.wait_for_message("its items are unlabelled again")
        assert sorted(server.labels().values()) == ["even", "even"]
        assert page.locator("#classes button").all_inner_texts() == ["2\neven", "4\nmore"]
        page.click("#stage", position={"x": 5, "y": 5})
        has_classes = (
            "names => !document.body.classList.contains('busy') && names === "
            "[...document.querySelectorAll('#classes .called')].map(b => b.textContent).join()"
        )
        for names in ("odd,even,more", "odd,even,neither,more", "odd,even,other,more"):
            page.keyboard.press("Backspace")
            page.wait_for_function(has_classes, arg=names)
        page.keyboard.press("Backspace")
        annotator.wait_for_message("label the item again")
        assert sorted(server.labels().values()) == ["even", "odd"]
        assert page.locator("#classes button").count() == 4
        page.select_option("#class-which", label="more")
        page.fill("#class-name", "le")
        Client(server.url).add_class("new")  # by another client meanwhile
        page.wait_for_selector("#class-which option:has-text('new')", state="attached")
        chosen = "() => document.getElementById('class-which').selectedOptions[0].textContent"
        assert (page.evaluate(chosen), page.input_value("#class-name")) == ("more", "le")
        assert page.evaluate("document.activeElement.id") == "class-name"
        annotator.close()
        other.close()
    finally:
        server.kill()


def test_new_class_is_made_of_items_of_no_class_by_keyboard(browser, tmp_path):
    data = pages.write_digits(tmp_path / "digits", 40)
    server = pages.Server(data, tmp_path / "labels", "--classes", "three,seven", "--model", "exact")
    try:
        annotator = pages.Annotator(browser, server)
        page = annotator.page
        strange = set()
        for _ in range(10):
            key = {"3": "1", "7": "2"}.get(annotator.digit, "0")
            strange |= {annotator.item} if key == "0" else set()
            annotator.press_and_wait(key)
        server.kill()
        server.start()  # nothing is lost
        page.reload()
        page.wait_for_selector("#stage[data-position]:not([data-position=''])")
        page.click("#tab-doubts")
        page.wait_for_selector("#none-of-these")
        page.wait_for_selector(f"#none-of-these:has-text('{len(strange)} items belong to none')")
        page.evaluate(AXE.read_text())
        assert find_accessibility_violations(page) == []
        page.click("#make-class")
        assert find_accessibility_violations(page) == []
        page.keyboard.type("none of these")
        page.keyboard.press("Enter")
        page.wait_for_selector("#newclasstold:has-text('choose another name')")
        page.fill("#newclassname", "other")
        page.keyboard.press("Enter")
        annotator.wait_for_message(f"{len(strange)} items are now labelled “other”")
        labels = server.labels()
        assert {item for item, name in labels.items() if name == "other"} == strange
        page.keyboard.press("Backspace")
        annotator.wait_for_message("Undone")
        assert server.get("/api/none-of-these")["count"] == len(strange)
        annotator.errors.clear()  # the refused name
        annotator.close()
    finally:
        server.kill()


def test_photographs_fill_the_page_and_can_be_enlarged(browser, tmp_path):
    """The folder name is hidden, the image is large and zoomable, and the end is shown."""
    folder = tmp_path / "pets"
    for i in range(14):
        kind = "cat" if i % 2 else "dog"
        (folder / kind).mkdir(parents=True, exist_ok=True)
        pixels = pages.Image.effect_noise((1600, 1200), 40 + 20 * (i % 2)).convert("RGB")
        pixels.save(folder / kind / f"{i:02d}.jpg", quality=60)
    server = pages.Server(folder, tmp_path / "labels", "--model", "mlp", "--width", "8")
    try:
        annotator = pages.Annotator(browser, server)
        page = annotator.page
        assert re.fullmatch(r"…/\d\d\.jpg", annotator.item)
        assert server.get("/api/question")["item"].startswith(
            ("cat/", "dog/")
        )  # the API has the whole path
        height = page.locator("#item img").bounding_box()["height"]
        assert height > 0.5 * 900
        page.set_viewport_size({"width": 1280, "height": 800})  # all answer buttons stay visible
        assert page.locator("#item img").bounding_box()["height"] >= 0.5 * 800
        answering = [node.bounding_box() for node in page.locator("#answering button, #said").all()]
        assert all(box["y"] + box["height"] <= 800 for box in answering)
        page.set_viewport_size({"width": 1280, "height": 900})
        assert "crisp" not in (page.get_attribute("#item img", "class") or "")
        page.keyboard.press("+")
        page.wait_for_function("() => document.querySelector('#large img')?.naturalWidth === 1600")
        before = page.locator("#large img").bounding_box()["width"]
        page.keyboard.press("+")
        page.mouse.move(640, 400)
        page.mouse.wheel(0, -100)
        page.wait_for_function(
            "w => document.querySelector('#large img').clientWidth > 1.4 * w", arg=before
        )
        scroll_left = "document.querySelector('#large > div').scrollLeft"
        left = page.evaluate(scroll_left)
        page.mouse.down()
        page.mouse.move(540, 350, steps=5)  # a second step would drag the image itself
        page.mouse.up()
        assert page.evaluate(scroll_left) == pytest.approx(left + 100, abs=2)
        page.keyboard.press("Escape")
        annotator.press_and_wait("1")
        annotator.press_and_wait("Backspace")  # a repeated query hides the prediction
        page.wait_for_selector("#reason:has-text('you undid your answer')")
        assert page.locator("#guess").is_hidden()
        page.reload()
        page.wait_for_selector("#reason:has-text('you undid your answer')")
        assert page.locator("#guess").is_hidden()
        for i in range(14):
            annotator.press_and_wait("12"[i % 2])
        page.wait_for_selector("#summary:has-text('14 labels: 7 × cat, 7 × dog')")
        page.click("#item button:has-text('Export')")
        page.wait_for_selector("#tab-data[aria-selected=true]")
        assert page.evaluate("document.getElementById('bar').value") == 1
        annotator.close()
    finally:
        server.kill()


def find_accessibility_violations(page) -> list[tuple[str, list[str]]]:
    """Return the serious and critical violations that axe finds."""
    return [
        (v["id"], [n["html"][:120] for n in v["nodes"]][:3])
        for v in page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        if v["impact"] in ("serious", "critical")
    ]
