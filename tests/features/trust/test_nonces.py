"""No nonce is taken twice, whatever the order and the clock, and the window is bounded."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamod.features.trust.nonces import BUCKETS, Nonces


def number(count: int) -> bytes:
    return count.to_bytes(12, "little")


def test_each_is_taken_once() -> None:
    nonces = Nonces(60.0)
    assert nonces.take(b"a", 1000.0, 1000.0)
    assert not nonces.take(b"a", 1000.0, 1059.0)
    assert nonces.take(b"b", 1000.0, 1059.0)


def test_what_is_older_than_the_window_takes_no_memory() -> None:
    nonces = Nonces(60.0)
    for second in range(10_000):
        assert nonces.take(number(second), second, second)
        assert nonces._count <= 60 * (BUCKETS + 3) / BUCKETS + 1


def test_a_full_window_forgets_the_oldest_and_takes_none_of_these_again() -> None:
    nonces = Nonces(80.0, most=100)
    for count in range(1000):
        nonces.take(number(count), 1000.0 + count % 80, 1080.0)
        assert nonces._count <= 100
    taken = [count for count in range(1000) if nonces.take(number(count), 1000.0 + count % 80, 1080.0)]
    assert taken == []


def test_a_clock_that_was_set_back_ends_nothing_for_ever() -> None:
    nonces = Nonces(8.0, most=2)
    for count in range(5):
        nonces.take(number(count), 1000.0 + count, 1004.0)
    assert nonces.take(b"later", 500.0, 500.0)


class Replay(RuleBasedStateMachine):
    """Messages come late, twice, and while the clock runs; those with a time out of range never come here."""

    def __init__(self) -> None:
        super().__init__()
        self.nonces, self.now, self.count = Nonces(10.0, most=20), 1000.0, 0
        self.sent: list[tuple[bytes, float]] = []
        self.taken: set[bytes] = set()

    @rule(late=st.floats(-10, 10))
    def comes(self, late: float) -> None:
        self.count += 1
        self.sent.append((number(self.count), self.now + late))
        self._take(*self.sent[-1])

    @rule(data=st.data())
    def comes_again(self, data: st.DataObject) -> None:
        near = [one for one in self.sent if abs(one[1] - self.now) <= 10.0]
        if near:
            self._take(*data.draw(st.sampled_from(near)))

    @rule(seconds=st.floats(0, 8))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def _take(self, nonce: bytes, time: float) -> None:
        if self.nonces.take(nonce, time, self.now):
            assert nonce not in self.taken
            self.taken.add(nonce)

    @invariant()
    def is_bounded(self) -> None:
        assert self.nonces._count == sum(map(len, self.nonces._buckets.values())) <= 20


TestReplay = Replay.TestCase


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 60)), max_size=60))
def test_messages_in_time_are_all_taken(messages: list[tuple[int, float]]) -> None:
    nonces, seen = Nonces(60.0), set[tuple[int, float]]()
    for count, time in messages:
        first = all(count != one for one, _ in seen)
        assert nonces.take(number(count), time, 60.0) == first or not first
        seen.add((count, time))
