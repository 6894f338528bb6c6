"""Commands of the control socket that a feature adds."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from dynamod.control.commands import Commands, known
from dynamod.control.context import CommandContext
from dynamod.extension import installed
from dynamod.extension.command import Command, CommandHandler
from dynamod.extension.feature import Feature
from dynamod.message.errors import UserError


class Tags(msgspec.Struct):
    component: str = ""


async def told(context: CommandContext, arguments: Tags) -> dict[str, Any]:
    given = msgspec.structs.asdict(arguments)
    return {"found": await context.ask("tags", given), **given}


HANDLERS = (
    CommandHandler(Command("tags", Tags, dict[str, Any], ""), told),
    CommandHandler(Command("tag", Tags, dict[str, Any], "", changes=True), told),
)
TOY = Feature("toy", "", controls=lambda: HANDLERS)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setattr(installed, "installed", lambda: {"toy": TOY})
    monkeypatch.setattr("dynamod.control.commands.installed", lambda: {"toy": TOY})
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)
    return Commands(cast("Any", SimpleNamespace(graphs=SimpleNamespace(all=list))))


async def test_a_command_asks_processes(commands: Commands) -> None:
    assert await commands.call("tags", {"component": "a"}) == {"found": {}, "component": "a"}
    reading = [one.name for one in known() if not one.changes]
    changing = [one.name for one in known() if one.changes]
    assert ("tags" in reading, "tags" in changing, "tag" in reading, "tag" in changing) == (True, False, False, True)


async def test_a_command_of_a_feature_that_is_off_names_it(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-toy")
    with pytest.raises(UserError, match="the command 'tags' belongs to the feature 'toy', which is off"):
        await commands.call("tags", {})
    with pytest.raises(UserError, match="unknown command 'nobody'"):
        await commands.call("nobody", {})
