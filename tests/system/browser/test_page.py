"""The labelling page in a real browser, before a real server."""

import csv
import re
import zipfile
from pathlib import Path

import pytest

import labelahead as la
from labelahead.server.client import Client
from tests.support import browser_pages as pages
from tests.support.waiting import PATIENCE, until

playwright = pytest.importorskip(
    "playwright.sync_api", reason="BROWSER TESTS SKIPPED: pip install playwright"
)
BROWSER = pages.browser_path()
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="BROWSER TESTS SKIPPED: no chromium; apt-get install chromium"
)
AXE = Path(__file__).with_name("axe.min.js")
NAMES = ",".join("0123456789")
PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


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
    started = pages.Server(data, folder / "labels", "--classes", NAMES)
    yield started
    started.kill()


@pytest.fixture
def person(browser, server):
    somebody = pages.Person(browser, server)
    yield somebody
    somebody.close()


def test_thirty_digits_by_keyboard_and_three_taken_back(person, server):
    before = server.labels()
    done = person.label(30)
    assert len(done) == 30
    assert server.labels() == before | done
    for item in reversed(list(done)[-3:]):
        person.press("Backspace")
        assert person.item == item
        del done[item]
        assert server.labels() == before | done
        assert person.page.inner_text("#tally").startswith(f"{len(before | done)} labelled")
    person.page.wait_for_selector("#history button")
    assert "chosen" in person.page.inner_text("#reason") or "again" in person.page.inner_text(
        "#reason"
    )


def test_an_earlier_answer_is_changed_from_the_strip(person, server):
    done = person.label(3)
    asked = person.item
    first, second = list(done)[:2]
    strip = person.page.locator("#history button")
    strip.filter(has=person.page.locator("img")).first.wait_for()
    person.page.click(f'#history button[aria-label^="{second}:"]')
    assert person.item == second
    person.page.keyboard.press("Escape")
    assert person.item == asked
    person.page.click(f'#history button[aria-label^="{second}:"]')
    person.press("0" if done[second] != "0" else "1")
    assert server.labels()[second] == ("0" if done[second] != "0" else "1")
    assert person.item == asked  # back at the question
    person.page.focus(f'#history button[aria-label^="{first}:"]')
    person.page.keyboard.press("7")
    person.said("Saved: 7")
    assert server.labels()[first] == "7"
    assert person.item == asked


def test_a_new_class_skip_and_not_sure(person, server):
    item = person.item
    person.page.keyboard.press("/")
    person.page.keyboard.type("smudge")
    assert "New class" in person.page.inner_text("#hint")
    person.page.keyboard.press("Enter")
    person.said("New class")
    assert item not in server.labels()  # added, not yet used
    before = person.position
    person.page.keyboard.press("Enter")
    person.another(before)
    assert server.labels()[item] == "smudge"
    item = person.item
    before = person.position
    person.page.keyboard.press("/")
    person.page.keyboard.type("MUD")  # part of the name is enough
    person.page.keyboard.press("Enter")
    person.another(before)
    assert server.labels()[item] == "smudge"
    counted = server.get("/api/progress")
    person.press("-")
    person.press(".")
    after = server.get("/api/progress")
    assert (after["skipped"], after["unsure"]) == (counted["skipped"] + 1, counted["unsure"] + 1)


def test_after_a_reload_the_same_item_is_asked(person, server):
    person.label(2)
    item, labels = person.item, server.labels()
    person.page.reload()
    person.page.wait_for_selector("#stage[data-position]")
    assert person.item == item
    assert server.labels() == labels


def test_a_key_held_down_is_one_answer(person, server):
    before, asked, key = len(server.labels()), person.position, person.digit
    person.page.keyboard.down(key)
    for _ in range(5):
        person.page.keyboard.down(key)  # without a release in between: what a held key sends
    person.page.keyboard.up(key)
    person.another(asked)
    person.page.wait_for_timeout(200)
    assert len(server.labels()) == before + 1


