"""Which choices get a stage for their prompt."""

from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.features.prefill.dispatch import PrefillSettings
from dynamod.features.prefill.ingress import Prompts
from dynamod.message.discovery import PREFILL, Capabilities, ModelCard
from dynamod.message.worker import Generate, Sampling
from dynamod.migration.base import Limits

CAN = ModelCard("m", "tokens", capabilities=Capabilities(handoff=True))
NEEDS = ModelCard("m", "tokens", capabilities=Capabilities(handoff=True, needs_prefill=True))


class Node:
    """What an ingress process has: `prefills` workers for prompts, and the settings of tiers."""

    def __init__(self, prefills: int = 0, *, fetch: bool = False, enforce: bool = False) -> None:
        self._prefills = prefills
        prefill = SimpleNamespace(counts={}, settings=PrefillSettings(enforce_disagg=enforce))
        tiers = SimpleNamespace(counts={}, needs_blocks=fetch)
        context: Any = SimpleNamespace(
            view=self, transport=None, dispatcher=None, limits=Limits(), dispatch={"prefill": prefill, "tiers": tiers}
        )
        self.prompts = Prompts(context)

    def on_change(self, _changed: Any) -> None: ...

    def served(self, name: str, _card: ModelCard, pool: str) -> Any:
        assert (name, pool) == ("m", PREFILL)
        return SimpleNamespace(instances=[object()] * self._prefills)

    def stage(self, card: ModelCard = CAN, sampling: Sampling = Sampling()) -> Any:
        request = Generate("r", "m", b"", sampling=sampling)
        flight: Any = SimpleNamespace(choice=SimpleNamespace(card=card, request=request))
        return self.prompts.begin(request)(flight)


@pytest.mark.parametrize(
    ("node", "card"),
    [
        (Node(1), CAN),
        (Node(fetch=True), CAN),
        (Node(enforce=True), CAN),
        (Node(), NEEDS),
    ],
    ids=["a prefill worker is there", "others may have the blocks", "the settings say so", "the engine computes none"],
)
def test_a_prompt_may_come_from_elsewhere(node: Node, card: ModelCard) -> None:
    assert node.stage(card) is not None


def test_otherwise_a_choice_has_no_stage() -> None:
    assert Node().stage() is None, "as long as no prefill worker is there"
    assert Node(1).stage(ModelCard("m", "tokens")) is None, "its engine takes no prompts"
    assert Node(1).stage(sampling=Sampling(prompt_logprobs=1)) is None, "the worker that answers computes it all"
