"""What travels of a model's files, and what comes of it on the other side."""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynamod import sample
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.message.openai import ChatRequest
from dynamod.preprocess import bundle as bundle
from dynamod.preprocess import model_files as ship
from dynamod.preprocess.bundle import CHUNK, GGUF, BundleError, ModelBundle, read_list
from dynamod.preprocess.card import read_card
from dynamod.preprocess.gguf_file import needed, read_metadata, to_bytes
from dynamod.preprocess.model import Model
from dynamod.preprocess.source import open_source

from .conftest import CHATML, TEXTS, bytes_gguf, pieces_gguf

NAMES = [*bundle.FOLDER, "template:tool_use", "template:a.b-c_1"]


def unpack(items: list[Any]) -> dict[str, bytes]:
    taken = ModelBundle()
    for item in items:
        taken.add(item)
    return taken.files()


def travel(card: ModelCard, folder: Path) -> ModelCard:
    """The card as an ingress elsewhere loads it."""
    folder.mkdir()
    ship.write(unpack(ship.pack(card)), folder)
    return msgspec.structs.replace(card, path=str(ship.check(folder, card)), config_path="")


def answers(card: ModelCard) -> list[Any]:
    """All that an ingress makes of requests."""
    model = Model.load(card)
    found: list[Any] = [model.tokenizer.encode(text, special) for text in TEXTS for special in (False, True)]
    found += [model.tokenizer.decode(ids) for ids in found]
    if model.templates:
        messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
        request = msgspec.convert({"model": "m", "messages": messages}, ChatRequest)
        found += [
            model.render(request),
            msgspec.structs.replace(model.encode(model.prepare_chat(request), "r"), annotations=()),
        ]
    return found


FILES = st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=2000), min_size=1)


@given(FILES)
@example({"tokenizer.json": bytes(range(256)) * 4096, "config.json": b""})
@example({GGUF: b"x" * (CHUNK + 1)})
def test_what_is_packed_comes_out(files: dict[str, bytes]) -> None:
    items = bundle.pack(files)
    assert max(map(len, items)) <= CHUNK
    assert unpack(items) == files


@given(FILES, st.data())
def test_what_is_changed_on_the_way_is_refused(files: dict[str, bytes], data: st.DataObject) -> None:
    items: list[Any] = bundle.pack(files)
    place = data.draw(st.integers(0, len(items) - 1))
    match data.draw(st.sampled_from(["drop", "double", "flip", "cut", "kind"])):
        case "drop":
            del items[place]
        case "double":
            items.insert(place, items[place])
        case "flip":
            at = data.draw(st.integers(0, len(items[place]) - 1))
            items[place] = items[place][:at] + bytes([items[place][at] ^ 1]) + items[place][at + 1 :]
        case "cut":
            items[place] = items[place][:-1]
        case "kind":
            items[place] = data.draw(st.sampled_from([None, 5, "text", [1], {}, b"", b"x" * (CHUNK + 1)]))
    try:
        found = unpack(items)
    except BundleError:
        return
    assert list(found.values()) == list(files.values()), "a template may have got another name, which the card tells"


@given(st.text() | st.sampled_from(["../x", "a/b", "template:../x", "template:a/b", "template:.x", "template:", "/x"]))
def test_only_known_names_are_taken(name: str) -> None:
    known = name in NAMES or name == GGUF
    listed = json.dumps([[name, 0, ""]]).encode()
    if known or bundle.known(name):
        assert "/" not in name
        assert "\\" not in name
        assert not name.removeprefix("template:").startswith(".")
        read_list(listed)
    else:
        with pytest.raises(BundleError, match="no part of a model"):
            read_list(listed)


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ([], "make no model"),
        ([["config.json", 1, ""], ["config.json", 1, ""]], "make no model"),
        ([[GGUF, 1, ""], ["config.json", 1, ""]], "make no model"),
        ([[f"template:{number}", 1, ""] for number in range(65)], "make no model"),
        ([["config.json", 2**26 + 1, ""]], "larger than 64 MB"),
        ([["config.json", 2**25 + 1, ""], ["tokenizer.json", 2**25, ""]], "larger than 64 MB"),
        ([["config.json", -1, ""]], "larger"),
        ([["config.json\n", 1, ""]], "no part"),
        ([["model.safetensors", 1, ""]], "no part"),
        ([["config.json", "1", ""]], "broken"),
        ([[{}]], "broken"),
        ({"config.json": 1}, "broken"),
    ],
)
def test_lists_that_are_refused(listed: Any, says: str) -> None:
    with pytest.raises(BundleError, match=says):
        read_list(json.dumps(listed).encode())


