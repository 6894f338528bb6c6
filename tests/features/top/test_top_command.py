"""The command `top`, which this feature adds to those of the daemon."""

from typing import Any

import msgspec
import pytest

from dynamod.actor import System
from dynamod.features.top.commands import Look
from dynamod.observe.vitals import Vitals

from ...control.test_answers import DAEMON, ROW
from ...control.test_answers import test_an_answer_has_these_fields as has_fields
from ...control.test_commands import Process, asked

LOOK = {
    **DAEMON,
    "at": 4.0,
    "rows": [ROW],
    "instances": {"7": "ab"},
    "vitals": {"7": {"cpu": 0.5, "rss": 4096}},
    "statistics": {"agg/Worker.0": {"mailboxes": {}, "engines": {}, "http": None}},
}


@pytest.mark.parametrize(("kind", "value"), [(Vitals, {"cpu": 0.5, "rss": 4096}), (Look, LOOK)])
def test_an_answer_has_the_fields(kind: type[msgspec.Struct], value: dict[str, Any]) -> None:
    has_fields(kind, value)


async def test_top_has_the_statistics_of_those_that_answer() -> None:
    async with System() as system:
        looked = await asked(system, Process("a", statistics={"x": 1}), Process("quiet")).call("top", {})
    assert looked["statistics"] == {"a": {"x": 1}}
