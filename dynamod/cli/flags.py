"""Words and flags of `dynamo-run` and of `python -m dynamo.frontend`."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, get_args

from dynamod import __version__
from dynamod.engine.names import ALIASES, DEFAULT, ENGINES, add_flags, default
from dynamod.extension.installed import inputs
from dynamod.extension.settings import Option, options
from dynamod.message.discovery import DisaggregationMode, ReasoningField
from dynamod.message.errors import UserError
from dynamod.message.hints import near
from dynamod.router.policies import NAMES as MODES
from dynamod.router.policies import mode_of

from .arguments import Parser
from .completion import SCRIPTS

MODES_OF_WORKERS = get_args(DisaggregationMode)
LLAMA_CPP = {
    "-c": ("ctx_size", "KV cells of all sequences together"),
    "-ngl": ("n_gpu_layers", "layers on the GPU"),
    "-t": ("threads", "threads that compute"),
}
"""What users of llama.cpp type in front of `--`, too: the argument of the engine, and what it says."""
PAIRS = ("--use-kv-events", "--ignore-unsupported-fields", "--enable-per-request-metrics")
"""Flags of the core that are on or off."""
SERVER, ROUTER, MODEL, ENGINE = "server", "router and migration", "model", "engine"
PREFILL = "prefill and decode"
"""Headings of several functions."""
_PLAIN = [name for name, entry in ENGINES.items() if not entry.behind]
_WAYS = {
    "in=": ("http", *(form.partition(":")[0] for form in inputs()), "dyn", "none"),
    "out=": ("auto", "dyn", *ENGINES, *ALIASES),
}
"""What may stand after `in=` and `out=`, before a colon."""
HELP = f"""\
usage: dynamo-run [in=INPUT] [out=ENGINE] [model] [flags]

