"""Workers with LoRA adapters, and what they answer."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .conftest import SLOW

SEEDS = {"one": 9, "two": 18, "three": 3}
"""With these the best token behind WORDS and COUNTS is clearly the best: sums in another order do not change texts."""
COUNT = "Count from 1 to 20."
NAMES = ("sample", "one", "two")
WORDS = [f"{words} " * 13 + COUNT for words in ("water river night", "night apple apple", "cloud river song")]
GREEDY = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}


def flags(adapters: dict[str, Path], *names: str) -> list[str]:
    return [word for name in names for word in ("--lora", f"{name}={adapters[name]}")]


def as_list(adapters: dict[str, Path], *names: str) -> str:
    return json.dumps([f"{name}={adapters[name]}" for name in names])


def text(machine: Any, url: str, name: str, prompt: str) -> str:
    status, body = machine.ask(url, "/v1/completions", {"model": name, "prompt": prompt, **GREEDY})
    assert status == 200, body
    return str(json.loads(body)["choices"][0]["text"])


def texts(machine: Any, url: str, asked: Iterable[tuple[str, str]], together: int = 1) -> list[str]:
    with ThreadPoolExecutor(together) as pool:
        return list(pool.map(lambda one: text(machine, url, *one), asked))


def models(machine: Any, url: str) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in json.loads(machine.ask(url, "/v1/models")[1])["data"]}


def ready(machine: Any, url: str, count: int, seconds: float = SLOW) -> None:
    machine.until(lambda: [row["state"] for row in machine.ps("Worker")] == ["Ready"] * count, seconds)
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == count, seconds)


def change(machine: Any, url: str, what: str, **body: Any) -> tuple[int, str]:
    found: tuple[int, str] = machine.ask(url, f"/v1/{what}_lora_adapter", body)
    return found
