"""The keys of a worker's section: mistakes say where a key belongs."""

import pytest

from dynamod.graph.typed import validate
from dynamod.message.errors import UserError
from dynamod.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (
            {"engine": "llama.cpp", "model": "m", "kv_host_gb": 1},
            "Worker.kv_host_gb: unknown key; it is an argument of engine 'llamacpp': give it under engine_args",
        ),
        (
            {"engine": "mocker", "kv-bytes-per-token": 1},
            "Worker.kv-bytes-per-token: unknown key; it is an argument of engine 'mocker': give it under engine_args",
        ),
        ({"engine": "pystr:mine.py", "kv_host_gb": 1}, "Worker.kv_host_gb: unknown key; known keys: base_gpu_id"),
        ({"engine": "nobody", "kv_host_gb": 1}, "Worker.kv_host_gb: unknown key; known keys: base_gpu_id"),
        ({"engine": ["mocker"], "kv_host_gb": 1}, "Worker.kv_host_gb: unknown key; known keys: base_gpu_id"),
        (
            {"engine": "mocker", "transfer_hots": "a"},
            "Worker.transfer_hots: unknown key; did you mean 'transfer_host'?",
        ),
    ],
)
def test_an_unknown_key(section: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as error:
        validate(WorkerSettings, section, "Worker")
    assert error.value.line().startswith(says)


def test_an_argument_of_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(_name: str, _add: object) -> None:
        raise UserError("engine 'vllm' needs the package 'vllm'")

    monkeypatch.setattr("dynamod.worker.settings.add_flags", lacking)
    with pytest.raises(UserError, match=r"Worker\.max_model_len: unknown key") as error:
        validate(WorkerSettings, {"engine": "vllm", "model": "m", "max_model_len": 1}, "Worker")
    assert error.value.hint.startswith("known keys: ")


def test_a_lease_is_longer_than_readers_are_silent() -> None:
    with pytest.raises(UserError, match=r"Worker\.session_lease: expected float >= 2\.0, got 1"):
        validate(WorkerSettings, {"engine": "mocker", "model": "m", "session_lease": 1}, "Worker")
