"""The law of limits, in virtual time."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.http.key_file import ClientKey
from dynamod.http.keys import Client, RateLimited
from dynamod.http.limits import Bucket, duration, remaining

PAUSES = st.floats(0, 200) | st.sampled_from([0.0, 0.0, 0.1, 1.0, 60.0])
SIZES = st.integers(1, 1000)


@given(SIZES, st.lists(PAUSES, min_size=1, max_size=200))
def test_no_window_has_more_than_a_full_bucket_and_what_has_flown_in(size: int, pauses: Sequence[float]) -> None:
    bucket, now, taken = Bucket(size, 0.0), 0.0, []
    for pause in pauses:
        now += pause
        if not bucket.wait(now):
            bucket.use(1, now)
            taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            window = taken[last] - taken[first]
            assert last - first + 1 <= size + window * size / 60 + 1e-6


@given(SIZES, st.lists(st.tuples(PAUSES, st.integers(0, 5000)), max_size=50))
def test_the_wait_is_exact(size: int, uses: Sequence[tuple[float, int]]) -> None:
    bucket, now = Bucket(size, 5.0), 5.0
    for pause, units in uses:
        now += pause
        bucket.use(units, now)
        wait = bucket.wait(now)
        assert (wait == 0) == (bucket.level(now) >= 1)
        assert bucket.level(now + wait) == pytest.approx(max(1.0, bucket.level(now)), abs=1e-6)
        assert bucket.level(now + bucket.full_in(now)) == pytest.approx(size, abs=1e-6)
        assert 0 <= remaining(bucket, now) <= size
        assert bucket.level(now + 1e9) == size


@given(SIZES, SIZES, st.integers(0, 2000), PAUSES)
def test_another_size_keeps_the_share(size: int, other: int, used: int, pause: float) -> None:
    bucket = Bucket(size, 0.0)
    bucket.use(used, 0.0)
    made = bucket.resized(other, pause)
    assert made.level(pause) / other == pytest.approx(bucket.level(pause) / size, abs=1e-9)


@given(
    st.integers(1, 20),
    st.integers(1, 5),
    st.integers(1, 500),
    st.lists(st.tuples(PAUSES, st.booleans(), st.integers(0, 300)), max_size=100),
)
def test_a_client_is_taken_when_all_limits_have_room(rpm: int, inflight: int, tpm: int, steps: Any) -> None:
    client = Client(ClientKey(name="a", key="k", rpm=rpm, tpm=tpm, inflight=inflight), 0.0)
    now, running, answered = 0.0, 0, 0
    for pause, ends, tokens in steps:
        now += pause
        if ends and running:
            client.give(200, tokens, 1, now)
            running, answered = running - 1, answered + 1
            continue
        assert client.requests_left is not None
        assert client.tokens_left is not None
        before = client.requests_left.level(now)
        room = before >= 1 and client.tokens_left.level(now) >= 1 and running < inflight
        if room:
            client.take(now)
            running += 1
        else:
            with pytest.raises(RateLimited) as refused:
                client.take(now)
            assert refused.value.retry_after is not None
            assert refused.value.retry_after > 0
            assert client.requests_left.level(now) == before, "what is refused takes nothing"
        assert client.inflight == running
    assert client.requests[200] == answered


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (0, "0s"),
        (0.0171, "18ms"),
        (1, "1s"),
        (1.41, "1.5s"),
        (60, "1m0s"),
        (361.2, "6m2s"),
        (3661, "1h1m1s"),
    ],
)
def test_durations_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
