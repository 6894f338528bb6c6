import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from httpx2 import Request, Response
from huggingface_hub import errors

from dynamod.message.errors import UserError
from dynamod.preprocess.locate import locate, model_name


def http_error(kind: type[Exception], status: int = 401) -> Exception:
    response = Response(status, request=Request("GET", "https://huggingface.co/x"))
    return kind("refused\nwith details", response=response)  # type: ignore[call-arg]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """Hugging Face without a network: remembers calls, raises `error` when set, lists `files`."""
    state = SimpleNamespace(calls=[], error=None, files=["config.json", "model.safetensors", "pytorch_model.bin"])

    def answer(kind: str, *args: Any, **kwargs: Any) -> str:
        state.calls.append((kind, args, kwargs))
        if state.error is not None:
            raise state.error
        return str(tmp_path / "downloaded")

    def listing(self: Any, repository: str) -> list[str]:
        if state.error is not None:
            raise state.error
        return state.files

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: answer("snapshot", *a, **k))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *a, **k: answer("file", *a, **k))
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", listing)
    return state


def test_shipped_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shipped = ModuleType("dynamod.sample")
    shipped.path = lambda name: tmp_path / name  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dynamod.sample", shipped)
    assert locate("sample") == tmp_path / "sample"
    assert locate("sample.gguf") == tmp_path / "sample.gguf"
    assert model_name("sample", tmp_path / "hf") == "sample"
    assert model_name("sample.gguf", tmp_path / "sample.gguf") == "sample"


def test_local_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hub: SimpleNamespace) -> None:
    folder = tmp_path / "Qwen" / "Tiny-1B"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert locate("~/Qwen/Tiny-1B") == folder
    assert locate(str(folder)) == folder
    assert locate("Qwen/Tiny-1B") == Path("Qwen/Tiny-1B")  # a folder that is there wins over the hub
    assert hub.calls == []
    assert model_name("~/Qwen/Tiny-1B", folder) == "Tiny-1B"
    assert model_name("Qwen/Tiny-1B", Path("Qwen/Tiny-1B")) == "Tiny-1B"
    assert model_name(".", Path()) == tmp_path.name


def test_hub_names(hub: SimpleNamespace, tmp_path: Path) -> None:
    for name in ("Qwen/Tiny-1B", "hf://Qwen/Tiny-1B", "hf://Qwen/Tiny-1B/"):
        assert locate(name) == tmp_path / "downloaded"
        assert model_name(name, tmp_path / "downloaded") == "Qwen/Tiny-1B"
        kind, args, kwargs = hub.calls.pop()
        assert (kind, args, kwargs["local_files_only"]) == ("snapshot", ("Qwen/Tiny-1B",), False)
        assert "*.bin" in kwargs["ignore_patterns"]
        assert "*.safetensors" not in kwargs["ignore_patterns"]


def test_pickles_are_taken_when_there_is_nothing_else(hub: SimpleNamespace) -> None:
    hub.files = ["config.json", "pytorch_model.bin"]
    locate("Qwen/Tiny-1B")
    assert "*.bin" not in hub.calls[0][2]["ignore_patterns"]


def test_one_file_of_a_repository(hub: SimpleNamespace) -> None:
    locate("hf://Qwen/Tiny-GGUF/sub/tiny-q4.gguf")
    assert hub.calls == [("file", ("Qwen/Tiny-GGUF", "sub/tiny-q4.gguf"), {"local_files_only": False})]
    assert model_name("Qwen/Tiny-GGUF/sub/tiny-q4.gguf", Path("/cache/tiny-q4.gguf")) == "tiny-q4"


def test_without_download_only_the_cache_is_asked(hub: SimpleNamespace) -> None:
    locate("Qwen/Tiny-1B", download=False)
    assert hub.calls[0][2]["local_files_only"] is True


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (http_error(errors.RepositoryNotFoundError), r"'Qwen/Tiny' was not found.*check the name"),
        (http_error(errors.GatedRepoError, 403), r"is gated; accept its terms.*set HF_TOKEN"),
        (errors.LocalEntryNotFoundError("nothing"), r"not in the local cache.*HF_HUB_OFFLINE"),
        (errors.OfflineModeIsEnabled("offline"), r"not in the local cache.*go online"),
        (http_error(errors.HfHubHTTPError, 500), r"could not be downloaded: refused; try again"),
        (http_error(errors.RemoteEntryNotFoundError, 404), r"has no file"),
        (ConnectionError(), r"could not be downloaded: ConnectionError"),
    ],
)
def test_failures_say_what_to_do_in_one_line(hub: SimpleNamespace, error: Exception, says: str) -> None:
    hub.error = error
    with pytest.raises(UserError) as caught:
        locate("Qwen/Tiny")
    assert "\n" not in caught.value.line()
    assert re.search(says, caught.value.line())


def test_near_names_are_suggested(tmp_path: Path, hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Llama-3.2-3B-Instruct").mkdir()
    for name, hint in [
        (str(tmp_path / "Llama-3.2-3B-Instrct"), "did you mean '.*Llama-3.2-3B-Instruct'?"),
        ("smaple", "did you mean 'sample'?"),
        ("", "give a folder"),
        ("../no/such", "give a folder"),
        ("no-such.gguf", "give a folder"),
        ("a/b.gguf", "give a folder"),
        ("what is this", "give a folder"),
    ]:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match="neither a path") as caught:
            locate(name)
        assert re.search(hint, caught.value.hint), name
    assert hub.calls == []


def test_names_to_serve_under() -> None:
    assert model_name("x.gguf", Path("/m/Llama-3.2-3B-Instruct-Q4_K_M.gguf")) == "Llama-3.2-3B-Instruct-Q4_K_M"
    assert model_name("/m/big", Path("/m/big-00001-of-00003.gguf")) == "big"
    snapshot = Path("/home/u/.cache/huggingface/hub/models--Qwen--Tiny-1B/snapshots/0123abcd")
    assert model_name(str(snapshot), snapshot) == "Qwen/Tiny-1B"
