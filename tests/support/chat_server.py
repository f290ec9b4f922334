"""A small server that speaks the protocol of OpenAI-compatible chat endpoints."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the server answers: a status with headers and a body, or the text of an answer."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None  # instead of a body of the protocol
    tokens: list[tuple[str, float, dict[str, float]]] = field(default_factory=list)


@dataclass
class ChatServer:
    """A running server.

    Attributes:
        url: its address.
        requests: the body of every request, in the order of arrival.
        headers: the headers of every request.
        paid: the last message of every request that was answered with 200, before it was sent.
        answer: called with the body of a request and the number of requests so far.
    """

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paid: list[str] = field(default_factory=list)
    answer: Callable[[dict[str, Any], int], Reply] = lambda body, number: Reply("good")
    lock: threading.Lock = field(default_factory=threading.Lock)


def content_of(body: dict[str, Any]) -> str:
    """Return the last message of a request as text."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else content[0]["text"]


def write_body(reply: Reply) -> bytes:
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": reply.text}}
    if reply.tokens:
        choice["logprobs"] = {
            "content": [
                {
                    "token": token,
                    "logprob": math.log(p),
                    "top_logprobs": [
                        {"token": t, "logprob": math.log(q)} for t, q in {token: p, **other}.items()
                    ],
                }
                for token, p, other in reply.tokens
            ]
        }
    usage = {"prompt_tokens": 50, "completion_tokens": 2}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


@contextmanager
def run_chat_server(
    answer: Callable[[dict[str, Any], int], Reply] | None = None,
) -> Iterator[ChatServer]:
    """Run a server in threads until the block ends."""
    server = ChatServer()
    if answer is not None:
        server.answer = answer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.lock:
                server.requests.append(body)
                server.headers.append({**self.headers})
                number = len(server.requests)
            if not self.path.endswith("/v1/chat/completions"):
                reply = Reply(status=404, body=b"not here")
            else:
                reply = server.answer(body, number)
            if reply.status == 200:
                with server.lock:
                    server.paid.append(content_of(body))
            content = write_body(reply) if reply.body is None else reply.body
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client was killed
                self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server.url = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
