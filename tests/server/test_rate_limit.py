"""Failed attempts are counted per client, expire, and take bounded memory."""

from labelahead.server.rate_limit import FailedAttempts


class Clock:
    """A clock that advances only when it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_add_counts_each_token_of_an_address_separately():
    failed = FailedAttempts(max_attempts=3)
    assert [failed.add("a", "old") for _ in range(5)] == [False, False, False, True, True]
    assert not failed.add("a", "other")
    assert not failed.add("b", "old")


def test_add_limits_new_tokens_of_an_address():
    failed = FailedAttempts(max_attempts=3)
    assert [failed.add("a", f"guess {i}") for i in range(5)] == [False, False, False, True, True]
    assert not failed.add("b", "guess 9")
    assert not failed.add("a", "guess 0")  # its own counter is at 2


def test_add_resets_the_counter_after_the_window():
    clock = Clock()
    failed = FailedAttempts(max_attempts=1, window_seconds=60, clock=clock)
    assert [failed.add("a", "old"), failed.add("a", "old")] == [False, True]
    clock.now = 59.9
    assert failed.add("a", "old")
    clock.now = 60.0
    assert not failed.add("a", "old")


def test_add_keeps_a_bounded_number_of_counters():
    failed = FailedAttempts(max_attempts=3, max_counters=10)
    for i in range(1000):
        failed.add(f"address {i}", f"guess {i}" * 1000)
        assert len(failed) <= 10
