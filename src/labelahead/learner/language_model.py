"""A language model as a guesser: prompt, answers, and a journal so that nothing is paid twice."""

import base64
import hashlib
import io
import json
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.class_files import ClassList
from labelahead.data.classes import require_distinct_classes
from labelahead.data.guesses import CLASS_GUESS_PROBABILITY
from labelahead.data.label_values import normalise_name
from labelahead.errors import InputError, count_noun, import_extra
from labelahead.files import (
    JsonLinesFile,
    lock_folder,
    make_folder,
    read_complete_lines,
    replace_file,
)
from labelahead.learner.chat_endpoint import (
    ChatEndpoint,
    ChatReply,
    EndpointError,
    RefusedRequest,
    RequestLimits,
    StoppedRequest,
    Token,
)

__all__ = [
    "DEFAULT_PROMPT",
    "AnswerCounts",
    "Estimate",
    "LanguageModelGuesser",
    "Prompt",
    "get_answer_folder",
    "parse_class",
    "spread_over_classes",
]

DEFAULT_PROMPT = """You sort items into classes. The classes are:
{classes}

Answer with the name of the one class that the item belongs to, exactly as it is written above.
Answer with nothing else."""
CLASSES_FIELD, ITEM_FIELD = "{classes}", "{item}"
PROMPT_VERSION = 1  # part of the hash of a prompt; changes when messages are built differently
CHARACTERS_PER_TOKEN = 4  # of English, for the estimate
TOKENS_PER_PICTURE = 800
TOKENS_PER_MESSAGE = 8
SECONDS_PER_ANSWER = 1.0  # assumed before the first one
MAX_STORED_CHARACTERS = 500  # of an answer
MAX_SHOWN_CHARACTERS = 100
MAX_CLASSES_SHOWN = 20
MAX_REFUSALS_BEFORE_ANSWER = 5
MAX_ANSWERS_BEFORE_GUESS = 20  # of which none names a class: no more are paid for
JOURNAL_FILE, ABOUT_FILE = "answers.jsonl", "about.json"
CLASS_KEYS = ("class", "label", "answer", "category", "guess", "prediction")
Item = str | Mapping[str, Any] | np.ndarray[Any, Any] | Tensor


@dataclass(frozen=True)
class Prompt:
    """What a language model is told beside the item.

    Attributes:
        template: text in which {classes} stands for the list of classes and {item} for the item.
            Without {item} the item follows as a message of its own.
        classes: names, descriptions and examples.

    >>> from labelahead.data.class_files import parse_class_list
    >>> from labelahead.learner.language_model import Prompt
    >>> Prompt("One of:\\n{classes}", parse_class_list("cat,dog")).build_messages("It barks.")[1]
    {'role': 'user', 'content': 'It barks.'}
    """

    template: str
    classes: ClassList

    @property
    def instructions(self) -> str:
        """The template with the classes filled in."""
        return self.template.replace(CLASSES_FIELD, "\n".join(self._describe_classes()))

    def build_messages(self, item: Item) -> list[dict[str, Any]]:
        """Return the messages about one item: text, a row of a table, or a picture."""
        if not isinstance(item, str | Mapping):
            picture = {"type": "image_url", "image_url": {"url": _encode_picture(item)}}
            text = {"type": "text", "text": self.instructions.replace(ITEM_FIELD, "the picture")}
            return [{"role": "user", "content": [text, picture]}]
        text_of_item = _format_item(item)
        if ITEM_FIELD in self.template:
            content = self.instructions.replace(ITEM_FIELD, text_of_item)
            return [{"role": "user", "content": content}]
        return [
            {"role": "system", "content": self.instructions},
            {"role": "user", "content": text_of_item},
        ]

    def compute_fingerprint(self) -> str:
        """Return a hash of template and classes; their order does not matter."""
        parts = [str(PROMPT_VERSION), self.template, *sorted(self._describe_classes())]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _describe_classes(self) -> list[str]:
        lines = []
        for name in self.classes.names:
            about = self.classes.descriptions.get(name, "")
            examples = "; ".join(self.classes.examples.get(name, ()))
            lines.append(
                f"- {name}"
                + (f": {about}" if about else "")
                + (f" (for example: {examples})" if examples else "")
            )
        return lines


