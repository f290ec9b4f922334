"""Record what the commands print and write, so that two versions of the code can be compared.

    python -m research.behaviour record before/       # with the old code on PYTHONPATH
    python -m research.behaviour record after/        # with the new code
    python -m research.behaviour compare before/ after/

A refactoring must leave every number as it was. The script uses only the command line and the HTTP
interface, which do not change with the names of modules. It records campaigns (one a strategy), a
comparison with its report, and three sessions of the labelling page (a network on digits, texts,
and a table), each answered by the true labels. Times, paths and ports are left out.
"""

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

from sklearn.datasets import load_digits, load_iris

EXACT = ["--model", "exact"]
CAMPAIGNS = {  # name -> options; a trained network unless they say otherwise
    "flip": [],
    "exact-flip": EXACT,
    "exact-resolve": [*EXACT, "--strategy", "resolve"],
    "exact-greedy": [*EXACT, "--strategy", "flip", "--mode", "greedy"],
    "exact-uherding": [*EXACT, "--strategy", "uherding"],
    "mlmoc-sequential": ["--strategy", "mlmoc", "--mode", "sequential"],
    "emoc-greedy": ["--strategy", "emoc", "--mode", "greedy"],
    "eer": ["--strategy", "eer"],
    "changes": ["--strategy", "changes"],
    "variance": ["--strategy", "variance"],
    "badge": ["--strategy", "badge"],
    "margin": ["--strategy", "margin"],
    "coreset": ["--strategy", "coreset"],
    "typiclust": ["--strategy", "typiclust"],
    "bait": ["--strategy", "bait"],
    "batchbald": ["--strategy", "batchbald"],
    "dynamical": ["--strategy", "dynamical"],
    "ll4al": ["--strategy", "ll4al"],
    "albl": ["--strategy", "albl"],
    "infinite-ntk": ["--strategy", "infinite-ntk"],
    "ntk-solve": ["--strategy", "ntk-solve"],
    "random": ["--strategy", "random"],
}
COMMON = ["--labels", "40", "--candidates", "300", "--set", "training.steps=60", "--threads", "1"]
TEXTS = {
    "sport": [
        "the team won the {} match",
        "a goal in the {} minute",
        "the coach praised her {} players",
    ],
    "food": [
        "add {} grams of flour",
        "the soup needs {} more minutes",
        "we ate {} plates of pasta",
    ],
    "travel": [
        "the train leaves at {}",
        "a hotel with {} rooms by the sea",
        "the flight took {} hours",
    ],
}
UNSTEADY = re.compile(
    r"second|time|elapsed|_at$|created|modified|duration|date|version|threads|path|folder", re.I
)


def run_labelahead(*arguments: str, cwd: Path) -> str:
    """Run a command and return what it printed."""
    command = [sys.executable, "-m", "labelahead", *arguments]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def remove_unsteady_values(value: object) -> object:
    """Return JSON content without times, paths and ports."""
    if isinstance(value, dict):
        return {
            k: remove_unsteady_values(v) for k, v in sorted(value.items()) if not UNSTEADY.search(k)
        }
    if isinstance(value, list):
        return [remove_unsteady_values(v) for v in value]
    return value


def write_record(out: Path, name: str, content: object) -> None:
    """Write one record."""
    (out / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True, default=str))
    print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)


def record_campaigns(out: Path, work: Path) -> None:
    """Record the rounds of one campaign for each strategy."""
    for name, options in CAMPAIGNS.items():
        run_labelahead("run", *COMMON, "--model", "mlp", *options, "--out", f"run-{name}", cwd=work)
        lines = (work / f"run-{name}" / "rounds.jsonl").read_text().splitlines()
        write_record(
            out, f"run-{name}", [remove_unsteady_values(json.loads(line)) for line in lines]
        )


def record_comparison(out: Path, work: Path) -> None:
    """Record the tables of a comparison and its report."""
    options = [
        "--strategies",
        "flip,margin,random",
        "--seeds",
        "3",
        "--workers",
        "1",
        "--out",
        "comparison",
    ]
    run_labelahead("compare", *options, *COMMON[:4], "--set", "training.steps=60", cwd=work)
    run_labelahead("report", "comparison", cwd=work)
    for path in sorted((work / "comparison").rglob("*.csv")):
        rows = [remove_unsteady_values(row) for row in csv.DictReader(path.open())]
        write_record(out, f"comparison-{path.stem}", rows)
    page = next((work / "comparison").rglob("*.html")).read_text()
    text = re.sub(r"<(script|style|svg).*?</\1>|<[^>]+>|data:[^\"']+", " ", page, flags=re.S)
    write_record(out, "comparison-page", re.findall(r"-?\d+\.\d+", text))


