"""A request whose instance crashed: tried alone, passed or guilty; and one that makes room for another's trial."""

import asyncio
from typing import Any

import pytest

from dynamod.discovery.view import UNRESPONSIVE
from dynamod.features.isolation.stage import LATE_HANG_S, PASSED_AFTER
from dynamod.message.errors import PoisonRequest
from dynamod.message.worker import PASSED, TRIAL_PAUSE, TRIAL_TAKEN
from tests.migration.instances import Charge, virtual


@virtual
async def test_after_a_crash_it_is_tried_alone_and_passes_with_its_first_tokens(words: Any) -> None:
    air = words.Air()
    send = await air.start()
    send.tokens(1, 2)
    air.crashes[1] = "exit code 1"
    send.lose()
    await air.settle()
    assert (air.alone, air.suspected) == ([False, True], ["r"])
    assert send.confirmed == 0
    send = air.sends[-1]
    trial = air.charged
    assert send.prior == [1, 2]
    for _ in range(2):
        send.accept()
        assert send.confirmed == 1, "the worker waits for it"
    for token in range(1, PASSED):
        send.tokens(token)
    await asyncio.sleep(0.1)
    assert trial.alone
    send.tokens(PASSED)
    await asyncio.sleep(0.1)
    assert not trial.alone
    assert air.acquitted
    send.tokens(0, finish="eos")
    await air.settle()
    assert air.client.finished
    assert air.guilty == []


@virtual
async def test_a_slow_engine_passes_by_time(words: Any) -> None:
    air = words.Air(suspect=True)
    send = await air.start()
    await asyncio.sleep(5)
    assert air.charged.alone, "the prompt may crash it still"
    send.tokens(1)
    await asyncio.sleep(PASSED_AFTER + 0.1)
    assert not air.charged.alone
    send.tokens(0, finish="eos")
    await air.settle()


@pytest.mark.parametrize("how", ["lose", "leave"])
@virtual
async def test_the_one_that_crashes_a_second_instance_alone_is_refused(words: Any, how: str) -> None:
    air = words.Air()
    send = await air.start()
    for number in (1, 2):
        air.crashes[number] = f"crash {number}"
        send.accept()
        if how == "lose":
            send.lose()
        else:
            air.inflight.leave("it does not answer")
        await air.settle()
        send = air.sends[-1]
    (error,) = air.client.errors
    assert isinstance(error, PoisonRequest)
    assert (error.status, error.code) == (422, "poison_request")
    assert (air.guilty, air.suspected, len(air.sends)) == (["crash 2"], ["r"], 2)


@virtual
async def test_an_end_on_purpose_makes_nobody_suspect(words: Any) -> None:
    air = words.Air()
    send = await air.start()
    send.lose()
    await air.settle()
    air.crashes[3] = "exit code 1"
    air.sends[-1].lose()
    await air.settle()
    assert air.alone == [False, False, False]
    air.sends[-1].lose()
    await air.settle()
    assert air.suspected == ["r"]
    assert not isinstance(air.client.errors[0], PoisonRequest)


@virtual
async def test_one_that_was_not_alone_is_not_guilty(words: Any) -> None:
    air = words.Air(suspect=True)
    send = await air.start()
    air.charged.shared = True
    air.crashes[1] = "exit code 1"
    send.lose()
    await air.settle()
    assert (air.guilty, air.suspected, air.alone) == ([], ["r"], [True, True])
    air.sends[-1].tokens(0, finish="eos")
    await air.settle()


@virtual
async def test_it_makes_room_for_a_trial_and_may_come_back(words: Any) -> None:
    air = words.Air(1)
    send = await air.start()
    send.tokens(1, 2)
    assert air.charged.leave()
    assert send.cancelled == 1
    await air.settle()
    send = air.sends[-1]
    assert (send.instance.instance_id, send.prior, air.broken) == (1, [1, 2], [])
    send.tokens(3, 0, finish="eos")
    await air.settle()
    assert air.client.answer == "abc"


@virtual
async def test_an_instance_that_crashes_before_a_trial_begins_there_counts_for_those_that_left(words: Any) -> None:
    """The worker crashes in the running step, which still has the requests that left."""
    trial = words.Air(suspect=True)
    send = await trial.start()
    other = trial.charged.made_room = [Charge(trial, trial.charged.instance)]
    trial.crashes[1] = "its process was unresponsive"
    send.lose()
    await trial.settle()
    assert (other[0].cause, trial.guilty) == ("its process was unresponsive", [])
    trial.last.accept()
    other = trial.charged.made_room = [Charge(trial, trial.charged.instance)]
    trial.crashes[2] = "exit code 1"
    trial.last.lose()
    await trial.settle()
    assert (other[0].cause, trial.guilty) == ("", ["exit code 1"]), "the trial had begun: it is the cause"