Runs one engine. Words and flags may come in any order.

  in=text                       a chat in the terminal (default there)
  in=stdin                      stdin is one prompt, the answer goes to stdout (default without a terminal)
  in=batch:FILE                 asks each line {{"text": "..."}} of FILE (or a request in OpenAI's batch form), writes
                                FILE's name with .output.jsonl next to it, in the same order
  in=http                       an OpenAI server
  in=dyn://ns.component.endpoint  a worker that frontends find, here and on other nodes
  in=none                       a node of an engine that runs on several, with --node-rank 1 and above
  out=ENGINE                    {", ".join(_PLAIN[:-1])} or {_PLAIN[-1]} (default {DEFAULT},
                                for GGUF files llamacpp where it is installed)
  out=pystr:FILE                your Python file: `async def generate(request)` gets the chat request, yields chunks
  out=pytok:FILE                the same with token ids in and out; words after -- are its sys.argv
  out=openai:URL                any server that speaks OpenAI's API, for example openai:http://127.0.0.1:8080/v1;
                                the model is its name there (default: the first that it lists)
  out=auto, out=dyn             the models of workers that are found (with in=http)
  out=dyn://ns.component.endpoint  only those at this address; with --model-name and --model-path a static worker
  model                         folder, GGUF file, org/name or org/name:Q4_K_M on Hugging Face, or `sample`;
                                `smollm2` and `minilm` with the extra demo (dynamod/sample/README.md);
                                with in=http several, which are loaded when they are asked for
"""
EPILOG = """
examples:
  dynamo-run sample
  echo "What is the capital of France?" | dynamo-run sample
  dynamo-run in=batch:prompts.jsonl out=mistralrs sample
  dynamo-run in=http out=mistralrs sample
  dynamo-run in=http out=echo_full --model-name my_model
  dynamo-run in=http out=echo_core --model-path sample -v
  dynamo-run in=http out=mocker --model-path sample --extra-engine-args mocker.json
  dynamo-run in=http out=pystr:my_chat.py --model-name mine -- --size 7
  dynamo-run in=http out=openai:http://127.0.0.1:8080/v1
  dynamo-run in=http small.gguf large.gguf --max-models 1
  dynamo-run in=http out=auto
  dynamo-run in=dyn://llama3B.backend.generate out=mistralrs sample
  dynamo-run in=dyn://llama3B.prefill.generate out=llamacpp sample --disaggregation-mode prefill
  dynamo-run in=http out=auto --router-mode kv --kv-overlap-score-weight 0.5
  dynamo-run in=dyn://dynamo.backend.generate out=mocker sample --static-worker
  dynamo-run in=http out=dyn://dynamo.backend.generate --model-name sample --model-path sample
"""


@dataclass(slots=True)
class RunArguments:
    """What was typed, sorted."""

    input: str = "text"
    output: str = ""
    model: str = ""
    flags: argparse.Namespace = field(default_factory=argparse.Namespace)
    rest: Sequence[str] = ()
    engine_args: Mapping[str, Any] = field(default_factory=dict)  # by flags of the engine's own
    models: Sequence[str] = ()  # where they are loaded on demand


class _RunParser(Parser):
    def format_help(self) -> str:
        formatter = self._get_formatter()
        for group in (*self._action_groups[2:], self._optionals):  # flags of every command come last
            formatter.start_section(group.title)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        return f"{HELP}\n{formatter.format_help()}{EPILOG}"


def parser() -> Parser:
    """The flags of `dynamo-run`."""
    p = _RunParser(prog="dynamo-run", usage=argparse.SUPPRESS, allow_abbrev=False)
    _frontend_flags(p, 8080)
    worker_flags(p, path=("-m",))
    add = p.add_to(MODEL)
    most = "in=http: models are loaded when they are asked for, and at most N at once"
    add("--max-models", type=int, metavar="N", help=most)
    add = p.add_to(ENGINE)
    for flag, (name, text) in LLAMA_CPP.items():
        add(flag, type=int, dest=name, metavar="N", help=f"llama.cpp: {text}, as -- --{name.replace('_', '-')} N")
    add = p.add_to("chat and batch")
    add("--request-template", metavar="FILE", help="JSON: model, temperature, max_completion_tokens of each request")
    add("--resume", action="store_true", help="in=batch: continue after the answers that an earlier run wrote")
    add("--overwrite", action="store_true", help="in=batch: replace the answers that an earlier run wrote")
    add = p.add_argument
    add("--dry-run", action="store_true", help="print the settings of the graph and exit")
    shells = "print the script that completes words in bash, zsh or fish"
    add("--show-completion", choices=sorted(SCRIPTS), metavar="SHELL", help=shells)
    add("--version", action="version", version=f"dynamo-run {__version__}", help="print the version")
    return p


def worker_flags(p: Parser, path: Sequence[str] = (), name: Sequence[str] = ()) -> None:
    """The flags of a command that may have a worker. `path`, `name`: other spellings of the model's."""
    add = p.add_to(MODEL)
    add("--model-path", *path, metavar="PATH", help="the model, as a flag")
    add("--model-name", *name, metavar="NAME", help="name that clients use (default: from the model's path)")
    add("--model-config", metavar="PATH", help="folder with tokenizer and template, for a GGUF without them")
    template = "file with a chat template, or the template itself; replaces the model's template"
    add("--chat-template", "--chat-template-file", metavar="FILE", help=template)
    add("--context-length", type=int, metavar="N", help="reduce the model's context to N tokens")
    calls = "format in which the model calls tools (default, auto: as its template says; none: text stays as it is)"
    add("--tool-call-parser", "--dyn-tool-call-parser", metavar="NAME", help=calls)
    reasons = "format in which the model reasons; values as of --tool-call-parser"
    add("--reasoning-parser", "--dyn-reasoning-parser", metavar="NAME", help=reasons)
    _reasoning_field_flag(p)
    lora = "a LoRA adapter, a model of its own for clients; also as JSON with name, path and scale; repeatable"
    add("--lora", action="append", metavar="NAME=PATH", help=lora)
    add = p.add_to(ENGINE)
    add("--kv-cache-block-size", type=int, metavar="N", help="tokens per block of the KV cache (default 16, mocker 64)")
    add("--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs per worker (default 1)")
    add("--base-gpu-id", type=int, default=0, metavar="N", help="first GPU (default 0)")
    add("--num-nodes", type=int, default=1, metavar="N", help="nodes of one engine that runs on several (default 1)")
    add("--node-rank", type=int, default=0, metavar="N", help="rank of this node; 0, the default, is the leader")
    where = "where the leader is, the same on all nodes of the engine"
    add("--leader-addr", "--dist-init-addr", default="", action=_Same, metavar="HOST:PORT", help=where)
    python = "interpreter of the worker's process, where its engine and dynamod are installed (default: this one)"
    add("--python", metavar="PATH", help=python)
    add("--static-worker", action="store_true", help="with in=dyn://: at a fixed address, found without etcd")
    add("--extra-engine-args", metavar="FILE", help="file with arguments of the engine, or the JSON itself")
    mode = "with in=dyn://: prefill computes prompts for decode workers of the model (default aggregated)"
    p.add_to(PREFILL)("--disaggregation-mode", choices=MODES_OF_WORKERS, help=mode)


def frontend_parser() -> Parser:
    """The flags of `python -m dynamo.frontend`."""
    p = Parser(
        prog="python -m dynamo.frontend",
        description="An OpenAI server for all models that workers of this machine announce.",
        epilog="examples: python -m dynamo.frontend --http-port 8080; python -m dynamo.frontend --interactive",
        allow_abbrev=False,
    )
    add = p.add_argument
    add("-i", "--interactive", action="store_true", help="a chat in the terminal instead of a server")
    add("--model-name", metavar="NAME", help="with --interactive: the model to talk to (default: the first found)")
    _frontend_flags(p, 8000)
    _reasoning_field_flag(p)
    add("--version", action="version", version=f"dynamo.frontend {__version__}")
    return p


def _frontend_flags(p: Parser, port: int) -> None:
    """The flags of a command that may have a frontend."""
    add = p.add_to(SERVER)
    add("--http-port", type=_up_to(65535), default=port, metavar="PORT", help=f"port of the server (default {port})")
    host = "addresses of the server, with commas (default localhost: this machine only; 0.0.0.0: all)"
    add("--http-host", default="localhost", metavar="HOST", help=host)
    ignored = "fields of requests that are known and not served are left out and counted (default: off, refused)"
    _pair(add, "--ignore-unsupported-fields", ignored)
    metrics = "answers have `metrics`, as vLLM's: how long they took (default: off)"
    _pair(add, "--enable-per-request-metrics", metrics)
    _add_settings(p, "frontend", SERVER)
    served = "no effect; for commands of NVIDIA Dynamo: /v1/messages is always served"
    add("--enable-anthropic-api", action="store_true", help=served)
    add = p.add_to("calls of tools")
    pieces = "APIs whose streams have arguments in pieces: chat, responses, messages, with commas, or none"
    add("--stream-tool-arguments", metavar="APIS", help=f"{pieces} (default responses,messages)")
    broken = "a tool call whose arguments are no JSON object: a call all the same, or content (default arguments)"
    add("--malformed-tool-calls", choices=("arguments", "content"), help=broken)
    forced = "calls that have to come, with an engine that cannot enforce them: ask the model, or 400 (default ask)"
    add("--unenforced-tool-choice", choices=("ask", "refuse"), help=forced)
    add = p.add_to("keys and TLS")
    add("--api-key", metavar="KEY", help="clients must send this key (or one of a list with commas); hidden in ps")
    add("--api-key-file", metavar="FILE", help="file with one key per line; or the variable DYN_API_KEYS")
    add("--client-keys-file", metavar="FILE", help="file of keys with names and limits, read again when it changes")
    add("--tls-cert-path", metavar="FILE", help="serve HTTPS with this certificate")
    add("--tls-key-path", metavar="FILE", help="the key of this certificate")
    authorities = "let in only clients with a certificate of these authorities"
    add("--tls-client-ca-cert-path", metavar="FILE", help=authorities)
    add = p.add_to(ROUTER)
    modes = f"{', '.join(MODES)} (default round-robin)"
    add("--router-mode", type=mode_of, default="round-robin", metavar="MODE", help=modes)
    add("--kv-overlap-score-weight", type=float, metavar="W", help="weight of cached prefixes for kv (default 1.0)")
    add("--router-temperature", type=float, metavar="T", help="kv: 0 takes the best, above it chance (default 0.0)")
    events = "kv: workers say what is cached; off: guess it from what was sent (default: on)"
    _pair(add, "--use-kv-events", events)
    guess = "without KV events: seconds for which a prompt counts as cached (default 120)"
    add("--router-ttl-secs", type=float, metavar="SECONDS", help=guess)
    share = "a worker with a larger share of its KV blocks in use gets nothing, from 0 to 1"
    add("--active-decode-blocks-threshold", type=float, metavar="SHARE", help=share)
    prompts = "a worker with more prompt tokens still to compute gets nothing"
    add("--active-prefill-tokens-threshold", type=float, metavar="N", help=prompts)
    first = "requests wait until a model has had this many workers at once (default 1)"
    add("--router-min-initial-workers", type=int, metavar="N", help=first)
    _add_settings(p, "processor", ROUTER)
    add("--migration-max-seq-len", type=int, metavar="N", help="longer answers (tokens, with the prompt) do not move")
    common_flags(p)


def _pair(add: Callable[..., object], flag: str, text: str) -> None:
    """A flag and its `--no-` form. None where neither is given; `joined` reads a true or false after it."""
    add(flag, action=argparse.BooleanOptionalAction, help=text)


def _add_settings(p: Parser, section: str, group: str) -> None:
    """Flags of settings that features add to a section, in the group that a flag names or else this one."""
    for flag, option in _added(section).items():
        add = p.add_to(option.group or group)
        if option.metavar == "BOOL":
            _pair(add, flag, option.help)
        else:
            add(flag, type=int if option.metavar == "N" else str, metavar=option.metavar, help=option.help)


def _added(section: str) -> dict[str, Option]:
    return {f"--{name.replace('_', '-')}": option for name, option in options(section).items() if option.flag}


def _reasoning_field_flag(p: Parser) -> None:
    field = "member of chat answers that has the reasoning (default reasoning_content); a worker's own counts first"
    p.add_to(SERVER)("--reasoning-field-name", choices=get_args(ReasoningField), help=field)


def common_flags(p: Parser) -> None:
    """The flags of every command that serves."""
    moves = "moves of a request to another worker (default 3)"  # 1023 at most, as NVIDIA Dynamo
    p.add_to(ROUTER)("--migration-limit", type=_up_to(1023), metavar="N", help=moves)
    add = p.add_argument
    add("--timeout", type=_grace, metavar="SECONDS", help="for open answers to finish at the end (default 2)")
    add("--socket", metavar="PATH", help="control socket (default: DYNAMOD_SOCKET, else the usual places)")
    add("-v", "--verbose", "--verbosity", action="count", default=0, help="-v debug, -vv trace")


def parse(argv: Sequence[str]) -> RunArguments:
    """Sort the words. Raises UserError for anything unknown."""
    words = list(argv)
    rest: list[str] = []
    if "--" in words:
        place = words.index("--")
        words, rest = words[:place], words[place + 1 :]
    _without_spaces(words)
    ways = {"in": "", "out": ""}
    others: list[str] = []
    for word in words:
        key, sign, value = word.partition("=")
        if sign and key in ways and not word.startswith("-"):
            if ways[key]:
                raise UserError(f"{key}= is given twice", "see dynamo-run --help")
            ways[key] = value
        else:
            others.append(word)
    known = parser()
    flags, unknown = known.parse_known_args(joined(others))
    models = [word for word in unknown if not word.startswith("-")]
    if wrong := [word for word in unknown if word.startswith("-")]:
        flag = wrong[0].partition("=")[0]
        model = models[0] if models else (flags.model_path or "")
        way = f"did you mean {flag.lstrip('-')}=...?; " if flag in ("--in", "--out") else near(flag, known.flags())
        hint = way + _behind_dashes(flag, ways["out"], model)
        raise UserError(f"unknown flag {flag}", f"{hint}see dynamo-run --help")
    way = ways["in"] or ("text" if sys.stdin.isatty() else "stdin")
    on_demand = len(models) > 1 or flags.max_models is not None
    if on_demand and way != "http":
        problem = (
            f"one model at a time, not {' and '.join(models)}" if len(models) > 1 else "--max-models has no effect"
        )
        raise UserError(f"{problem} with in={way}", "several belong to in=http; see dynamo-run --help")
    if on_demand and not models:
        raise UserError("--max-models: which models?", "for example: dynamo-run in=http a.gguf b.gguf --max-models 1")
    model = models[0] if models else (flags.model_path or "")
    several = tuple(models) if on_demand else ()
    rest = [*_of_llama_cpp(flags, ways["out"], model), *rest]
    return RunArguments(way, ways["out"], model, flags, rest, models=several)


def _without_spaces(words: Sequence[str]) -> None:
    """Raises UserError for `in = http`, `in =http` and `in= http`."""
    for place, word in enumerate(words):
        rest = words[place + 1 : place + 3]
        if word in ("in", "out") and rest and rest[0].startswith("="):
            taken = rest if rest[0] == "=" else rest[:1]
        elif word in ("in=", "out=") and rest and rest[0].partition(":")[0] in _WAYS[word]:
            taken = rest[:1]
        else:
            continue
        raise UserError(f"`{' '.join([word, *taken])}` has spaces", f"write {''.join([word, *taken])}")


def _of_llama_cpp(flags: argparse.Namespace, output: str, model: str) -> list[str]:
    """The short flags of llama.cpp that were given, as words for its engine. Raises UserError for another engine."""
    given = {flag: name for flag, (name, _) in LLAMA_CPP.items() if getattr(flags, name) is not None}
    name = (output or default(model)).partition(":")[0]
    if given and ALIASES.get(name, name) != "llamacpp":
        raise UserError(f"`{next(iter(given))}` is a flag of llama.cpp, and the engine is {name}", "take out=llamacpp")
    return [f"--{name.replace('_', '-')}={getattr(flags, name)}" for name in given.values()]


def _behind_dashes(flag: str, output: str, model: str) -> str:
    """Where a flag of the engine's own belongs; nothing when it is none, as far as that is known without the engine."""
    name = (output or default(model)).partition(":")[0]
    name = ALIASES.get(name, name)
    if (entry := ENGINES.get(name)) is None or not (entry.words or entry.flags):
        return ""
    example = f"dynamo-run out={name} {model or 'MODEL'} -- {flag}"
    if entry.words:
        return f"{name}'s own flags stand after --, as in {example}; "
    own: list[str] = []
    with suppress(UserError):  # what knows its flags is not installed
        add_flags(name, lambda *names, **_options: own.extend(names))
    if flag.replace("_", "-") in own:
        return f"a flag of {name} stands after --, as in {example}; "
    if name == "llamacpp":  # people know more of its flags than there are here
        return f"{flag} is none of the flags of llama.cpp that are served, which stand after --; "
    return ""


class _Same(argparse.Action):
    """Two spellings of a flag may both be given, with one value."""

    def __call__(self, parser: argparse.ArgumentParser, flags: Any, value: Any, option: str | None = None) -> None:
        earlier = getattr(flags, self.dest)
        if earlier not in (self.default, value):
            parser.error(f"{' and '.join(self.option_strings)} must match, not {earlier} and {value}")
        setattr(flags, self.dest, value)


def joined(words: Sequence[str]) -> list[str]:
    """The words, where a pair with a value (`--flag false`, `--flag=false`) is one of its two forms.

    Only true and false after the flag are its value. `--verbosity -vv` is `-vv`. Raises UserError for another value.
    """
    joined: list[str] = []
    rest = list(words)
    pairs = {*PAIRS, *(flag for flag, option in _added("").items() if option.metavar == "BOOL")}
    while rest:
        word = rest.pop(0)
        flag, sign, value = word.partition("=")
        if flag in pairs:
            value = value if sign else rest.pop(0) if rest and rest[0] in ("true", "false") else "true"
            if value not in ("true", "false"):
                raise UserError(f"{flag}: {value!r} is neither true nor false", f"write {flag} or --no-{flag[2:]}")
            word = flag if value == "true" else f"--no-{flag[2:]}"
        if word == "--verbosity" and rest and rest[0] in ("-v", "-vv"):
            continue  # NVIDIA Dynamo's usage names it before its value
        joined.append(word)
    return joined


def _up_to(highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) > highest:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {highest}")
        return int(text)

    return parse


def _grace(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to 86400")
    return seconds