def test_a_server_that_is_killed_loses_nothing(person, server):
    done = person.label(2)
    item, key = person.item, person.digit
    labels = server.labels()
    server.kill()
    person.page.keyboard.press(key)
    person.page.wait_for_selector("#trouble:has-text('not saved yet')")
    assert person.item == item  # nothing moves before it is saved
    before = person.position
    server.start()
    person.another(before)
    person.page.wait_for_selector("#trouble", state="hidden")
    assert server.labels() == labels | done | {item: key}
    events = [h for h in server.get("/api/history?n=1000") if h["item"] == item]
    assert len(events) == 1
    person.label(1)


def test_an_answer_whose_receipt_was_lost_is_recorded_once(person, server):
    item, key, lost = person.item, person.digit, []

    def lose(route) -> None:
        """The first answer arrives, but the page never hears of it."""
        if lost:
            route.continue_()
        else:
            lost.append(route.fetch())
            route.abort()

    person.page.route("**/api/answers", lose)
    person.press(key)
    assert lost
    assert server.labels()[item] == key
    person.press("Backspace")  # had it been recorded twice, one label would be left
    assert person.item == item
    assert item not in server.labels()


def test_a_server_without_room_is_waited_for(person, server):
    """Held, then full, then well again.

    The page says so, keeps the answer, and sends it once more by itself.
    """
    item, key, before, sent = person.item, person.digit, person.position, []
    held = []  # requests that are answered once the page has been looked at
    person.page.route("**/api/answers", lambda route: held.append(route))
    person.send_answer(key)
    for status, said in [
        (503, "the server cannot use its files now"),
        (507, ("the server's disk is full")),
    ]:
        route = person.wait_until(lambda: held.pop(0) if held else None)
        sent.append(route.request.post_data_json["key"])
        route.fulfill(status=status, json={"error": said}, headers={"Retry-After": "2"})
        shown = f"Your answer is not saved yet: {said}. Retrying automatically"
        person.page.wait_for_selector(f'#trouble:has-text("{shown}")')
        assert person.item == item
        assert item not in server.labels()
    route = person.wait_until(lambda: held.pop(0) if held else None)
    sent.append(route.request.post_data_json["key"])
    route.continue_()
    person.another(before)
    person.page.wait_for_selector("#trouble", state="hidden")
    assert len(sent) == 3
    assert len(set(sent)) == 1
    assert server.labels()[item] == key
    person.page.unroute("**/api/answers")
    full = {"error": "the server's disk is full"}
    person.page.route(
        "**/api/progress", lambda route: route.fulfill(status=507, json=full), times=1
    )
    person.page.wait_for_selector("#trouble:has-text('The server\\'s disk is full.')")
    person.page.wait_for_selector("#trouble", state="hidden")
    person.label(1)


def test_an_answer_that_a_reload_interrupted_is_sent_again(person, server):
    item, key = person.item, person.digit
    person.page.route("**/api/answers", lambda route: route.abort())
    person.page.on("dialog", lambda dialog: dialog.accept())
    person.send_answer(key)
    person.page.wait_for_selector("#trouble:has-text('not saved yet')")
    assert item not in server.labels()
    person.page.unroute("**/api/answers")
    person.page.route("**/api/answers", lambda route: route.continue_())
    person.page.reload()
    person.page.wait_for_function(
        "item => (document.getElementById('asked').textContent || item) !== item", arg=item
    )
    assert server.labels()[item] == key


