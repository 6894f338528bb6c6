"""Lines of the documents as commands of ours, adapted in model, port, path and context length. Not a test."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from typing import Any

from dynamod.preprocess.locate import locate

from . import seeds

WALKED: dict[str, set[str]] = {}
"""Lines by the test that runs them."""

PLACES = re.compile(r"(~|/data|/app|<)\S*|(Qwen|deepseek-ai|TinyLlama|meta-llama)/\S+")


def walks(*lines: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test runs these lines of the documents."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        WALKED[test.__name__] = {*lines}
        return test

    return mark


def adapted(line: str) -> list[str]:
    """The words of a command with our model in place of theirs, GGUF or folder, and with a context that it has."""
    words = shlex.split(line.removeprefix("./"))
    for place, word in enumerate(words):
        if place and words[place - 1] == "--context-length":
            words[place] = "512"
        elif word.endswith(".gguf") and words[place - 1] != "--model-name":
            words[place] = str(locate("sample.gguf"))
        elif PLACES.fullmatch(word):
            words[place] = "sample" if words[place - 1] != "--model-config" else str(locate("sample"))
    return words


def serve(machine: Any, line: str, **env: str) -> str:
    """Start what a line starts, wait until it is ready; its URL if it has one."""
    words = adapted(line)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if "in=http" in words:
        words += ["--http-port", "0"]
    url: str = machine.start(*words, **env).ready()
    return url


def ask(machine: Any, url: str, line: str, model: str = "sample") -> Any:
    """Run a curl line, at our port and for our model; its text."""
    words = [re.sub(r"(http://)?localhost:80[08]0", url, word) for word in shlex.split(line.removesuffix(" | jq"))]
    if words[-1] == "...":
        words[-1:] = ["-H", "Content-Type: application/json", f"{url}/v1/chat/completions"]
    for place, word in enumerate(words):
        if word.startswith("{"):
            limit = {"max_tokens", "max_completion_tokens"} & json.loads(word).keys()
            body = {**json.loads(word), "model": model, **dict.fromkeys(limit, 60)}
            words[place] = json.dumps(body)
    machine.ports.add(int(url.rpartition(":")[2]))
    done = subprocess.run([*words, "-sSf"], capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def text(answer: str) -> str:
    content: str = json.loads(answer)["choices"][0]["message"]["content"]
    return content


def line_of(start: str) -> str:
    """The line of the documents, or the only one that begins so."""
    if any(line.text == start for line in seeds.LINES):
        return start
    (found,) = [line.text for line in seeds.LINES if line.text.startswith(start)]
    return found


MODELS = "curl localhost:8080/v1/models"
ASK_3B, ASK_1B = (line_of(f'curl -d \'{{"model": "Llama-3.2-{size}-Instruct-Q4_K_M"') for size in ("3B", "1B"))
PRETORIA = "The capital of South Africa is Pretoria."