def test_not_more_than_announced_is_kept() -> None:
    taken = ModelBundle()
    taken.add(bundle.write_list({"config.json": b"12345"}))
    assert taken.size == 5
    taken.add(b"1234")
    with pytest.raises(BundleError, match="only 4 of 5"):
        taken.files()
    with pytest.raises(BundleError, match="more came than the 5"):
        taken.add(b"56")


@pytest.mark.parametrize("name", ["sample", "sample.gguf"])
def test_the_sample_is_the_same_elsewhere(tmp_path: Path, name: str) -> None:
    card = read_card(sample.path(name), name="m")
    there = travel(card, tmp_path / "there")
    assert Path(there.path).is_relative_to(tmp_path / "there")
    assert msgspec.structs.replace(read_card(Path(there.path), name="m", created=card.created), path=card.path) == card
    assert answers(there) == answers(card)
    sent = sum(map(len, ship.pack(card)))
    assert sent < 200_000, "no weights"


def test_every_kind_of_gguf_tokenizer_is_the_same_elsewhere(
    tmp_path: Path, bytes_reference: Any, pieces_reference: Any
) -> None:
    templates = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": CHATML}]
    more = {"sampling_temp": 0.7, "add_bos_token": True, "name": "x", "file_type": 1}
    for card in (
        read_card(bytes_gguf(tmp_path / "a.gguf", bytes_reference, chat_template=templates, **more), name="a"),
        read_card(pieces_gguf(tmp_path / "b.gguf", pieces_reference, **more), name="b", context_length=99),
    ):
        there = travel(card, tmp_path / card.name)
        source, original = open_source(Path(there.path)), open_source(Path(card.path))
        for field in ("context_length", "eos_ids", "bos_id", "templates", "tokens", "sampling"):
            assert getattr(source, field) == getattr(original, field)
        assert answers(there) == answers(card)


def test_a_folder_with_all_it_may_have(tmp_path: Path, bytes_folder: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bytes_folder, folder)
    (folder / "chat_template.jinja").write_text(CHATML)
    (folder / "special_tokens_map.json").write_text('{"pad_token": "<|endoftext|>"}')
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.v1.jinja").write_text("tools " + CHATML)
    for name in ("model.safetensors", "pytorch_model.bin", "modeling.py", "README.md"):
        (folder / name).write_text("stays here")
    card = read_card(folder, name="m")
    files = ship.collect(card)
    assert set(files) == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "special_tokens_map.json", "template:tool_use.v1",
    }  # fmt: skip
    there = travel(card, tmp_path / "there")
    assert answers(there) == answers(card)
    assert open_source(Path(there.path)).templates == open_source(folder).templates
    (folder / "additional_chat_templates" / "a b.jinja").write_text("x")
    with pytest.raises(UserError, match=r"a b\.jinja cannot be sent"):
        ship.collect(card)


def test_what_describes_the_weights_is_what_travels(tmp_path: Path, bytes_folder: Path, bytes_reference: Any) -> None:
    weights = bytes_gguf(tmp_path / "x.gguf", bytes_reference)
    card = read_card(weights, name="m", config=bytes_folder)
    assert "tokenizer.json" in ship.collect(card)
    there = travel(card, tmp_path / "there")
    assert (there.path, there.config_path) == (str(tmp_path / "there"), "")
    assert answers(there) == answers(card)