@dataclass(frozen=True)
class Estimate:
    """What it will take to ask about some items.

    Attributes:
        items: to ask about; those in the journal and empty ones are left out.
        answered: items with an answer in the journal.
        input_tokens: estimated, by four characters a token.
        output_tokens: likewise.
        seconds: estimated; at least what the rate limit takes.
    """

    items: int
    answered: int
    input_tokens: int
    output_tokens: int
    seconds: float

    def cost(self, price_input: float, price_output: float) -> float:
        """Return the cost, by prices per million tokens.

        >>> from labelahead.learner.language_model import Estimate
        >>> Estimate(10, 0, 2_000_000, 100_000, 5.0).cost(0.5, 2.0)
        1.2
        """
        return (self.input_tokens * price_input + self.output_tokens * price_output) / 1e6


@dataclass
class AnswerCounts:
    """What became of some items.

    Attributes:
        requested: answers that this call got from the endpoint, one for each different item.
        from_journal: items that had an answer before.
        no_guess: items whose answer names no class.
        refused: items that the endpoint refuses.
        empty: items without a text.
        left: items that nobody was asked about, because of a limit.
        input_tokens: of the requests, as the endpoint counted them.
        output_tokens: likewise.
        examples: some answers that name no class.
    """

    requested: int = 0
    from_journal: int = 0
    no_guess: int = 0
    refused: int = 0
    empty: int = 0
    left: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    examples: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """Return one sentence for the user."""
        parts = [count_noun(self.requested, "answer")]
        if self.input_tokens:
            parts.append(f"{self.input_tokens:,} + {self.output_tokens:,} tokens")
        if self.from_journal:
            parts.append(f"{count_noun(self.from_journal, 'item')} answered before")
        if self.no_guess:
            said = ", ".join(repr(text) for text in self.examples)
            items = count_noun(self.no_guess, "item")
            parts.append(f"{items} without a guess: the answer names no class ({said})")
        if self.refused:
            parts.append(f"{self.refused} refused by the server")
        if self.empty:
            parts.append(f"{self.empty} empty")
        if self.left:
            parts.append(f"{self.left} not asked yet")
        return ", ".join(parts)


def get_answer_folder() -> Path:
    """Return the folder that keeps the answers of language models.

    It is $LABELAHEAD_LLM_FOLDER, else ~/.local/state/labelahead/llm; $XDG_STATE_HOME replaces
    ~/.local/state.
    """
    given = os.environ.get("LABELAHEAD_LLM_FOLDER")
    if given:
        return Path(given).expanduser()
    state = os.environ.get("XDG_STATE_HOME")
    absolute = bool(state) and Path(str(state)).is_absolute()
    root = Path(str(state)) if absolute else Path.home() / ".local" / "state"
    return root / "labelahead" / "llm"


