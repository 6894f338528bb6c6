"""Commands as documents show them, run one after the other on a machine of a test."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

OTHER_VERBS = {"explain", "bench", "nodes", "doctor", "top", "reload"}
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
VERBS = {"status", "ps", "logs", "inspect", "restart", "scale", "drain", "stop"}


def joined(text: str) -> list[str]:
    """The commands of a block without comments; a backslash or an open quotation mark joins lines."""
    found, open_ = list[str](), ""
    for line in text.replace("\\\n", " ").splitlines():
        open_ += ("\n" if open_ else "") + re.sub(r"(^|\s+)# .*", "", line).strip()
        try:
            shlex.split(open_)
        except ValueError:
            continue
        found, open_ = [*found, open_], ""
    assert not open_, f"a quotation mark is open: {open_}"
    return [line for line in found if line]


def plain(text: str) -> str:
    """Numbers and the width of columns are different every time."""
    return re.sub(r"[-+ ]+", " ", re.sub(r"\d+", "0", text))


def content(answer: str) -> str:
    """The text of a chat answer."""
    text: str = json.loads(answer)["choices"][0]["message"]["content"]
    return text


class Shell:
    """Runs the commands of a document one after the other, with free ports in place of 8000 and 8080."""

    def __init__(self, machine: Any, folder: Path) -> None:
        self.machine, self.folder = machine, folder
        self.ports: dict[str, int] = {}
        self.last: Any = None  # what was started last and goes on
        machine.env.update(RAYON_NUM_THREADS="1", DYN_TOKEN_ECHO_DELAY_MS="1")

    def run(self, line: str) -> str:
        """Run one command; returns what it printed. What serves goes on, and has said that it is ready."""
        words = shlex.split(line)
        while words[:2] == ["uv", "run"] or words[:1] == ["--extra"]:
            words = words[2:]
        folder = f"--data={self.machine.folder}/infra"
        match words:
            case ["dynamo", "serve", *_]:
                return self._serve("dynamo", words[1:], "--Frontend.port", "8000")
            case ["dynamo-run", *_]:
                front = any(word == "in=http" for word in words)
                return self._serve("dynamo-run", words[1:], "--http-port" if front else "", "8080")
            case ["dynamo", "infra", "up"]:
                done = self.machine.run("dynamo", *words[1:], folder, *self._usual_ports())
                assert done.code == 0, done.err
                return str(done.out)
            case ["dynamo", "infra", "down"]:
                return str(self.machine.run("dynamo", *words[1:], folder).out)
            case ["dynamo", "logs", "-f", *_]:
                follower = self.machine.start("dynamo", *words[1:])
                self.machine.until(lambda: follower.out)
                follower.end()
                return str(follower.out)
            case ["dynamo", command, *_] if command in VERBS | OTHER_VERBS:
                done = self.machine.run("dynamo", *words[1:])
                assert done.code == 0, done.err
                return str(done.out)
            case ["curl", *_]:
                return self._curl(words[1:])
        pytest.fail(f"a command that this test cannot run: {line}")

    def _usual_ports(self) -> list[str]:
        """Others, and a daemon is told of them: the usual ones may be in use."""
        nats, etcd = self.machine.port(), self.machine.port()
        self.machine.env.update(
            DYNAMOD_CLUSTER="auto", NATS_SERVER=f"nats://localhost:{nats}", ETCD_ENDPOINTS=f"http://localhost:{etcd}"
        )
        return [f"--nats-port={nats}", f"--etcd-port={etcd}"]

    def _serve(self, command: str, argv: list[str], flag: str, place: str) -> str:
        if flag:
            self.ports[place] = self.machine.port()
            argv = [*argv, f"{flag}={self.ports[place]}"]
        self.last = self.machine.start(command, *argv, cwd=self.folder)
        url = self.last.ready()
        assert url == (f"http://localhost:{self.ports[place]}" if flag else "")
        return str(self.last.out)

    def _curl(self, words: list[str]) -> str:
        def place(word: str) -> str:
            for known, port in self.ports.items():
                word = re.sub(rf"^(localhost|http://localhost):{known}/", rf"\1:{port}/", word)
            if "$(dynamo status --socket-path)" in word:
                word = word.replace("$(dynamo status --socket-path)", self.run("dynamo status --socket-path").strip())
            return word

        argv = [place(word) for word in words]
        assert not any(re.search(r"localhost:80[08]0", word) for word in argv), "nothing serves that port here"
        for port in self.ports.values():
            self.machine.ports.add(port)
        done = subprocess.run(["curl", "-sS", "-f", *argv], capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
        return done.stdout.decode()
