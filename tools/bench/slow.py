#!/usr/bin/env python3
"""Answers of engines that hardly get a processor: how many came, how many failed, how often a worker was restarted.

slow.py demo [--runs 10] [--loops 12]      one prompt at SmolLM2 on mistral.rs, beside busy loops, again and again
slow.py large MODEL.gguf [--programs 4]    1.4 billion parameters on llama.cpp, beside programs that spin on two
                                           OpenMP threads each: 2 prompts of 400 words in turn, then 2 at once

`demo` needs the extras demo and mistralrs. `large` needs the extra llama_cpp, a C compiler with OpenMP, and a model:
`make_gguf.py FOLDER --types F16 --width 2048 --layers 28` writes one of 2.5 GB. Exit code 1: an answer is missing, or
a worker was restarted.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from cold_start import ROOT, free_port
from load import WORDS

LIMIT_S = 1800.0
"""Seconds for one answer."""
START_S = 600.0
"""Seconds until a server serves its model."""
AGAIN = ("it gets no requests", "restart in", "is killed")
"""What the log says of a worker that counts as stuck, or is started again."""
LOOP = [sys.executable, "-c", "while True: pass"]
SPIN = """
int main(void) {
#pragma omp parallel num_threads(2)
    for (volatile unsigned long turns = 0;;) turns++;
}
"""


@contextlib.contextmanager
def running(commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """Programs that run meanwhile."""
    started = [subprocess.Popen(command) for command in commands]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def spinner(folder: Path) -> list[str]:
    """The compiled program that spins on two OpenMP threads."""
    source, program = folder / "spin.c", folder / "spin"
    source.write_text(SPIN)
    subprocess.run(["cc", "-O1", "-fopenmp", str(source), "-o", str(program)], check=True)
    return [str(program)]


def environment(folder: Path) -> dict[str, str]:
    """For commands of this checkout, with a daemon of their own."""
    path = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "DYNAMOD_SOCKET": str(folder / "d.sock"), "PYTHONPATH": path}


def command(program: str, *words: str) -> list[str]:
    """A command of this checkout. `program`: dynamo or dynamo_run."""
    return [sys.executable, "-c", f"from dynamod.cli.main import {program}; {program}()", *words]


def demo(runs: int, loops: int) -> bool:
    """Ask as a user does, with a pipe; whether each run answered, by a worker that was started once."""
    good = True
    for run in range(runs):
        with tempfile.TemporaryDirectory() as folder, running([LOOP] * loops):
            template = Path(folder, "template.json")
            template.write_text('{"max_completion_tokens": 32}')
            began = time.monotonic()
            done = subprocess.run(
                command("dynamo_run", "out=mistralrs", "smollm2", "--request-template", str(template)),
                input="What is the capital of France?\n",
                capture_output=True,
                text=True,
                env=environment(Path(folder)),
                timeout=LIMIT_S,
                check=False,
            )
            seconds = time.monotonic() - began
        again = [line for line in done.stderr.splitlines() if any(words in line for words in AGAIN)]
        fine = done.returncode == 0 and bool(done.stdout.strip()) and not again
        good = good and fine
        print(f"run {run}: {'answered' if fine else 'FAILED'} in {seconds:.1f} s: {done.stdout.strip()[:70]!r}")
        for line in again if done.returncode == 0 else done.stderr.splitlines()[-5:]:
            print(f"  {line}")
    return good


def chat(port: int, model: str, text: str) -> tuple[int, str]:
    """Status and body of one unary answer."""
    body = {"model": model, "prompt": text, "max_tokens": 16, "ignore_eos": True}
    url, head = f"http://127.0.0.1:{port}/v1/completions", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def rows(env: dict[str, str]) -> list[dict[str, Any]]:
    """The workers, as `dynamo ps` shows them."""
    done = subprocess.run(
        command("dynamo", "ps", "--output", "json"), env=env, capture_output=True, text=True, timeout=120
    )
    return [row for row in json.loads(done.stdout) if "worker" in row["process"].lower()]


def served(port: int, server: subprocess.Popen[bytes]) -> str:
    """The name of the model, when it is served. Raises SystemExit when it is not in time."""
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=30) as told,
        ):
            if found := json.load(told)["data"]:
                return str(found[0]["id"])
        time.sleep(0.5)
    raise SystemExit("the server did not start")


def large(model: str, programs: int) -> bool:
    """2 prompts of 400 words in turn, then 2 at once; whether all were answered without a restart."""
    port, words = free_port(), Random(1)
    prompts = [" ".join(words.choices(WORDS, k=400)) for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        env = environment(Path(folder))
        spin = [spinner(Path(folder))] * programs
        server = subprocess.Popen(
            command("dynamo_run", "in=http", "out=llamacpp", model, "--http-port", str(port)), env=env
        )
        try:
            name = served(port, server)
            statuses: list[int] = []
            with running(spin), ThreadPoolExecutor(2) as pool:
                for batch in (prompts[:1], prompts[1:2], prompts[2:]):
                    began = time.monotonic()
                    answers = list(pool.map(lambda text: chat(port, name, text), batch))
                    statuses += [status for status, _ in answers]
                    print(f"{len(batch)} at once: {answers[0][0]} after {time.monotonic() - began:.1f} s")
                    for status, body in answers:
                        if status != 200:
                            print(f"  {body[:300]}")
                restarts = sum(row["restarts"] for row in rows(env))
            print(f"restarts: {restarts}")
            return statuses == [200] * 4 and not restarts
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    small = kinds.add_parser("demo")
    small.add_argument("--runs", type=int, default=10)
    small.add_argument("--loops", type=int, default=12)
    big = kinds.add_parser("large")
    big.add_argument("model")
    big.add_argument("--programs", type=int, default=4)
    a = parser.parse_args()
    good = demo(a.runs, a.loops) if a.kind == "demo" else large(a.model, a.programs)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
