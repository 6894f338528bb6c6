"""`python -m tools.manual.record`: run the tutorial "Kill a worker" in three terminals, and keep what they printed.

The record is `tools/manual/kill.json`: per terminal its title, and pieces of output with the second at which they came.
`recording.py` makes the picture from it. Port 8000 must be free.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("kill.json")
SERVE = "dynamo serve graphs.agg:Frontend -f configs/agg.yaml --Worker.engine=echo_core --Worker.ServiceArgs.workers=2"
ASK = 'python ask.py "$(cat numbers.txt)"'
CLIENT = """\
import sys, openai
client = openai.OpenAI(base_url="http://localhost:8000/v1", api_key="none")
messages = [{"role": "user", "content": sys.argv[1]}]
for chunk in client.chat.completions.create(model="sample", messages=messages, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
"""
NUMBERS = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


class Terminal:
    """A terminal of the picture: its title, and what was typed and printed there since the start of the record."""

    def __init__(self, title: str, start: float) -> None:
        self.title, self.pieces, self._start = title, list[tuple[float, str]](), start

    def show(self, text: str) -> None:
        """Add a piece of output."""
        self.pieces.append((round(time.monotonic() - self._start, 2), text))

    def follow(self, stream: IO[str]) -> threading.Thread:
        """Add what a program prints, until its end."""

        def read() -> None:
            while text := os.read(stream.fileno(), 4096).decode(errors="replace"):
                self.show(text)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def value(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"title": self.title, "pieces": self.pieces}


def main() -> int:
    """Write the record."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "DYNAMOD_SOCKET": f"{folder}/d.sock", "NO_COLOR": "1", "COLUMNS": "100"}
        environ |= {"DYN_LOG": "warn", "DYN_TOKEN_ECHO_DELAY_MS": "30"}
        (Path(folder) / "ask.py").write_text(CLIENT)
        start = time.monotonic()
        serve, ask, kill = (Terminal(title, start) for title in ("serve", "ask", "kill"))
        serve.show(f"$ {SERVE}\n")
        server = _started(environ, *SERVE.split())
        reading = serve.follow(_output(server))
        try:
            while not any("ready: http" in text for _, text in serve.pieces):
                time.sleep(0.05)
            time.sleep(1.0)
            ask.show(f"$ {ASK}\n")
            client = _started(environ, "python", f"{folder}/ask.py", f"{NUMBERS}, and so on. " * 3)
            answering = ask.follow(_output(client))
            _kill(environ, kill)
            client.wait(60)
            answering.join()
            time.sleep(1.5)
            kill.show("$ dynamo ps\n" + _printed(environ, "dynamo", "ps"))
        finally:
            server.terminate()
            server.wait(30)
            reading.join()
    FILE.write_text(json.dumps({"terminals": [one.value() for one in (serve, ask, kill)]}, indent=1) + "\n")
    return 0


def _kill(environ: dict[str, str], terminal: Terminal) -> None:
    """Kill the worker that answers: the one with a running request, as soon as there is one."""
    while True:
        top = json.loads(_printed(environ, "dynamo", "top", "--once", "--interval", "0.2", "--output", "json"))
        busy = [one for one in top["processes"] if (one["worker"] or {}).get("running")]
        if busy:
            terminal.show(f"$ kill -9 {busy[0]['pid']}   # {busy[0]['process']}, which answers\n")
            os.kill(busy[0]["pid"], signal.SIGKILL)
            return


def _started(environ: dict[str, str], *words: str) -> subprocess.Popen[str]:
    """A program whose output can be read; `python` and `dynamo` are those of this environment."""
    entry = ["-c", "from dynamod.cli.main import dynamo; dynamo()"] if words[0] == "dynamo" else []
    argv, pipe = [sys.executable, *entry, *words[1:]], subprocess.PIPE
    return subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def _output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _printed(environ: dict[str, str], *words: str) -> str:
    return _output(_started(environ, *words)).read()


if __name__ == "__main__":
    sys.exit(main())