def test_two_people_never_have_the_same_item(browser, server):
    anna, bob = pages.Person(browser, server), pages.Person(browser, server)
    anna.call_me("anna")
    bob.call_me("bob")
    seen = {}
    for _ in range(6):
        assert anna.position != bob.position
        for person in (anna, bob):
            assert person.item not in seen
            seen |= person.label(1)
    people = {p["who"]: p["labels"] for p in server.get("/api/people")["people"]}
    assert people["anna"] == people["bob"] == 6
    item = next(iter(seen))  # anna's first; bob says otherwise, cleo settles it for anna
    other = "0" if seen[item] != "0" else "1"
    assert bob.page.locator(f'#history button[aria-label^="{item}:"]').count() == 0
    position = next(h["position"] for h in server.get("/api/history") if h["item"] == item)
    Client(server.url, who="bob").answer(position, other)
    assert [c["item"] for c in server.get("/api/people")["conflicts"]] == [item]
    cleo = pages.Person(browser, server)
    cleo.call_me("cleo")
    cleo.page.click("#tab-people")
    cleo.page.click(f'#panel button[aria-label="It is {seen[item]}: {item}"]')
    cleo.said(f"Saved: {seen[item]}")
    people = server.get("/api/people")
    assert (people["conflicts"], people["compared"], people["agree"]) == ([], 1, 0)
    assert server.labels()[item] == seen[item]
    before = cleo.position
    cleo.page.keyboard.press("Backspace")
    cleo.another(before)
    assert [c["item"] for c in server.get("/api/people")["conflicts"]] == [item]
    for person in (anna, bob, cleo):
        person.close()


def test_labels_are_exported_and_brought_back(person, server, tmp_path):
    person.label(3)
    labels = server.labels()
    person.page.click("#tab-data")
    with person.page.expect_download() as download:
        person.page.click("a[data-form=csv]")
    file = tmp_path / "labels.csv"
    download.value.save_as(file)
    for _ in range(3):
        person.press("Backspace")
    assert len(server.labels()) == len(labels) - 3
    person.page.set_input_files("#importing", file)
    person.page.wait_for_selector("#imported:has-text('imported')")
    assert server.labels() == labels


def test_the_model_is_taken_along(person, server, tmp_path):
    person.label(12)
    person.page.click("#tab-data")
    with person.page.expect_download() as download:
        person.page.click("#take-model")
    file = tmp_path / "model.zip"
    download.value.save_as(file)
    assert download.value.suggested_filename == "digits-model.zip"
    person.page.wait_for_selector("#model-told:has-text('Downloaded')")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "model")
    model = la.load_model(tmp_path / "model")
    assert sum(model.about["labels"].values()) == len(server.labels())
    person.page.check("#rest")
    with person.page.expect_download() as download:
        person.page.click("a[data-form=csv]")
    download.value.save_as(tmp_path / "all.csv")
    person.page.wait_for_selector("#exported:has-text('Downloaded')")
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text(encoding="utf-8").splitlines()))
    predicted = {
        r["id"]: (r["prediction"], float(r["probability"]))
        for r in rows
        if r["source"] == "prediction"
    }
    said = model.predict(server.command[4])
    likely = dict(
        zip(
            said.items,
            zip(said.labels, said.probabilities.amax(1).tolist(), strict=True),
            strict=True,
        )
    )
    assert predicted
    for item, (label, probability) in predicted.items():
        assert likely[item][0] == label
        assert likely[item][1] == pytest.approx(probability, abs=1e-6)
    known = {c["name"] for c in server.get("/api/session")["classes"]}  # others may have added some
    assert {*model.predict(server.command[4]).labels} <= known


def test_the_panels_explain(person, server):
    person.label(12)
    # Once a training is done; of the item before, which has a label by now, other things are said.
    assert until(lambda: "Predicted class" in person.page.inner_text("#panel"))
    person.page.wait_for_selector("#panel .bars")
    person.label(1)
    item, guess = person.item, person.page.inner_text("#guess strong")
    person.press("Enter")  # agrees
    assert server.labels()[item] == guess
    person.page.click("#tab-progress")
    person.page.wait_for_selector("#map canvas")
    assert re.search(r"\d+ unlabelled items", person.page.inner_text("#map"))
    person.page.locator("#map canvas").scroll_into_view_if_needed()
    box = person.page.locator("#map canvas").bounding_box()
    for step in range(400):  # somewhere there is an item; it says its name
        x, y = step % 20 / 20 * box["width"], step // 20 / 20 * box["height"]
        person.page.mouse.move(box["x"] + x + 1, box["y"] + y + 1)
        person.page.evaluate(PAINTED)
        name = re.search(r"n\d{4}-\d\.png:", person.page.inner_text("#map .hover"))
        if name:
            break
    assert name
    assert f"{len(server.labels())}" in person.page.inner_text(".figures")
    person.page.click("#tab-doubts")
    person.page.wait_for_selector("#panel h2:has-text('Review')")
    enough = server.get("/api/doubts")["enough"]
    assert ("Too few labels yet" in person.page.inner_text("#panel")) == (not enough)


