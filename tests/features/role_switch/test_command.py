"""The command `switch`, which this feature adds to those of the daemon."""

import pytest

from dynamod.message.errors import UserError

from ...control.test_commands import AGG, Runner, node


async def test_a_worker_gets_another_role() -> None:
    agg = Runner("agg", AGG)
    commands, _ = node(agg)
    rows = await commands.call("switch", {"component": "Worker.0", "role": "prefill", "timeout": 5})
    await commands.call("switch", {"component": "Worker", "role": "decode", "expected_epoch": 1})
    assert agg.done == [("switch", "Worker.0", "prefill", 5.0, None), ("switch", "Worker", "decode", 600.0, 1)]
    assert [row["component"] for row in rows] == ["Worker"]
    assert agg.by_hand == {"Worker": 2}, "planners are to know it"
    for wrong in ({}, {"role": "both"}, {"role": ["prefill"]}, {"role": "decode", "expected_epoch": "1"}):
        with pytest.raises(UserError, match=r"(role|expected_epoch) is"):
            await commands.call("switch", {"component": "Worker", **wrong})
