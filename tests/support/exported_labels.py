"""Labels of a session, written and read back in every format."""

from labelahead.server.exchange import write_labels as export_items
from labelahead.server.export_content import ExportItems, Predicted
from labelahead.server.label_state import Event, build_label_state

# Each of these names breaks at least one export form if it is not escaped.
CLASSES = (
    "cat",
    "../../up",
    "..",
    "/etc",
    "=1+1",
    "@x",
    "-1",
    "-x",
    "'=q",
    'a,"b"\nc',
    "<b>",
    "🦊é",
    "CON",
    ".hid",
    "a\\b",
    "100%",
    "w" * 200,
    "ü" * 200,
    "x\u2028\x7f\x85y",
    "_under",
    "x\ry",
)
ITEMS = (
    "cats/3.jpg",
    "dogs/3.jpg",
    "=cmd|'x'!A0.jpg",
    "+4",
    "-5",
    "@me.jpg",
    'q"uo,te.jpg',
    "new\nline",
    " space ",
    "🦊.jpg",
    "'quoted",
    "''=two",
    "a/../b.jpg",
    "x;y",
    "\ttab",
    "p%2Fq.jpg",
    "...",
    "z.jpg",
)


def build_state(answers, classes=CLASSES):
    """Build the label state of answers (who, kind, position, label), in order."""
    events = [Event(i + 1, "t", "", "class", label=i, text=n) for i, n in enumerate(classes)]
    for who, kind, position, label in answers:
        at = f"2026-01-01T00:00:{len(events):02d}.000+00:00"
        events.append(Event(len(events) + 1, at, who, kind, position, label))
    return build_label_state(events)


def make_label_state():
    """Use all classes and nearly all items; two annotators label some items, with conflicts."""
    answers = [("anna", "label", i % (len(ITEMS) - 1), i) for i in range(len(CLASSES))]
    answers += [("=ben", "label", 0, 3), ("=ben", "label", 1, 0), ("cy", "skip", 1, None)]
    return build_state([*answers, ("cy", "unsure", 17, None), ("anna", "skip", 2, None)])


def write_labels(state, ids, guesses, form, out, *, opener=None):
    """Export items that have an id and optionally a file."""
    return export_items(
        state, ExportItems(ids, open_file=opener), form, out, predicted=Predicted(guesses or {})
    )
