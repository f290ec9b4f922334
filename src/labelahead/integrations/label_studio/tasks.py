"""Download the tasks of a project to a folder of files, TASK.jpg, .wav or .txt by task id.

Downloaded files are kept even if their task is deleted, because positions in the journal must not
change.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from labelahead import files
from labelahead.data.file_tree import IMAGE_SUFFIXES, SOUND_SUFFIXES
from labelahead.data.sounds import require_sound
from labelahead.errors import InputError, LabelaheadError
from labelahead.integrations.label_studio.client import LabelStudioClient, Unreachable
from labelahead.integrations.label_studio.interface import Interface
from labelahead.server.permissions import make_private_folder

__all__ = ["FetchedTasks", "claim_folder", "fetch_tasks", "parse_task_id"]

ITEMS_FOLDER, PICTURES_FOLDER = "items", "pictures"
CLAIM_FILE = "label-studio.json"  # records which project a folder belongs to
PARALLEL_DOWNLOADS = 8  # number of threads
MAX_NAMES_SHOWN = 3  # of tasks in a note
MAX_FAILURES_PER_HOST = 8  # before no more downloads from the host are tried
IMAGE_TEXT_ENCODER = "labelahead.integrations.label_studio.image_text:picture_and_text"
log = logging.getLogger("labelahead")


@dataclass(frozen=True)
class FetchedTasks:
    """Folder of the items, the embedding to use if it is fixed, and notes for the user."""

    folder: Path
    embedding: str | None
    notes: tuple[str, ...]
    tasks: frozenset[int]  # current tasks, also those that could not be fetched


def parse_task_id(item: str) -> int:
    """Return the task id in the name of a file."""
    return int(PurePosixPath(item).stem)


def claim_folder(folder: Path, project: Mapping[str, Any], *, pool: bool = False) -> None:
    """Bind a folder to a project, or check that it belongs to this project.

    Projects are identified by id and creation time, because the URL may change. pool: whether the
    items come from an out-of-core pool.
    """
    identity = {"project": project["id"], "created_at": project["created_at"]}
    path = folder / CLAIM_FILE
    if not path.exists():
        if (folder / "labels.db").exists():
            raise InputError(
                f"{folder} holds labels, but not of a Label Studio project; choose another folder "
                "with --out"
            )
        make_private_folder(folder)
        files.replace_file(
            path,
            json.dumps({**identity, "title": project["title"], "pool": pool}, ensure_ascii=False)
            + "\n",
        )
        return
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        same = {key: known[key] for key in identity} == identity
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); restore a copy, or choose another folder with --out"
        ) from error
    if not same:
        raise InputError(
            f"{folder} is of project {known['project']} ({known.get('title')!r}, made "
            f"{known['created_at']}), not of "
            f"project {project['id']} ({project['title']!r}); choose another folder with --out"
        )
    if known.get("pool", False) != pool:
        previous_mode = (
            "with --pool, and not without" if not pool else "without --pool, and not with it"
        )
        raise InputError(
            f"{folder} was begun {previous_mode}; do the same again, or choose another folder with --out"
        )
    make_private_folder(folder)  # earlier versions did not restrict its permissions


def fetch_tasks(
    studio: LabelStudioClient,
    interface: Interface,
    folder: Path,
    on_progress: Callable[[int, int], None],
    *,
    parallel_downloads: int = PARALLEL_DOWNLOADS,
) -> FetchedTasks:
    """Download every task's picture, sound or text to `folder`/items; existing files are kept."""
    items, pictures = folder / ITEMS_FOLDER, folder / PICTURES_FOLDER
    for place in (items, *([pictures] if interface.pictures and interface.texts else ())):
        files.make_folder(place)
    stored_tasks = {parse_task_id(p.name) for p in items.iterdir() if p.stem.isdecimal()}
    tasks = list(studio.list_tasks())
    missing = [task for task in tasks if task["id"] not in stored_tasks]
    failed: dict[int, str] = {}
    silent: dict[str, list[str]] = {}  # host that does not answer -> errors

    def one(task: Mapping[str, Any]) -> None:
        place = _find_host(interface, task)
        try:
            if (
                len(silent.get(place, ())) >= MAX_FAILURES_PER_HOST
            ):  # do not wait again for each of thousands of tasks
                raise InputError(silent[place][-1])
            _store_task(studio, interface, task, folder)
        except LabelaheadError as error:
            if isinstance(error, Unreachable) and not error.elsewhere:
                raise
            failed[int(task["id"])] = str(error)
            if isinstance(error, Unreachable):
                silent.setdefault(place, []).append(str(error))

    with ThreadPoolExecutor(parallel_downloads) as pool:
        for done, _ in enumerate(pool.map(one, missing), 1):
            on_progress(done, len(missing))
    if len(failed) == len(tasks):
        why = next(iter(failed.values()), "it has no tasks")
        raise InputError(
            f"none of the project's {len(tasks)} tasks can be labelled ({why}); import tasks first"
        )
    embedding = IMAGE_TEXT_ENCODER if interface.pictures and interface.texts else None
    return FetchedTasks(
        items, embedding, tuple(_describe_failures(failed)), frozenset(int(t["id"]) for t in tasks)
    )