def test_a_label_that_is_kept_is_not_doubted_again(browser, tmp_path):
    """Also after the server was killed; until somebody brings it back."""
    data = tmp_path / "shades"
    data.mkdir()
    for i in range(20):
        shade = (40 if i % 2 else 200) + i
        pages.Image.new("L", (8, 8), shade).save(data / f"{i:02d}.png")
    given, wrong = tmp_path / "given.csv", 6
    rows = [f"{i:02d}.png,{'dark' if i % 2 or i == wrong else 'light'}" for i in range(16)]
    given.write_text("\n".join(["item,label", *rows]))
    options = ("--classes", "light,dark", "--model", "mlp", "--width", "16")
    server = pages.Server(data, tmp_path / "labels", *options, "--labels", str(given))
    try:
        Client(server.url).wait(PATIENCE)
        assert [d["item"] for d in server.get("/api/doubts")["doubts"]] == ["06.png"]
        person = pages.Person(browser, server)
        person.page.click("#tab-doubts")
        person.page.click("#panel button:has-text('Keep dark')")
        person.said("Saved: dark kept")
        person.page.wait_for_selector("#panel summary:has-text('1 kept')")
        assert "No label needs a review" in person.page.inner_text("#panel")
        person.page.keyboard.press("Backspace")
        person.said("open for review again")
        person.page.click("#panel button:has-text('Keep dark')")
        person.page.wait_for_selector("#panel summary:has-text('1 kept')")
        server.kill()
        server.command = server.command[:-2]  # the labels are there
        server.start()
        person.page.reload()
        person.page.click("#tab-doubts")
        person.page.wait_for_selector("#panel p:has-text('No label needs a review')")
        person.page.focus("#panel summary")
        person.page.keyboard.press("Enter")
        assert "kept by me" in person.page.inner_text("#panel details")
        person.page.evaluate(AXE.read_text())
        assert serious(person.page) == []
        person.page.click("#panel button:has-text('Review again')")
        person.page.wait_for_selector("#panel button:has-text('Keep dark')")
        assert person.page.locator("#panel summary").count() == 0
        assert server.labels()["06.png"] == "dark"
        person.close()
    finally:
        server.kill()


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_nothing_stands_in_the_way_of_anyone(browser, server, look):
    scheme = "dark" if look == "dark" else "light"
    person = pages.Person(browser, server, color_scheme=scheme, reduced_motion="reduce")
    if look == "phone":
        person.page.set_viewport_size({"width": 360, "height": 740})
    person.page.evaluate(AXE.read_text())
    for tab in ("why", "progress", "doubts", "people", "data"):
        person.page.click(f"#tab-{tab}")
        person.page.wait_for_selector("#panel:not(.stale) h2, #panel:not(.stale) > p")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert person.page.evaluate(wide) == 0
        assert serious(person.page) == [], tab
    person.page.keyboard.press("?")
    assert serious(person.page) == []
    person.close()


def test_a_first_visit_from_two_names_to_the_last_item(browser, tmp_path):
    posts = [f"Post {i}: <b>the arm</b> cannot lift its own weight." for i in range(4)]
    (tmp_path / "posts.csv").write_text("\n".join(["text", *posts]) + "\n")
    server = pages.Server(tmp_path / "posts.csv", tmp_path / "labels")
    try:
        person = pages.Person(browser, server)
        page = person.page
        page.evaluate(AXE.read_text())
        assert serious(page) == []
        page.fill("#first [name=names]", "space, Space")
        page.click("#first button")
        assert "twice" in page.inner_text("#first .lost")
        page.fill("#first [name=names]", "space\ncars,\n\n")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#classes button")
        assert page.inner_text(".prose") in posts  # markup in data is text
        for _ in posts:
            person.press("1")
        assert "Nothing left to label" in page.inner_text("#item")
        assert page.locator(".commands button:visible").all_inner_texts() == ["Undo ⌫"]
        assert set(server.labels().values()) == {"space"}
        assert len(server.labels()) == len(posts)
        page.keyboard.press("1")  # there is nothing that it could answer
        person.press("Backspace")
        assert len(server.labels()) == len(posts) - 1
        person.close()
    finally:
        server.kill()


