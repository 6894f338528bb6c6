"""Files of prompts: what is read, what is refused before anything is asked, and where a batch goes on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.chat import entries
from dynamod.features.chat.answers import Outputs, prepare
from dynamod.features.chat.entries import Job
from dynamod.message.errors import UserError

ASK = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}


def texts_of(files: Sequence[Path]) -> list[str]:
    return [entry.keys["text"] for file in files for entry in entries.entries(file)]


def written(folder: Path, rows: Sequence[Any]) -> Path:
    file = folder / "p.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@given(st.lists(st.text(min_size=1).filter(lambda text: bool(text.strip()))), st.integers(0, 3))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, texts: list[str], blank: int) -> None:
    folder = tmp_path_factory.mktemp("p")
    file = folder / "prompts.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for text in texts:
            out.write(json.dumps({"text": text}) + "\n" * (1 + blank))
    assert texts_of([file]) == texts
    job = Job(file, len(texts))
    with Outputs() as outputs:
        for text in texts:
            outputs.write(job, {"text": text, "response": "x"})
    if texts:
        entries.find_answers(job)
        assert (job.done, job.size) == (len(texts), job.output.stat().st_size)
        assert list(job.left()) == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "p.jsonl:2: not JSON"),
        ("[1]", "p.jsonl:2: no text"),
        ('{"text": 7}', "p.jsonl:2: no text"),
        ('{"text": " "}', "p.jsonl:2: no text"),
        ('{"prompt": "x"}', "p.jsonl:2: no text"),
        (json.dumps({**ASK, "custom_id": 7}), "p.jsonl:2: custom_id is 7"),
        (json.dumps({**ASK, "method": "GET"}), "p.jsonl:2: GET /v1/chat/completions cannot be asked"),
        (json.dumps({**ASK, "url": "/v1/nothing"}), "p.jsonl:2: POST /v1/nothing cannot be asked"),
        (json.dumps({**ASK, "body": "x"}), "p.jsonl:2: body is no object"),
        (json.dumps({**ASK, "body": {"stream": True}}), "p.jsonl:2: a request of a batch does not stream"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(UserError, match=says):
        entries.read([file])


def test_a_byte_order_mark_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"text": "first"}\n', encoding="utf-8-sig")
    assert texts_of([file]) == ["first"]
    file.write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(UserError, match="not UTF-8"):
        entries.read([file])


def test_further_keys_stay_and_those_of_an_answer_do_not(tmp_path: Path) -> None:
    file = written(tmp_path, [{"id": 7, "text": "a", "error": "no room"}, {**ASK, "body": {"n": 2}}])
    first, second = entries.entries(file)
    assert (first.keys, first.body) == ({"id": 7, "text": "a"}, None)
    assert (second.keys, second.url, second.body) == ({"custom_id": "a"}, "/v1/chat/completions", {"n": 2})


def test_which_files_are_meant(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no file"):
        entries.inputs("")
    with pytest.raises(UserError, match="no file"):
        entries.inputs(str(tmp_path / "nix"))
    with pytest.raises(UserError, match=r"no \*.jsonl file"):
        entries.inputs(str(tmp_path))
    for name in ("b.jsonl", "a.jsonl", "output.jsonl", "a.output.jsonl", "c.txt"):
        (tmp_path / name).write_text(json.dumps({"text": name}) + "\n")
    assert texts_of(entries.inputs(str(tmp_path))) == ["a.jsonl", "b.jsonl"]
    assert entries.inputs(str(tmp_path / "c.txt")) == [tmp_path / "c.txt"]
    for name in ("output.jsonl", "a.output.jsonl"):
        with pytest.raises(UserError, match="the name of a file of answers"):
            entries.inputs(str(tmp_path / name))
    (tmp_path / "c.txt").write_text("\n\n")
    with pytest.raises(UserError, match="no prompts"):
        entries.read([tmp_path / "c.txt"])


def test_each_file_has_its_own_answers(tmp_path: Path) -> None:
    jobs = [Job(tmp_path / name, 1) for name in ("a.jsonl", "b.jsonl", "c")]
    assert [job.output.name for job in jobs] == ["a.output.jsonl", "b.output.jsonl", "c.output.jsonl"]


@given(st.integers(0, 5), st.binary(max_size=12).filter(lambda cut: b"\n" not in cut))
def test_a_batch_goes_on_behind_its_whole_answers(
    tmp_path_factory: pytest.TempPathFactory, done: int, cut: bytes
) -> None:
    folder = tmp_path_factory.mktemp("p")
    rows = [{"text": "same", "id": number} for number in range(5)]
    (job,) = entries.read([written(folder, rows)])
    whole = "".join(json.dumps({**row, "response": "x"}) + "\n" for row in rows[:done])
    job.output.write_bytes(whole.encode() + cut)
    assert prepare([job], resume=True, overwrite=False) == 5 - done
    with Outputs() as outputs:
        for entry in job.left():
            outputs.write(job, {**entry.keys, "response": "y"})
    if done < 5:
        answers = [json.loads(line) for line in job.output.read_text().splitlines()]
        assert [row["id"] for row in answers] == list(range(5))
        assert [row["response"] for row in answers] == ["x"] * done + ["y"] * (5 - done)


def test_answers_of_other_prompts_are_not_gone_on_with(tmp_path: Path) -> None:
    (job,) = entries.read([written(tmp_path, [{"text": "a"}, {"text": "b"}])])
    for rows, says in [
        ([{"text": "a"}, {"text": "c"}], "p.output.jsonl:2 does not answer prompt 2"),
        ([{"text": "a"}, {"text": "b"}, {"text": "c"}], "p.output.jsonl:3: more answers than"),
        ([7], "p.output.jsonl:1 does not answer prompt 1"),
    ]:
        job.output.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(UserError, match=says) as raised:
            prepare([job], resume=True, overwrite=False)
        assert "--overwrite" in raised.value.line()
    assert prepare(entries.read([job.prompts]), resume=False, overwrite=True) == 2


def test_answers_are_not_lost_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = entries.read([written(tmp_path, [{"text": "a"}])])
    job.output.write_text('{"text": "a", "response": "x"}\n')
    with pytest.raises(UserError, match="there are answers in") as raised:
        prepare([job], resume=False, overwrite=False)
    assert "--resume" in raised.value.line()
    assert "--overwrite" in raised.value.line()
    with pytest.raises(UserError, match="exclude each other"):
        prepare([job], resume=True, overwrite=True)
    assert job.output.read_text() == '{"text": "a", "response": "x"}\n'


def test_an_output_that_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    (job,) = entries.read([written(tmp_path, [{"text": "a"}])])
    job.output.mkdir()
    with pytest.raises(UserError, match="Is a directory"):
        prepare([job], resume=False, overwrite=True)


def test_the_original_name_of_the_output_is_a_link_to_the_last_one(tmp_path: Path) -> None:
    link = tmp_path / "output.jsonl"
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "x"}\n')
        prepare(entries.read([tmp_path / f"{name}.jsonl"]), resume=False, overwrite=False)
        assert link.readlink() == Path(f"{name}.output.jsonl")
    assert entries.inputs(str(tmp_path)) == [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    link.unlink()
    link.write_text("kept")
    prepare(entries.read([tmp_path / "a.jsonl"]), resume=False, overwrite=True)
    assert link.read_text() == "kept"


def test_two_batches_do_not_write_one_file(tmp_path: Path) -> None:
    (job,) = entries.read([written(tmp_path, [{"text": "a"}])])
    (other,) = entries.read([job.prompts])
    with Outputs() as outputs:
        outputs.write(job, {"text": "a", "response": "x"})
        with pytest.raises(UserError, match="another batch writes"):
            prepare([other], resume=True, overwrite=False)
    assert prepare([other], resume=True, overwrite=False) == 0
