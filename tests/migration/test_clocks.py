"""The four clocks of a request, in virtual time."""

from typing import Any

from dynamod.message.errors import EngineFailed, Overloaded, TimedOut

from .instances import passes, virtual


@virtual
async def test_an_instance_that_does_not_accept_is_left(words: Any) -> None:
    air, limits = words.Air(instances=2), words.Limits(queue=30, first=60, gap=10)
    await air.start()
    await passes(air, limits, 30)
    assert len(air.sends) == 1
    await passes(air, limits, 1)
    assert (len(air.sends), air.sends[0].cancelled) == (2, 1)
    await passes(air, limits, 30.5)
    assert isinstance(air.error, Overloaded)
    assert "within 30 s" in str(air.error)


@virtual
async def test_the_first_token_has_its_own_clock(words: Any) -> None:
    air, limits = words.Air(instances=2), words.Limits(queue=30, first=60, gap=10)
    await air.start()
    await passes(air, limits, 20)
    air.last.accept()
    await passes(air, limits, 60)
    assert len(air.sends) == 1
    await passes(air, limits, 1)
    assert len(air.sends) == 2
    assert not air.last.prior
    air.last.accept()
    air.last.tokens(1, finish="stop")
    assert air.client.answer == "a"


@virtual
async def test_a_pause_moves_an_exact_stream_and_ends_another(words: Any) -> None:
    limits = words.Limits(queue=30, first=60, gap=10)
    air = words.Air()
    (await air.start()).accept()
    for index in (1, 2, 3):
        await passes(air, limits, 9)
        air.last.tokens(index)
    await passes(air, limits, 10)
    assert len(air.sends) == 1
    await passes(air, limits, 1)
    assert (len(air.sends), air.last.prior, air.sends[0].cancelled) == (2, [1, 2, 3], 1)
    await passes(air, limits, 20)
    assert len(air.sends) == 2, "until it is accepted the queue's clock counts"

    air = words.Air(text=True)
    (await air.start()).accept()
    air.last.text("a")
    await passes(air, limits, 11)
    assert isinstance(air.error, EngineFailed)
    assert "paused for more than 10 s" in str(air.error)
    assert air.last.cancelled == 1


@virtual
async def test_the_total_clock_ends_it_wherever_it_is(words: Any) -> None:
    air, limits = words.Air(), words.Limits(queue=5, first=5, gap=5, total=20)
    await air.start()
    await passes(air, limits, 6)
    assert len(air.sends) == 2
    air.last.accept()
    for index in range(1, 9):
        await passes(air, limits, 2)
        if not air.inflight.over:
            air.last.tokens(index)
    assert isinstance(air.error, TimedOut)
    assert air.error.status == 504
    assert "20 s in total" in str(air.error)
    assert air.last.cancelled == 1


@virtual
async def test_none_is_no_limit(words: Any) -> None:
    air, limits = words.Air(), words.Limits(None, None, None, None)
    await air.start()
    for step in (lambda: air.last.accept(), lambda: air.last.tokens(1), lambda: air.last.tokens(2)):
        await passes(air, limits, 10_000, every=10)
        step()
    await passes(air, limits, 10_000, every=10)
    assert (len(air.sends), air.client.over, air.client.answer) == (1, False, "ab")
