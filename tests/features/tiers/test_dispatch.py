"""The worker that a decision names for blocks of a prompt. Virtual time."""

import msgspec
import pytest

from dynamod.actor.testing import virtual
from dynamod.features.prefill.decision import PrefillDecision
from dynamod.features.tiers.choice import PeerDecision
from dynamod.features.tiers.settings import PeerSettings
from dynamod.message.discovery import Capabilities
from dynamod.message.kv_events import Snapshot
from dynamod.router.router import Prompt
from tests.features.prefill.test_dispatch import prefill_place
from tests.ingress.test_dispatcher import CARD, desk, settled


@pytest.mark.parametrize("mode", ["kv", "round-robin"])
@virtual
async def test_a_decision_names_the_worker_that_has_more_of_the_prompt(mode: str) -> None:
    names, stored = tuple(range(1, 301)), Capabilities(kv_events=True, handoff=True, stored_blocks=True)
    prompt = Prompt("r", 1201, names, instance=1)
    card = msgspec.structs.replace(CARD, capabilities=stored)
    for on, kind in ((True, card), (True, CARD), (False, card)):
        async with desk(2, card=kind, mode=mode, busy_prefill=None, config=PeerSettings(on)) as (made, _group):
            router = made.actor.routers["m", ""]
            assert made.actor.needs_blocks == (on or mode == "kv")
            router.state.apply(2, (Snapshot(names, names),))
            with await made.client.acquire(kind, prompt) as place:
                peer = place.decision.notes.get("peer")
                [kept] = made.actor.decisions.of("r")
                assert kept is place.decision
                assert router.state.active.of(1).prefill == (1 if on and kind is card else 1201)
                if not on or kind is CARD:
                    assert peer is None
                    continue
                assert isinstance(peer, PeerDecision)
                assert (peer.fetch, peer.instance, peer.blocks, peer.own) == (True, 2, 300, 0)
                found = await prefill_place(made, kind, prompt, place.decision)
                assert isinstance(found, PrefillDecision)
                assert found.state.missing == 1, "what is read is not computed"
            with await made.client.acquire(kind, prompt, {2}) as place:
                assert place.decision.notes.get("peer") is None, "it has failed the request"
            made.go(2)
            await settled()
            with await made.client.acquire(kind, prompt) as place:
                assert place.decision.notes.get("peer") is None