def make_data(work: Path) -> dict[str, tuple[Path, list[str]]]:
    """Write a table of texts and a table of numbers; return each file with its true classes."""
    rows = [
        (kind, line.format(n)) for n in range(12) for kind, lines in TEXTS.items() for line in lines
    ]
    with (work / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for _, text in rows)])
    iris = load_iris()
    with (work / "iris.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "d"], *iris.data.tolist()])
    return {
        "texts": (work / "texts.csv", [kind for kind, _ in rows]),
        "iris": (work / "iris.csv", [str(iris.target_names[t]) for t in iris.target]),
    }


class Page:
    """A running labelling page."""

    def __init__(self, work: Path, name: str, data: str, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "labelahead",
            "label",
            data,
            "--no-browser",
            "--port",
            "0",
            "--threads",
            "1",
        ]
        self.log = (work / f"{name}.log").open("w+")
        self.process = subprocess.Popen(
            [*command, "--out", f"session-{name}", *options],
            cwd=work,
            stdout=self.log,
            stderr=self.log,
        )
        self.url = self._url(work / f"{name}.log")

    def _url(self, log: Path) -> str:
        for _ in range(1200):
            found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
            if found:
                return found[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"no page: {log.read_text()}")

    def get(self, path: str, raw: bool = False) -> object:
        """Fetch an address."""
        with urlopen(
            Request(self.url + path, headers={"X-Labelahead": "1", "Cookie": "la_who=ann"})
        ) as reply:
            body = reply.read().decode()
        return body if raw else json.loads(body)

    def post(self, path: str, content: object) -> object:
        """Send JSON."""
        headers = {"X-Labelahead": "1", "Cookie": "la_who=ann", "Content-Type": "application/json"}
        with urlopen(
            Request(self.url + path, data=json.dumps(content).encode(), headers=headers)
        ) as reply:
            return json.loads(reply.read())

    def settle(self) -> object:
        """Wait until no training is due."""
        while not (progress := self.get("/api/progress"))["training"]["idle"]:
            time.sleep(0.05)
        return progress

    def stop(self) -> None:
        """End the server."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


def record_page(
    out: Path, work: Path, name: str, data: str, truth: list[str], *options: str
) -> None:
    """Answer 30 questions truly, and record everything that the page says."""
    page = Page(
        work, name, data, "--classes", ",".join(sorted(set(truth))), "--overlap", "0", *options
    )
    said = []
    page.settle()
    numbers = {c["name"]: c["number"] for c in page.get("/api/session")["classes"]}
    for step in range(30):
        question = page.get("/api/question")
        position = question["position"]
        said.append(
            {
                "question": remove_unsteady_values(question),
                "progress": remove_unsteady_values(page.get("/api/progress")),
            }
        )
        if step % 10 == 9:
            said.append({"why": remove_unsteady_values(page.get(f"/api/why/{position}"))})
        answer = {
            "position": position,
            "kind": "label",
            "label": numbers[truth[position]],
            "key": f"k{step}",
        }
        page.post("/api/answers", answer)
        page.settle()
    write_record(out, f"page-{name}", said)
    rows = list(
        csv.DictReader(page.get("/api/export/csv?rest=1&probabilities=1", raw=True).splitlines())
    )
    write_record(out, f"page-{name}-export", [remove_unsteady_values(row) for row in rows])
    for path in ("doubts", "people", "map"):
        write_record(out, f"page-{name}-{path}", remove_unsteady_values(page.get(f"/api/{path}")))
    page.stop()
    run_labelahead("export-model", f"session-{name}", "--to", f"model-{name}", cwd=work)
    if (work / data).exists():
        predicted = run_labelahead("predict", f"model-{name}", data, cwd=work)
        write_record(out, f"page-{name}-predict", predicted.splitlines())


def record_everything(out: Path) -> None:
    """Record everything."""
    out.mkdir(parents=True)
    work = out / "work"
    work.mkdir()
    os.environ.setdefault("LABELAHEAD_STATE", str(work / "state"))
    made = make_data(work)
    record_page(out, work, "texts", str(made["texts"][0].name), made["texts"][1])
    record_page(out, work, "iris", str(made["iris"][0].name), made["iris"][1])
    digits = [str(t) for t in load_digits().target]
    record_page(out, work, "digits", "digits", digits, "--model", "mlp")
    record_campaigns(out, work)
    record_comparison(out, work)


def list_differences(old: object, new: object, where: str = "") -> list[str]:
    """Name the places at which two records differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [d for k in keys for d in list_differences(old.get(k), new.get(k), f"{where}.{k}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            d
            for i, pair in enumerate(zip(old, new, strict=True))
            for d in list_differences(*pair, f"{where}[{i}]")
        ]
    return [] if old == new else [f"{where}: {old!r} -> {new!r}"]


def compare_recordings(old: Path, new: Path) -> int:
    """Print what differs between two recordings; return how many records do."""
    names = sorted({p.name for folder in (old, new) for p in folder.glob("*.json")})
    differing = 0
    for name in names:
        pair = [
            json.loads((f / name).read_text()) if (f / name).exists() else None for f in (old, new)
        ]
        found = list_differences(*pair)
        differing += bool(found)
        for line in found[:5]:
            print(f"{name}{line[:300]}")
    print(f"{len(names)} records, {differing} differ")
    return differing


def main(arguments: list[str]) -> int:
    """Record, or compare two recordings; return 1 if they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folders", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    if given.action == "record":
        record_everything(given.folders[0].resolve())
        return 0
    return int(compare_recordings(*given.folders) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
