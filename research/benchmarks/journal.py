"""What a checkpoint after every answer costs, beside SQLite's own one after 1,000 pages of its log.

Two journals on the same disk take the same answers in turn, so that a busy moment hits both. Timed
is what an annotator waits for: `Journal.add`, which returns when the answer is on the disk, and the
lease of the next item. The goal: a checkpoint adds less than 2 ms. The fastest tenth of the answers
shows the cost where no other program uses the disk.
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from labelahead.server.journal import Journal

GOAL_MS = 2.0
NEVER = sys.maxsize  # SQLite checkpoints by itself every 1,000 pages


def measure(folder: Path, items: int, answers: int) -> dict[str, list[float]]:
    """Return milliseconds of every answer, with and without a checkpoint after it."""
    names = [f"photos/{i:06d}.jpg" for i in range(items)]
    milliseconds: dict[str, list[float]] = {"every answer": [], "by SQLite": []}
    with ExitStack() as stack:
        journals = {
            how: stack.enter_context(
                Journal(
                    folder / how,
                    items=names,
                    fingerprint="f",
                    classes=["a", "b"],
                    checkpoint_every=every,
                )
            )
            for how, every in (("every answer", 1), ("by SQLite", NEVER))
        }
        for i in range(answers):
            for how in sorted(journals, reverse=bool(i % 2)):
                journal = journals[how]
                start = time.perf_counter()
                journal.add_event("label", "anna", i % items, i % 2, key=f"{i:032d}")
                journal.lease_item((i + 1) % items, "anna", 600)
                milliseconds[how].append(1000 * (time.perf_counter() - start))
    return milliseconds


def main() -> None:
    """Print a line for each way, the ratio and what a checkpoint adds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=4000)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument(
        "--folder", type=Path, help="on the disk to be measured; default: the temporary folder"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        measured = measure(Path(scratch), options.items, options.answers)
    for name, choose in (
        ("median", statistics.median),
        ("fastest tenth", lambda t: statistics.quantiles(t, n=10)[0]),
    ):
        checkpointed, plain = choose(measured["every answer"]), choose(measured["by SQLite"])
        print(
            f"{name}: {checkpointed:.2f} ms with a checkpoint after every answer, {plain:.2f} ms "
            "without; "
            f"ratio {checkpointed / plain:.2f}, {checkpointed - plain:.2f} ms more (goal: less "
            f"than {GOAL_MS:g})"
        )


if __name__ == "__main__":
    main()
