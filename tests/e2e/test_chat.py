"""`dynamo-run` without a server: a chat in a terminal, one prompt from stdin, a file of prompts."""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from dynamod.preprocess.locate import locate

pytest.importorskip("prompt_toolkit")

ENTRY = "from dynamod.cli.main import dynamo_run; dynamo_run()"


def piped(machine: Any, text: str, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    done = machine.run("dynamo-run", *words, text=text, **env)
    return subprocess.CompletedProcess(words, done.code, done.out, done.err)


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, machine: Any, *words: object, command: str = "dynamo-run", term: str = "dumb") -> None:
        environ = {"TERM": term, "HOME": str(machine.folder), "PROMPT_TOOLKIT_NO_CPR": "1"}
        self._fd, self._process = machine.terminal(command, *words, **environ)
        self.pid = self._process.pid
        self.text = ""
        self._read_to = 0

    def until(self, pattern: str, seconds: float = 30) -> str:
        """Read until the pattern stands behind what was waited for before; returns what it matched."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text[self._read_to :], re.DOTALL)):
            assert time.monotonic() < end, f"{pattern!r} not in {self.text[self._read_to :]!r}"
            self._more(0.1)
        self._read_to += found.end()
        return found[0]

    def _more(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def end(self, key: str = "", seconds: float = 8) -> int:
        """Its exit code; it must end by itself, or by a key (typed again: what comes before the prompt is lost)."""
        deadline = time.monotonic() + seconds
        while self._more(0.3):
            if key:
                with contextlib.suppress(OSError):
                    self.type(key)
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                self._process.wait()
                raise AssertionError(f"it did not end: {self.text[-500:]!r}")
        os.close(self._fd)
        return int(self._process.wait())


def test_one_prompt_from_stdin(machine: Any) -> None:
    done = piped(machine, "hello there\n", "out=echo_full", "--model-name", "mine", DYN_TOKEN_ECHO_DELAY_MS="0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello there\n", "")
    empty = piped(machine, " \n", "out=echo_full")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert "stdin is empty" in empty.stderr
    text = piped(machine, "x", "in=text", "out=echo_full")
    assert "needs a terminal" in text.stderr
    key = piped(machine, "x", "in=stdin", "out=echo_full", "--api-key", "k")
    assert "belong to in=http" in key.stderr


@pytest.mark.parametrize(("reply", "code"), [("r", 0), ("overwrite", 0), ("", 2)])
def test_a_terminal_is_asked_where_answers_are(machine: Any, reply: str, code: int) -> None:
    (machine.folder / "p.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    output = machine.folder / "p.output.jsonl"
    output.write_text('{"text":"a","response":"from before"}\n')
    batch = Terminal(machine, "in=batch:p.jsonl", "out=echo_full")
    batch.until(r"There are answers in p.output.jsonl: \[r\]esume after them, \[o\]verwrite\? ")
    batch.type(f"{reply}\r")
    if code == 0:
        batch.until("tokens out: ")
    assert batch.end() == code
    responses = [json.loads(line)["response"] for line in output.read_text().splitlines()]
    assert responses == {"r": ["from before", "b"], "overwrite": ["a", "b"], "": ["from before"]}[reply]


def test_sigterm_in_an_answer_is_its_end_and_no_error(machine: Any) -> None:
    words, text = [sys.executable, "-c", ENTRY, "out=echo_full"], "a" * 500
    environ = {**machine.environ(), "DYN_TOKEN_ECHO_DELAY_MS": "10"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environ, cwd=machine.folder, stdin=pipe, stdout=pipe, stderr=pipe) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdin.write(text.encode())
        command.stdin.close()
        assert command.stdout.read(1) == b"a"
        command.send_signal(signal.SIGTERM)
        assert len(command.stdout.read()) < 499
        assert command.stderr.read() == b""
    assert command.returncode == 143


def test_a_template_that_names_another_model(machine: Any) -> None:
    (machine.folder / "t.json").write_text('{"model": "other"}')
    done = piped(machine, "hello", "out=echo_full", "--model-name", "mine", "--request-template", "t.json")
    assert (done.returncode, done.stderr) == (1, "error: no worker here serves other; it serves mine\n")


def test_a_model_whose_tokenizer_no_one_can_load(machine: Any) -> None:
    shutil.copytree(locate("sample"), machine.folder / "bad")
    file = machine.folder / "bad/tokenizer.json"
    tokenizer = json.loads(file.read_text())
    file.write_text(json.dumps({**tokenizer, "model": {**tokenizer["model"], "type": "Nonsense"}}))
    done = piped(machine, "hello", "out=echo_core", "bad")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: model bad cannot be served: .*tokenizer.json cannot be loaded: .*\n", done.stderr)
    server = machine.start("dynamo-run", "in=http", "out=echo_core", "bad", "--http-port", 0).wait(20)
    assert server.code == 1
    assert server.err.count("cannot be loaded") == 1


def test_ctrl_c_behind_the_line_of_a_mistake(machine: Any) -> None:
    words = [sys.executable, "-c", ENTRY, "out=nothing", "--dry-run"]
    for _ in range(5):
        command = subprocess.Popen(words, env=machine.environ(), cwd=machine.folder, stderr=subprocess.PIPE, text=True)
        with command:
            assert command.stderr is not None
            assert "unknown engine" in command.stderr.readline()
            command.send_signal(signal.SIGINT)
            assert command.stderr.read() == ""
        assert command.returncode == 2


def test_the_marks_of_the_prompt(machine: Any) -> None:
    machine.env["PYTHONIOENCODING"] = "utf-8"
    chat = Terminal(machine, "in=text", "out=echo_full", "--model-name", "mine", term="xterm")
    chat.until(r"\?.{0,12} .{0,12}User ›")
    time.sleep(0.3)  # the prompt is drawn a moment before keys are read
    chat.type("hello\r")
    chat.until("✔")  # in the place of the question mark: only what has changed is drawn
    chat.until("·")
    chat.until("User ›")
    assert chat.end("\x04") == 0
    machine.env["PYTHONIOENCODING"] = "ascii"
    chat = Terminal(machine, "in=text", "out=echo_full", "--model-name", "mine", term="xterm")
    chat.until("User:")
    assert chat.end("\x04") == 0


def test_what_is_typed_during_an_answer_stands_at_the_next_prompt(machine: Any) -> None:
    text = "a" * 300
    chat = Terminal(machine, "in=text", "out=echo_full", "--model-name", "mine")
    chat.until("Talking to mine")
    chat.until("User ›")
    time.sleep(0.3)  # the prompt is drawn a moment before keys are read
    chat.type(f"{text}\r")
    chat.until(r"\r\na{20}")
    chat.type("bcd")
    chat.until(r"a\r\n")
    answer = chat.text[: chat._read_to].rpartition("User ›")[2]
    assert "b" not in answer
    chat.until("User ›")
    chat.until("bcd")
    chat.type("\r")
    chat.until(r"\nbcd\r\n")
    chat.until("User ›")
    assert chat.end("\x04") == 0


def test_a_prompt_and_an_answer_that_no_one_can_read(machine: Any) -> None:
    words = [sys.executable, "-c", ENTRY, "out=echo_full"]
    run: dict[str, Any] = {"env": machine.environ(), "cwd": machine.folder, "stderr": subprocess.PIPE, "timeout": 60}
    done = subprocess.run(words, input=b"a\xff b", stdout=subprocess.PIPE, check=False, **run)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"stdin: not UTF-8 text" in done.stderr
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, input=b"hello", stdout=full, check=False, **run)
    assert (done.returncode, done.stderr) == (
        1,
        b"error: the answer cannot be written: No space left on device\n",
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(words, input=b"hello", stdout=writer, check=False, **run)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b""), "who reads has enough"


def test_a_file_of_prompts(machine: Any) -> None:
    folder = machine.folder / "work"
    folder.mkdir()
    texts = [f"number {index} of many" for index in range(150)]
    lines = [json.dumps({"text": text}) for text in texts]
    (folder / "p.jsonl").write_text("\n\n".join(lines) + "\n")
    (machine.folder / "mocker.json").write_text('{"speedup_ratio": 100}')
    (machine.folder / "t.json").write_text('{"max_completion_tokens": 7}')
    words = ("in=batch:work/p.jsonl", "out=mocker", "sample", "--extra-engine-args", "mocker.json")
    done = piped(machine, "", *words, "--request-template", "t.json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "p.output.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == texts
    for row in rows:
        assert list(row) == ["text", "response", "tokens_in", "tokens_out", "elapsed_ms", "finish_reason"]
        assert (row["tokens_out"], row["finish_reason"]) == (7, "length")
        assert 3 < row["tokens_in"] < 12, "the tokens of the text, without the template"
    assert "150 prompts in" in done.stdout
    assert "0 failed" in done.stdout
    (machine.folder / "t.json").write_text('{"max_tokens": 7}')
    wrong = piped(machine, "", *words, "--request-template", "t.json")
    assert "unknown key max_tokens" in wrong.stderr
    assert f"tokens out: {7 * 150} (" in done.stdout


def test_a_prompt_that_fails_is_written_down(machine: Any) -> None:
    long = "word " * 9000
    (machine.folder / "p.jsonl").write_text(json.dumps({"text": long}) + '\n{"text": "short"}\n')
    words = ("in=batch:p.jsonl", "out=echo_core", "sample")
    done = piped(machine, "", *words, DYN_TOKEN_ECHO_DELAY_MS="0")
    assert done.returncode == 1, done.stderr
    rows = {row["text"]: row for row in map(json.loads, (machine.folder / "p.output.jsonl").read_text().splitlines())}
    assert "context" in rows[long]["error"]
    assert "short" in rows["short"]["response"]
    assert "2 prompts in" in done.stdout
    assert "1 failed" in done.stdout
    (machine.folder / "p.jsonl").write_text('{"text": "good"}\n{bad\n')
    refused = piped(machine, "", *words)
    assert refused.returncode == 2
    assert "p.jsonl:2: not JSON" in refused.stderr
    (machine.folder / "p.jsonl").write_text('{"text": "good"}\n')
    there = piped(machine, "", *words)
    assert (there.returncode, there.stdout) == (2, "")
    assert "--resume" in there.stderr
    assert "--overwrite" in there.stderr
    again = piped(machine, "", *words, "--overwrite", DYN_TOKEN_ECHO_DELAY_MS="0")
    assert again.returncode == 0, again.stderr
    nothing = piped(machine, "", *words, "--resume")
    assert (nothing.returncode, nothing.stderr) == (0, "")
    assert "all 1 prompts are answered" in nothing.stdout


def test_log_lines_stand_above_the_prompt(machine: Any) -> None:
    chat = Terminal(machine, "in=text", "out=echo_full", "--model-name", "mine", "-v", term="xterm")
    chat.until("User ›")
    assert "leave)\x1b" not in chat.text, "nor behind the line that says what is waited for"
    time.sleep(0.3)  # the prompt is drawn a moment before keys are read
    chat.type("half a ques")
    chat.until("half a ques")
    os.kill(machine.row("Worker")["pid"], signal.SIGKILL)
    chat.until("killed by SIGKILL")
    chat.until("User ›.*half a ques")
    chat.end("\x03")


def test_a_conversation(machine: Any) -> None:
    chat = Terminal(machine, "in=text", "out=echo_full", "--model-name", "mine", "-v")
    chat.until("Talking to mine")
    chat.until("User ›")
    chat.type("hello you\r")
    chat.until(r"\nhello you\r\n")
    chat.until(r"\d+ tokens in, \d+ out")
    chat.until("User ›")
    chat.type("/model other\r")
    chat.until("models: mine; none is called other")
    chat.until("User ›")
    chat.type("/foo\r")
    chat.until("There is no /foo; /help")
    chat.until("User ›")
    chat.type("/etc/passwd\r")
    chat.until("User ›")
    assert "There is no /etc" not in chat.text, "a path is no command"
    time.sleep(0.3)  # the prompt is drawn a moment before keys are read
    chat.type("one\x1b\rtwo\r")
    chat.until(r"\none\r\ntwo\r\n")
    chat.until("User ›")
    chat.type("/stats\r")
    chat.until("not said")
    chat.until("User ›")
    chat.type("/help\r")
    chat.until("/clear")
    chat.until("User ›")
    chat.type("/clear\r")
    chat.until("forgotten")
    chat.until("User ›")
    assert chat.end("\x04") == 0
    assert "hello you" in (machine.folder / ".local/state/dynamod/history").read_text()


def test_ctrl_c_ends_the_answer_then_the_command(machine: Any) -> None:
    worker = machine.start("dynamo-run", "in=dyn://test", "out=mocker", "sample")
    worker.prints("ready")
    chat = Terminal(machine, "--interactive", command="dynamo.frontend")
    chat.until("Talking to sample")
    chat.until("User ›")
    chat.type("go on\r")
    chat.until(r"go on\r+\n.{40}")  # some of the answer, which would take half a minute
    os.kill(chat.pid, signal.SIGINT)
    chat.until(r"\.\.\.\r\n")
    chat.until("User ›")
    time.sleep(0.3)  # the prompt is drawn a moment before keys are read
    chat.type("\x03")
    assert chat.end() == 0
    worker.end()


def test_a_batch_in_the_form_of_openai(machine: Any) -> None:
    def line(name: str, **body: object) -> str:
        chat = {"model": "sample", "messages": [{"role": "user", "content": name}], **body}
        return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": chat})

    lines = [line("first", max_tokens=5), line("second", max_tokens=-1), line("third", max_tokens=3)]
    (machine.folder / "p.jsonl").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    done = piped(machine, "", "in=batch:p.jsonl", "out=echo_core", "sample", DYN_TOKEN_ECHO_DELAY_MS="0")
    assert done.returncode == 1, done.stderr
    rows = [json.loads(line) for line in (machine.folder / "p.output.jsonl").read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == ["first", "second", "third"]
    assert [row["response"]["status_code"] for row in rows] == [200, 400, 200]
    assert [row["error"] for row in rows] == [None] * 3
    bodies = [row["response"]["body"] for row in rows]
    assert (bodies[0]["usage"]["completion_tokens"], bodies[2]["usage"]["completion_tokens"]) == (5, 3)
    assert "max_tokens" in bodies[1]["error"]["message"]
    assert len({row["id"] for row in rows}) == 3


ENDS = {
    "Ctrl-C": (130, "interrupted: 1 of 3 answers"),
    "SIGTERM": (143, "interrupted: 1 of 3 answers"),
    "stop": (1, "the daemon of this machine was stopped"),
    "stop the graph": (1, "graph run-echo_full was stopped"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_batch_that_is_ended_keeps_what_is_there_and_goes_on(machine: Any, how: str) -> None:
    rows = [{"id": number, "text": f"{number} " + "x" * size} for number, size in enumerate((1, 900, 1))]
    (machine.folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    batch = machine.start("dynamo-run", "in=batch:p.jsonl", "out=echo_full", DYN_TOKEN_ECHO_DELAY_MS="10")
    output = machine.folder / "p.output.jsonl"
    machine.until(lambda: output.exists() and output.read_text().count("\n") == 1)
    if how in ("Ctrl-C", "SIGTERM"):
        batch.send(signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM)
    else:
        assert machine.run("dynamo", "stop", *(["run-echo_full"] if "graph" in how else [])).code == 0
    code, says = ENDS[how]
    result = batch.wait(20)
    assert (result.code, result.err.count(says)) == (code, 1), result.err
    assert "Traceback" not in result.err
    assert [json.loads(line)["id"] for line in output.read_text().splitlines()] == [0]
    done = piped(machine, "", "in=batch:p.jsonl", "out=echo_full", "--resume", DYN_TOKEN_ECHO_DELAY_MS="0")
    assert done.returncode == 0, done.stderr
    assert "(1 were there already)" in done.stdout
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [{"id": row["id"], "text": row["text"]} for row in answers] == rows
    assert all(row["response"] == row["text"] for row in answers)
