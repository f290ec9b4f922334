"""A journal of items whose names need escaping."""

from labelahead.server.journal import Journal

ITEMS = ("a.jpg", "b/ü.jpg", "c\n'; DROP TABLE events;--.jpg", "<b>d</b>.jpg", "🦊.jpg")


def open_journal(folder, classes=("cat", "dog"), items=ITEMS, fingerprint="f"):
    return Journal(folder, items=items, fingerprint=fingerprint, classes=classes)
