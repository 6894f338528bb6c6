"""`python -m dynamo.mocker` and its like: a worker of one engine, with the engine's own arguments as flags."""

import argparse
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from dynamod import __version__
from dynamod.discovery.keys import Address
from dynamod.engine.names import ENGINES, add_flags, canonical
from dynamod.message.errors import UserError
from dynamod.message.hints import names, near
from dynamod.preprocess.packaged import PACKAGED
from dynamod.preprocess.reference import SHIPPED, is_local, reference

from .arguments import Parser
from .flags import RunArguments, common_flags, worker_flags
from .nvidia import MODULES, accepted
from .run import serve, worker_graph

ENDPOINT = "dyn://dynamo.backend.generate"


def run_worker(name: str, module: str, argv: Sequence[str]) -> int:
    """Run `python -m MODULE`, a worker of the engine `name`."""
    arguments, address = read_worker(name, module, argv)
    return serve(worker_graph(arguments, address), module, arguments.flags)


def read_worker(
    name: str,
    module: str,
    argv: Sequence[str],
    environ: MutableMapping[str, str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> tuple[RunArguments, Address]:
    """The arguments of `python -m MODULE`, and the address of the worker. Raises UserError.

    `environ`, `tell`: as of `nvidia.accepted`.
    """
    engine = canonical(name)
    p = Parser(
        prog=f"python -m {module}",
        description=f"A worker with the engine {engine}, which frontends find (python -m dynamo.frontend).",
        epilog=f"example: python -m {module} --model-path sample --endpoint {ENDPOINT}",
        allow_abbrev=False,
    )
    p.add_argument("model", nargs="?", help="folder, GGUF file, org/name on Hugging Face, or `sample`")
    where = "its address, dyn://namespace.component.endpoint"
    p.add_argument("--endpoint", metavar="ADDRESS", help=f"{where} (default {ENDPOINT})")
    p.add_argument("--namespace", metavar="NAME", help="namespace of the address, where --endpoint does not name it")
    p.add_argument("--num-workers", type=int, default=1, metavar="N", help="workers, each a process (default 1)")
    worker_flags(p, path=("--model",), name=("--served-model-name",))
    common_flags(p)
    p.add_argument("--version", action="version", version=f"{module} {__version__}")
    if module in MODULES:
        argv = accepted(module, argv, p.flags(), environ, tell)
    entry, rest = ENGINES[engine], list[str]()
    if entry.words:  # the engine's own parser reads what is not ours
        argv, rest = sort(argv, p.flags())
    asked = bool({"-h", "--help"} & {*argv})
    own = OwnFlags(engine, p, shown=not entry.words or asked, asked=asked)
    flags = own.parse(argv, f"see {p.prog} --help")
    model = flags.model or flags.model_path or ""
    if entry.model and not model:
        model, rest = model_at_end(rest)
    if entry.model and not model:
        hint = f"for example: python -m {module} sample, or --model-path sample"
        raise UserError(f"engine '{engine}' needs a model", hint)
    if flags.num_workers < 1:
        raise UserError(f"--num-workers is {flags.num_workers}", "it must be at least 1")
    address = Address.parse(flags.endpoint or (f"dyn://{flags.namespace}" if flags.namespace else ENDPOINT))
    return RunArguments(f"dyn://{address}", engine, model, flags, rest, own.given(flags)), address


class OwnFlags:
    """The arguments of an engine as flags of a parser, except flags that the parser has already. `shown`: add them.

    `asked`: the words ask for help, which does not need the engine.
    """

    def __init__(self, engine: str, p: Parser, *, shown: bool = True, asked: bool = False) -> None:
        self._parser, self._known = p, p.flags()
        self._group = p.add_argument_group(f"arguments of {engine}")
        if shown:
            try:
                add_flags(engine, self._add)
            except UserError as error:  # the engine is not installed
                if not asked:
                    raise
                self._group.description = f"not shown: {error.line()}"

    def parse(self, words: Sequence[str], hint: str = "") -> argparse.Namespace:
        """Read the words, in which `_` is as good as `-`. Raises UserError for anything unknown, with this hint or all
        flags.
        """
        spelled = [_spelled(word) for word in words]
        flags, unknown = self._parser.parse_known_args(spelled)
        if unknown:
            flag = unknown[0].partition("=")[0]
            what = "unknown flag" if flag.startswith("-") else "one model at a time, not also"
            hint = hint or f"known: {names(self._parser.flags())}"
            raise UserError(f"{what} {flag}", f"{near(flag, self._parser.flags())}{hint}")
        return flags

    def given(self, flags: argparse.Namespace) -> dict[str, Any]:
        """The engine's arguments that were typed."""
        own = [action.dest for action in self._group._group_actions]
        return {name: getattr(flags, name) for name in own if hasattr(flags, name)}

    def _add(self, *names: str, **options: Any) -> None:
        if left := [name for name in names if name not in self._known]:
            self._group.add_argument(*left, **{**options, "default": argparse.SUPPRESS})
            self._known += left


def sort(words: Sequence[str], known: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words that begin with a known flag, or stand first; and all others, each flag with what follows it."""
    ours, others = list[str](), list[str]()
    to = ours
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            to = ours if _spelled(word).partition("=")[0] in known else others
        to.append(word)
    return ours, others


def model_at_end(rest: Sequence[str]) -> tuple[str, list[str]]:
    """The model that follows a flag without a value, which only the engine knows to have none; and other words.

    Empty where the last word is no path on this machine and no model of Hugging Face.
    """
    words = [*rest]
    found = words[-1] if words and not words[-1].startswith("-") else ""
    if found and (found in (*SHIPPED, *PACKAGED) or is_local(found) or reference(found) is not None):
        return words.pop(), words
    return "", words


def _spelled(word: str) -> str:
    name, sign, value = word.partition("=")
    return f"{name.replace('_', '-')}{sign}{value}" if name.startswith("--") else word


def own_arguments(engine: str, words: Sequence[str]) -> dict[str, Any]:
    """What follows `--` of `dynamo-run`, as arguments of the engine. Raises UserError."""
    p = Parser(prog="dynamo-run", usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    own = OwnFlags(engine, p)
    return own.given(own.parse(words))
