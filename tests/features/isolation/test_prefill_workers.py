"""Prefill workers that crash or hang at a prompt, with the instance that answers or alone."""

import asyncio
from typing import Any

import pytest

from dynamod.discovery.view import UNRESPONSIVE
from dynamod.features.isolation.stage import LATE_HANG_S
from dynamod.features.prefill.stage import HANGS_S
from dynamod.message.discovery import Instance
from dynamod.message.worker import HANDOFF_FAILED, Handoff
from dynamod.migration.stages import CAUSE
from tests.features.prefill.test_prompts import PREFILL, Prompt, Prompts
from tests.migration.instances import virtual


class Computing(Prompt):
    """A prompt whose blocks come while they are computed. The prefill workers have the numbers 101, 102, and so on."""

    def __init__(self, prompts: Prompts) -> None:
        super().__init__(prompts)
        number = 100 + len(prompts.asked)
        self.instance = Instance("p", "c", "prefill", number, {})
        self.handoff = asyncio.get_running_loop().create_future()
        self.handoff.set_result(Handoff(f"s{number}", params={"room": number}, shape="rendezvous"))


class Computed(Prompt):
    """A prompt that was computed before its hand-off came, by an engine whose blocks are read then."""

    def __init__(self, prompts: Prompts) -> None:
        super().__init__(prompts)
        self.handoff = asyncio.get_running_loop().create_future()
        self.handoff.set_result(Handoff("s", params={"blocks": [1]}))


@virtual
async def test_a_prefill_worker_counts_with_the_instance_that_ends_after_its_request_has_left(words: Any) -> None:
    """Either may have ended with the prompt, as where the request has not left."""
    air = words.Air(3, prefill=Prompts())
    await air.start()
    left = air.charged
    air.crashes[PREFILL.instance_id] = UNRESPONSIVE
    air.busy.add(1)
    assert left.leave()
    await air.settle()
    assert (air.suspected, air.client.errors, air.alone) == (["r"], [], [False, True]), "it may compute another prompt"
    left.cause = UNRESPONSIVE
    assert air.charged.leave()
    await air.settle()
    assert str(air.error) == f"{UNRESPONSIVE}; it is the second worker that ended with this request"


@pytest.mark.parametrize(
    ("late", "cause", "counts"),
    [(0.2, UNRESPONSIVE, True), (LATE_HANG_S + 0.1, UNRESPONSIVE, False), (0.2, "exit code 1", False)],
)
@virtual
async def test_a_prefill_worker_counts_whose_hang_is_known_before_the_next_attempt(
    words: Any, late: float, cause: str, counts: bool
) -> None:
    """Both hang at one prompt at the same moment; the request must not meet a third worker."""
    air = words.Air(2, busy={2}, patient=True, prefill=Prompts())
    await air.start()
    air.crashes[1] = UNRESPONSIVE
    air.inflight.leave("it does not answer")
    await air.settle()
    await asyncio.sleep(late)
    air.crashes[PREFILL.instance_id] = cause
    air.free()
    await air.settle()
    assert air.guilty == []
    assert [str(error) for error in air.client.errors] == [
        f"{UNRESPONSIVE}; it is the second worker that ended with this request"
    ] * counts
    assert len(air.sends) == 2 - counts
    if not counts:
        air.last.tokens(1, 0, finish="eos")
        await air.settle()


@pytest.mark.parametrize(("left", "known", "counts"), [(1.0, 1.4, True), (1.0, 1.6, False), (1.6, 1.55, False)])
@virtual
async def test_a_prefill_worker_that_hangs_after_its_hand_off_hangs_for_something_else(
    words: Any, left: float, known: float, counts: bool
) -> None:
    """It had computed the prompt before. `left`, `known`: when the instance ends and when the hang becomes known, in
    seconds after the hand-off."""
    prompts = Prompts()
    prompts.make = Computed
    air = words.Air(2, busy={2}, patient=True, prefill=prompts)
    await air.start()

    async def hang() -> None:
        await asyncio.sleep(known)
        air.crashes[PREFILL.instance_id] = UNRESPONSIVE

    hanging = asyncio.create_task(hang())
    await asyncio.sleep(left)
    air.crashes[1] = UNRESPONSIVE
    air.inflight.leave("it does not answer")
    await air.settle()
    await hanging
    air.free()
    await air.settle()
    assert (air.guilty, len(air.client.errors), len(air.sends)) == ([], counts, 2 - counts)
    if not counts:
        air.last.tokens(1, 0, finish="eos")
        await air.settle()


@pytest.mark.parametrize(("known", "suspect"), [(1.4, True), (1.6, False)])
@virtual
async def test_an_instance_whose_blocks_do_not_come_computes_a_prompt_that_has_done_no_harm(
    words: Any, known: float, suspect: bool
) -> None:
    """The prefill worker hangs `known` seconds after it has computed the prompt, before the blocks were read."""
    prompts = Prompts()
    prompts.make = Computed
    air = words.Air(prefill=prompts)
    send = await air.start()
    send.accept()
    await asyncio.sleep(known)
    air.crashes[PREFILL.instance_id] = UNRESPONSIVE
    send.accept()  # it asks whether it may compute the prompt
    await asyncio.sleep(1)
    assert (send.confirmed, send.cancelled) == (not suspect, suspect)
    assert air.suspected == ["r"] * suspect
    air.last.tokens(0, finish="eos")
    await air.settle()
    assert air.client.errors == []


@pytest.mark.parametrize(("alone", "took"), [(True, 0.5), (False, 0.5), (True, 0.0)])
@virtual
async def test_the_word_that_a_prefill_worker_hangs_is_waited_for_where_it_tries_one_alone(
    words: Any, alone: bool, took: float
) -> None:
    """The blocks fail before that: they take less time than the daemon."""
    prompts = Prompts()
    prompts.make, prompts.alone = Computing, alone
    air = words.Air(instances=1, prefill=prompts, needs_prefill=True)
    send = await air.start()
    air.crashes[101] = UNRESPONSIVE
    await asyncio.sleep(took)  # an instance refuses blocks of another layout at once
    send.fail(retry=True, code=HANDOFF_FAILED)
    await air.settle()
    assert air.patience == [HANGS_S if alone and took else CAUSE]
    assert (air.guilty, len(air.client.errors)) == (([UNRESPONSIVE], 1) if alone else ([], 0))
    if not alone:
        assert air.suspected == ["r"]
        air.last.tokens(1, 0, finish="eos")
        await air.settle()


@pytest.mark.parametrize("took", [0.0, 0.5])
@virtual
async def test_a_prompt_that_an_instance_refuses_at_once_is_given_up_before_it_is_computed(
    words: Any, took: float
) -> None:
    """A suspect would cost a worker that way. Where it takes longer, no other request may come to that worker."""
    prompts = Prompts()
    prompts.make = Computing
    air = words.Air(instances=1, prefill=prompts, needs_prefill=True)
    send = await air.start()
    air.judging.clear()
    await asyncio.sleep(took)
    send.fail(retry=True, code=HANDOFF_FAILED)
    await air.settle()
    assert prompts.open == bool(took)
    air.judging.set()
    await air.settle()
    assert prompts.open == 1, "that of the next attempt"
    air.last.tokens(1, 0, finish="eos")
    await air.settle()
    assert (prompts.open, air.client.errors) == (0, [])
