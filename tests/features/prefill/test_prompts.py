"""A request whose prompt is computed elsewhere before it is sent to the instance that answers."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

import pytest

from dynamod.features.prefill.stage import PrefillWorkerLost
from dynamod.message.discovery import Instance
from dynamod.message.errors import PoisonRequest, TimedOut
from dynamod.message.ingress import PromptLogprobs, Tokens
from dynamod.message.tokens import pack
from dynamod.message.worker import HANDOFF_FAILED, Generate, Handoff
from dynamod.migration.attempt import prompt_taker
from tests.migration.instances import Client, passes, virtual

PREFILL = Instance("n", "c", "prefill", 77, {})
"""Its instance."""


class Prompts:
    """Stands for the prefill workers. `given`: what is asked of them; `open`: prompts that nobody has dropped yet.

    `unread`: how often an instance has given up because it could not have the blocks.
    """

    def __init__(self, *, here: bool = True) -> None:
        self.here, self.asked, self.open, self.unread = here, list[bytes](), 0, 0
        self.lost = self.alone = False
        self.watching: list[Callable[[str, bool], None]] = []
        self.may = asyncio.Event()
        self.may.set()
        self.make: Callable[[Prompts], Any] = Prompt

    async def __call__(self, request: Any, placement: Any) -> Any:
        self.asked.append(request.token_ids + request.prior_output)
        await self.may.wait()
        if self.lost:
            raise PrefillWorkerLost(PREFILL, "connection to the worker lost", alone=self.alone)
        if not self.here:
            return None
        self.open += 1
        return self.make(self)


class Prompt:
    """One of them."""

    instance = PREFILL

    def __init__(self, prompts: Prompts) -> None:
        self.prompts, self.closed = prompts, False
        self.handoff: asyncio.Future[Handoff] = asyncio.get_running_loop().create_future()
        self.handoff.set_result(Handoff(f"s{len(prompts.asked)}"))

    @property
    def alone(self) -> bool:
        return self.prompts.alone

    def watch(self, failed: Callable[[str, bool], None]) -> None:
        self.prompts.watching.append(failed)

    def unread(self) -> None:
        self.prompts.unread += 1

    def close(self) -> None:
        self.prompts.open -= not self.closed
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.mark.parametrize(
    ("handoff", "said"),
    [
        (None, [3]),
        (Handoff("s", stored=True), [3]),
        (Handoff("s"), []),
        (Handoff("s", cached_tokens=5), [5]),
    ],
)
def test_whose_cached_tokens_count(handoff: Handoff | None, said: list[int]) -> None:
    client = Client()
    prompt_taker(client, 0, Generate("r", "m", b"", handoff=handoff), None)(Tokens(0, 0, b"", None, 3))
    assert client.cached == said


def test_log_probabilities_come_with_the_ids_of_the_prompt() -> None:
    taken: list[Any] = []
    delta = PromptLogprobs(0, (None, -0.5))
    take = prompt_taker(Client(), 7, Generate("r", "m", pack([4, 5])), lambda *found: taken.append(found))
    take(delta)
    assert [(index, found, ids.tolist()) for index, found, ids in taken] == [(7, delta, [4, 5])]


@virtual
async def test_the_hand_off_goes_with_the_request(words: Any) -> None:
    prompts = Prompts()
    air = words.Air(prefill=prompts)
    send = await air.start()
    assert (send.request.handoff, prompts.open) == (Handoff("s1"), 1)
    send.tokens(1, 0, finish="eos")
    await air.settle()
    assert (air.client.answer, prompts.open) == ("a", 0)


@virtual
async def test_the_next_instance_gets_one_of_its_own(words: Any) -> None:
    prompts = Prompts()
    air = words.Air(prefill=prompts)
    send = await air.start()
    send.tokens(1, 2)
    send.lose()
    await air.settle()
    send = air.sends[-1]
    assert (send.prior, send.request.handoff) == ([1, 2], Handoff("s2"))
    assert [len(ids) // 4 for ids in prompts.asked] == [2, 4], "the prompt, then with what was generated"
    send.tokens(0, finish="eos")
    await air.settle()
    assert prompts.open == 0


@virtual
async def test_without_one_it_is_sent_as_it_is(words: Any) -> None:
    air = words.Air(prefill=Prompts(here=False))
    send = await air.start()
    assert send.request.handoff is None
    send.tokens(0, finish="eos")
    await air.settle()


@virtual
async def test_what_is_tried_alone_computes_its_prompt_there(words: Any) -> None:
    prompts = Prompts()
    air = words.Air(prefill=prompts, suspect=True)
    send = await air.start()
    assert (send.request.handoff, prompts.asked) == (None, [])
    send.tokens(0, finish="eos")
    await air.settle()


@virtual
async def test_an_instance_that_goes_while_its_prompt_is_computed_gets_nothing(words: Any) -> None:
    prompts = Prompts()
    prompts.may.clear()
    air = words.Air(prefill=prompts)
    await air.run()
    assert (air.sends, air.inflight.attempting) == ([], False)
    first = air.inflight.instance
    air.instances.remove(first)
    air.inflight.leave("the worker is gone")
    air.inflight.leave("the worker's process does not answer any more")
    await air.settle()
    assert air.inflight.instance in air.instances, "it does not wait for that prompt any more"
    assert air.sends == []
    prompts.may.set()
    await air.settle()
    assert [send.instance for send in air.sends] == air.instances[:1]
    assert air.broken == [], "nothing was sent there"
    assert len(prompts.asked) == 2
    air.sends[0].tokens(0, finish="eos")
    await air.settle()
    assert prompts.open == 0


@virtual
async def test_a_client_that_leaves_while_its_prompt_is_computed(words: Any) -> None:
    prompts = Prompts()
    prompts.may.clear()
    air = words.Air(prefill=prompts)
    await air.run()
    air.inflight.cancel()
    await air.settle()
    assert (air.sends, air.completed, air.charged, prompts.open) == ([], 1, None, 0)


@pytest.mark.parametrize("crash", ["", "exit code 3"])
@virtual
async def test_a_prefill_worker_that_is_gone_before_its_hand_off(words: Any, crash: str) -> None:
    prompts = Prompts()
    prompts.lost = True
    air = words.Air(prefill=prompts)
    air.crashes[PREFILL.instance_id] = crash
    send = await air.start()
    assert air.alone == ([False, True] if crash else [False]), "it may have crashed it: so it is tried alone"
    assert air.suspected == (["r"] if crash else [])
    assert (len(prompts.asked), send.request.handoff, send.request.alone) == (1, None, bool(crash))
    assert air.broken == [], "nothing has failed at an instance"
    send.tokens(0, finish="eos")
    await air.settle()


@virtual
async def test_an_instance_that_goes_while_the_end_of_its_prefill_worker_is_judged(words: Any) -> None:
    prompts = Prompts()
    prompts.lost = True
    air = words.Air(prefill=prompts)
    air.judging.clear()
    await air.run()
    first = air.inflight.instance
    air.instances.remove(first)
    air.inflight.leave("the worker is gone")
    air.judging.set()
    prompts.lost = False
    await air.settle()
    assert (air.client.errors, [send.instance for send in air.sends]) == ([], air.instances[:1])
    air.last.tokens(0, finish="eos")
    await air.settle()


@pytest.mark.parametrize("crash", ["", "exit code 3"])
@virtual
async def test_an_instance_asks_before_it_computes_what_a_prefill_worker_did_not(words: Any, crash: str) -> None:
    prompts = Prompts()
    air = words.Air(prefill=prompts)
    send = await air.start()
    send.accept()
    await air.settle()
    assert send.confirmed == 0, "it has asked nothing"
    air.crashes[PREFILL.instance_id] = crash
    send.accept()
    await asyncio.sleep(1)
    if crash:
        assert (send.confirmed, send.cancelled, air.suspected, air.alone) == (0, 1, ["r"], [False, True])
        send = air.sends[-1]
        assert (send.request.handoff, send.request.alone) == (None, True)
    else:
        assert (send.confirmed, send.cancelled, air.suspected) == (1, 0, [])
        send.accept()
        await asyncio.sleep(1)
        assert send.confirmed == 2, "whoever asks gets an answer"
    send.tokens(0, finish="eos")
    await air.settle()
    assert (prompts.open, air.broken) == (0, [])


@virtual
async def test_an_attempt_without_a_hand_off_does_not_ask_about_the_prompt_of_the_one_before(words: Any) -> None:
    air = words.Air(prefill=Prompts())
    send = await air.start()
    air.crashes[send.instance.instance_id] = "exit code 3"
    send.lose()
    await air.settle()
    again = air.last
    assert (again.instance, again.request.handoff, air.alone) == (air.instances[1], None, [False, True])
    again.accept()
    air.crashes[PREFILL.instance_id] = "exit code 4"
    again.accept()
    await asyncio.sleep(1)
    again.tokens(0, finish="eos")
    await air.settle()
    assert (air.client.errors, air.completed) == ([], 1)


@virtual
async def test_one_that_makes_room_is_suspect_when_its_prefill_worker_has_crashed(words: Any) -> None:
    """Its own instance might not have asked yet."""
    air = words.Air(2, prefill=Prompts(), busy=[2])
    await air.start()
    air.crashes[PREFILL.instance_id] = "exit code 3"
    air.busy.clear()
    assert air.charged.leave()
    await air.settle()
    assert (air.suspected, air.alone) == (["r"], [False, True])
    air.last.tokens(0, finish="eos")
    await air.settle()


@pytest.mark.parametrize("accepted", [False, True], ids=["not accepted", "no first token"])
@virtual
async def test_a_prompt_lasts_no_longer_than_the_wait_for_it(words: Any, accepted: bool) -> None:
    """Its session needs nobody who renews it: a clock of the request ends the attempt, and with it the session."""
    prompts = Prompts()
    air, limits = words.Air(instances=1, prefill=prompts), words.Limits(queue=30, first=60)
    send = await air.start()
    if accepted:
        send.accept()
    await passes(air, limits, 60 if accepted else 30)
    assert prompts.open == 1
    await passes(air, limits, 1)
    assert (prompts.open, air.inflight.over) == (0, True)


@virtual
async def test_the_clock_of_the_whole_request_ends_the_wait_for_a_hand_off(words: Any) -> None:
    prompts = Prompts()
    prompts.may.clear()
    air = words.Air(prefill=prompts)
    await air.run()
    await passes(air, words.Limits(total=45), 46)
    assert isinstance(air.error, TimedOut)
    assert (air.sends, prompts.open) == ([], 0)


# Instances that compute no prompts.


@virtual
async def test_a_prompt_that_an_instance_lacks_is_computed_once_more(words: Any) -> None:
    prompts = Prompts()
    air = words.Air(instances=1, prefill=prompts, needs_prefill=True)
    send = await air.start()
    send.fail(retry=True, code=HANDOFF_FAILED)
    await air.settle()
    again = air.sends[-1]
    assert (again is not send, again.instance, again.request.handoff) == (True, send.instance, Handoff("s2"))
    assert (prompts.open, prompts.unread) == (1, 1)
    again.tokens(1, 0, finish="eos")
    await air.settle()
    assert (air.client.answer, prompts.open) == ("a", 0)


@virtual
async def test_not_for_ever(words: Any) -> None:
    air = words.Air(instances=2, limit=2, prefill=Prompts(), needs_prefill=True)
    await air.start()
    for _ in range(3):
        air.sends[-1].fail("EngineFailed", "no blocks", retry=True, code=HANDOFF_FAILED)
        await air.settle()
    assert len(air.sends) == 3
    assert str(air.client.errors[0]) == "no blocks, after 3 tries"


@virtual
async def test_an_instance_that_waits_for_a_lost_prompt_is_told(words: Any) -> None:
    prompts = Prompts()
    air = words.Air(instances=1, prefill=prompts, needs_prefill=True)
    send = await air.start()
    prompts.watching[0]("the prefill worker is gone", False)
    await air.settle()
    assert (send.cancelled, prompts.unread) == (1, 1)
    again = air.sends[-1]
    assert again.request.handoff == Handoff("s2")
    again.tokens(1)
    prompts.watching[1]("the prefill worker is gone", False)
    await air.settle()
    assert air.sends[-1] is again, "its blocks have come"
    assert prompts.unread == 1
    again.tokens(0, finish="eos")
    await air.settle()
    assert air.client.answer == "a"


@virtual
async def test_others_do_not_watch_their_prompts(words: Any) -> None:
    prompts = Prompts()
    air = words.Air(prefill=prompts)
    send = await air.start()
    assert prompts.watching == []
    send.tokens(0, finish="eos")
    await air.settle()


@virtual
async def test_a_prompt_of_what_is_tried_alone_is_computed_elsewhere_where_it_must_be(words: Any) -> None:
    prompts = Prompts()
    air = words.Air(prefill=prompts, suspect=True, needs_prefill=True)
    send = await air.start()
    assert (send.request.handoff, send.request.alone, len(prompts.asked)) == (Handoff("s1"), True, 1)
    send.tokens(0, finish="eos")
    await air.settle()


@pytest.mark.parametrize("told", [False, True], ids=["its instance fails", "the prefill worker is lost"])
@virtual
async def test_a_prompt_that_crashes_prefill_workers_costs_two(words: Any, told: bool) -> None:
    prompts = Prompts()
    air = words.Air(prefill=prompts, needs_prefill=True)
    air.crashes[PREFILL.instance_id] = "exit code 3"

    async def crash() -> None:
        if told:
            prompts.watching[-1]("the prefill worker is gone", False)
        else:
            air.last.fail(retry=True, code=HANDOFF_FAILED)
        await air.settle()

    await air.start()
    await crash()
    assert (air.suspected, air.alone, air.last.request.alone) == (["r"], [False, True], True)
    prompts.alone = True
    await crash()
    assert isinstance(air.error, PoisonRequest)
    assert (air.guilty, len(prompts.asked), prompts.open) == (["exit code 3"], 2, 0)


@virtual
async def test_and_so_does_one_that_crashes_them_before_their_hand_off(words: Any) -> None:
    prompts = Prompts()
    prompts.lost = True
    prompts.may.clear()
    air = words.Air(prefill=prompts, needs_prefill=True)
    air.crashes[PREFILL.instance_id] = "exit code 3"
    await air.run()
    first, prompts.may = prompts.may, asyncio.Event()
    first.set()
    await air.settle()
    assert (air.suspected, air.alone) == (["r"], [False, True])
    prompts.alone = True
    prompts.may.set()
    await air.settle()
    assert isinstance(air.error, PoisonRequest)
    assert (air.sends, len(prompts.asked)) == ([], 2)


@virtual
async def test_a_lost_prefill_worker_that_has_not_crashed_makes_nobody_suspect(words: Any) -> None:
    prompts = Prompts()
    prompts.lost = True
    prompts.may.clear()
    air = words.Air(prefill=prompts, needs_prefill=True)
    await air.run()
    first, prompts.may = prompts.may, asyncio.Event()
    first.set()
    await air.settle()
    assert (air.suspected, air.alone, len(prompts.asked)) == ([], [False, False], 2)
    prompts.lost = False
    prompts.may.set()
    await air.settle()
    air.last.tokens(0, finish="eos")
    await air.settle()
    assert (air.client.finished[0][0], air.broken) == ("stop", [])


@virtual
async def test_a_prompt_makes_room_for_the_trial_of_another(words: Any) -> None:
    """It is no failure, whatever the limit."""
    prompts = Prompts()
    air = words.Air(instances=1, limit=0, prefill=prompts, needs_prefill=True)
    send = await air.start()
    prompts.watching[0]("its prefill worker tries another request alone", True)
    await air.settle()
    assert (send.cancelled, len(air.sends), air.inflight.tried.displaced, air.suspected) == (1, 2, 1, [])
    air.last.tokens(1)
    prompts.watching[1]("its prefill worker tries another request alone", True)
    await air.settle()
    assert len(air.sends) == 2, "its blocks have come"
    air.last.tokens(0, finish="eos")
    await air.settle()
    assert (air.client.answer, air.broken) == ("a", [])