class LanguageModelGuesser:
    """Guess classes by a language model behind an OpenAI-compatible endpoint.

    Every answer is on the disk before it counts. The same item, prompt, address and model are never
    asked twice, also after a crash; requests under way when the process is killed are lost (at most
    `limits.threads`). The key comes from LABELAHEAD_LLM_KEY, else OPENAI_API_KEY, and is not stored.

    Args:
        url: http(s)://HOST:PORT, with or without /v1.
        model: the name of the model.
        prompt: a template, see `Prompt`; None: a built-in one.
        classes: the class names, or what `read_class_file` returns.
        limits: rate, parallel requests and patience.
        folder: for the answers; None: `get_answer_folder()`.
        key: of the endpoint; None: from the environment.

    >>> import labelahead as la
    >>> guesser = la.LanguageModelGuesser("http://localhost:11434", "llama3.2", classes=["good", "bad"])
    >>> guesser.estimate(["Broke after a day.", "Would buy it again."]).items
    2
    """

    def __init__(
        self,
        url: str,
        model: str,
        prompt: str | None = None,
        classes: Sequence[str] | ClassList = (),
        *,
        limits: RequestLimits | None = None,
        folder: str | Path | None = None,
        key: str | None = None,
    ) -> None:
        listed = classes if isinstance(classes, ClassList) else ClassList(tuple(classes), {}, {})
        if len(require_distinct_classes(listed.names)) < 2:
            raise InputError(
                f"classes is {', '.join(listed.names) or 'empty'}; expected the names of two "
                "classes or more"
            )
        self.limits = limits or RequestLimits()
        self.endpoint = ChatEndpoint(url, model, key=key, limits=self.limits)
        self.prompt = Prompt(DEFAULT_PROMPT if prompt is None else prompt, listed)
        self.classes = listed.names
        # Two servers may call different models by the same name.
        question_key = "\0".join((self.endpoint.url, model, self.prompt.compute_fingerprint()))
        root = get_answer_folder() if folder is None else Path(folder).expanduser()
        self.folder = root / hashlib.sha256(question_key.encode()).hexdigest()[:16]
        self.counts = AnswerCounts()

    def __call__(
        self,
        items: Sequence[Item],
        *,
        limit: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Return class probabilities (n, C), float32; a row of zeros is no guess.

        What became of the items is in `counts`.

        Args:
            items: texts, rows of a table as dictionaries, or pictures (H, W, 3) uint8.
            limit: how many items to ask about now; None: all.
            on_progress: called with the number of answers so far, and of all.

        Raises:
            EndpointError: the language model cannot be asked, or none of its first answers names a
                class; answers so far are kept.
        """
        marks = [_fingerprint(item) for item in items]
        known = self._read_answers()
        pending = self._find_pending(items, marks, known)
        self.counts = AnswerCounts(
            from_journal=sum(mark in known for mark in marks), empty=marks.count("")
        )
        chosen = pending if limit is None else pending[:limit]
        refused: set[str] = set()
        if chosen:
            known |= self._ask(items, marks, chosen, refused, on_progress)
        self.counts.refused = len(refused)
        return self._collect(marks, known, refused)

    def estimate(self, items: Sequence[Item], limit: int | None = None) -> Estimate:
        """Return what it will take to ask about the items that have no answer yet."""
        marks = [_fingerprint(item) for item in items]
        known = self._read_answers()
        pending = self._find_pending(items, marks, known)
        chosen = pending if limit is None else pending[:limit]
        tokens = sum(self._estimate_tokens(items[i]) for i in chosen)
        longest = max(len(name) for name in self.classes)
        interval = 60 / self.limits.per_minute if self.limits.per_minute else 0.0
        each = max(interval, SECONDS_PER_ANSWER / self.limits.threads)
        return Estimate(
            len(chosen),
            sum(mark in known for mark in marks),
            tokens,
            len(chosen) * (math.ceil(longest / CHARACTERS_PER_TOKEN) + 1),
            len(chosen) * each,
        )

    def _estimate_tokens(self, item: Item) -> int:
        if not isinstance(item, str | Mapping):
            text = len(self.prompt.instructions)
            return TOKENS_PER_PICTURE + math.ceil(text / CHARACTERS_PER_TOKEN)
        messages = self.prompt.build_messages(item)
        text = sum(len(message["content"]) for message in messages)
        return math.ceil(text / CHARACTERS_PER_TOKEN) + TOKENS_PER_MESSAGE * len(messages)

    def _find_pending(
        self, items: Sequence[Item], marks: Sequence[str], known: Mapping[str, Any]
    ) -> list[int]:
        """Return the positions to ask about: without an answer, not empty, equal items once."""
        first: dict[str, int] = {}
        for i, mark in enumerate(marks):
            if mark and mark not in known:
                first.setdefault(mark, i)
        return list(first.values())

    def _read_answers(self) -> dict[str, dict[str, Any]]:
        """Return the answers in the journal by the fingerprint of their item."""
        rows = read_complete_lines(self.folder / JOURNAL_FILE)
        return {str(row["item"]): row for row, _ in rows if "item" in row}

    def _ask(
        self,
        items: Sequence[Item],
        marks: Sequence[str],
        chosen: Sequence[int],
        refused: set[str],
        on_progress: Callable[[int, int], None] | None,
    ) -> dict[str, dict[str, Any]]:
        """Ask about the items at these positions and journal every answer."""
        make_folder(self.folder)
        with ExitStack() as stack:
            stack.enter_context(
                lock_folder(self.folder, holder="process that asks this language model")
            )
            known = self._read_answers()  # another process may have asked meanwhile
            self._write_about()
            journal = JsonLinesFile(self.folder / JOURNAL_FILE)
            stack.callback(journal.close)
            (self.folder / JOURNAL_FILE).chmod(0o600)
            asking = [(marks[i], items[i]) for i in chosen if marks[i] not in known]
            if asking:
                self._require_guesses(known)
            # Closed before the journal: threads may still write to it.
            results = stack.enter_context(
                closing(_ParallelRequests(self, journal, asking).results())
            )
            for count, (mark, row) in enumerate(results, 1):
                if row is None:
                    refused.add(mark)
                else:
                    known[mark] = row
                    self.counts.requested += 1
                    self.counts.input_tokens += int(row["input_tokens"])
                    self.counts.output_tokens += int(row["output_tokens"])
                    self._require_guesses(known)
                if on_progress is not None:
                    on_progress(count, len(asking))
        return known

    def _require_guesses(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise if there are many answers and none of them names a class."""
        if len(known) < MAX_ANSWERS_BEFORE_GUESS:
            return
        if any(row["guess"] is not None for row in known.values()):
            return
        answers = [str(row["answer"]) for row in known.values()]
        raise EndpointError(self.explain_no_guess(len(answers), answers))

    def explain_no_guess(self, count: int, answers: Sequence[str]) -> str:
        """Return a sentence on `count` answers that name no class, with the first that is not empty."""
        shown = next((text for text in answers if text.strip()), "")[:MAX_SHOWN_CHARACTERS]
        return (
            f"{self.endpoint.model} names no class in {count_noun(count, 'answer')}, such as "
            f"{shown!r}; expected one of {', '.join(self.classes[:MAX_CLASSES_SHOWN])} and nothing "
            "else: change the prompt (--prompt), or take another model"
        )

    def _write_about(self) -> None:
        """Say in plain words what the answers in the folder belong to."""
        about = {
            "url": self.endpoint.url,
            "model": self.endpoint.model,
            "prompt": self.prompt.instructions,
            "prompt_hash": self.prompt.compute_fingerprint(),
        }
        path = self.folder / ABOUT_FILE
        if not path.exists():
            replace_file(path, json.dumps(about, indent=1, ensure_ascii=False))

    def build_row(self, mark: str, reply: ChatReply) -> dict[str, Any]:
        """Return the line of the journal for an answer."""
        p = guess_from_reply(reply, self.classes)
        named = None
        if p is not None:
            named = {name: round(v, 6) for name, v in zip(self.classes, p, strict=True) if v > 0}
        return {
            "item": mark,
            "prompt": self.prompt.compute_fingerprint()[:16],
            "model": self.endpoint.model,
            "answer": reply.text[:MAX_STORED_CHARACTERS],
            "guess": named,
            "input_tokens": reply.input_tokens,
            "output_tokens": reply.output_tokens,
            "time": round(time.time(), 1),
        }

    def _collect(
        self, marks: Sequence[str], known: Mapping[str, Mapping[str, Any]], refused: set[str]
    ) -> Tensor:
        """Return the probabilities (n, C) of the answers, and count those without a guess."""
        out = torch.zeros(len(marks), len(self.classes))
        for i, mark in enumerate(marks):
            row = known.get(mark)
            if row is None:
                self.counts.left += bool(mark) and mark not in refused
                continue
            if row["guess"] is None:
                self.counts.no_guess += 1
                if len(self.counts.examples) < 3 and row["answer"][:40] not in self.counts.examples:
                    self.counts.examples.append(row["answer"][:40])
                continue
            p = torch.tensor([float(row["guess"].get(name, 0.0)) for name in self.classes])
            out[i] = p / p.sum().clamp_min(1e-30)
        return out


class _ParallelRequests:
    """Ask about items in some threads; every answer is in the journal before it is returned."""

    def __init__(
        self,
        guesser: LanguageModelGuesser,
        journal: JsonLinesFile,
        items: Sequence[tuple[str, Item]],
    ) -> None:
        self._guesser, self._journal = guesser, journal
        self._items = iter(items)
        self._count = len(items)
        self._lock = threading.Lock()
        self._done: queue.SimpleQueue[tuple[str, dict[str, Any] | None] | Exception | None] = (
            queue.SimpleQueue()
        )
        self._refusals = 0
        self._has_answered = False

    def results(self) -> Generator[tuple[str, dict[str, Any] | None]]:
        """Yield the fingerprint and the line of every answer; None: refused.

        Raises:
            EndpointError: a request failed for good. The others have finished then.
        """
        self._guesser.endpoint.resume()
        number = min(self._guesser.limits.threads, self._count)
        threads = [threading.Thread(target=self._work) for _ in range(number)]
        for thread in threads:
            thread.start()
        failure: Exception | None = None
        try:
            running = len(threads)
            while running:
                result = self._done.get()
                if result is None:
                    running -= 1
                elif isinstance(result, Exception):
                    self._guesser.endpoint.stop()
                    failure = failure or result
                else:
                    yield result
        finally:
            # Answers under way are paid: they are waited for and kept, also after Ctrl-C.
            self._guesser.endpoint.stop()
            for thread in threads:
                thread.join()
        if failure is not None:
            raise failure

    def _work(self) -> None:
        try:
            while (entry := self._next()) is not None:
                self._ask_one(*entry)
        except StoppedRequest:
            pass
        except Exception as error:  # is raised in the thread that waits
            self._done.put(error)
        finally:
            self._done.put(None)

    def _next(self) -> tuple[str, Item] | None:
        with self._lock:
            return next(self._items, None)

    def _ask_one(self, mark: str, item: Item) -> None:
        guesser = self._guesser
        try:
            reply = guesser.endpoint.complete(guesser.prompt.build_messages(item))
        except RefusedRequest as error:
            with self._lock:
                self._refusals += 1
                hopeless = not self._has_answered and self._refusals >= min(
                    MAX_REFUSALS_BEFORE_ANSWER, self._count
                )
            if hopeless:
                raise EndpointError(
                    f"{error}; so it did for the first {self._refusals} items"
                ) from None
            self._done.put((mark, None))
            return
        row = guesser.build_row(mark, reply)
        with self._lock:
            self._journal.append(row)
            self._has_answered = True
        self._done.put((mark, row))


# --- from an answer to a guess


def guess_from_reply(reply: ChatReply, classes: Sequence[str]) -> list[float] | None:
    """Return class probabilities of an answer; None if it names no class."""
    p = spread_over_classes(reply.tokens, classes)
    if p is not None:
        return p
    found = parse_class(reply.text, classes)
    if found is None:
        return None
    rest = (1 - CLASS_GUESS_PROBABILITY) / max(len(classes) - 1, 1)
    return [CLASS_GUESS_PROBABILITY if i == found else rest for i in range(len(classes))]


def parse_class(text: str, classes: Sequence[str]) -> int | None:
    """Return the number of the class that an answer names; None if it names none, or says more.

    >>> from labelahead.learner.language_model import parse_class
    >>> [parse_class(text, ["good", "bad"]) for text in ("Bad.", '{"class": "good"}', "maybe")]
    [1, 0, None]
    """
    text = re.sub(r"(?s)^.*</think>", "", text).strip()  # reasoning that some models put first
    text = re.sub(r"(?s)^```\w*\s*(.*?)\s*```$", r"\1", text)
    if text in classes:
        return list(classes).index(text)
    if text[:1] in ("{", "[", '"'):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        value = _unpack(value)
        text = value if isinstance(value, str) else text
    number = {_normalise_answer(name): i for i, name in enumerate(classes)}
    return number.get(_normalise_answer(text))


def _unpack(value: Any) -> Any:
    """Return the class in a JSON value: a text, a list of one, or an object with a usual key."""
    if isinstance(value, list) and len(value) == 1:
        return _unpack(value[0])
    if isinstance(value, dict):
        keys = {str(key).casefold(): v for key, v in value.items()}
        found = [keys[key] for key in CLASS_KEYS if key in keys] or list(keys.values())
        return _unpack(found[0]) if len(found) == 1 else None
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _normalise_answer(text: str) -> str:
    """Return a name without case, quotes, emphasis and a final full stop."""
    return normalise_name(text.strip().strip("\"'`*_ \n\t").removesuffix(".").strip("\"'`*_ "))


def spread_over_classes(tokens: Sequence[Token], classes: Sequence[str]) -> list[float] | None:
    """Return class probabilities by the log-probabilities of the tokens of an answer.

    The answer is followed token by token while it is the beginning of a class name. At every token,
    an alternative with which the answer would begin another name counts for the classes that begin
    so, in equal parts.

    Returns:
        C numbers that sum to 1; None if the answer is not the beginning of one name.
    """
    names = [normalise_name(name) for name in classes]
    p, begun, mass = [0.0] * len(names), "", 1.0

    def find(text: str) -> list[int]:
        start = normalise_name(text.lstrip(" \n\t\"'"))
        return [i for i, name in enumerate(names) if start and name.startswith(start)]

    for token in tokens:
        for other, log_p in token.alternatives:
            matching = find(begun + other) if other != token.text else []
            for i in matching:
                p[i] += mass * math.exp(log_p) / len(matching)
        mass *= math.exp(min(token.log_probability, 0.0))
        begun += token.text
        matching = find(begun)
        if len(matching) == 1:
            break
        if begun.strip(" \n\t\"'") and not matching:
            return None
    whole = [i for i, name in enumerate(names) if name == _normalise_answer(begun)]
    said = find(begun) if len(find(begun)) == 1 else whole
    full = parse_class("".join(token.text for token in tokens), classes)
    if len(said) != 1 or full != said[0]:
        return None
    p[said[0]] += mass
    total = sum(p)
    return [v / total for v in p]


# --- items


def _format_item(item: str | Mapping[str, Any]) -> str:
    """Return an item as text; a row of a table has a line per column."""
    if isinstance(item, str):
        return item
    filled = {k: v for k, v in item.items() if v is not None and str(v).strip()}
    return "\n".join(f"{name}: {value}" for name, value in filled.items())


def _fingerprint(item: Item) -> str:
    """Return a hash of the content of an item, "" if it is empty."""
    if isinstance(item, str | Mapping):
        text = _format_item(item)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() if text.strip() else ""
    pixels = _as_pixels(item)
    shape = "x".join(map(str, pixels.shape))
    return hashlib.sha256(shape.encode() + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def _as_pixels(item: object) -> np.ndarray[Any, Any]:
    pixels = np.asarray(item)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise InputError(
            f"an item is a {type(item).__name__} of shape {pixels.shape}; expected a text, a row as "
            "a dictionary, or a picture (H, W, 3) of uint8"
        )
    return pixels


def _encode_picture(item: object) -> str:
    """Return a picture as a data URL."""
    pil = import_extra("PIL.Image", "app", "sending pictures")
    file = io.BytesIO()
    pil.fromarray(_as_pixels(item)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
