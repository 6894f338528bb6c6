"""What is decided without SGLang when prompts go from engine to engine: its arguments, the room, an aborted prompt."""

import sys
from types import ModuleType
from typing import Any

import pytest

from dynamod.engine.sglang.cpu import run_scheduler_process
from dynamod.engine.sglang.transfer import ROOMS, SgLangTransfer, with_mode
from dynamod.message.errors import UserError
from dynamod.message.worker import Generate


def test_arguments_of_a_mode() -> None:
    assert with_mode({"dtype": "auto"}, "aggregated", "h", 5) == {"dtype": "auto"}
    assert with_mode({"dtype": "auto"}, "prefill", "10.0.0.1", 5000, cpu=True) == {
        "disaggregation_mode": "prefill",
        "disaggregation_transfer_backend": "nixl",
        "disaggregation_bootstrap_port": 5000,
        "host": "10.0.0.1",
        "dtype": "auto",
    }
    decode = with_mode({"disaggregation_transfer_backend": "mooncake"}, "decode", "10.0.0.1", 0)
    assert decode == {
        "disaggregation_mode": "decode",
        "disaggregation_transfer_backend": "mooncake",
        "host": "10.0.0.1",
    }
    assert with_mode({}, "decode", "h", 0, cpu=True)["disaggregation_decode_retraction_backup"] == "none"
    assert with_mode({"disaggregation_mode": "null"}, "aggregated", "h", 0) == {"disaggregation_mode": "null"}
    with pytest.raises(UserError, match="disaggregation_mode: decode, but the worker is aggregated") as caught:
        with_mode({"disaggregation_mode": "decode"}, "aggregated", "h", 0)
    assert "--disaggregation-mode" in caught.value.hint


async def test_both_engines_are_told_the_same_room_at_once() -> None:
    said: list[dict[str, Any]] = []
    computed: list[Any] = []

    class Engine:
        async def computed(self, request: Generate, params: dict[str, Any]) -> None:
            assert said == [params], "the other engine is told before the prompt is computed"
            computed.append(request)

    transfer = SgLangTransfer(Engine(), "layout", "10.0.0.1", 5000)  # type: ignore[arg-type]
    request = Generate("r", "m", b"")
    for _ in range(2):
        said.clear()
        await transfer.prefill(request, said.append)
        assert (said[0]["bootstrap_host"], said[0]["bootstrap_port"]) == ("10.0.0.1", 5000)
        assert 0 <= said[0]["bootstrap_room"] < 1 << ROOMS
    assert (computed, transfer.shape) == ([request, request], "rendezvous")


def test_nixl_takes_main_memory_for_the_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agent:
        def __init__(self, name: str) -> None:
            self.name, self.nixl_mems = name, {"DRAM": 0, "VRAM": 1}

    def run(*arguments: Any, **named: Any) -> tuple[Any, ...]:
        return Agent("a").nixl_mems, arguments, named

    parts = ("nixl", "nixl._api", "sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.managers.scheduler")
    for name in parts:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["nixl._api"], "nixl_agent", Agent, raising=False)
    monkeypatch.setattr(sys.modules[parts[-1]], "run_scheduler_process", run, raising=False)
    mems, arguments, named = run_scheduler_process(1, port=2)
    assert (mems, arguments, named) == ({"DRAM": 0, "VRAM": 0}, (1,), {"port": 2})
