"""The pictures of docs/label-studio.md: a real Label Studio, a real browser.

Run from the repository: `LABELAHEAD_LABEL_STUDIO=.venv-label-studio/bin/label-studio
.venv/bin/python docs/screenshots_label_studio.py`; needs the extra `test` and chromium.
"""

import os
import random
import re
import sys
import tempfile
from itertools import product
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.support import browser_pages as pages  # noqa: E402
from tests.support.label_studio import RealBridge, RealStudio, sign_in  # noqa: E402

OUT = ROOT / "docs" / "screenshots"
COLOURS = 64  # a picture of a page needs no more
NEWS = {
    "sport": (
        "The {0} won the {1} after a late goal.",
        ["visitors", "home team", "young side"],
        ["match", "cup", "derby"],
    ),
    "food": (
        "A {0} with {1} is on the table in half an hour.",
        ["soup", "salad", "stew"],
        ["lentils", "old bread", "herbs"],
    ),
    "space": (
        "The {0} sent its first pictures of {1}.",
        ["probe", "telescope", "lander"],
        ["Titan", "a comet", "the far side"],
    ),
}


def news() -> list[dict[str, str]]:
    """Short reports, each of one topic."""
    rows = []
    for topic, (sentence, first, second) in NEWS.items():
        for one, other in product(first, second):
            for more in (
                "Few had expected it.",
                "It took all morning.",
                "More tomorrow.",
                "Readers had asked for it.",
            ):
                rows.append({"text": f"{sentence.format(one, other)} {more}", "truth": topic})
    random.Random(0).shuffle(rows)
    return rows


def picture(shown, name: str) -> None:
    """As it is now, small."""
    shown.wait_for_timeout(2000)
    path = OUT / f"{name}.png"
    shown.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(path, path.stat().st_size)


def main() -> None:
    """Both pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        studio = RealStudio(os.environ["LABELAHEAD_LABEL_STUDIO"], Path(folder) / "studio")
        try:
            project = studio.new_project(news(), title="Topics of the news")
            bridge = RealBridge(studio, project, Path(folder) / "out", "--predictions")
            try:
                bridge.settle()
                for _ in range(12):
                    task = studio.next_task(project)
                    studio.annotate(task["id"], task["data"]["truth"])
                bridge.settle()
                browser = play.chromium.launch(
                    executable_path=pages.browser_path(), args=pages.FLAGS
                )
                shown = browser.new_page(viewport={"width": 1180, "height": 640})
                sign_in(shown, studio)
                shown.goto(f"{studio.url}/projects/{project}/data")
                begin = shown.get_by_role(
                    "button", name=re.compile("Label .*Tasks?", re.IGNORECASE)
                ).first
                begin.wait_for()
                picture(shown, "label-studio-tasks")
                begin.click()
                shown.get_by_role(
                    "button", name=re.compile("^Submit", re.IGNORECASE)
                ).first.wait_for(timeout=60_000)
                picture(shown, "label-studio-label")
                browser.close()
            finally:
                bridge.kill()
        finally:
            studio.kill()


if __name__ == "__main__":
    main()