def test_many_are_confirmed_by_keyboard_and_undone_as_one(browser, tmp_path):
    data = pages.write_digits(tmp_path / "digits", 300)
    server = pages.Server(data, tmp_path / "labels", "--classes", NAMES, "--model", "exact")
    try:
        client = Client(server.url)
        client.wait(PATIENCE)
        asked = client.question()
        for _ in range(60):
            asked = client.answer(asked["position"], asked["item"][-5])["next"]
        client.wait(PATIENCE)
        person = pages.Person(browser, server)
        page, before = person.page, server.labels()
        page.keyboard.press(",")
        page.wait_for_selector("#many[open] #manyitems button")
        page.evaluate(AXE.read_text())
        assert serious(page) == []
        wanted = re.search(r"“(\d)”", page.inner_text("#manytitle"))[1]
        shown = [
            b.get_attribute("title").split(":")[0] for b in page.locator("#manyitems button").all()
        ]
        wrong = [i for i, name in enumerate(shown) if name[-5] != wanted]
        for i in {0, *wrong}:  # by its key, and again by the arrows and the space bar
            page.keyboard.press("123456789abcdefghijklmnopqrstuvwxyz"[i])
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Space")
        assert page.locator("#manyitems [aria-pressed=true]").count() == len({0, 1, *wrong})
        confirmed = [name for i, name in enumerate(shown) if i not in {0, 1, *wrong}]
        page.keyboard.press("Enter")
        page.wait_for_selector("#manytold:has-text('Saved')")
        assert server.labels() == before | dict.fromkeys(confirmed, wanted)
        server.kill()  # all of the grid is on the disk
        server.start()
        assert server.labels() == before | dict.fromkeys(confirmed, wanted)
        again = [
            b.get_attribute("title").split(":")[0] for b in page.locator("#manyitems button").all()
        ]
        assert not {*again} & {*shown}
        page.focus("#manyback")
        page.keyboard.press("Enter")  # as a click or Backspace would
        page.wait_for_selector(f"#manytold:has-text('Undone: {len(confirmed)} ')")
        assert server.labels() == before
        page.wait_for_selector("#manyitems button")
        out = [
            page.locator("#manyitems button").nth(i).get_attribute("title").split(":")[0]
            for i in (0, 1)
        ]
        for key in ("1", "2", "Enter"):
            page.keyboard.press(key)
        page.wait_for_selector("#manytold:has-text('2 exceptions will be queried afterwards')")
        page.keyboard.press("Escape")
        for name in out:
            page.wait_for_selector("#mode:has-text('You marked it as not')")
            assert person.item == name
            person.press(person.digit)
            assert server.labels()[name] == name[-5]
        assert page.locator("#mode").is_hidden()
        person.close()
    finally:
        server.kill()


