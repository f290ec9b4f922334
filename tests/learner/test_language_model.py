"""A language model as a guesser, against a local server."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest
import torch

import labelahead as la
from labelahead.data.class_files import ClassList
from labelahead.errors import InputError, StorageError
from labelahead.files import lock_folder
from labelahead.learner.chat_endpoint import EndpointError, RequestLimits, Token
from labelahead.learner.language_model import (
    LanguageModelGuesser,
    Prompt,
    parse_class,
    spread_over_classes,
)
from tests.support.chat_server import Reply, content_of, run_chat_server
from tests.support.waiting import until

CLASSES = ("good", "bad", "ugly")
QUICK = RequestLimits(attempts=3, first_pause_seconds=0.001, timeout_seconds=20)
TEXTS = [f"text number {i}" for i in range(12)]


def make_guesser(server, folder, **more):
    return LanguageModelGuesser(
        server.url, "small", classes=CLASSES, folder=folder, **{"limits": QUICK, **more}
    )


def answer_by_number(body, number):
    """Answer by the number in the text, so that every item has a class of its own."""
    return Reply(CLASSES[int(content_of(body).split()[-1]) % 3])


def test_answers_become_probabilities(tmp_path):
    with run_chat_server(answer_by_number) as server:
        guesser = make_guesser(server, tmp_path)
        seen = []
        p = guesser(TEXTS, on_progress=lambda done, total: seen.append((done, total)))
    assert p.shape == (12, 3)
    assert p.argmax(1).tolist() == [i % 3 for i in range(12)]
    assert p[0].tolist() == pytest.approx([0.9, 0.05, 0.05])
    assert seen == [(i, 12) for i in range(1, 13)]
    system, user = server.requests[0]["messages"]
    assert "- good\n- bad\n- ugly" in system["content"]
    assert user["content"] in TEXTS
    assert (guesser.counts.requested, guesser.counts.input_tokens) == (12, 600)


def test_guesses_are_prior_knowledge_of_the_learner(tmp_path):
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    with run_chat_server(answer_by_number) as server:
        p = make_guesser(server, tmp_path)(TEXTS)
    learner = la.Learner(la.exact(x, 3, guesses=p), x)
    assert learner.predict().argmax(1).tolist() == [i % 3 for i in range(12)]


def test_the_same_item_is_never_asked_twice(tmp_path):
    with run_chat_server(answer_by_number) as server:
        first = make_guesser(server, tmp_path)(TEXTS[:5])
        guesser = make_guesser(server, tmp_path)
        again = guesser([*TEXTS[:5], TEXTS[7], TEXTS[7], "  ", ""])
        assert len(server.requests) == 6
        assert torch.equal(again[:5], first)
        assert torch.equal(again[5], again[6])
        assert not again[7:].any()
        assert (guesser.counts.from_journal, guesser.counts.empty) == (5, 2)
        reordered = LanguageModelGuesser(
            server.url, "small", classes=CLASSES[::-1], folder=tmp_path, limits=QUICK
        )
        assert torch.equal(reordered(TEXTS[:5]), first.flip(1))
        assert len(server.requests) == 6
        for more in ({"model": "large"}, {"prompt": "Which of\n{classes}?"}):
            settings = {"model": "small", "classes": CLASSES, "folder": tmp_path, **more}
            LanguageModelGuesser(server.url, **settings)(TEXTS[:1])
        assert len(server.requests) == 8
        with run_chat_server(lambda *_: Reply("ugly")) as other:
            (p,) = make_guesser(other, tmp_path)(TEXTS[:1])  # another model of the same name
    assert (int(p.argmax()), len(other.requests)) == (2, 1)


def test_limit_asks_some_items_and_the_next_call_the_others(tmp_path):
    with run_chat_server(answer_by_number) as server:
        guesser = make_guesser(server, tmp_path)
        p = guesser(TEXTS, limit=4)
        assert p.any(1).tolist() == [True] * 4 + [False] * 8
        assert guesser.counts.left == 8
        estimate = guesser.estimate(TEXTS)
        assert (estimate.items, estimate.answered) == (8, 4)
        assert guesser(TEXTS).any(1).all()
    assert Counter(map(content_of, server.requests)) == Counter(TEXTS)


def test_answers_that_name_no_class_are_no_guess_and_are_kept(tmp_path):
    said = ["maybe", "good or bad", '{"class": "BAD"}', '```json\n["ugly"]\n```', "", "'Good'."]

    def answer(body, number):
        return Reply(said[int(content_of(body).split()[-1])])

    with run_chat_server(answer) as server:
        guesser = make_guesser(server, tmp_path)
        p = guesser(TEXTS[:6])
        assert p.any(1).tolist() == [False, False, True, True, False, True]
        assert p[[2, 3, 5]].argmax(1).tolist() == [1, 2, 0]
        assert guesser.counts.no_guess == 3
        assert (
            "3 items without a guess: the answer names no class ('maybe'"
            in guesser.counts.describe()
        )
        guesser(TEXTS[:6])
    assert len(server.requests) == 6  # they are paid: not asked again


def test_log_probabilities_become_class_probabilities(tmp_path):
    reply = Reply(
        "good", tokens=[("go", 0.6, {"ba": 0.3, "Ug": 0.05, "the": 0.05}), ("od", 1.0, {})]
    )
    with run_chat_server(lambda b, n: reply) as server:
        (p,) = make_guesser(server, tmp_path)(TEXTS[:1])
    assert p.tolist() == pytest.approx([0.6 / 0.95, 0.3 / 0.95, 0.05 / 0.95], abs=1e-5)


def reference_spread(tree, classes):
    """Sum the probabilities of all full answers of a tree {prefix: {token: p}}."""
    p = dict.fromkeys(classes, 0.0)

    def walk(prefix, mass):
        if prefix in classes and prefix not in tree:
            p[prefix] += mass
        for token, q in tree.get(prefix, {}).items():
            walk(prefix + token, mass * q)

    walk("", 1.0)
    total = sum(p.values())
    return [p[c] / total for c in classes]


def test_log_probabilities_equal_those_of_all_answers():
    classes = ("sport", "space", "spa ce", "food")
    tree = {"": {"sp": 0.7, "food": 0.2, "x": 0.1}, "sp": {"ort": 0.5, "ace": 0.4, "a ce": 0.1}}
    tokens = []
    for prefix, token in (("", "sp"), ("sp", "ort")):
        options = {t: math.log(q) for t, q in tree[prefix].items()}
        tokens.append(Token(token, options[token], tuple(options.items())))
    assert spread_over_classes(tokens, classes) == pytest.approx(reference_spread(tree, classes))


def test_log_probabilities_of_another_answer_are_left_aside():
    tokens = [Token("perhaps", -0.1, (("good", -2.0),))]
    assert spread_over_classes(tokens, CLASSES) is None
    assert spread_over_classes([], CLASSES) is None
    extra = [Token("good", -0.1, ()), Token(" or bad", -0.1, ())]
    assert spread_over_classes(extra, CLASSES) is None
    assert spread_over_classes([Token("cat", 0.0, ())], ("cat", "catfish")) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("good", 0),
        (" BAD \n", 1),
        ("**Ugly**.", 2),
        ('"good"', 0),
        ('{"label": "bad"}', 1),
        ('{"anything": "bad"}', 1),
        ('{"class": "ugly", "why": "it is"}', 2),
        ('["good", "bad"]', None),
        ("good, I think", None),
        ("<think>bad? no</think>\ngood", 0),
        ('{"class": ', None),
        ("[[[[", None),
        ("3", None),
        ("", None),
    ],
)
def test_class_is_parsed_from_an_answer(text, expected):
    assert parse_class(text, CLASSES) == expected


def test_class_names_that_look_like_other_forms_are_parsed():
    assert parse_class("1", ("0", "1")) == 1
    assert parse_class('{"class": 1}', ("0", "1")) == 1
    assert parse_class("C.", ("C", "C.")) == 1
    assert parse_class("é", ("e\u0301", "e")) == 0


def test_prompt_holds_descriptions_examples_and_the_item():
    classes = ClassList(("good", "bad"), {"good": "praise"}, {"bad": ("broke", "late")})
    (message,) = Prompt('{"is": "{item}"}\n{classes}', classes).build_messages({"a": 1, "b": None})
    assert message["content"] == (
        '{"is": "a: 1"}\n- good: praise\n- bad (for example: broke; late)'
    )
    swapped = ClassList(("bad", "good"), classes.descriptions, classes.examples)
    template = "{classes}"
    assert (
        Prompt(template, classes).compute_fingerprint()
        == Prompt(template, swapped).compute_fingerprint()
        != Prompt(template, ClassList(("bad", "good"), {}, {})).compute_fingerprint()
    )


def test_pictures_are_sent_as_data_urls(tmp_path):
    picture = np.zeros((4, 5, 3), dtype=np.uint8)
    with run_chat_server() as server:
        p = make_guesser(server, tmp_path)([picture, picture + 1])
    assert p.argmax(1).tolist() == [0, 0]
    content = server.requests[0]["messages"][0]["content"]
    assert content[1]["image_url"]["url"].startswith("data:image/png;base64,")
    with pytest.raises(InputError, match="expected a text, a row as a dictionary, or a picture"):
        make_guesser(server, tmp_path)([np.zeros(3)])


def test_estimate_counts_tokens_cost_and_time(tmp_path):
    limits = RequestLimits(per_minute=30)
    guesser = LanguageModelGuesser(
        "http://127.0.0.1:9", "m", "{classes}{item}", CLASSES, limits=limits, folder=tmp_path
    )
    estimate = guesser.estimate(["x" * 400, "x" * 400, "y" * 40])
    characters = len("- good\n- bad\n- ugly") + np.array([400, 40])
    assert estimate.items == 2
    assert estimate.input_tokens == int(np.ceil(characters / 4).sum()) + 16
    assert estimate.seconds == 4.0
    assert estimate.cost(1e6, 0) == estimate.input_tokens
    assert not list(tmp_path.iterdir())


def test_item_that_the_server_refuses_is_no_guess_and_is_asked_again(tmp_path):
    def answer(body, number):
        long = content_of(body) == TEXTS[3]
        return Reply(status=400, body=b"too long") if long else Reply("bad")

    with run_chat_server(answer) as server:
        guesser = make_guesser(server, tmp_path, limits=RequestLimits(threads=1))
        p = guesser(TEXTS[:5])
        assert p.any(1).tolist() == [True, True, True, False, True]
        assert guesser.counts.refused == 1
        assert guesser.counts.left == 0
        assert guesser.estimate(TEXTS[:5]).items == 1


def test_server_that_refuses_everything_is_an_error(tmp_path):
    with run_chat_server(lambda b, n: Reply(status=400, body=b"no such field")) as server:
        guesser = make_guesser(server, tmp_path)
        with pytest.raises(EndpointError, match=r"\(no such field\); so it did for the first"):
            guesser(TEXTS)
    assert len(server.requests) < len(TEXTS)


def test_model_that_never_names_a_class_is_stopped_before_all_is_paid(tmp_path):
    texts = [f"text number {i}" for i in range(60)]
    with run_chat_server(lambda *_: Reply("I would rather not say.")) as server:
        for _ in range(2):  # again from the journal: nothing more is asked
            with pytest.raises(
                EndpointError, match=r"small names no class in 2\d answers, such as "
            ):
                make_guesser(server, tmp_path)(texts)
            paid = len(server.requests)
            assert 20 <= paid <= 20 + 2 * QUICK.threads
            assert paid == len(server.paid)
        server.answer = answer_by_number
        guesser = make_guesser(server, tmp_path)
        with pytest.raises(
            EndpointError, match=r"'I would rather not say\.'; expected one of good"
        ):
            guesser(texts)
        assert len(server.requests) == paid
        assert make_guesser(server, tmp_path, prompt="{classes}")(texts).any(1).all()


def test_failure_keeps_the_answers_before_it(tmp_path):
    def answer(body, number):
        return Reply(status=401) if number == 6 else answer_by_number(body, number)

    with run_chat_server(answer) as server:
        with pytest.raises(EndpointError, match="refuses a request without a key"):
            make_guesser(server, tmp_path)(TEXTS)
        paid = len(server.paid)
        assert 5 <= paid < len(TEXTS)
        guesser = make_guesser(server, tmp_path)
        assert guesser.estimate(TEXTS).answered == paid
        assert guesser(TEXTS).any(1).all()
    assert Counter(server.paid) == Counter(TEXTS)


def test_key_is_neither_stored_nor_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELAHEAD_LLM_KEY", "sk-very-secret")
    with run_chat_server() as server:
        guesser = make_guesser(server, tmp_path)
        guesser(TEXTS[:2])
    assert server.headers[0]["Authorization"] == "Bearer sk-very-secret"
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert any(p.name == "answers.jsonl" for p in written)
    assert all(b"very-secret" not in p.read_bytes() for p in written)
    assert "very-secret" not in repr(guesser) + repr(vars(guesser.prompt))


def test_journal_holds_no_item_and_is_private(tmp_path):
    with run_chat_server() as server:
        make_guesser(server, tmp_path)(["a private text"])
    (path,) = tmp_path.rglob("answers.jsonl")
    row = json.loads(path.read_text())
    assert {"item", "prompt", "model", "answer", "guess", "input_tokens"} <= row.keys()
    assert "private" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_second_process_does_not_ask_the_same_items(tmp_path):
    with run_chat_server() as server:
        guesser = make_guesser(server, tmp_path)
        locked = lock_folder(guesser.folder)
        with locked, pytest.raises(StorageError, match="process that asks this language model"):
            guesser(TEXTS)
    assert server.requests == []


def test_classes_are_needed():
    with pytest.raises(InputError, match="expected the names of two classes or more"):
        LanguageModelGuesser("http://127.0.0.1:9", "m")
    with pytest.raises(InputError, match="every class once"):
        LanguageModelGuesser("http://127.0.0.1:9", "m", classes=["a", "A"])


def test_interrupt_keeps_the_answers_under_way(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with run_chat_server(answer_by_number) as server:
        with pytest.raises(KeyboardInterrupt):
            make_guesser(server, tmp_path)(TEXTS, on_progress=stop)
        guesser = make_guesser(server, tmp_path)
        assert guesser.estimate(TEXTS).answered == len(server.paid) < len(TEXTS)


DRIVER = """
import sys
from labelahead.learner.chat_endpoint import RequestLimits
from labelahead.learner.language_model import LanguageModelGuesser
texts = [f"text number {i}" for i in range(int(sys.argv[3]))]
LanguageModelGuesser(
    sys.argv[1], "small", classes=["good", "bad", "ugly"], folder=sys.argv[2],
    limits=RequestLimits(threads=3),
)(texts)
"""


def test_killed_process_loses_no_answer_and_pays_none_twice(tmp_path):
    """Kill -9 in the middle of a request: only those under way (3 threads) are asked again."""
    texts = [f"text number {i}" for i in range(30)]
    reached, killed = threading.Event(), threading.Event()

    def answer(body, number):
        if number == 14:
            reached.set()
        if number >= 14 and not killed.is_set():
            killed.wait(60)  # paid, but the process is dead when the answer arrives
        return answer_by_number(body, number)

    with run_chat_server(answer) as server:
        words = [sys.executable, "-c", DRIVER, server.url, str(tmp_path), "30"]
        process = subprocess.Popen(words, env={**os.environ})
        try:
            until(reached.is_set)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        killed.set()
        (path,) = tmp_path.rglob("answers.jsonl")
        kept = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        under_way = len(server.requests) - len(kept)
        assert under_way <= 3
        with path.open("ab") as file:
            file.write(b'{"item": "torn')  # a line that the kill cut short
        guesser = make_guesser(server, tmp_path)
        assert guesser.estimate(texts).answered == len(kept) >= 11
        p = guesser(texts)
    assert p.argmax(1).tolist() == [i % 3 for i in range(30)]
    assert len(server.requests) == 30 + under_way
    asked = Counter(map(content_of, server.requests))
    assert set(asked) == set(texts)
    assert max(asked.values()) <= 2
    assert sum(count == 2 for count in asked.values()) == under_way
