"""When the page trains."""

from tests.support.web_answers import answer
from tests.support.web_sessions import page, photos, progress_once


def test_training_continues_after_a_failed_write(tmp_path):
    """A file that cannot be written must not end the training thread."""

    data, rounds_path = photos(tmp_path / "set", 8), tmp_path / "out/rounds.jsonl"
    options = {"classes": ["a", "b"], "every": 2, "tables": {"training": {"steps": 5}}}
    with page(data, tmp_path / "out", start=True, **options) as (client, _):
        rounds_path.mkdir()
        for position in range(4):
            answer(client, position, position % 2)
        progress_once(client, lambda p: "the last training failed" in p["training"]["message"])
        assert (
            str(tmp_path) not in client.get("/api/progress").text
        )  # paths of the server are not revealed
        rounds_path.rmdir()
        for position in range(4, 8):
            answer(client, position, position % 2)
        progress_once(
            client, lambda p: p["curve"] and p["curve"][-1]["labels"] == 8 and p["training"]["idle"]
        )