@virtual
async def test_who_left_an_instance_that_crashed_in_that_step_is_tried_alone_and_ends_with_the_second(
    words: Any,
) -> None:
    air = words.Air(5)
    await air.start()
    for number in (1, 2, 3):
        left = air.charged
        air.busy.add(left.instance.instance_id)
        assert left.leave()
        await air.settle()
        if number != 2:  # nothing happened to the second one
            left.cause = f"crash {number}"
        assert (len(air.sends), air.suspected) == (number + 1, ["r"] * (number > 1))
    assert air.alone == [False, False, True, True]
    assert air.charged.leave()
    await air.settle()
    assert str(air.error) == "crash 3; it is the second worker that ended with this request"


@virtual
async def test_an_instance_that_crashes_while_the_request_that_left_it_waits_for_another_counts(words: Any) -> None:
    air = words.Air(2, patient=True)
    await air.start()
    left = air.charged
    air.busy.update((1, 2))
    assert left.leave()
    await air.settle()
    assert air.waiting, "the request waits for an instance"
    left.cause = "exit code 1"
    air.free()
    await air.settle()
    assert (air.suspected, air.alone, len(air.sends)) == (["r"], [False, False, True], 2)
    air.last.accept()
    air.last.tokens(0, finish="eos")
    await air.settle()
    assert air.client.finished


@virtual
async def test_one_that_has_passed_is_not_tried_again_when_it_makes_room(words: Any) -> None:
    """Suspects would displace each other from one instance for ever, a few tokens per turn."""
    air = words.Air(1, suspect=True)
    send = await air.start()
    send.tokens(*[1] * PASSED)
    await asyncio.sleep(0.1)
    assert air.charged.leave()
    await air.settle()
    assert air.alone == [True, False]
    air.sends[-1].tokens(0, finish="eos")
    await air.settle()
    assert air.client.answer == "a" * PASSED


@virtual
async def test_an_answer_that_cannot_go_on_elsewhere_makes_no_room(words: Any) -> None:
    air = words.Air(exact=False)
    send = await air.start()
    send.tokens(1)
    assert not air.charged.leave()
    send.tokens(0, finish="eos")
    await air.settle()
    assert air.client.answer == "a"


@virtual
async def test_an_instance_that_was_dead_before_it_accepted_was_not_its_victim(words: Any) -> None:
    air = words.Air(suspect=True)
    await air.start()
    assert air.last.request.alone, "the worker takes no other suspect"
    air.crashes[1] = "its process was unresponsive"
    air.inflight.leave("it does not answer")
    await air.settle()
    assert (air.guilty, air.alone, len(air.sends)) == ([], [True, True], 2)
    air.last.tokens(1, 0, finish="eos")
    await air.settle()
    assert air.client.answer == "a"


@virtual
async def test_a_worker_that_tries_another_one_is_asked_again(words: Any) -> None:
    air = words.Air(1, suspect=True)
    for _ in range(5):  # more often than it may fail
        send = await air.start() if not air.sends else air.last
        send.fail("Overloaded", "another is tried", retry=True, code=TRIAL_TAKEN)
        await air.settle()
        assert air.last is send, "not at once"
        await asyncio.sleep(TRIAL_PAUSE)
    assert (len(air.sends), air.broken, send.cancelled) == (6, [], 0)
    air.last.tokens(1, 0, finish="eos")
    await air.settle()
    assert air.client.answer == "a"


@virtual
async def test_behind_a_failed_link_it_returns_when_the_others_have_gone(words: Any) -> None:
    air = words.Air(2, busy=[2], patient=True)
    send = await air.start()
    send.lose_link()
    await air.settle()
    assert air.waiting == 1, "the second one is busy"
    del air.instances[1]
    air.inflight.moves.reconsider()
    air.freed.set()
    await air.settle()
    assert [send.instance.instance_id for send in air.sends] == [1, 1]
    air.last.tokens(1, 0, finish="eos")
    await air.settle()
    assert air.client.answer == "a"