def _find_host(interface: Interface, task: Mapping[str, Any]) -> str:
    """Return the host in the address of a task's picture or sound."""
    fields = interface.pictures or interface.sounds
    return (
        str(task["data"].get(fields[0], "")).partition("//")[2].partition("/")[0] if fields else ""
    )


def _describe_failures(failed: Mapping[int, str]) -> Iterable[str]:
    if failed:
        some = "; ".join(f"{task}: {why}" for task, why in list(failed.items())[:MAX_NAMES_SHOWN])
        more = "; ..." if len(failed) > MAX_NAMES_SHOWN else ""
        yield (
            f"{len(failed)} tasks cannot be downloaded and are left out until the next start "
            f"({some}{more})"
        )


def _store_task(
    studio: LabelStudioClient, interface: Interface, task: Mapping[str, Any], folder: Path
) -> None:
    """Write the files of one task; the one in `items` is last and marks the task as complete."""
    number, data = int(task["id"]), task["data"]
    texts = [_read_text(data, key) for key in interface.texts]
    if interface.sounds:
        content, suffix = _download_file(studio, data, interface.sounds[0], number, "a sound")
        require_sound(content)
        named = f"{number}{suffix if suffix in SOUND_SUFFIXES else '.wav'}"
        files.replace_file(folder / ITEMS_FOLDER / named, content)
        return
    if not interface.pictures:
        files.replace_file(folder / ITEMS_FOLDER / f"{number}.txt", "\n\n".join(texts))
        return
    content, suffix = _download_file(studio, data, interface.pictures[0], number, "a picture")
    # The file is decoded by its content, whatever its suffix.
    named = f"{number}{suffix if suffix in IMAGE_SUFFIXES else '.jpg'}"
    if not texts:
        files.replace_file(folder / ITEMS_FOLDER / named, content)
        return
    files.replace_file(folder / PICTURES_FOLDER / named, content)
    files.replace_file(folder / ITEMS_FOLDER / f"{number}.txt", "\n\n".join([*texts, named]))


def _download_file(
    studio: LabelStudioClient, data: Mapping[str, Any], key: str, number: int, kind: str
) -> tuple[bytes, str]:
    """Return the content of the file that a task refers to, and the suffix of its address."""
    address = data.get(key)
    if not isinstance(address, str) or not address:
        raise InputError(f"no address of {kind} in {key!r}")
    content = studio.download(address, number)
    return content, PurePosixPath(unquote(urlsplit(address).path)).suffix.lower()


def _read_text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if value is None:
        raise InputError(f"no text in {key!r}")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
