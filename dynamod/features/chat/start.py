"""From the words of `dynamo-run` to a talk: what must be known before anything starts is checked here."""

import copy
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from dynamod.cli.arguments import read_object
from dynamod.message.errors import UserError

from . import entries
from .client import ChatClient, chat_client
from .loopback import loopback

if TYPE_CHECKING:
    from dynamod.cli.flags import RunArguments
    from dynamod.cli.interrupt import Interrupts, Talk
    from dynamod.preprocess.tokenizer import Tokenizer

Way = Callable[["Interrupts", ChatClient, str], Awaitable[int]]
"""What is done with the client and its model; gives the exit code."""
MAX_TOKENS = 8192
TEMPERATURE = 0.7
FIELDS: dict[str, type | tuple[type, ...]] = {"model": str, "temperature": (int, float), "max_completion_tokens": int}
TEMPLATE = 'for example {"temperature": 0.7, "max_completion_tokens": 8192}'


def start(arguments: "RunArguments") -> "tuple[RunArguments, Callable[[], Talk]]":
    """Arguments for a graph whose frontend only we can enter, and what makes what talks to it. Raises UserError.

    The latter reads stdin, or the files, and may raise UserError too: it is called when the graph is known to be good.

    Every request asks for 8,192 tokens at most and temperature 0.7; echo_core also gets `ignore_eos`, since the
    template that it repeats contains stop tokens (all as NVIDIA Dynamo does).
    """
    flags = copy.copy(arguments.flags)
    tls = flags.tls_cert_path or flags.tls_key_path or flags.tls_client_ca_cert_path
    if flags.api_key or flags.api_key_file or flags.client_keys_file or tls:
        raise UserError(f"in={arguments.input} serves no clients", "keys and certificates belong to in=http")
    key = secrets.token_urlsafe(24)
    flags.http_host, flags.http_port, flags.api_key = loopback(), 0, key
    wanted = flags.model_name or ""
    if arguments.output in ("auto", "dyn"):
        flags.model_name = None  # which of the found models
    fields: dict[str, Any] = {"max_completion_tokens": MAX_TOKENS, "temperature": TEMPERATURE}
    if file := getattr(flags, "request_template", None):
        fields |= template(file)
        wanted = str(fields.pop("model", "")) or wanted
        flags.request_template = None
    if arguments.output in ("echo", "echo_core"):
        fields["nvext"] = {"ignore_eos": True}
    if not flags.verbose:
        os.environ.setdefault("DYN_LOG", "warn")
    if arguments.input == "text" and not sys.stdin.isatty():
        raise UserError("in=text needs a terminal", "use in=stdin for one prompt, in=batch:FILE for many")

    def make() -> "Talk":
        if arguments.input in ("text", "stdin"):
            _require_template(arguments)
        way, waits = _way(arguments, fields), sys.stderr.isatty() and not flags.verbose  # log lines say more
        found = arguments.output in ("auto", "dyn") or arguments.output.startswith("dyn://")
        if waits:
            what = "waiting for a worker" if found else f"loading {arguments.model or 'the model'}"
            print(f"{what} (Ctrl-C to leave)", end="", file=sys.stderr, flush=True)

        async def talk(interrupts: "Interrupts", url: str) -> int:
            if waits:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            async with chat_client(url, key, fields) as client:
                return await way(interrupts, client, await client.model(wanted, others=found))

        return talk

    return replace(arguments, input="http", flags=flags), make


def _require_template(arguments: "RunArguments") -> None:
    """Raises UserError for a model of this machine that cannot chat: loading it takes long."""
    from dynamod.engine.names import ENGINES, canonical, default
    from dynamod.preprocess.card import has_chat_template
    from dynamod.preprocess.locate import local

    output, flags = arguments.output, arguments.flags
    if output in ("auto", "dyn") or output.startswith("dyn://") or not arguments.model or flags.chat_template:
        return
    if not ENGINES[canonical(output or default(arguments.model))].model:
        return
    path = local(arguments.model)
    config = local(flags.model_config) if flags.model_config else None
    if path is not None and not has_chat_template(path, config):
        raise UserError(
            f"the model {arguments.model} has no chat template, so in={arguments.input} cannot talk to it",
            "give `--chat-template FILE`, or serve it with in=http and ask /v1/completions",
        )


def template(file: str) -> dict[str, Any]:
    """The fields that a file sets: `model`, `temperature`, `max_completion_tokens`. Raises UserError."""
    source = f"--request-template {file}"
    value = read_object(file, source, TEMPLATE)
    for name, field in value.items():
        if name not in FIELDS:
            raise UserError(f"{source}: unknown key {name}", f"known keys: {', '.join(FIELDS)}")
        if not isinstance(field, FIELDS[name]) or isinstance(field, bool):
            raise UserError(f"{source}: {name} is {field!r}", TEMPLATE)
    return value


def _way(arguments: "RunArguments", fields: dict[str, Any]) -> Way:
    """What the input means. Reads stdin or the files. Raises UserError; SystemExit when nothing is left to be asked."""
    if arguments.input == "text":
        from .text import Chat, reader

        read, stats = reader(), bool(arguments.flags.verbose)
        return lambda interrupts, client, model: Chat(interrupts, client, model, read, stats=stats).run()
    if arguments.input == "stdin":
        if sys.stdin.isatty():
            print("reading the prompt from stdin; Ctrl-D ends it", file=sys.stderr)
        try:
            prompt = sys.stdin.buffer.read().decode().strip()
        except UnicodeDecodeError as error:
            raise UserError(f"stdin: not UTF-8 text ({error.reason})", "the prompt must be UTF-8") from None
        if not prompt:
            raise UserError("stdin is empty", "for example: echo 'Hello' | dynamo-run sample")
        from .text import answer_once

        return partial(answer_once, prompt)
    jobs = entries.read(entries.inputs(arguments.input.removeprefix("batch:")))
    from .answers import prepare
    from .batch import Batch

    if not prepare(jobs, resume=arguments.flags.resume, overwrite=arguments.flags.overwrite):
        print(
            f"all {sum(job.total for job in jobs)} prompts are answered: {', '.join(str(job.output) for job in jobs)}"
        )
        raise SystemExit(0)
    tokens_of = _counter(arguments)
    return lambda interrupts, client, model: Batch(client, model, jobs, fields, tokens_of).run(interrupts)


def _counter(arguments: "RunArguments") -> Callable[[str], int] | None:
    """Counts the tokens of a text, if this command has the model's files."""
    if not arguments.model or arguments.output in ("auto", "dyn", "echo_full"):
        return None
    name = arguments.flags.model_config or arguments.model

    @cache
    def tokenizer() -> "Tokenizer":
        from dynamod.preprocess.locate import locate
        from dynamod.preprocess.source import open_source
        from dynamod.preprocess.tokenizer import Tokenizer

        return Tokenizer.from_source(open_source(locate(name, weights=False)))  # the worker has downloaded it by now

    return lambda text: len(tokenizer().encode(text))
