"""Engines by name."""

import importlib.util
from typing import Any

import pytest

from dynamod.engine.base import Engine
from dynamod.engine.echo import EchoCore, EchoFull
from dynamod.engine.entry import HandoffEntry
from dynamod.engine.names import (
    ALIASES,
    ENGINES,
    arguments_with,
    canonical,
    default,
    engine_class,
    require_handoff,
    served_types,
)
from dynamod.message.errors import UserError
from dynamod.message.worker import Chat, Embed, Generate
from dynamod.worker.settings import WorkerSettings


@pytest.mark.parametrize("name", [*ENGINES, *ALIASES])
def test_every_name_leads_to_an_engine_that_knows_it(name: str) -> None:
    known = ENGINES[ALIASES.get(name, name)]
    if known.needs and importlib.util.find_spec(known.needs) is None:
        with pytest.raises(UserError, match=known.needs) as caught:
            engine_class(name)
        assert known.extra in caught.value.hint
        return
    found = engine_class(name)
    assert issubclass(found, Engine)
    file = name in ENGINES and ENGINES[name].file
    assert found.name == canonical(f"{name}:my_engine.py" if file else name)
    assert set(found.serves) <= {Generate, Embed, Chat}
    assert found.serves


def test_files() -> None:
    assert canonical("pystr:/a/b:c.py") == "pystr"
    assert arguments_with("pystr:/a/b:c.py", {"argv": []}) == {"argv": [], "file": "/a/b:c.py"}
    assert canonical("openai:http://127.0.0.1:8080/v1") == canonical("openai") == "openai"
    url = arguments_with("openai:http://127.0.0.1:8080/v1", {"model": "m"})
    assert url == {"model": "m", "url": "http://127.0.0.1:8080/v1"}
    for name in ("pytok", "pytok:", "echo:x.py"):
        with pytest.raises(UserError, match="file"):
            canonical(name)


def test_the_echo_engines() -> None:
    assert engine_class("echo") is engine_class("echo_core") is EchoCore
    assert engine_class("echo_full") is EchoFull


@pytest.mark.parametrize(
    ("typed", "meant"), [("mistralr", "mistralrs"), ("echo_ful", "echo_full"), ("mistral-rs", "mistralrs")]
)
def test_a_slip_is_corrected(typed: str, meant: str) -> None:
    with pytest.raises(UserError) as caught:
        engine_class(typed)
    line = caught.value.line()
    assert f"unknown engine '{typed}'" in line
    assert f"did you mean '{meant}'?" in line


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError) as caught:
        canonical("zzz")
    assert caught.value.hint == f"known engines: {', '.join(sorted(ENGINES))}"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, *rest: Any) -> Any:
        return None if name == "mistralrs" else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(UserError) as caught:
        engine_class("mistral.rs")
    line = caught.value.line()
    assert line.startswith("engine 'mistral.rs' needs the package 'mistralrs'; install the extra: uv sync --extra mist")
    assert caught.value.exit_code == 3
    assert engine_class("echo_core") is EchoCore


def test_what_a_prefill_or_decode_worker_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, **arguments: Any) -> UserError:
        with pytest.raises(UserError) as caught:
            require_handoff(name, "decode", arguments)
        return caught.value

    require_handoff("echo_core", "aggregated", {})
    line = refused("echo_core").line()
    assert line.startswith("engine 'echo_core' cannot be a decode worker; engines that can: ")
    assert "mocker" in line
    require_handoff("mocker", "decode", {})
    monkeypatch.setitem(ENGINES, "mocker", ENGINES["mocker"]._replace(handoff=HandoffEntry("not_there", "its_own")))
    lacking = refused("mocker")
    assert str(lacking) == "engine 'mocker' needs the package 'not_there' as a decode worker"
    assert lacking.hint == "python -m pip install --no-deps nixl nixl-cu12, or the extra 'nixl', which needs torch"
    assert lacking.exit_code == 3
    require_handoff("mocker", "decode", {"its-own": {}})
    require_handoff("mocker", "decode", {"argv": ["--its-own=x"]})


@pytest.mark.parametrize(
    "model", ["model-Q8_0.gguf", "~/llms/x.GGUF", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", "org/M:Q8_0"]
)
def test_the_default_for_gguf_files_is_llama_cpp_where_it_is_installed(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for installed, engine in ((True, "llamacpp"), (False, "mistralrs")):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _name, there=installed: there or None)
        assert default(model) == engine
        assert default("Qwen/Qwen3-0.6B") == "mistralrs"
        assert WorkerSettings(model=model).name == engine


@pytest.mark.parametrize(
    ("name", "arguments", "types"),
    [
        ("echo", {}, ("chat", "completions")),
        ("mocker", {}, ("chat", "completions", "embeddings", "score")),
        ("llamacpp", {"n_ctx": 512}, ("chat", "completions")),
        ("llama.cpp", {"embedding": True}, ("embeddings", "score")),
        ("openai", {"url": "http://127.0.0.1:1/v1", "embeddings": True}, ("embeddings",)),
        ("vllm", {"runner": "pooling"}, ("embeddings", "score")),
        ("vllm", {"argv": ["--max-model-len", "9", "--runner", "pooling"]}, ("embeddings", "score")),
        ("vllm", {"argv": ["--runner=pooling"]}, ("embeddings", "score")),
        ("vllm", {"argv": ["--runner=generate"]}, ("chat", "completions")),
        ("sglang", {"argv": ["--is-embedding"]}, ("embeddings", "score")),
        ("sglang", {"is-embedding": True}, ("embeddings", "score")),
        ("sglang", {}, ("chat", "completions")),
        ("mistralrs", {"embeddings": True}, ("embeddings", "score")),
        ("mistralrs", {"max_seqs": 2}, ("chat", "completions")),
    ],
)
def test_what_an_engine_serves_is_known_before_it_starts(
    name: str, arguments: dict[str, Any], types: tuple[str, ...]
) -> None:
    assert served_types(name, arguments) == types
