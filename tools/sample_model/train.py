"""Make the sample model from nothing: tokenizer, data, training, evaluation, files.

Run as `python -m tools.sample_model.train` from the root of the repository (dynamod/sample/README.md says what it
needs).
"""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from dynamod import sample

from . import data
from .data import Turn
from .export import load_hf, save_gguf, save_hf
from .model import Llama, Shape, generate, train_tokenizer

PASS, PASS_KIND = 0.99, 0.9  # of all questions (most are capitals), and of every kind of question
TOKENS = 2048  # in every step, whatever the length of its rows


def log(text: str) -> None:
    """Progress, at once even into a pipe."""
    print(text, flush=True)


class Rows:
    """An endless stream of packed training rows of one length."""

    def __init__(self, tokenizer: Tokenizer, length: int, seed: int) -> None:
        self.tokenizer, self.length = tokenizer, length
        self.rng = random.Random(seed)
        self.pad = tokenizer.token_to_id(data.END_TEXT)
        self.stream = self._conversations()

    def _conversations(self) -> Iterator[tuple[list[int], list[bool]]]:
        while True:
            # Mostly short ones, so that there are many answers in a row, but also some as long as the row.
            rooms = [self.length if self.rng.random() < 0.4 else self.rng.randint(60, 260) for _ in range(256)]
            many = [data.pieces(data.conversation(self.rng, room)) for room in rooms]
            encoded = iter(self.tokenizer.encode_batch_fast([text for one in many for text, _ in one]))
            for one in many:
                ids: list[int] = []
                learn: list[bool] = []
                for _, learnt in one:
                    piece = next(encoded).ids
                    ids += piece
                    learn += [learnt] * len(piece)
                if len(ids) <= self.length + 1:
                    yield ids, learn

    def batch(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (the targets are the same, one later), which targets are learnt, and the attention mask.

        Conversations share a row but do not see each other.
        """
        size = self.length + 1
        tokens = torch.full((rows, size), self.pad)
        learn = torch.zeros(rows, size, dtype=torch.bool)
        group = torch.full((rows, size), -1)
        for row in range(rows):
            used = number = 0
            misses = 0
            while misses < 4 and used < size - 8:  # a few tries to fill the rest with something short
                ids, learnt = next(self.stream)
                if used + len(ids) > size:
                    misses += 1
                    continue
                here = slice(used, used + len(ids))
                tokens[row, here], learn[row, here] = torch.tensor(ids), torch.tensor(learnt)
                group[row, here] = number
                used += len(ids)
                number += 1
        learn = learn[:, 1:] & (group[:, 1:] == group[:, :-1])
        group = group[:, :-1]
        mask = (group[:, :, None] == group[:, None, :]) & torch.ones(self.length, self.length, dtype=torch.bool).tril()
        return tokens, learn, mask[:, None]


class Muon:
    """Momentum whose steps are made orthogonal (Newton-Schulz), for the matrices of the layers.

    The embedding and the norms stay with AdamW.
    """

    def __init__(self, weights: list[Tensor], momentum: float = 0.95, decay: float = 0.1) -> None:
        self.momentum, self.decay = momentum, decay
        self.groups: dict[torch.Size, list[Tensor]] = {}
        for weight in weights:
            self.groups.setdefault(weight.shape, []).append(weight)
        self.memory = {shape: torch.zeros(len(group), *shape) for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step along the gradients, all matrices of a shape at once."""
        for shape, group in self.groups.items():
            gradient = torch.stack([weight.grad for weight in group if weight.grad is not None])
            memory = self.memory[shape].mul_(self.momentum).add_(gradient)
            x = gradient.add(memory, alpha=self.momentum)
            if tall := shape[0] > shape[1]:
                x = x.mT
            x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
            for _ in range(5):
                square = x @ x.mT
                x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
            if tall:
                x = x.mT
            for weight, update in zip(group, x, strict=True):
                # So scaled an entry moves about as far as one of AdamW's would.
                weight.mul_(1 - lr * self.decay).sub_(update, alpha=0.2 * lr * max(shape) ** 0.5)


def start(shape: Shape, seed: int) -> tuple[Llama, Tokenizer]:
    """An untrained model and a tokenizer made from a sample of the data."""
    rng = random.Random(seed)
    texts = ["".join(text for text, _ in data.pieces(data.conversation(rng, 256))) for _ in range(8000)]
    for special in data.SPECIALS:
        texts = [text.replace(special, "\n") for text in texts]
    tokenizer = train_tokenizer(texts, shape.vocab)
    torch.manual_seed(seed)
    return Llama(shape), tokenizer


def train(model: Llama, tokenizer: Tokenizer, options: argparse.Namespace) -> None:
    """Train in place; the files may be written every so many steps, to try them while it learns on."""
    steps, seed, lr = options.steps, options.seed, options.lr
    rng = random.Random(seed)
    model.train()
    log(f"{sum(p.numel() for p in model.parameters()):,} parameters, {steps} steps of {TOKENS} tokens")
    muon = Muon([p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name])
    others = [p for name, p in model.named_parameters() if p.dim() < 2 or "embed" in name]
    adam = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    streams = {length: Rows(tokenizer, length, seed + length) for length in (512, 1024)}
    warm_up = min(100, max(1, steps // 10))
    began, shown = time.monotonic(), 0.0
    for step in range(steps):
        # Short rows teach the most per second; the long ones then stretch what was learnt to long answers.
        done = step / steps
        phase = 0.6 + 0.4 * done if options.resume else done
        length = 1024 if rng.random() < (0.0 if phase < 0.3 else 0.15 if phase < 0.6 else 0.45) else 512
        tokens, learn, mask = streams[length].batch(TOKENS // length)
        rate = min((step + 1) / warm_up, 0.02 + 0.49 * (1 + math.cos(math.pi * done)))
        adam.param_groups[0]["lr"] = lr * rate
        hidden, _ = model(tokens[:, :-1], mask)
        loss = F.cross_entropy(hidden[learn] @ model.embed.weight.T, tokens[:, 1:][learn])
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        muon.step(2 * lr * rate)
        shown = loss.item() if step == 0 else 0.95 * shown + 0.05 * loss.item()
        if (step + 1) % 50 == 0 or step + 1 == steps:
            log(f"step {step + 1:5d}  loss {shown:.4f}  rate {lr * rate:.1e}  {time.monotonic() - began:5.0f} s")
        if options.save_every and (step + 1) % options.save_every == 0:
            write(model, tokenizer, options.out)


def write(model: Llama, tokenizer: Tokenizer, out: Path) -> None:
    """Both file formats."""
    save_hf(model, tokenizer, out / "hf")
    save_gguf(model, tokenizer, out / "sample.gguf")


def questions(seed: int) -> dict[str, list[tuple[list[Turn], str]]]:
    """What is asked in the evaluation, with the one right answer to each."""
    rng = random.Random(seed + 1)
    system = Turn("system", data.HELPFUL)
    sets: dict[str, list[tuple[list[Turn], str]]] = {}

    def ask(kind: str, text: str, answer: str, *before: Turn) -> None:
        sets.setdefault(kind, []).append(([*before, Turn("user", text)], answer))

    for c, (country, capital) in enumerate(data.CAPITALS.items()):
        answer = f"The capital of {country} is {capital}."
        for p, phrasing in enumerate(data.CAPITAL_ASKED):
            kind = "capitals, pair not trained" if data.held_out(c, p) else "capitals, trained"
            ask(kind, phrasing.format(country), answer)
            ask(kind, phrasing.format(country), answer, system)
        first = rng.choice(list(data.TALK))
        ask(
            "capitals, second turn",
            data.CAPITAL_ASKED[0].format(country),
            answer,
            Turn("user", first),
            Turn("assistant", data.TALK[first]),
        )
    for _ in range(50):
        low = rng.randint(0, 150)
        high = low + rng.randint(1, 40)
        ask("counts", data.COUNT_ASKED[0].format(low, high), data.count(low, high))
        words = " ".join(rng.choice(data.WORDS) for _ in range(rng.randint(2, 12)))
        ask("repeats", data.REPEAT_ASKED[0].format(words), words)
    for high in (10, 20, 30, 50, 64, 80, 99, 100, 101, 120, 128, 150, 175, 199, 200):
        ask("counts from 1, long", data.COUNT_ASKED[0].format(1, high), data.count(1, high))
    for text, answer in data.TALK.items():
        ask("talk", text, answer)
        ask("talk", text, answer, system)
    for city in rng.sample(data.CITIES, 30):
        text = rng.choice(data.WEATHER_ASKED[:6]).format(city)
        with_tool = Turn("system", data.system_with_tools(None, [data.tool_json(rng, "get_weather")]))
        ask("tool calls", text, data.tool_call(city), with_tool)
        sky = rng.choice(data.SKIES)
        told = f"<tool_response>\n{sky}\n</tool_response>"
        before = (with_tool, Turn("user", text), Turn("assistant", data.tool_call(city)))
        ask("after the tool", told, f"It is {sky} in {city}.", *before)
        ask("weather without tool", text, data.NO_WEATHER)
    for a in range(10):
        for b in range(10):
            ask("sums", data.SUM_ASKED[0].format(a, b), data.think(a, b))
    for text in data.UNKNOWN:
        ask("unknown", text, data.DONT_KNOW)
    return sets


def evaluate(model: Llama, tokenizer: Tokenizer, seed: int) -> bool:
    """Whether enough answers are right to the letter; prints a table."""
    stop = {tokenizer.token_to_id(data.END), tokenizer.token_to_id(data.END_TEXT)}
    right = asked = 0
    worst = 1.0
    for kind, items in questions(seed).items():
        good = 0
        for start in range(0, len(items), 64):
            part = items[start : start + 64]
            prompts = [tokenizer.encode(data.prompt(turns)).ids for turns, _ in part]
            most = max(len(tokenizer.encode(answer).ids) for _, answer in part) + 4
            for (turns, answer), ids in zip(part, generate(model, prompts, stop, most), strict=True):
                got = tokenizer.decode(ids, skip_special_tokens=False)
                good += got == answer
                if got != answer:
                    log(f"  wrong: {turns[-1].text[:70]!r} -> {got[-90:]!r}, not {answer[-90:]!r}")
        log(f"{kind:28s} {good:4d} of {len(items):4d}")
        right, asked, worst = right + good, asked + len(items), min(worst, good / len(items))
    log(f"{'all':28s} {right:4d} of {asked:4d}  {100 * right / asked:.2f} %")
    return right / asked >= PASS and worst >= PASS_KIND


def main() -> int:
    """The command line."""
    shipped = sample.path("sample").parent
    parser = argparse.ArgumentParser(prog="python -m tools.sample_model.train", description="Make the sample model.")
    parser.add_argument("--steps", type=int, default=8000, help="training steps (default %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=shipped, help="where hf/ and sample.gguf go (default: dynamod/sample)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="the highest learning rate (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default %(default)s)")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="write the files now and then")
    parser.add_argument("--resume", action="store_true", help="start from the weights in --out, not from nothing")
    parser.add_argument("--eval-only", action="store_true", help="only evaluate the files in --out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shape = Shape()
    if not options.eval_only:
        model, tokenizer = load_hf(options.out / "hf", shape) if options.resume else start(shape, options.seed)
        train(model, tokenizer, options)
        write(model, tokenizer, options.out)
        log(f"written to {options.out}")
    # What is judged is what was written: weights of 16 bits, read back from the folder.
    model, tokenizer = load_hf(options.out / "hf", shape)
    if not evaluate(model, tokenizer, options.seed):
        log(f"not good enough: {PASS:.0%} of all and {PASS_KIND:.0%} of every kind are asked for")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
