"""Commands of the control socket that a feature adds."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dynamod.control.commands import Commands
from dynamod.control.server import _names
from dynamod.extension import installed
from dynamod.extension.control import Control
from dynamod.extension.feature import Feature
from dynamod.message.errors import UserError


async def told(commands: Commands, arguments: dict[str, Any]) -> Any:
    return {"found": await commands.ask("tags", arguments), **arguments}


TOY = Feature("toy", "", controls={"tags": Control(told), "tag": Control(told, changes=True)})


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setattr(installed, "installed", lambda: {"toy": TOY})
    monkeypatch.setattr("dynamod.control.server.installed", lambda: {"toy": TOY})
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)
    return Commands(cast("Any", SimpleNamespace(graphs=SimpleNamespace(all=list))))


async def test_a_command_asks_processes(commands: Commands) -> None:
    assert await commands.call("tags", {"component": "a"}) == {"found": {}, "component": "a"}
    reading, changing = _names()
    assert ("tags" in reading, "tags" in changing, "tag" in reading, "tag" in changing) == (True, False, False, True)


async def test_a_command_of_a_feature_that_is_off_names_it(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-toy")
    with pytest.raises(UserError, match="the command 'tags' belongs to the feature 'toy', which is off"):
        await commands.call("tags", {})
    with pytest.raises(UserError, match="unknown command 'nobody'"):
        await commands.call("nobody", {})
