"""The client of a chat endpoint, against a local server."""

import json
import socket
import threading
import time
from email.utils import formatdate

import pytest

from labelahead.errors import InputError
from labelahead.learner.chat_endpoint import (
    ChatEndpoint,
    EndpointError,
    RefusedRequest,
    RequestLimits,
    StoppedRequest,
    complete_url,
    find_key,
    find_keys,
)
from tests.support.chat_server import Reply, run_chat_server

QUICK = RequestLimits(attempts=3, first_pause_seconds=0.001, timeout_seconds=20)
MESSAGES = [{"role": "user", "content": "good or bad?"}]
KEY = "sk-secret-0123456789"


def test_reply_has_text_tokens_and_counts():
    reply = Reply("good", tokens=[("go", 0.6, {"ba": 0.3}), ("od", 0.9, {})])
    with run_chat_server(lambda body, number: reply) as server:
        found = ChatEndpoint(server.url, "small", key=KEY, limits=QUICK).complete(MESSAGES)
    assert (found.text, found.input_tokens, found.output_tokens) == ("good", 50, 2)
    assert [token.text for token in found.tokens] == ["go", "od"]
    assert [text for text, _ in found.tokens[0].alternatives] == ["go", "ba"]
    (body,) = server.requests
    assert (body["model"], body["messages"], body["temperature"]) == ("small", MESSAGES, 0)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy_server_is_asked_again(status):
    def answer(body, number):
        return Reply(status=status, body=b"{}") if number < 3 else Reply("bad")

    with run_chat_server(answer) as server:
        assert ChatEndpoint(server.url, "m", key="", limits=QUICK).complete(MESSAGES).text == "bad"
    assert len(server.requests) == 3


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(form):
    times = []

    def answer(body, number):
        times.append(time.monotonic())
        wait = "1" if form == "seconds" else formatdate(time.time() + 2, usegmt=True)
        return Reply(status=429, headers={"Retry-After": wait}) if number == 1 else Reply("good")

    with run_chat_server(answer) as server:
        ChatEndpoint(server.url, "m", key="", limits=QUICK).complete(MESSAGES)
    assert times[1] - times[0] >= 0.99  # a date has whole seconds


def test_server_that_stays_busy_is_an_error_that_says_what_to_do():
    with run_chat_server(lambda b, n: Reply(status=503, body=b"overloaded")) as server:
        endpoint = ChatEndpoint(server.url, "m", key="", limits=QUICK)
        with pytest.raises(EndpointError, match=r"after 3 attempts \(503 overloaded\); wait"):
            endpoint.complete(MESSAGES)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "refuses the key from the environment .*expected a valid one in LABELAHEAD_LLM_KEY"),
        (404, "is not there, or does not know the model 'small'"),
        (302, "redirects to http://elsewhere"),
        (418, "answers 418"),
    ],
)
def test_lasting_errors_are_not_repeated_and_do_not_show_the_key(status, message):
    body = json.dumps({"error": {"message": f"no, {KEY} is wrong"}}).encode()
    reply = Reply(status=status, body=body, headers={"Location": "http://elsewhere"})
    with run_chat_server(lambda b, n: reply) as server:
        endpoint = ChatEndpoint(server.url, "small", key=KEY, limits=QUICK)
        with pytest.raises(EndpointError, match=message) as caught:
            endpoint.complete(MESSAGES)
    assert len(server.requests) == 1
    assert KEY not in str(caught.value)


def test_refused_connection_is_an_error_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EndpointError, match=r"cannot be reached \(Connection refused\); start"):
        ChatEndpoint(url, "m", key="").complete(MESSAGES)


def test_slow_answer_is_a_timeout():
    release = threading.Event()

    def answer(body, number):
        release.wait(60)
        return Reply("good")

    limits = RequestLimits(attempts=2, timeout_seconds=0.2, first_pause_seconds=0.001)
    with run_chat_server(answer) as server:
        with pytest.raises(EndpointError, match=r"no answer within 0.2 seconds"):
            ChatEndpoint(server.url, "m", key="", limits=limits).complete(MESSAGES)
        release.set()
    assert len(server.requests) == 2


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"choices": []}', b'{"choices": [3]}'])
def test_body_that_is_not_of_the_protocol_is_an_error(body):
    with run_chat_server(lambda b, n: Reply(body=body)) as server:
        endpoint = ChatEndpoint(server.url, "m", key="", limits=QUICK)
        with pytest.raises(EndpointError, match="an answer that is not of the protocol"):
            endpoint.complete(MESSAGES)


