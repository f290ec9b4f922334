"""Read the page and the tables of a written report."""

import csv
import re
from html.parser import HTMLParser


def read_csv_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Page(HTMLParser):
    """The text of a page and its tags with their attributes."""

    VOID = ("meta", "br", "link", "img", "hr")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).replace("\u00a0", " ").split())


def parse_page(written_report):
    found = Page(written_report.page.read_text())
    assert found.open == []
    # the page shows no undefined value
    assert not re.search(r"\b(nan|inf|None|Estimate|undefined)\b", found.text), found.text
    return found
