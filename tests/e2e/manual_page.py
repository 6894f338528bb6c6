"""A page of the manual as a reader follows it: files are written, commands run in order, outputs compared.

A fence says what a block is. `sh`: commands that run. `console`: commands that need what a test does not have. A block
with a `title` is a file of the reader's folder. A `text` or `json` block without a title that follows an `sh` block is
the output of the last command of that block: each line that is shown is printed, each member that is shown is there.
A shown output that begins with `error:` is that of a command that fails.
"""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .shell import Shell, joined, plain

KINDS = {"sh", "console", "text", "json", "yaml", "python", "ini", "toml", "nginx", "mermaid", "promql"}
"""Languages of fences."""
PROGRAMS = ("curl", "printf", "cat", "chmod", "mkdir", "mv", "cp", "openssl", "grep", "test")
"""First words of commands that a shell runs, besides those of dynamod."""
READING = {"status", "ps", "explain", "planner", "top", "logs", "doctor", "features", "audit"}
"""Commands whose output may need a moment until it is the shown one."""
PATIENCE = 20.0
"""Seconds until a command that only reads has printed what is shown."""


@dataclass(frozen=True)
class Block:
    """A fenced block; `title` is the name of the file that it is, else empty."""

    kind: str
    title: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, in order; those of tabs and notes too."""
    found, lines, inside, indent = list[Block](), list[str](), "", 0
    for line in text.splitlines():
        bare = line.lstrip()
        if inside and bare == "```":
            title = re.search(r'title="([^"]+)"', inside)
            found.append(Block(inside.split()[0], title[1] if title else "", "\n".join(lines)))
            inside, lines = "", []
        elif inside:
            lines.append(line[indent:])
        elif bare.startswith("```"):
            inside, indent = bare[3:] or "none", len(line) - len(bare)
    return found


def missing(shown: Any, given: Any, path: str = "") -> str:
    """What of a shown JSON value the given one lacks; numbers, texts and lengths of lists may differ."""
    if isinstance(shown, dict) and isinstance(given, dict):
        for key, value in shown.items():
            if key not in given:
                return f"{path}.{key} is not there: {given}"
            if key == "message" and isinstance(value, str) and not is_shown(value, plain(given[key]).strip()):
                return f"{path}.message is {given[key]}"
            if found := missing(value, given[key], f"{path}.{key}"):
                return found
        return ""
    if isinstance(shown, list) and isinstance(given, list):
        return missing(shown[0], given[0], f"{path}[0]") if shown and given else ""
    kinds = [float if isinstance(one, int) and not isinstance(one, bool) else type(one) for one in (shown, given)]
    return "" if kinds[0] == kinds[1] else f"{path} is {given!r}"


def is_shown(line: str, printed: str) -> bool:
    """Whether a shown line is a printed one; `...` in it is any text, `...` alone any lines."""
    parts = [re.escape(part) for part in plain(line).strip().split("...")]
    return line.strip() == "..." or bool(re.fullmatch(".*".join(parts), printed))


def differs(shown: Block, printed: str) -> str:
    """Why a printed output is not the shown one; empty where it is."""
    if shown.kind == "json":
        try:
            return missing(json.loads(shown.text), json.loads(printed))
        except ValueError:
            return f"no JSON: {printed}"
    there = [plain(line).strip() for line in printed.splitlines()]
    lacks = [line for line in shown.text.splitlines() if not any(is_shown(line, one) for one in there)]
    return "\n".join(["these lines are not printed:", *lacks, "but:", printed[-1500:]]) if lacks else ""


class Reader(Shell):
    """Follows one page in a folder of its own, with one free port for 8000 and one for 8080."""

    def __init__(self, machine: Any, page: Path) -> None:
        folder = machine.folder / "page"
        folder.mkdir()
        super().__init__(machine, folder)
        self.page = page
        self.ports = {one: machine.port() for one in ("8000", "8080", "9400")}
        self.servers: dict[str, Any] = {}  # what runs, by the port that it was given
        self.outputs: dict[str, str] = {}  # what each command has printed last
        programs = machine.folder / "bin"
        programs.mkdir()
        for name in ("dynamo", "dynamo-run", "dynamod"):
            entry = f"from dynamod.cli.main import {name.replace('-', '_')} as main; main()"
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -c "{entry}" "$@"\n')
            (programs / name).chmod(0o755)
        machine.env["PATH"] = f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin"

    def follow(self) -> None:
        """Run every `sh` block of the page."""
        blocks = blocks_of(self.page.read_text())
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if block.title:
                (self.folder / block.title).write_text(self._moved(block.text) + "\n")
            elif block.kind == "sh":
                *first, last = joined(block.text)
                for line in first:
                    self._expect(line, None)
                shown = after if after and after.kind in ("text", "json") and not after.title else None
                self._expect(last, shown)

    def _moved(self, text: str) -> str:
        return re.sub(r"\b(8000|8080|9400)\b", lambda found: str(self.ports[found[1]]), text)

    def _expect(self, line: str, shown: Block | None) -> None:
        fails = shown is not None and shown.text.startswith("error:")
        words = shlex.split(line)
        said = ""

        def look() -> bool:
            nonlocal said
            code, printed = self.take(line)
            assert (code != 0) == fails, f"{line}: exit code {code}\n{printed}"
            said = differs(shown, printed) if shown else ""
            return not said

        for word in words:
            if word.endswith(".jsonl.gz"):  # the frontend writes it a moment after the answer
                self.machine.until(lambda: (self.folder / word).exists(), PATIENCE)  # noqa: B023 - awaited at once
        reads = words[0] == "curl" and " -d " not in line and "--data" not in line
        if words[0] == "dynamo" and words[1] in READING:
            reads = True
        if reads and shown:
            try:
                self.machine.until(look, PATIENCE)
            except AssertionError as error:
                raise AssertionError(f"{line}: {said or error}") from None
        else:
            assert look(), f"{line}: {said}"
            if words[0] == "curl" and shown is None:
                assert not self.printed.startswith('{"error"'), f"{line}: {self.printed}"

    printed = ""

    def take(self, line: str) -> tuple[int, str]:
        """Run one command; returns its exit code and what it printed. What serves is left running."""
        code, self.printed = self._take(self._moved(line))
        self.outputs[line] = self.printed
        return code, self.printed

    def _take(self, line: str) -> tuple[int, str]:
        words = shlex.split(line)
        match words:
            case ["export", *pairs]:
                self.machine.env.update(pair.replace("$PWD", str(self.folder)).split("=", 1) for pair in pairs)
                return 0, ""
            case ["dynamod", *_]:
                return self._service(words[1:])
            case ["dynamo", "serve", *_] if "--dry-run" not in words:
                return self._start("8000", "dynamo", [*words[1:], f"--Frontend.port={self.ports['8000']}"])
            case ["dynamo-run" | "python", *_] if any(word.startswith("in=http") for word in words):
                return self._start("8080", words[0], [words[1], f"--http-port={self.ports['8080']}", *words[2:]])
            case ["dynamo-run", *_] if any(word.startswith("in=dyn:") for word in words):
                return self._start("", words[0], words[1:])
            case ["python", "-m", "dynamo.frontend", *_]:
                return self._start("8000", words[2], [f"--http-port={self.ports['8000']}", *words[3:]])
            case ["python", "-m", module, *_] if module.startswith("dynamo."):
                return self._start("", module, words[3:])
            case ["dynamo", *_] if not re.search(r"[|<>$;&]", line):
                done = self.machine.run("dynamo", *words[1:], cwd=self.folder)
                return done.code, done.out + done.err
            case [program, *_] if program in (*PROGRAMS, "dynamo", "dynamo-run"):
                return self._bash(line)
        pytest.fail(f"{self.page.name} has a command that this test cannot run: {line}")

    def _bash(self, line: str) -> tuple[int, str]:
        self.machine.ports.update(self.ports.values())
        line = re.sub(r"\bcurl ", "curl -sS ", line)
        argv = ["bash", "-o", "pipefail", "-c", line]
        done = subprocess.run(argv, capture_output=True, timeout=60, cwd=self.folder, env=self.machine.environ())
        return done.returncode, done.stdout.decode() + done.stderr.decode()

    def _start(self, place: str, command: str, argv: list[str]) -> tuple[int, str]:
        if "--detach" in argv:
            done = self.machine.run(command, *argv, cwd=self.folder)
            return done.code, done.out + done.err
        if place:  # the reader ends earlier servers with Ctrl-C
            while self.servers:
                self.servers.popitem()[1].end()
        self.last = self.machine.start(command, *argv, cwd=self.folder)
        pattern = r"\S+ ready(?:: (\S+))?\n"
        self.machine.until(lambda: self.last.code is not None or re.search(pattern, self.last.out), 60)
        if self.last.code is not None:
            return self.last.code, self.last.out + self.last.err
        self.last.tree()
        self.servers[place or str(len(self.servers))] = self.last
        if not place:
            self.machine.until(lambda: any(self._has_models(port) for port in self.ports.values()))
        return 0, self.last.out

    def _service(self, argv: list[str]) -> tuple[int, str]:
        if "dynamod" in self.servers:  # `dynamo stop` has told it to end
            self.servers.pop("dynamod").wait()
        self.last = self.servers["dynamod"] = self.machine.start("dynamod", *argv, cwd=self.folder)
        self.machine.until(lambda: self.last.code is not None or self.machine.raw_status())
        return self.last.code or 0, self.last.err

    def _has_models(self, port: int) -> bool:
        try:
            status, text = self.machine.ask(f"http://localhost:{port}", "/v1/models")
        except OSError:
            return False
        return status == 401 or '"id"' in text