def test_parameter_that_a_server_refuses_is_left_out():
    def answer(body, number):
        for name in ("logprobs", "max_tokens"):
            if name in body:
                return Reply(status=400, body=f"unsupported parameter: {name}".encode())
        return Reply("good")

    with run_chat_server(answer) as server:
        endpoint = ChatEndpoint(server.url, "m", key="", limits=QUICK)
        assert endpoint.complete(MESSAGES).text == "good"
        assert endpoint.complete(MESSAGES).text == "good"
    assert [
        sorted({"logprobs", "top_logprobs", "max_tokens"} & set(r)) for r in server.requests
    ] == [["logprobs", "max_tokens", "top_logprobs"], ["max_tokens"], [], []]


def test_request_that_is_refused_for_another_reason_raises():
    with run_chat_server(lambda b, n: Reply(status=400, body=b"too long")) as server:
        endpoint = ChatEndpoint(server.url, "m", key="", limits=QUICK)
        with pytest.raises(RefusedRequest, match=r"with 400 \(too long\)"):
            endpoint.complete(MESSAGES)


def test_rate_limit_spaces_requests():
    times = []

    def answer(body, number):
        times.append(time.monotonic())
        return Reply("good")

    limits = RequestLimits(per_minute=600)
    with run_chat_server(answer) as server:
        endpoint = ChatEndpoint(server.url, "m", key="", limits=limits)
        began = time.monotonic()
        for _ in range(4):
            endpoint.complete(MESSAGES)
    assert times[-1] - began >= 3 * 0.1 - 0.01


def test_stopped_endpoint_sends_nothing():
    with run_chat_server() as server:
        endpoint = ChatEndpoint(server.url, "m", key="")
        endpoint.stop()
        with pytest.raises(StoppedRequest):
            endpoint.complete(MESSAGES)
    assert server.requests == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://localhost:1", "http://localhost:1/v1/chat/completions"),
        ("https://api.example.org/v1/", "https://api.example.org/v1/chat/completions"),
        ("https://h/api/chat/completions", "https://h/api/chat/completions"),
    ],
)
def test_address_is_completed(given, expected):
    assert complete_url(given) == expected


@pytest.mark.parametrize(
    "url", ["localhost:1", "ftp://a", "http://", "http://u:secret@h", "http://h?key=1"]
)
def test_address_of_another_form_is_refused(url):
    with pytest.raises(InputError, match="the address") as caught:
        complete_url(url)
    assert "secret" not in str(caught.value)


def test_key_comes_from_the_environment_and_is_not_sent_in_the_clear():
    usual, own = {"OPENAI_API_KEY": "a"}, {"OPENAI_API_KEY": "a", "LABELAHEAD_LLM_KEY": "b"}
    assert find_key("https://h", usual) == find_key("http://127.0.0.1:1", usual) == "a"
    assert find_key("http://h", usual) == find_key("https://h", {}) == ""
    assert find_key("http://h", own) == find_key("https://h", own) == "b"


def test_find_keys_never_gives_one_key_to_two_servers():
    one, other = "https://one.example", "https://other.example"
    common = {"LABELAHEAD_LLM_KEY": "a"}
    assert find_keys([one, one + "/v1"], common) == ["a", "a"]
    assert find_keys([one, other], {}) == ["", ""]
    each = {**common, "LABELAHEAD_LLM_KEY_1": "b", "LABELAHEAD_LLM_KEY_2": ""}
    assert find_keys([one, other], each) == ["b", ""]
    assert find_keys(["http://localhost:1", one], {"LABELAHEAD_LLM_KEY_2": "c", **common}) == [
        "",
        "c",
    ]
    for known in (common, {"OPENAI_API_KEY": "a"}):
        with pytest.raises(InputError, match="in LABELAHEAD_LLM_KEY_2"):
            find_keys([one, other], {**known, "LABELAHEAD_LLM_KEY_1": "b"})


@pytest.mark.parametrize(
    "limits", [{"per_minute": 0}, {"threads": 0}, {"attempts": 0}, {"max_tokens": 0}]
)
def test_limits_are_checked(limits):
    with pytest.raises(InputError, match="expected"):
        RequestLimits(**limits)
