"""A batch beside a client that is made up: answers in the order of the prompts, OpenAI's form, interruptions."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.actor.testing import run
from dynamod.cli.interrupt import Interrupts
from dynamod.features.chat import entries
from dynamod.features.chat.answers import InOrder, prepare
from dynamod.features.chat.batch import AT_ONCE, WINDOW, Batch
from dynamod.features.chat.client import ChatClient, Refused, Response
from dynamod.message.errors import UserError

Ask = Callable[[str, Mapping[str, Any]], Response]


class Server:
    """Answers after the seconds that `delay` says, with what `ask` says."""

    def __init__(self, delay: Callable[[str], float] = lambda _text: 0.0, ask: Ask | None = None) -> None:
        self._delay, self._ask = delay, ask or self.echo
        self.asked: list[str] = []

    async def post(self, url: str, body: Mapping[str, Any]) -> Response:
        text = body["messages"][0]["content"]
        self.asked.append(text)
        await asyncio.sleep(self._delay(text))
        return self._ask(url, body)

    @staticmethod
    def echo(_url: str, body: Mapping[str, Any]) -> Response:
        choice = {"message": {"content": body["messages"][0]["content"]}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 2, "completion_tokens": 3}
        return Response(200, {"model": body["model"], "choices": [choice], "usage": usage}, "r-1")


def batch(folder: Path, rows: list[dict[str, Any]], server: Server) -> tuple[entries.Job, Batch]:
    file = folder / "p.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (job,) = entries.read([file])
    return job, Batch(cast(ChatClient, server), "m", [job], {"temperature": 0}, None)


def answers_of(job: entries.Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.output.read_text().splitlines()]


def test_answers_stand_in_the_order_of_their_prompts(tmp_path: Path) -> None:
    rows = [{"text": f"{number}", "id": number} for number in range(200)]
    server = Server(lambda text: (int(text) * 7 % 11) / 10)
    job, made = batch(tmp_path, rows, server)
    assert run(made.run(Interrupts())) == 0
    assert [(row["id"], row["response"]) for row in answers_of(job)] == [(n, str(n)) for n in range(200)]
    assert list(answers_of(job)[0]) == [
        *("text", "id", "response", "tokens_in", "tokens_out", "elapsed_ms", "finish_reason")
    ]


def test_a_slow_prompt_holds_up_no_more_than_the_window(tmp_path: Path) -> None:
    server = Server(lambda text: 50.0 if text == "0" else 0.01)
    job, made = batch(tmp_path, [{"text": str(number)} for number in range(1000)], server)
    seen: list[int] = []

    async def main() -> int:
        async def look() -> None:
            await asyncio.sleep(40)
            seen.extend((len(server.asked), job.output.exists()))

        code, _ = await asyncio.gather(made.run(Interrupts()), look())
        return code

    assert run(main()) == 0
    assert seen == [WINDOW, False]
    assert AT_ONCE < WINDOW
    assert [row["response"] for row in answers_of(job)] == [str(number) for number in range(1000)]


def test_an_interruption_keeps_the_first_answers_and_writes_nothing_more(tmp_path: Path) -> None:
    server = Server(lambda text: 5.0 if text in ("3", "4") else 0.1)
    job, made = batch(tmp_path, [{"text": str(number)} for number in range(6)], server)
    interrupts = Interrupts()

    async def main() -> int:
        asyncio.get_running_loop().call_later(1.0, interrupts.interrupt)
        code = await made.run(interrupts)
        await asyncio.sleep(60)
        return code

    assert run(main()) == 130
    assert [row["response"] for row in answers_of(job)] == ["0", "1", "2"]
    entries.find_answers(job)
    again = Batch(cast(ChatClient, server), "m", [job], {}, None)
    assert run(again.run(Interrupts())) == 0
    assert [row["response"] for row in answers_of(job)] == list("012345")


def test_requests_in_the_form_of_openai(tmp_path: Path) -> None:
    def answer(url: str, body: Mapping[str, Any]) -> Response:
        if body["messages"][0]["content"] == "bad":
            return Response(400, {"error": {"message": "no"}}, "r-2")
        if body["messages"][0]["content"] == "gone":
            raise Refused("the frontend is gone")
        return Server.echo(url, body)

    def request(name: str, **body: Any) -> dict[str, Any]:
        chat = {"messages": [{"role": "user", "content": name}], **body}
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": chat}

    rows = [request("a"), request("bad"), request("gone"), request("other", model="theirs")]
    job, made = batch(tmp_path, rows, Server(ask=answer))
    assert run(made.run(Interrupts())) == 1
    good, bad, gone, other = answers_of(job)
    assert list(good) == ["id", "custom_id", "response", "error"]
    assert (good["id"], good["custom_id"], good["error"]) == ("batch_req_r-1", "a", None)
    assert (good["response"]["status_code"], good["response"]["request_id"]) == (200, "r-1")
    assert (good["response"]["body"]["model"], other["response"]["body"]["model"]) == ("m", "theirs")
    assert (bad["custom_id"], bad["response"]["status_code"], bad["error"]) == ("bad", 400, None)
    assert (gone["custom_id"], gone["response"]) == ("gone", None)
    assert gone["error"] == {"code": "request_failed", "message": "the frontend is gone"}


def test_a_server_that_has_no_room_is_asked_again(tmp_path: Path) -> None:
    def answer(url: str, body: Mapping[str, Any]) -> Response:
        if len(server.asked) == 1:
            raise Refused("it is being replaced", retry_after=1.0)
        if len(server.asked) == 2:
            return Response(503, {"error": {"message": "no room"}}, "r", retry_after=1.0)
        return Server.echo(url, body)

    server = Server(ask=answer)
    job, made = batch(tmp_path, [{"text": "a"}], server)
    assert run(made.run(Interrupts())) == 0
    assert (len(server.asked), answers_of(job)[0]["response"]) == (3, "a")


@given(st.permutations(range(12)), st.integers(1, 12))
def test_items_pass_in_order(order: list[int], window: int) -> None:
    passed: list[int] = []
    most = 0

    async def main() -> None:
        items = InOrder(passed.append, window)

        async def one(number: int) -> None:
            nonlocal most
            await items.room(number)
            most = max(most, number - len(passed))
            await asyncio.sleep(order[number])
            items.put(number, number)

        await asyncio.gather(*(one(number) for number in range(len(order))))

    run(main())
    assert passed == list(range(12))
    assert most < window


def test_a_disk_that_is_full_is_one_line(tmp_path: Path) -> None:
    job, made = batch(tmp_path, [{"text": "a"}], Server())
    job.output.symlink_to("/dev/full")
    with pytest.raises(UserError, match="No space left") as raised:
        run(made.run(Interrupts()))
    assert "--resume" in raised.value.line()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["full", "null", "pipe", "stdout"])
def test_an_output_that_is_no_file_is_refused_before_a_prompt_is_asked(
    tmp_path: Path, kind: str, overwrite: bool
) -> None:
    job, _ = batch(tmp_path, [{"text": "a"}], Server())
    reader, writer = os.pipe()
    if kind == "pipe":
        os.mkfifo(job.output)
        os.close(reader)
        reader = os.open(job.output, os.O_RDONLY | os.O_NONBLOCK)  # else a batch that opens it waits forever
    else:
        job.output.symlink_to(f"/proc/self/fd/{writer}" if kind == "stdout" else f"/dev/{kind}")
    try:
        with pytest.raises(UserError, match="is a device, a pipe or a socket") as raised:
            prepare([job], resume=False, overwrite=overwrite)
    finally:
        os.close(reader)
        os.close(writer)
    assert raised.value.line().startswith(str(job.output))


def test_an_output_may_be_a_link_to_a_file(tmp_path: Path) -> None:
    job, made = batch(tmp_path, [{"text": "a"}], Server())
    job.output.symlink_to(tmp_path / "elsewhere.jsonl")
    assert prepare([job], resume=False, overwrite=False) == 1
    assert run(made.run(Interrupts())) == 0
    assert [row["response"] for row in answers_of(job)] == ["a"]


def test_a_full_stdout_says_where_the_answers_are(tmp_path: Path) -> None:
    """The statistics are lost, no answer is."""
    (tmp_path / "p.jsonl").write_text('{"text": "a"}\n')
    program = "import sys; sys.argv[1:] = ['in=batch:p.jsonl', 'out=echo_full']\n"
    program += "from dynamod.cli.main import dynamo_run; dynamo_run()"
    environ = {**os.environ, "DYNAMOD_SOCKET": str(tmp_path / "d.sock"), "DYNAMOD_CLUSTER": "off", "DYN_LOG": "warn"}
    words = [sys.executable, "-c", program]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environ, cwd=tmp_path, check=False
        )
    said = "error: stdout: No space left on device; the answers are in p.output.jsonl\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert json.loads((tmp_path / "p.output.jsonl").read_text())["response"] == "a"
