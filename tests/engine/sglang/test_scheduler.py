"""What is changed in a scheduler's process, with mocks of SGLang's modules: it is not here."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dynamod.engine.sglang.scheduler import compiles_forms, run_scheduler_process


class Agent:
    """NIXL's."""

    def __init__(self, name: str) -> None:
        self.name, self.nixl_mems = name, {"DRAM": 0, "VRAM": 1}


class Manager:
    """SGLang's part for forms, which has begun without a tokenizer."""

    def __init__(self, _scheduler: Any) -> None:
        self.grammar_backend: Any = None


def run(_server_args: Any, *arguments: Any, **named: Any) -> Any:
    config = SimpleNamespace(vocab_size=7, hf_eos_token_id={2})
    manager = sys.modules["sglang.srt.constrained.grammar_manager"].GrammarManager
    agent = sys.modules["nixl._api"].nixl_agent("a")
    return agent.nixl_mems, manager(SimpleNamespace(model_config=config)).grammar_backend, arguments, named


@pytest.fixture(autouse=True)
def mocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of SGLang and NIXL as is looked at."""
    members: dict[str, dict[str, Any]] = {
        "nixl._api": {"nixl_agent": type("Agent", (Agent,), {})},
        "sglang.srt.managers.scheduler": {"run_scheduler_process": run},
        "sglang.srt.constrained.grammar_manager": {
            "GrammarManager": type("Manager", (Manager,), {}),
            "create_grammar_backend": lambda _arguments, *made: made,
        },
        "sglang.srt.utils.hf_transformers.tokenizer": {
            "get_tokenizer": lambda path, **named: (path, named["tokenizer_revision"])
        },
    }
    for name, values in members.items():
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:count]), ModuleType(".".join(parts[:count])))
        for key, value in values.items():
            setattr(sys.modules[name], key, value)


def arguments(folder: Path, **fields: Any) -> Any:
    given = {
        "device": "cuda",
        "disaggregation_mode": "null",
        "grammar_backend": None,
        "is_embedding": False,
        "skip_tokenizer_init": True,
        "model_path": str(folder),
        "tokenizer_path": None,
        "tokenizer_mode": "auto",
        "trust_remote_code": False,
        "revision": "r1",
    }
    return SimpleNamespace(**{**given, **fields})


def test_nixl_takes_main_memory_for_the_memory_of_a_gpu(tmp_path: Path) -> None:
    made = run_scheduler_process(arguments(tmp_path, device="cpu"), 1)
    assert made == ({"DRAM": 0, "VRAM": 1}, None, (1,), {}), "nothing moves"
    made = run_scheduler_process(arguments(tmp_path, device="cpu", disaggregation_mode="decode"), 1, port=2)
    assert made == ({"DRAM": 0, "VRAM": 0}, None, (1,), {"port": 2})


def test_forms_are_compiled_by_a_tokenizer_for_them_alone(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    assert run_scheduler_process(arguments(tmp_path))[1] == ((str(tmp_path), "r1"), 7, {2})


@pytest.mark.parametrize("field", [{"skip_tokenizer_init": False}, {"grammar_backend": "none"}, {"is_embedding": True}])
def test_sglang_does_as_it_does(tmp_path: Path, field: dict[str, Any]) -> None:
    (tmp_path / "tokenizer.json").touch()
    assert run_scheduler_process(arguments(tmp_path, **field))[1] is None


def test_where_forms_are_compiled(tmp_path: Path) -> None:
    assert not compiles_forms(arguments(tmp_path))
    assert compiles_forms(arguments(tmp_path, skip_tokenizer_init=False)), "SGLang reads its own then"
    (tmp_path / "tokenizer.json").touch()
    assert compiles_forms(arguments(tmp_path))
    assert not compiles_forms(arguments(tmp_path, grammar_backend="none"))
    assert not compiles_forms(arguments(tmp_path, tokenizer_path=str(tmp_path / "elsewhere")))