@virtual
async def test_the_second_worker_ends_it_also_beside_streams_that_stayed(words: Any) -> None:
    """It is not convicted: another stream may have been the cause."""
    air = words.Air()
    send = await air.start()
    for number in (1, 2):
        air.crashes[number] = f"crash {number}"
        if number == 2:
            air.charged.shared = True
        send.accept()
        send.lose()
        await air.settle()
        send = air.sends[-1]
    assert air.error.code == "engine_failed"
    assert str(air.error) == "crash 2; it is the second worker that ended with this request"
    assert (air.guilty, len(air.sends)) == ([], 2)


@virtual
async def test_one_like_a_suspect_has_one_worker_left(words: Any) -> None:
    air = words.Air(suspect=True)
    send = await air.start()
    air.charged.shared = True
    air.crashes[1] = "exit code 1"
    send.accept()
    send.lose()
    await air.settle()
    assert air.error.code == "engine_failed"
    assert len(air.sends) == 1


@virtual
async def test_a_crash_of_a_suspect_for_whose_trial_there_was_no_time_counts(words: Any) -> None:
    air = words.Air(5)
    send = await air.start()
    air.acquits = air.untried = True
    for number in (1, 2):
        air.crashes[number] = f"crash {number}"
        send.accept()
        send.lose()
        await air.settle()
        send = air.sends[-1]
    assert (air.alone, len(air.sends)) == ([False, True], 2)
    assert str(air.error) == "crash 2; it is the second worker that ended with this request"


@virtual
async def test_a_crash_for_which_another_was_convicted_does_not_count(words: Any) -> None:
    air = words.Air(5)
    send = await air.start()
    air.acquits = True  # another request is convicted while this one waits for its trial
    for number in (1, 2, 3):
        air.crashes[number] = f"crash {number}"
        send.accept()
        send.lose()
        await air.settle()
        send = air.sends[-1]
    assert air.alone == [False, True, True, True]
    send.tokens(1, 0, finish="eos")
    await air.settle()
    assert air.client.answer == "a"


@pytest.mark.parametrize(
    ("quiet", "cause", "counts"), [(0.1, UNRESPONSIVE, False), (0.1, "exit", True), (2, UNRESPONSIVE, True)]
)
@virtual
async def test_an_instance_that_was_heard_a_moment_ago_does_not_hang_for_the_request(
    words: Any, quiet: float, cause: str, counts: bool
) -> None:
    """It was stopped for a while, and its daemon's word of that comes late."""
    air = words.Air()
    send = await air.start()
    await asyncio.sleep(3)
    send.accept()
    await asyncio.sleep(quiet)
    air.crashes[1] = cause
    air.inflight.leave("it does not answer")
    await air.settle()
    assert air.suspected == ["r"], "it may be the cause all the same"
    air.crashes[2] = "exit code 1"
    air.charged.shared = True
    air.last.accept()
    air.last.lose()
    await air.settle()
    assert len(air.client.errors) == counts
    if not counts:
        air.last.tokens(1, 0, finish="eos")
        await air.settle()


@pytest.mark.parametrize(("late", "counts"), [(LATE_HANG_S - 0.1, True), (LATE_HANG_S + 0.1, False)])
@virtual
async def test_an_instance_counts_that_hung_when_the_request_left_for_a_trial(
    words: Any, late: float, counts: bool
) -> None:
    """The trial may have gone elsewhere, and then no other request says that the instance hangs."""
    air = words.Air(3)
    await air.start()
    left = air.charged
    air.busy.add(left.instance.instance_id)
    assert left.leave()
    await air.settle()
    await asyncio.sleep(late)
    air.crashes[left.instance.instance_id] = UNRESPONSIVE
    air.busy.add(air.charged.instance.instance_id)
    assert air.charged.leave()
    await air.settle()
    assert air.alone == [False, False, counts]
    air.last.tokens(1, 0, finish="eos")
    await air.settle()


@virtual
async def test_a_request_that_becomes_a_suspect_while_it_waits_is_tried_alone(words: Any) -> None:
    air = words.Air(2, busy={2}, patient=True)
    await air.start()
    left = air.charged
    air.busy.add(1)
    assert left.leave()
    await air.settle()
    assert air.waiting == 1, "all are busy"
    air.crashes[1] = UNRESPONSIVE
    air.free()
    await air.settle()
    assert (air.alone, len(air.sends)) == ([False, False, True], 2)
    air.last.tokens(1, 0, finish="eos")
    await air.settle()
    assert air.client.finished
