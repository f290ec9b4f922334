"""Answers by HTTP, and reviews to label."""

import numpy as np

from tests.support.web_sessions import CHANGE


def answer(client, position, label=0, kind="label", who=None, key=None):
    body = {"position": position, "kind": kind, "label": label, "key": key}
    headers = CHANGE if who is None else {**CHANGE, "Cookie": f"la_who={who}"}
    reply = client.post("/api/answers", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


def make_reviews(n=60):
    rng = np.random.default_rng(0)
    words = {
        "good": ["lovely", "wonderful", "pleasant", "delightful", "charming"],
        "bad": ["dreadful", "awful", "horrible", "unpleasant", "tedious"],
    }
    filler = ["the", "film", "was", "about", "a", "man", "who", "went", "to", "sea", "again"]
    rows = []
    for i in range(n):
        kind = "good" if i % 2 else "bad"
        drawn = [*rng.choice(words[kind], 2), *rng.choice(filler, 9)]
        rows.append((" ".join(rng.permutation(drawn)) + f" number{i}", kind))
    return rows
