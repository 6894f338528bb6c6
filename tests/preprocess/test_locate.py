import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import huggingface_hub
import pytest
from httpx2 import Request, Response
from huggingface_hub import errors

from dynamod.message.errors import UserError
from dynamod.preprocess.hub import find
from dynamod.preprocess.locate import locate
from dynamod.preprocess.reference import Reference, model_name, reference


def http_error(kind: type[Exception], status: int = 401) -> Exception:
    response = Response(status, request=Request("GET", "https://huggingface.co/x"))
    return kind("refused\nwith details", response=response)  # type: ignore[call-arg]


def test_shipped_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shipped = ModuleType("dynamod.sample")
    shipped.path = lambda name: tmp_path / name  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dynamod.sample", shipped)
    assert locate("sample") == tmp_path / "sample"
    assert locate("sample.gguf") == tmp_path / "sample.gguf"
    assert model_name("sample", tmp_path / "hf") == "sample"
    assert model_name("sample.gguf", tmp_path / "sample.gguf") == "sample"


def test_local_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "Qwen" / "Tiny-1B"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert locate("~/Qwen/Tiny-1B") == folder
    assert locate(str(folder)) == folder
    assert locate("Qwen/Tiny-1B") == Path("Qwen/Tiny-1B")  # a folder that is there wins over the hub
    assert model_name("~/Qwen/Tiny-1B", folder) == "Tiny-1B"
    assert model_name("Qwen/Tiny-1B", Path("Qwen/Tiny-1B")) == "Tiny-1B"
    assert model_name(".", Path()) == tmp_path.name


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("Qwen/Tiny-1B", ("Qwen/Tiny-1B", "", "")),
        ("hf://Qwen/Tiny-1B", ("Qwen/Tiny-1B", "", "")),
        ("hf://Qwen/Tiny-1B/", ("Qwen/Tiny-1B", "", "")),
        ("Qwen/Tiny-GGUF:Q4_K_M", ("Qwen/Tiny-GGUF", "", "Q4_K_M")),
        ("hf://Qwen/Tiny-GGUF/sub/tiny-q4.gguf", ("Qwen/Tiny-GGUF", "sub/tiny-q4.gguf", "")),
    ],
)
def test_hub_names(name: str, means: tuple[str, str, str]) -> None:
    assert reference(name) == means
    wanted = Reference(*means)
    assert reference(str(wanted)) == wanted
    assert model_name(name, Path("/cache/tiny-q4.gguf")) == (str(wanted) if not wanted.file else "tiny-q4")


@pytest.mark.parametrize("name", ["", "x", "a/b.gguf", "./a/b", "/a/b", "~/a/b", "a b/c", "a/b:Q8_0/c.gguf", ":/:"])
def test_what_only_a_path_can_be(name: str) -> None:
    assert reference(name) is None


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (http_error(errors.RepositoryNotFoundError), r"'Qwen/Tiny' was not found.*check the name"),
        (http_error(errors.GatedRepoError, 403), r"is gated; accept its terms.*set HF_TOKEN"),
        (errors.LocalEntryNotFoundError("nothing"), r"not in the local cache.*HF_HUB_OFFLINE"),
        (errors.OfflineModeIsEnabled("offline"), r"not in the local cache.*HF_HUB_OFFLINE is set; unset it"),
        (http_error(errors.HfHubHTTPError, 500), r"could not be downloaded: refused; try again"),
        (ConnectionError(), r"cannot be reached \(ConnectionError\); check the network"),
    ],
)
def test_failures_say_what_to_do_in_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, says: str) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fails)
    with pytest.raises(UserError) as caught:
        find(Reference("Qwen/Tiny"))
    assert "\n" not in caught.value.line()
    assert re.search(says, caught.value.line())


def test_near_names_are_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_names_to_serve_under() -> None:
    assert model_name("x.gguf", Path("/m/Llama-3.2-3B-Instruct-Q4_K_M.gguf")) == "Llama-3.2-3B-Instruct-Q4_K_M"
    assert model_name("/m/big", Path("/m/big-00001-of-00003.gguf")) == "big"
    snapshot = Path("/home/u/.cache/huggingface/hub/models--Qwen--Tiny-1B/snapshots/0123abcd")
    assert model_name(str(snapshot), snapshot) == "Qwen/Tiny-1B"
