"""What is decided without vLLM when prompts go from engine to engine: its connector, what that reports."""

from typing import Any

import pytest

from dynamod.engine.vllm.transfer import LEASE, READ, VllmTransfer, with_connector
from dynamod.message.worker import Generate


@pytest.mark.parametrize(("mode", "role"), [("prefill", "kv_producer"), ("decode", "kv_consumer")])
def test_the_connector_is_made_for_the_mode(mode: Any, role: str) -> None:
    made = with_connector({"dtype": "auto"}, mode, cpu=True)
    assert made["dtype"] == "auto"
    assert made["kv_transfer_config"] == {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"kv_lease_duration": LEASE},
    }
    assert "kv_buffer_device" not in with_connector({}, mode)["kv_transfer_config"]


def test_what_is_given_counts_more() -> None:
    given = {"kv_role": "kv_both", "kv_connector_extra_config": {"kv_lease_duration": 90, "backends": ["UCX"]}}
    made = with_connector({"kv_transfer_config": given}, "decode")["kv_transfer_config"]
    assert (made["kv_connector"], made["kv_role"]) == ("NixlConnector", "kv_both")
    assert made["kv_connector_extra_config"] == {"kv_lease_duration": 90, "backends": ["UCX"]}
    parsed = object()  # vLLM's own, from the words behind --
    assert with_connector({"kv_transfer_config": parsed}, "decode") == {"kv_transfer_config": parsed}
    assert with_connector({"dtype": "auto"}, "aggregated") == {"dtype": "auto"}


def test_blocks_are_read_before_their_lease_ends() -> None:
    assert READ < LEASE


def test_what_the_connector_reports_is_counted() -> None:
    transfer = VllmTransfer(None, "layout")  # type: ignore[arg-type]
    transfer.record({"bytes_transferred": [100, 28], "transfer_duration": [0.25, 0.5], "num_failed_transfers": []})
    transfer.record({"num_failed_handshakes": [1], "num_failed_transfers": [1, 1], "num_kv_expired_reqs": [1]})
    transfer.record({})
    assert (transfer.transfers, transfer.bytes, transfer.seconds, transfer.expired) == (2, 128, 0.75, 1)
    assert transfer.failed == {"unreachable": 1, "failed": 2}


async def test_the_lease_of_a_prompt_is_its_task() -> None:
    import asyncio

    said: list[dict[str, Any]] = []

    class Engine:
        async def computed(self, request: Generate, asked: Any) -> dict[str, Any]:
            assert asked["do_remote_decode"]
            return {"remote_port": 5600}

    transfer = VllmTransfer(Engine(), "layout")  # type: ignore[arg-type]
    task = asyncio.create_task(transfer.prefill(Generate("r", "m", b""), said.append))
    await asyncio.sleep(0.01)
    assert (said, task.done()) == ([{"remote_port": 5600}], False)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
