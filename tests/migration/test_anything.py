"""Whatever instances, clocks and clients do in whatever order: one end, and no slot that stays taken."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from .instances import run

place = st.integers(0, 4)
size = st.integers(0, 3)
finish = st.sampled_from([None, None, None, "stop", "length"])
events = st.lists(
    st.one_of(
        st.tuples(st.just("accept"), st.just(())),
        st.tuples(st.just("tokens"), st.tuples(size, finish, st.none() | st.integers(0, 6))),
        st.tuples(st.just("text"), st.tuples(size, finish, st.none() | st.integers(0, 6))),
        st.tuples(st.just("fail"), st.tuples(st.sampled_from(["BadRequest", "Overloaded", "x"]), st.booleans())),
        st.tuples(st.just("lose"), st.just(())),
        st.tuples(st.just("wait"), st.tuples(st.sampled_from([1, 9, 31, 70]))),
        st.tuples(st.just("cancel"), st.just(())),
    ).flatmap(lambda event: st.tuples(st.just(event[0]), st.just(event[1]), st.integers(0, 9))),
    max_size=14,
)


@given(
    events=events,
    text=st.booleans(),
    instances=st.integers(1, 4),
    limit=st.integers(0, 4),
    max_tokens=st.none() | st.integers(1, 6),
    full=st.sets(st.integers(1, 4), max_size=2),
)
def test_one_end_and_no_slot_left(words: Any, events: Any, text: bool, **setting: Any) -> None:
    async def main() -> None:
        limits = words.Limits(queue=30, first=60, gap=10, total=200)
        air = words.Air(text=text, **setting)
        await air.start()
        ended: set[int] = {at for at, send in enumerate(air.sends) if send._gone}
        left = False
        for name, arguments, which in events:
            # mostly the newest send speaks; sometimes one that the request has left
            at = len(air.sends) - 1 if which < 8 else which % len(air.sends)
            send = air.sends[at]
            if name == "wait":
                await asyncio.sleep(arguments[0])
                if not air.inflight.over:
                    air.inflight.expire(limits)
            elif name == "cancel":
                left = left or not air.inflight.over
                air.inflight.cancel()
            elif at not in ended:
                over = _speak(send, text, name, arguments)
                if over:
                    ended.add(at)
            if which % 2:  # else more is said before the request can act on it
                await air.settle()
            ended |= {number for number, other in enumerate(air.sends) if other._gone}
        await air.settle()
        ended |= {number for number, other in enumerate(air.sends) if other._gone}
        assert air.completed == (1 if air.inflight.over else 0)
        assert air.inflight.over == (air.client.over or left)
        assert len({other.instance.instance_id for other in air.sends}) == len(air.sends)
        assert len(air.sends) <= setting["limit"] + 1
        current = None if air.inflight.over else len(air.sends) - 1
        for number, other in enumerate(air.sends):
            assert other.cancelled <= 1
            if number == current:
                assert not other.cancelled
            else:
                assert other.cancelled or number in ended, "a slot stays taken"
        if air.client.finished and not text:
            assert len(air.client.answer) <= air.client.finished[0][1] <= (setting["max_tokens"] or 100)

    run(main())


def _speak(send: Any, text: bool, name: str, arguments: Any) -> bool:
    """Let an instance say something; True when its stream is over with that."""
    if name == "accept":
        send.accept()
        return False
    if name == "fail":
        error, retry = arguments
        send.fail(error, "no", retry=retry)
        return True
    if name == "lose":
        send.lose()
        return True
    count, finish, offset = arguments
    if text:
        send.text("x" * count, finish, count=count, offset=offset)
    else:
        send.tokens(*range(1, count + 1), finish=finish, offset=offset)
    return finish is not None
