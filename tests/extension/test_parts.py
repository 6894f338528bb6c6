"""What a feature keeps in workers: the toy `visits`."""

from typing import Any

import pytest

from dynamod.actor import System
from dynamod.actor.testing import virtual
from dynamod.message.worker import Describe

pytestmark = pytest.mark.usefixtures("toys")


def visit(guest: str) -> Any:
    from dynamod.features.visits.worker import Visit  # type: ignore[import-not-found]

    return Visit("r", guest)


@virtual
async def test_messages_of_a_feature_reach_its_part_of_the_worker(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        answer = await house.ask(visit("Ann")).wait()
        assert answer.accepted
        assert [item for one in answer.deltas if hasattr(one, "items") for item in one.items] == [b"mocker: Ann"]
        assert house.workers[-1].parts["visits"].guests == ["Ann"]
        assert len(house.published) == 2, "the part has published the card again"
        refused = (await house.ask(visit("")).wait()).error
        assert (refused.error, refused.message, refused.param) == ("BadRequest", "`guest` is empty", "guest")
        broken = (await house.ask(visit("nobody")).wait()).error
        assert (broken.error, "raised KeyError" in broken.message) == ("EngineFailed", True)
        assert (await house.ask(Describe("d")).wait()).error is None
        assert house.statistics.refused == 0


@virtual
async def test_a_message_of_a_feature_that_is_off_is_refused_with_its_name(
    words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-visits")
    async with System() as system:
        house = await words.mocker(system)
        error = (await house.ask(visit("Ann")).wait()).error
        assert (error.error, error.code) == ("BadRequest", "feature_off")
        assert "belong to the feature 'visits', which is off: switched off by DYNAMOD_FEATURES" in error.message
        assert (house.workers[-1].parts, house.statistics.refused) == ({}, 1)
