"""The tables of labels.db, version by version.

To change them, append to MIGRATIONS; what has been released is never edited.
"""

__all__ = ["APPLICATION", "MIGRATIONS"]

APPLICATION = 0x6C61686C  # "lahl", at a fixed place in the file: says whose it is

MIGRATIONS: list[tuple[str, ...]] = [
    (
        f"PRAGMA application_id = {APPLICATION}",
        # what the record is about, for whoever reads the file alone
        "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE items (position INTEGER PRIMARY KEY, item TEXT NOT NULL)",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            at TEXT NOT NULL,
            who TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ('label', 'skip', 'unsure', 'undo', 'class')),
            position INTEGER,
            label INTEGER,
            ref INTEGER,
            key TEXT,
            text TEXT,
            CHECK ((kind IN ('label', 'class')) = (label IS NOT NULL)),
            CHECK ((kind = 'class') = (position IS NULL)),
            CHECK ((kind = 'undo') = (ref IS NOT NULL)),
            CHECK ((kind = 'class') = (text IS NOT NULL))
        )""",
        "CREATE UNIQUE INDEX events_key ON events (key) WHERE key IS NOT NULL",
        """CREATE TRIGGER events_stay BEFORE UPDATE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never changed'); END""",
        """CREATE TRIGGER events_last BEFORE DELETE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never removed'); END""",
        # one holder for an item, one item for a person
        """CREATE TABLE leases (
            position INTEGER PRIMARY KEY, who TEXT NOT NULL UNIQUE, until REAL NOT NULL
        )""",
    ),
    (  # the kind `settle`; SQLite changes no CHECK, so the table is made anew
        """CREATE TABLE events_2 (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            at TEXT NOT NULL,
            who TEXT NOT NULL,
            kind TEXT NOT NULL
                CHECK (kind IN ('label', 'skip', 'unsure', 'settle', 'undo', 'class')),
            position INTEGER,
            label INTEGER,
            ref INTEGER,
            key TEXT,
            text TEXT,
            CHECK ((kind IN ('label', 'settle', 'class')) = (label IS NOT NULL)),
            CHECK ((kind = 'class') = (position IS NULL)),
            CHECK ((kind = 'undo') = (ref IS NOT NULL)),
            CHECK ((kind = 'class') = (text IS NOT NULL))
        )""",
        """INSERT INTO events_2 (seq, at, who, kind, position, label, ref, key, text)
            SELECT seq, at, who, kind, position, label, ref, key, text FROM events ORDER BY seq""",
        "DROP TABLE events",
        "ALTER TABLE events_2 RENAME TO events",
        "CREATE UNIQUE INDEX events_key ON events (key) WHERE key IS NOT NULL",
        """CREATE TRIGGER events_stay BEFORE UPDATE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never changed'); END""",
        """CREATE TRIGGER events_last BEFORE DELETE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never removed'); END""",
    ),
    (  # the kinds `keep` and `doubt`
        """CREATE TABLE events_3 (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            at TEXT NOT NULL,
            who TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (
                kind IN ('label', 'skip', 'unsure', 'settle', 'keep', 'doubt', 'undo', 'class')
            ),
            position INTEGER,
            label INTEGER,
            ref INTEGER,
            key TEXT,
            text TEXT,
            CHECK ((kind IN ('label', 'settle', 'keep', 'class')) = (label IS NOT NULL)),
            CHECK ((kind = 'class') = (position IS NULL)),
            CHECK ((kind = 'undo') = (ref IS NOT NULL)),
            CHECK ((kind = 'class') = (text IS NOT NULL))
        )""",
        """INSERT INTO events_3 (seq, at, who, kind, position, label, ref, key, text)
            SELECT seq, at, who, kind, position, label, ref, key, text FROM events ORDER BY seq""",
        "DROP TABLE events",
        "ALTER TABLE events_3 RENAME TO events",
        "CREATE UNIQUE INDEX events_key ON events (key) WHERE key IS NOT NULL",
        """CREATE TRIGGER events_stay BEFORE UPDATE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never changed'); END""",
        """CREATE TRIGGER events_last BEFORE DELETE ON events
            BEGIN SELECT RAISE(ABORT, 'events are never removed'); END""",
    ),
]