def test_what_cannot_be_sent_is_said(tmp_path: Path, bytes_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="has no files"):
        ship.pack(ModelCard("m"))
    with pytest.raises(UserError, match="does not exist"):
        ship.pack(ModelCard("m", path=str(tmp_path / "gone")))
    monkeypatch.setattr(ship, "LIMIT", 1000)
    for path in (bytes_folder, sample.path("sample.gguf")):
        with pytest.raises(UserError, match="at most 0 MB are sent to other machines"):
            ship.pack(ModelCard("m", path=str(path)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "tokenizer_config.json").write_text("{}"),
        lambda folder: (folder / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes()[:-1]),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "files.json").unlink(),
        lambda folder: (folder / "files.json").write_text("[]"),
        lambda folder: (folder / "files.json").write_text('[["../config.json",1,""]]'),
        lambda folder: (folder / "chat_template.jinja").write_text("hello"),
        lambda folder: ((folder / "config.json").rename(folder / "x"), (folder / "config.json").symlink_to("x")),
    ],
)
def test_damage_is_seen(tmp_path: Path, bytes_folder: Path, damage: Any) -> None:
    card = read_card(bytes_folder, name="m")
    travel(card, tmp_path / "there")
    damage(tmp_path / "there")
    with pytest.raises((BundleError, OSError)):
        ship.check(tmp_path / "there", card)


def test_other_files_than_the_cards_are_refused(tmp_path: Path, bytes_folder: Path, pieces_folder: Path) -> None:
    card = read_card(bytes_folder, name="m")
    ship.write(ship.collect(read_card(pieces_folder, name="m")), tmp_path)
    with pytest.raises(BundleError, match="not those of the model"):
        ship.check(tmp_path, card)
    other = tmp_path / "other"
    other.mkdir()
    ship.write({"config.json": b"{}"}, other)
    with pytest.raises(BundleError, match=r"tokenizer\.json .* is missing"):
        ship.check(other, card)


def test_the_sum_covers_what_the_worker_was_told(tmp_path: Path, bytes_folder: Path) -> None:
    for card in (
        read_card(bytes_folder, name="m", context_length=100),
        read_card(bytes_folder, name="m", eos_token_ids=(7,)),
        msgspec.structs.replace(read_card(bytes_folder, name="m"), context_length=64),  # narrowed after it was read
        msgspec.structs.replace(read_card(bytes_folder, name="m", context_length=64), eos_token_ids=(2, 0, 1)),
    ):
        assert ship.same_model(bytes_folder, card)
        assert not ship.same_model(bytes_folder, msgspec.structs.replace(card, mdc_sum="0" * 64))


def test_when_the_cards_own_path_will_do(tmp_path: Path, bytes_folder: Path, pieces_folder: Path) -> None:
    card = read_card(bytes_folder, name="m")
    replace = msgspec.structs.replace
    assert ship.is_here(card)
    assert ship.is_here(replace(card, path="gone", config_path=card.path))
    assert not ship.is_here(replace(card, path=str(tmp_path / "gone")))
    assert not ship.is_here(replace(card, path=""))
    assert not ship.is_here(replace(card, path=str(pieces_folder)))
    assert not ship.is_here(replace(card, path=str(tmp_path)))
    assert not ship.is_here(replace(card, mdc_sum=""))


SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
)
LISTS = (
    st.lists(st.booleans())
    | st.lists(st.integers(-(2**63), 2**63 - 1))
    | st.lists(st.integers(0, 2**64 - 1))
    | st.lists(st.floats(allow_nan=False))
    | st.lists(st.text(st.characters(codec="utf-8")))
    | st.lists(st.lists(st.integers(-5, 5)))
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), SCALARS | LISTS))
def test_metadata_is_the_same_after_writing(tmp_path_factory: pytest.TempPathFactory, metadata: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "again.gguf"
    path.write_bytes(to_bytes(metadata))
    assert read_metadata(path) == metadata


def test_the_package_of_llama_cpp_reads_what_is_sent(tmp_path: Path) -> None:
    metadata = needed(read_metadata(sample.path("sample.gguf")))
    (tmp_path / "x.gguf").write_bytes(to_bytes(metadata))
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    assert {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")} == metadata
    assert reader.tensors == []
