"""Volumes of the test kubelet: modes, items, and changes in one step."""

import base64
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from .volumes import Missing, Volumes


def secret(**data: str) -> dict[str, Any]:
    coded = {name.replace("_", "."): base64.b64encode(text.encode()).decode() for name, text in data.items()}
    return {"kind": "Secret", "metadata": {"name": "pair"}, "data": coded}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_files_have_the_mode_of_the_volume_or_of_their_item(tmp_path: Path) -> None:
    volumes = Volumes(lambda *_: secret(tls_crt="cert", tls_key="key"))
    for name, more in (("plain", {}), ("group", {"defaultMode": 0o440})):
        (tmp_path / name).mkdir()
        volumes.fill(tmp_path / name, {"secret": {"secretName": "pair", **more}})
    items = [{"key": "tls.key", "path": "own/key.pem", "mode": 0o600}]
    (tmp_path / "items").mkdir()
    volumes.fill(tmp_path / "items", {"secret": {"secretName": "pair", "items": items, "defaultMode": 0o440}})
    assert mode(tmp_path / "plain/tls.key") == 0o644
    assert mode(tmp_path / "group/tls.key") == 0o440
    assert mode(tmp_path / "items/own/key.pem") == 0o600
    assert (tmp_path / "items/own/key.pem").read_text() == "key"
    assert not (tmp_path / "items/tls.crt").exists()
    assert os.readlink(tmp_path / "plain/tls.key") == "..data/tls.key"


def test_a_change_replaces_all_files_in_one_step(tmp_path: Path) -> None:
    found = [secret(a="0", b="0")]
    volumes = Volumes(lambda *_: found[0])
    volumes.fill(tmp_path, {"secret": {"secretName": "pair"}})
    ended = threading.Event()
    torn: list[tuple[str, str]] = []

    def read() -> None:
        while not ended.is_set():
            try:
                version = (tmp_path / "..data").resolve()
                pair = ((version / "a").read_text(), (version / "b").read_text())
            except FileNotFoundError:
                continue  # the version before has gone
            if pair[0] != pair[1]:
                torn.append(pair)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 200):
            found[0] = secret(a=str(number), b=str(number))
            volumes.refresh()
            assert (tmp_path / "a").read_text() == str(number)
    finally:
        ended.set()
        reader.join(10)
    assert torn == []
    found[0] = secret(b="end")
    volumes.refresh()
    assert [one.name for one in tmp_path.iterdir() if not one.name.startswith("..")] == ["b"]
    assert len([one for one in tmp_path.iterdir() if one.name.startswith("..version")]) == 1, "no old ones are left"


def test_a_missing_key_keeps_the_pod_from_starting_and_later_changes_nothing(tmp_path: Path) -> None:
    found = [secret(a="0")]
    volumes = Volumes(lambda *_: found[0])
    volume = {"secretName": "pair", "items": [{"key": "b", "path": "b"}]}
    with pytest.raises(Missing, match="pair has no key b"):
        volumes.fill(tmp_path, {"secret": volume})
    found[0] = secret(a="0", b="1")
    volumes.fill(tmp_path, {"secret": volume})
    found[0] = secret(a="0")
    volumes.refresh()
    assert (tmp_path / "b").read_text() == "1"
    (tmp_path / "optional").mkdir()
    volumes.fill(tmp_path / "optional", {"secret": {**volume, "optional": True}})
    assert not (tmp_path / "optional/b").exists()
