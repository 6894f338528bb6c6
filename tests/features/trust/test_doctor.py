"""What dynamo doctor says of the secret, by what the daemon answers."""

from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.cli import client
from dynamod.features.trust.commands import TrustState, Wrong
from dynamod.features.trust.doctor import checks


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (TrustState(cluster=False), []),
        (TrustState(cluster=True), [("warn", "the cluster has no secret")]),
        (TrustState(cluster=True, digests=["ab"], mode="off"), [("warn", "the cluster secret is not used")]),
        (TrustState(cluster=True, digests=["ab"], mode="require"), [("ok", "mode require, secret ab")]),
        (
            TrustState(cluster=True, digests=["ab"], mode="accept", wrong=[Wrong("two", "unsigned", 3)]),
            [("warn", "node two: 3 messages or values not signed taken")],
        ),
    ],
)
async def test_findings(state: TrustState, says: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def control(_socket: Any) -> Any:
        return SimpleNamespace(ask=lambda *_: SimpleNamespace(value=state))

    monkeypatch.setattr(client, "Control", control)
    found = [finding async for finding in checks(None)]
    assert [(one.state, one.found[: len(text)]) for one, (_, text) in zip(found, says, strict=True)] == says
