"""The pictures in docs/screenshots: real servers, a real browser, labels given by key.

Run from the repository: `.venv/bin/python docs/screenshots.py [picture ...]`; needs the extra
`test` and chromium. Without names, all are taken.
"""

import csv
import os
import random
import sys
import tempfile
import time
import zipfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn import datasets

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.support import browser_pages as pages  # noqa: E402
from tests.support.waiting import until  # noqa: E402

OUT = ROOT / "docs" / "screenshots"
DATA = Path(os.environ.get("DATA", ROOT.parent / "shared" / "data"))  # of Caltech101
DESKTOP, PHONE = {"width": 1360, "height": 880}, {"width": 360, "height": 740}


def wait_for_training(server: pages.Server, labels: int, *, idle: bool = False) -> None:
    """Until a training on so many labels is done.

    Idle: and all items have been seen. There is an end to it.
    """
    for _ in range(600):
        training = server.get("/api/progress")["training"]
        at_rest = training["idle"] if idle else training["state"] not in ("training", "kernel")
        if training["labels_at_last"] >= labels and at_rest:
            return
        time.sleep(0.25)


def picture(
    person: pages.Annotator, name: str, tab: str, size: dict[str, int], scheme: str
) -> None:
    """One picture of the page as it is."""
    person.page.set_viewport_size(size)
    person.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    person.page.click(f"#tab-{tab}")
    person.page.evaluate("scrollTo(0, 0)")
    person.page.wait_for_timeout(1500)
    save(person, name)


def save(person: pages.Annotator, name: str) -> None:
    """Write what the browser shows, in 256 colours: a third of the size."""
    path = OUT / f"{name}.png"
    shown = Image.open(BytesIO(person.page.screenshot())).convert("RGB")
    shown.quantize(256, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)
    print(path)


def digit_of(item: str) -> str:
    """What n0017.png is."""
    return str(datasets.load_digits().target[int(Path(item).stem[1:])])


def digits(browser, folder: Path) -> None:
    """Handwritten digits: 66 labels, two of them wrong: enough for a second look."""
    data = pages.write_digits(folder / "digits", 500)
    for file in list(data.iterdir()):  # nobody's photographs have their class in the name
        file.rename(file.with_name(f"{file.name[:5]}.png"))
    server = pages.Server(data, folder / "labels", "--classes", ",".join("0123456789"))
    try:
        person = pages.Annotator(browser, server)
        person.set_name("anna")
        for n in range(65):
            person.press_and_wait("1" if n in (20, 30) else digit_of(person.item))
            if n % 10 == 9:  # as a person would: slow enough for training to keep up
                wait_for_training(server, n - 5)
        wait_for_training(server, 60, idle=True)
        person.press_and_wait(digit_of(person.item))
        picture(person, "label", "why", DESKTOP, "light")
        picture(person, "label-dark", "progress", DESKTOP, "dark")
        picture(person, "second-look", "doubts", DESKTOP, "light")
        many(person)
        picture(person, "label-phone", "why", PHONE, "light")
        person.close()
    finally:
        server.kill()


def many(person: pages.Annotator) -> None:
    """The grid of the class that most items surely have, the exceptions marked."""
    grid = person.server.get("/api/confirmations?n=24")
    person.page.keyboard.press(",")
    person.page.wait_for_selector("#manyitems button")
    for n, item in enumerate(grid["items"]):
        if digit_of(item["item"]) != str(grid["label"]):
            person.page.locator("#manyitems button").nth(n).click()
    person.page.wait_for_timeout(1500)
    save(person, "many")
    person.page.keyboard.press("Escape")


def table(browser, folder: Path, name: str, rows: list[list[str]], classes: list[str]) -> None:
    """A table of texts or numbers; its last column is the answer, and is not shown to the page."""
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([row[:-1] for row in rows])
    server = pages.Server(folder / f"{name}.csv", folder / name, "--classes", ",".join(classes))
    try:
        person = pages.Annotator(browser, server)
        for _ in range(22):
            row = rows[int(person.position) + 1]  # after the heading
            person.press_and_wait(str(classes.index(row[-1]) + 1))
        wait_for_training(server, 20)
        person.press_and_wait(str(classes.index(rows[int(person.position) + 1][-1]) + 1))
        picture(person, name, "why", DESKTOP, "light")
        person.close()
    finally:
        server.kill()


def text(browser, folder: Path) -> None:
    """Paragraphs that describe scikit-learn's data sets: which one?"""
    names = ["iris", "wine", "diabetes", "breast_cancer", "linnerud", "digits"]
    rows = [["text", "set"]]
    for name in names:
        about = getattr(datasets, f"load_{name}")().DESCR
        for paragraph in about.split("\n\n"):
            words = " ".join(paragraph.split())
            if len(words) > 80 and "===" not in words:
                rows.append([words[:600], name])
    table(browser, folder, "text", rows, names)


def row(browser, folder: Path) -> None:
    """Irises by their measures."""
    iris = datasets.load_iris()
    rows = [[*iris.feature_names, "kind"]]
    for values, kind in zip(iris.data.tolist(), iris.target.tolist(), strict=True):
        rows.append([*map(str, values), str(iris.target_names[kind])])
    table(browser, folder, "row", rows, [str(n) for n in iris.target_names])


def photographs(browser, folder: Path) -> None:
    """Photographs of Caltech101 (CC BY 4.0), five of its classes, in one folder under names that
    tell nothing.
    """
    shown = {
        "Leopards": "leopard",
        "wild_cat": "wild cat",
        "cougar_body": "cougar",
        "kangaroo": "kangaroo",
        "llama": "llama",
    }
    names, truth = list(shown.values()), {}
    target = folder / "photographs"
    target.mkdir()
    with zipfile.ZipFile(DATA / "caltech101_128px.zip") as archive:
        members = sorted(archive.namelist())
        chosen = [
            m
            for kind in shown
            for m in [x for x in members if f"{kind}/" in x and x.endswith(".jpg")][:40]
        ]
        random.Random(0).shuffle(chosen)
        for n, member in enumerate(chosen):
            (target / f"photo-{n:03d}.jpg").write_bytes(archive.read(member))
            truth[n] = shown[Path(member).parent.name]
    server = pages.Server(target, folder / "photographs-labels", "--classes", ",".join(names))
    try:
        person = pages.Annotator(browser, server)
        person.set_name("anna")
        for n in range(11):
            if n == 4:  # as a person would: the first have been looked at by then
                until(lambda: server.get("/api/progress")["training"]["in_play"])
            person.press_and_wait(str(names.index(truth[int(person.position)]) + 1))
        picture(person, "photographs", "why", DESKTOP, "light")
        person.close()
    finally:
        server.kill()


def main() -> None:
    """Take them."""
    OUT.mkdir(exist_ok=True)
    wanted = sys.argv[1:] or ["digits", "text", "row", "photographs"]
    with sync_playwright() as p, tempfile.TemporaryDirectory() as folder:
        browser = p.chromium.launch(executable_path=pages.browser_path(), args=pages.FLAGS)
        for take in (digits, text, row, photographs):
            if take.__name__ in wanted:
                take(browser, Path(folder))
        browser.close()


main()
