"""Options of ours and arguments of an engine's own (`--extra-engine-args`, `engine_args`, words after `--`) as one.

Names are the engine's; it checks the values, and its reason is what a user reads.
"""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dynamod.message.errors import UserError
from dynamod.message.hints import near

from ..base import EngineOptions

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "tekken.json", "vocab.json")
"""Files of which transformers makes a tokenizer."""


@dataclass(frozen=True, slots=True)
class Names:
    """What an engine calls things. `engine`: as people type it; `product`: as it is written; `help`: its command.

    `model`: its argument for the model. `flags`: arguments that have a flag of ours, with the option and the flag.
    `sizes`: arguments whose product is the number of GPUs.
    """

    engine: str
    product: str
    help: str
    model: str
    flags: Mapping[str, tuple[str, str]]
    sizes: tuple[str, ...]

    def merged(self, options: EngineOptions, known: Collection[str], words: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that were given, and what our options say. `words`: read by the engine's own parser.

        Raises UserError for an unknown name, one that is given twice, and one that disagrees with a flag of ours.
        """
        values: dict[str, Any] = {}
        given = [(key, value) for key, value in options.arguments.items() if key != "argv"]
        for key, value in [*given, *words.items()]:
            name = key.replace("-", "_")
            if name not in known:
                hint = f"{near(name, known)}{self.product}'s arguments are those of `{self.help}`"
                raise self._wrong(key, f"{self.product} has no such argument", hint)
            if values.get(name, value) != value:
                raise self._wrong(key, f"{value!r}, but it is given as {values[name]!r} too", "give it once")
            values[name] = value
        if self.model in values:
            raise self._wrong(self.model, "the model is named for dynamod", "leave it out of the engine's arguments")
        for name, (option, flag) in self.flags.items():
            ours = getattr(options, option)
            if ours is None or ours == EngineOptions.__dataclass_fields__[option].default:
                continue
            if values.setdefault(name, ours) != ours:
                raise self._wrong(name, f"{values[name]}, but {flag} is {ours}", "give one of them")
        return {**values, self.model: str(options.path)}

    def parsed(self, parser: Any, words: Sequence[str]) -> dict[str, Any]:
        """What stands in `words`, read by the engine's parser; nothing that is only a default. Raises UserError."""

        def error(message: str) -> NoReturn:
            hint = f"the words after -- are {self.product}'s own, see `{self.help}`"
            raise UserError(f"{self.engine}: {message}", hint)

        parser.error = error
        for action in parser._actions:
            action.default = argparse.SUPPRESS  # what is not given does not appear
            action.required = False  # the model is named elsewhere
        return dict(vars(parser.parse_args(list(words))))

    def devices(self, environ: Mapping[str, str], base: int, values: Mapping[str, Any]) -> str | None:
        """CUDA_VISIBLE_DEVICES for an engine that begins at GPU `base` of those there are; None: as it is.

        Raises UserError when they are known and too few.
        """
        if not base:
            return None
        count = 1
        for name in self.sizes:
            count *= int(values.get(name) or 1)
        count = max(1, count // int(values.get("nnodes") or 1))
        given = environ.get("CUDA_VISIBLE_DEVICES")
        there = [str(number) for number in range(base + count)] if given is None else given.split(",") if given else []
        if len(chosen := there[base : base + count]) < count:
            problem = f"--base-gpu-id {base}: {count} GPUs from there on, and there are {len(there)}"
            raise UserError(problem, "see nvidia-smi")
        return ",".join(chosen)

    def _wrong(self, key: str, problem: str, hint: str) -> UserError:
        return UserError(f"{self.engine} argument {key}: {problem}", hint)


def show(parser: Any, add: Callable[..., object]) -> None:
    """Call `add`, as `ArgumentParser.add_argument` is called, for each flag of the engine's parser: for a help text."""
    for action in parser._actions:
        if action.option_strings:
            add(*action.option_strings, dest=action.dest, metavar=action.metavar, help=action.help)


def listened(endpoint: str | None, rank: int) -> str | None:
    """Where to connect to hear what rank `rank` publishes at an address to bind; None when it binds none."""
    if not endpoint or not ("*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")):
        return None
    address, _, port = endpoint.replace("*", "127.0.0.1").rpartition(":")
    if not port.isdigit() or port == "0":
        return None if rank or endpoint.startswith("tcp") else endpoint
    return f"{address}:{int(port) + rank}"


def has_tokenizer(folder: Any) -> bool:
    """Whether an engine finds a tokenizer there, by which it compiles forms of answers."""
    return bool(folder) and any((Path(folder) / name).is_file() for name in TOKENIZERS)
