"""For how long other streams pause while an ingress loads a large tokenizer: `python tests/bench/tokenizer_pause.py`.

A made tokenizer.json like Gemma's (262,144 tokens, some 550,000 merges) is loaded as the ingress does it, in a thread
beside an event loop, once directly and once with the reference in a process. A coroutine and a thread that wake up each
millisecond show the longest pause of each. Each way runs in an interpreter of its own.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynamod.ingress.memory import trim_memory
from dynamod.preprocess.source import open_source
from dynamod.preprocess.tokenizer import Tokenizer

SCRIPTS = {
    "etaoinshrdlucmfwypvbgkjqxz": 12,
    "ETAOINSHRDLUCMFWYP": 2,
    "áéíóúñçãõäöüßetaoinshrdl": 3,
    "оеаинтсрвлкмдпуяыьгзбч": 3,
    "αοιετνσρκπυληω": 1,
    "ابتثجحخدرسشعلمنهوي": 1,
    "कखगचजटडतदनपबमयरलवशसह": 1,
    "".join(map(chr, range(0x4E00, 0x5000))): 1,
}
OTHERS = [chr(code) for start, end in ((0x21, 0x7F), (0x5000, 0x5C00), (0xAC00, 0xB400)) for code in range(start, end)]
WAYS = {"direct": False, "process": True}


def pieces(count: int, seed: int = 7) -> list[str]:
    """Tokens in the style of SentencePiece; all but single characters consist of two others, as in a trained one."""
    rnd = random.Random(seed)
    found = dict.fromkeys(["▁", *"".join(SCRIPTS), *OTHERS])
    pools = [[*letters] for letters in SCRIPTS]
    while len(found) < count:
        (pool,) = rnd.choices(pools, [*SCRIPTS.values()])
        left = pool[int(len(pool) * rnd.random() ** 3)]  # common ones come first
        right = pool[int(len(pool) * rnd.random() ** (9 if rnd.random() < 0.7 else 3))].lstrip("▁")
        token = left + right if left.startswith("▁") or rnd.random() < 0.75 else f"▁{left}{right}"
        for one in (token[:2], token[1:], token) if token.startswith("▁") else (token,):
            if one and len(one) <= 16 and one not in found and len(found) < count:
                found[one] = None
                pool.append(one)
    return [*found]


def tokenizer_file(count: int, special: int) -> dict[str, Any]:
    """What `tokenizers` writes for a Gemma model, with `special` added tokens. Merges: all cuts into two tokens."""
    added = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<unused{index}>" for index in range(special - 4))]
    head = [*added, *(f"<0x{byte:02X}>" for byte in range(256))]
    words = pieces(count - len(head))
    vocabulary = {token: index for index, token in enumerate([*head, *words])}
    cuts = [(word[:place], word[place:]) for word in words for place in range(1, len(word))]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bos, text = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": token, **flags} for index, token in enumerate(added)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, text],
            "pair": [bos, text],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [cut for cut in cuts if cut[0] in vocabulary and cut[1] in vocabulary],
        },
    }


def write_model(folder: Path, count: int = 262_144, special: int = 6_400) -> Path:
    """A model folder with the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    data = tokenizer_file(count, special)
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, indent=2))
    (folder / "config.json").write_text('{"max_position_embeddings": 8192, "eos_token_id": 1, "bos_token_id": 2}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>", "bos_token": "<bos>"}')
    return folder


class Pauses:
    """The longest times without a turn, in seconds, of a thread and of the event loop, since `clear`.

    `computing`: the most CPU time of this process within one pause of the thread, at most the pause. On a busy machine
    it shows what the pause would be on an idle one.
    """

    def __init__(self) -> None:
        self.thread = self.loop = self.computing = 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        self._task = asyncio.create_task(self._tick())

    def clear(self) -> None:
        """Begin anew."""
        self.thread = self.loop = self.computing = 0.0

    def _watch(self) -> None:
        last, used = time.perf_counter(), time.process_time()
        while not self._ended.wait(0.001):
            now, uses = time.perf_counter(), time.process_time()
            self.thread = max(self.thread, now - last)
            self.computing = max(self.computing, min(uses - used, now - last))
            last, used = now, uses

    async def _tick(self) -> None:
        last = time.perf_counter()
        while not self._ended.is_set():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.loop, last = max(self.loop, now - last), now

    async def close(self) -> None:
        """End both."""
        self._ended.set()
        await self._task


async def load(folder: Path, way: str) -> None:
    """Print a line per step: seconds since the beginning, pauses, memory."""
    pauses, begun = Pauses(), time.perf_counter()

    async def step(name: str, function: Callable[[], Any]) -> Any:
        await asyncio.sleep(0.05)
        pauses.clear()
        before = time.perf_counter()
        result = await asyncio.to_thread(function)
        took = time.perf_counter() - before
        await asyncio.sleep(0.005)
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        peak, resident = (int(line[1]) / 1e3 for line in lines if line[0] in ("VmHWM:", "VmRSS:"))
        print(
            f"{way:8} {name:22} {took * 1e3:6.0f} ms, at {time.perf_counter() - begun:5.2f} s; longest pause: "
            f"loop {pauses.loop * 1e3:4.0f} ms, thread {pauses.thread * 1e3:4.0f} ms (computing "
            f"{pauses.computing * 1e3:4.0f} ms); "
            f"memory {resident:4.0f} MB, peak {peak:4.0f} MB",
            flush=True,
        )
        return result

    source = await step("describe", lambda: open_source(folder))
    apart = WAYS[way]
    tokenizer = await step("load", lambda: Tokenizer.from_source(source, use_fast_backend=False, apart=apart))
    await step("first prompt", lambda: tokenizer.encode("Hello world"))
    await step("fast backend", tokenizer.use_fast_backend)
    await step("return memory", trim_memory)
    await pauses.close()


def main() -> None:
    """Make the model, and load it each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder in place of the made one")
    parser.add_argument("--tokens", type=int, default=262_144)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--way", choices=WAYS, help="load once in this interpreter (needs --model)")
    a = parser.parse_args()
    if a.way:
        asyncio.run(load(a.model, a.way))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = a.model or write_model(Path(made), a.tokens)
        print(f"{(folder / 'tokenizer.json').stat().st_size / 1e6:.1f} MB")
        for _ in range(a.runs):
            for way in WAYS:
                subprocess.run([sys.executable, __file__, "--model", str(folder), "--way", way], check=True)


if __name__ == "__main__":
    main()
