"""Adapters in vLLM, by mocks of its AsyncLLM and LoRARequest: no real vLLM is there."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.engine.lora import digested
from dynamod.engine.vllm.lora import VllmAdapters, with_lora
from dynamod.message.discovery import Adapter
from dynamod.message.errors import NotFound, UserError
from dynamod.message.worker import Generate


def peft(folder: Path, rank: Any) -> Adapter:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank}))
    (folder / "adapter_model.safetensors").write_bytes(folder.name.encode())
    return Adapter(folder.name, str(folder))


def test_arguments(tmp_path: Path) -> None:
    small, large = peft(tmp_path / "small", 4), peft(tmp_path / "large", 33)
    assert with_lora({"dtype": "auto"}, ()) == {"dtype": "auto"}
    assert with_lora({}, [small]) == {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}
    assert with_lora({}, [small, large]) == {"enable_lora": True, "max_lora_rank": 64, "max_loras": 2}
    assert with_lora({"max_loras": 5}, [small])["max_loras"] == 5
    with pytest.raises(UserError, match="enable_lora: false together with lora"):
        with_lora({"enable_lora": False}, [small])
    with pytest.raises(UserError, match="has the rank 1000, and vLLM computes 512 at most"):
        with_lora({}, [peft(tmp_path / "huge", 1000)])
    for values, given in (({}, [small]), ({"enable_lora": True}, [])):
        assert with_lora(values, given, cpu=True)["worker_extension_cls"].endswith("cpu_lora.Adapters")
        with pytest.raises(UserError, match="worker_extension_cls: on a CPU"):
            with_lora({**values, "worker_extension_cls": "mine.Own"}, given, cpu=True)
    assert with_lora({}, [], cpu=True) == {}
    with pytest.raises(UserError, match="does not say its rank"):
        with_lora({}, [peft(tmp_path / "none", None)])


class MockedLLM:
    """What is used of vLLM's AsyncLLM."""

    def __init__(self) -> None:
        self.added: list[Any] = []

    async def add_lora(self, request: Any) -> bool:
        if request.lora_path.endswith("broken"):
            raise ValueError("LoRA rank 64 is greater than max_lora_rank 16.")
        self.added.append(request)
        return True


async def test_a_mock_of_vllm_gets_digests_as_names(tmp_path: Path) -> None:
    llm = MockedLLM()
    adapters = VllmAdapters(llm, SimpleNamespace)
    one, two = await adapters.begin([peft(tmp_path / "one", 4), peft(tmp_path / "two", 4)])
    assert [vars(request) for request in llm.added] == [
        {"lora_name": one.digest, "lora_int_id": 1, "lora_path": one.path},
        {"lora_name": two.digest, "lora_int_id": 2, "lora_path": two.path},
    ]
    assert adapters.of(Generate("r", "m", b"")) == {}
    asked = Generate("r", "m", b"", adapter=two)
    assert adapters.of(asked) == {"lora_request": llm.added[1]}
    await adapters.load(two)
    assert len(llm.added) == 2
    with pytest.raises(UserError, match=r"vLLM cannot load the adapter broken: .*LoRA rank 64 is greater"):
        await adapters.load(digested(peft(tmp_path / "broken", 64)))
    assert two.digest in adapters
    adapters.drop(two.digest)
    assert two.digest not in adapters
    with pytest.raises(NotFound, match="'two' is not loaded here any more"):
        adapters.of(asked)
