"""The part of the daemon: what it says to its processes, when it warns, what it refuses, and what off costs."""

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dynamod.daemon.cluster import Cluster
from dynamod.extension.command import CommandCall
from dynamod.extension.installed import signer
from dynamod.features.cluster.settings import VARIABLE, require_allowed, signed_changes
from dynamod.features.trust.commands import SET_TRUST, SetTrustArguments
from dynamod.features.trust.daemon import FEATURE, TrustPart
from dynamod.features.trust.secret import CLOCK, MODE, SECRET, SECRET_FILE, key_of
from dynamod.message.errors import UserError
from dynamod.transport.signing import Signing

from .conftest import NEXT, OURS

Env = pytest.MonkeyPatch


class Link:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def say(self, feature: str, value: Any) -> None:
        assert feature == FEATURE
        self.said.append(value)


@pytest.fixture
def env(monkeypatch: Env) -> Env:
    for name in (MODE, SECRET, SECRET_FILE, CLOCK, VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def part(*, cluster: bool = True, found: bool = False) -> TrustPart:
    settings = Cluster(nats={"NATS_SERVER": "nats://host"} if cluster else {}, found=found)
    membership = SimpleNamespace(settings=settings, signing=Signing())
    return TrustPart(cast("Any", SimpleNamespace(name="one", cluster=membership, link=Link())))


async def warnings(one: TrustPart, caplog: pytest.LogCaptureFixture) -> int:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await one.started()
    return len(caplog.records)


async def test_a_cluster_without_a_secret_warns_once(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    one = part()
    assert one.to_processes() is None
    assert one.node.cluster.signing.signer is None
    assert await warnings(one, caplog) == 1
    assert "set DYNAMOD_CLUSTER_SECRET_FILE" in caplog.text
    assert await warnings(part(cluster=False), caplog) == 0, "it is alone"
    assert await warnings(part(found=True), caplog) == 0, "servers of the same user on this machine"
    env.setenv(SECRET, OURS)
    assert await warnings(part(), caplog) == 0
    env.setenv(MODE, "off")
    assert await warnings(part(), caplog) == 1, "there is a secret, and nothing is signed"
    assert "DYNAMOD_TRUST=off" in caplog.text
    assert await warnings(part(cluster=False), caplog) == 0


async def test_processes_hear_mode_and_keys(env: Env) -> None:
    env.setenv(SECRET, OURS)
    one = part()
    said = one.to_processes()
    assert said is not None
    assert (said["mode"], said["keys"]) == ("accept", [list(key_of(OURS))])
    made = signer({FEATURE: said}, None)
    assert made.settings == one.settings
    assert one.node.cluster.signing.signer is one.signer
    assert (await one.set(SetTrustArguments(mode="require"))).mode == "require"
    (later,) = cast("Any", one.node.link).said
    assert signer({FEATURE: later}, made) is made
    assert made.settings.mode == "require"


async def test_the_file_is_read_again(env: Env, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(OURS)
    path.chmod(0o600)
    env.setenv(SECRET_FILE, str(path))
    env.setenv(MODE, "require")
    one = part()
    path.write_text(f"{NEXT}\n{OURS}")
    state = await one.set(SetTrustArguments(reread=True))
    assert state.digests == [key_of(NEXT).digest, key_of(OURS).digest]
    assert (state.mode, state.source) == ("require", SECRET_FILE)
    path.write_text("short")
    with pytest.raises(UserError, match="5 characters"):
        await one.set(SetTrustArguments(reread=True))
    assert one.state() == state, "nothing has changed"
    env.delenv(SECRET_FILE)
    env.delenv(MODE)
    with pytest.raises(UserError):
        await one.set(SetTrustArguments(reread=True))


async def test_no_mode_without_a_secret(env: Env) -> None:
    with pytest.raises(UserError, match="one has no cluster secret"):
        await part().set(SetTrustArguments(mode="accept"))


@pytest.mark.parametrize(
    ("value", "signed", "taken"),
    [("", True, True), ("", False, False), ("read", True, False), ("off", True, False), ("all", False, True)],
)
def test_signed_commands_change_something(value: str, signed: bool, taken: bool) -> None:
    from dynamod.control.table import SCALE

    call = CommandCall(SCALE, {"component": "Worker"}, "two", signed=signed)
    environ = {VARIABLE: value} if value else {}
    mode: Any = value or "read"
    if taken:
        require_allowed(call, mode, "one", signed_changes=signed_changes(environ))
    else:
        with pytest.raises(UserError):
            require_allowed(call, mode, "one", signed_changes=signed_changes(environ))


def test_the_mode_is_never_set_by_another_node() -> None:
    call = CommandCall(SET_TRUST, {"mode": "off"}, "two", signed=True)
    with pytest.raises(UserError, match="never taken from another node"):
        require_allowed(call, "all", "one", signed_changes=True)


def test_without_a_secret_nothing_is_imported() -> None:
    code = """
import sys
from types import SimpleNamespace
from dynamod.daemon.cluster import Cluster
from dynamod.extension.installed import daemon_parts, signer
from dynamod.transport.signing import Signing
node = SimpleNamespace(name="one", cluster=SimpleNamespace(settings=Cluster(), signing=Signing()))
part = daemon_parts()["trust"](node)
assert part.to_processes() is None and signer({}, None) is None
print([name for name in sys.modules if name.startswith("dynamod.features.trust.si")])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