def test_classes_are_changed_on_the_page(browser, tmp_path):
    data = pages.write_digits(tmp_path / "digits", 40)
    server = pages.Server(
        data, tmp_path / "labels", "--classes", "odd,even,other,more", "--model", "exact"
    )
    try:
        person, other = pages.Person(browser, server), pages.Person(browser, server)
        page = person.page
        for key in "123":
            person.press(key)
        page.click("#tab-data")
        page.evaluate(AXE.read_text())
        assert serious(page) == []
        page.select_option("#class-which", label="other")
        page.fill("#class-name", "neither")
        page.click("#class-rename")
        person.said("Renamed “other” to “neither”")
        page.select_option("#class-which", label="neither")
        page.select_option("#class-into", label="even")
        page.click("#class-merge")
        person.said("Merged “neither” into “even”")
        assert sorted(server.labels().values()) == ["even", "even", "odd"]
        other.page.wait_for_function(
            "() => document.querySelectorAll('#classes button').length === 3"
        )
        page.select_option("#class-which", label="odd")
        page.click("#class-remove")
        person.said("its items are unlabelled again")
        assert sorted(server.labels().values()) == ["even", "even"]
        assert page.locator("#classes button").all_inner_texts() == ["2\neven", "4\nmore"]
        page.click("#stage", position={"x": 5, "y": 5})
        there = (
            "names => !document.body.classList.contains('busy') && names === "
            "[...document.querySelectorAll('#classes .called')].map(b => b.textContent).join()"
        )
        for names in ("odd,even,more", "odd,even,neither,more", "odd,even,other,more"):
            page.keyboard.press("Backspace")
            page.wait_for_function(there, arg=names)
        page.keyboard.press("Backspace")
        person.said("label the item again")
        assert sorted(server.labels().values()) == ["even", "odd"]
        assert page.locator("#classes button").count() == 4
        page.select_option("#class-which", label="more")
        page.fill("#class-name", "le")
        Client(server.url).add_class("new")  # by somebody else, meanwhile
        page.wait_for_selector("#class-which option:has-text('new')", state="attached")
        chosen = "() => document.getElementById('class-which').selectedOptions[0].textContent"
        assert (page.evaluate(chosen), page.input_value("#class-name")) == ("more", "le")
        person.close()
        other.close()
    finally:
        server.kill()


def test_what_is_seen_of_photographs(browser, tmp_path):
    """No path that tells, room for the picture, all its pixels when enlarged, badges, an end."""
    folder = tmp_path / "pets"
    for i in range(14):
        kind = "cat" if i % 2 else "dog"
        (folder / kind).mkdir(parents=True, exist_ok=True)
        pixels = pages.Image.effect_noise((1600, 1200), 40 + 20 * (i % 2)).convert("RGB")
        pixels.save(folder / kind / f"{i:02d}.jpg", quality=60)
    server = pages.Server(folder, tmp_path / "labels", "--model", "mlp", "--width", "8")
    try:
        person = pages.Person(browser, server)
        page = person.page
        assert re.fullmatch(r"…/\d\d\.jpg", person.item)
        assert server.get("/api/question")["item"].startswith(
            ("cat/", "dog/")
        )  # programs are told all
        tall = page.locator("#item img").bounding_box()["height"]
        assert tall > 0.5 * 900
        page.set_viewport_size(
            {"width": 1280, "height": 800}
        )  # nothing that answers is out of sight
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
        at = "document.querySelector('#large > div').scrollLeft"
        left = page.evaluate(at)
        page.mouse.down()
        page.mouse.move(
            540, 350, steps=5
        )  # the second step would begin to drag the picture itself away
        page.mouse.up()
        assert page.evaluate(at) == pytest.approx(left + 100, abs=2)
        page.keyboard.press("Escape")
        person.press("1")
        person.press("Backspace")  # whoever is asked again is not told what was learnt
        assert "you undid your answer" in page.inner_text("#reason")
        assert page.locator("#guess").is_hidden()
        page.reload()
        page.wait_for_selector("#reason:has-text('you undid your answer')")
        assert page.locator("#guess").is_hidden()
        for i in range(14):
            person.press("12"[i % 2])
        page.wait_for_selector("#summary:has-text('14 labels: 7 × cat, 7 × dog')")
        page.click("#item button:has-text('Export')")
        page.wait_for_selector("#tab-data[aria-selected=true]")
        assert page.evaluate("document.getElementById('bar').value") == 1
        person.close()
    finally:
        server.kill()


def serious(page) -> list[tuple[str, list[str]]]:
    """What axe finds that keeps somebody from using the page."""
    return [
        (v["id"], [n["html"][:120] for n in v["nodes"]][:3])
        for v in page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        if v["impact"] in ("serious", "critical")
    ]
