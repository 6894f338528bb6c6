"""What `dynamo explain` says of the prompt of a request, and of blocks that other workers have of it."""

import random

import msgspec

from dynamod.cli.show import decision
from dynamod.features.prefill.decision import PrefillState, decide
from dynamod.features.prefill.settings import PrefillSettings
from dynamod.features.tiers.choice import PeerDecision
from dynamod.message.discovery import Instance
from dynamod.router.router import Prompt, Router, RouterSettings


def test_a_decision_with_notes() -> None:
    router = Router("m", 16, RouterSettings("round-robin"), random.Random(0), lambda: 1.0, lambda: 1.5e9)
    made = router.decide(Prompt("r", 40), (Instance("n", "c", "e", 1, {}),))
    assert made is not None
    notes = {"prefill": decide(PrefillSettings(max_local_prefill_length=1000), PrefillState(40, 0, 2, 0))}
    peer = PeerDecision(True, "it costs 600 tokens to read them, 1280 without", 7, "", 90, 10, 1280.0, 600.0)
    record = msgspec.to_builtins(made)
    record |= msgspec.to_builtins({**notes, "peer": peer})
    record["candidates"][0]["process"] = "worker.1"
    record["peer"]["process"] = "worker.2"
    text = decision({**record, "overlap": 0, "regret": 0})
    assert "prompt computed where it was answered: not more than max_local_prefill_length 1000 (40 tokens" in text
    assert "measured" not in text
    state = PrefillState(4000, 0, 1, 0, answers_here=1, way=40.4)
    record["prefill"] = msgspec.to_builtins(decide(PrefillSettings(), state))
    measured = decision({**record, "overlap": 0, "regret": 0})
    assert "prompt computed by a prefill worker: it costs 4290 there, 5000 tokens here" in measured
    assert "0 tokens before it, last blocks 40 tokens on their way as measured)" in measured
    assert "blocks read from worker.2: it costs 600 tokens to read them, 1280 without (it has 90, the answering" in text
