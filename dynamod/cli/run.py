"""`dynamo-run in=... out=... [model] [flags]`: one engine without a graph file, as a graph made from a few words."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamod import __version__
from dynamod.discovery.keys import Address
from dynamod.engine.names import DEFAULT, ENGINES
from dynamod.graph.graph import FRONTEND, PROCESSOR, WORKER, DependsInfo, EndpointInfo, Graph, ServiceSpec
from dynamod.message.errors import UserError
from dynamod.router.policies import NAMES as MODES
from dynamod.router.policies import mode_of

if TYPE_CHECKING:
    from .interrupt import Talk

INPUTS = ("http", "text", "stdin", "batch:FILE", "dyn://NAMESPACE.COMPONENT.ENDPOINT")
_BOOLS = {"true": True, "false": False}
MIGRATIONS = 1023
"""The largest --migration-limit, as in the original."""
_PLAIN = [name for name, entry in ENGINES.items() if not entry.file]
HELP = f"""\
usage: dynamo-run [in=INPUT] [out=ENGINE] [model] [flags]

Runs one engine. Words and flags may come in any order.

  in=text                       a chat in the terminal (default there)
  in=stdin                      stdin is one prompt, the answer goes to stdout (default without a terminal)
  in=batch:FILE                 asks each line {{"text": "..."}} of FILE, writes output.jsonl beside it
  in=http                       an OpenAI server
  in=dyn://ns.component.endpoint  a worker that frontends find, here and on other nodes
  out=ENGINE                    {", ".join(_PLAIN[:-1])} or {_PLAIN[-1]} (default {DEFAULT})
  out=pystr:FILE                your Python file: `async def generate(request)` gets the chat request, yields chunks
  out=pytok:FILE                the same with token ids in and out; what stands behind -- is in its sys.argv
  out=auto, out=dyn             the models of workers that are found (with in=http)
  out=dyn://ns.component.endpoint  only those at this address; with --model-name and --model-path a static worker
  model                         folder, GGUF file, Hugging Face repository, or `sample`

flags:
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
  dynamo-run in=http out=pystr:my_engine.py --model-name mine -- --size 7
  dynamo-run in=http out=auto
  dynamo-run in=dyn://llama3B.backend.generate out=mistralrs sample
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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UserError(message, "see dynamo-run --help")

    def format_help(self) -> str:
        return HELP + self._get_formatter_part() + EPILOG

    def _get_formatter_part(self) -> str:
        formatter = self._get_formatter()
        for group in self._action_groups:
            formatter.start_section(None)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        return formatter.format_help()


def parser() -> argparse.ArgumentParser:
    """The flags of `dynamo-run`."""
    p = _Parser(prog="dynamo-run", usage=argparse.SUPPRESS, allow_abbrev=False)
    add = p.add_argument
    add("--http-port", type=int, default=8080, metavar="PORT", help="port of in=http (default 8080)")
    add("--http-host", default="0.0.0.0", metavar="HOST", help="address of in=http (default 0.0.0.0)")
    add("--model-path", metavar="PATH", help="the model, as a flag")
    add("--model-name", metavar="NAME", help="name that clients use (default: from the model's path)")
    add("--model-config", metavar="PATH", help="folder with tokenizer and template, for a GGUF without them")
    add("--context-length", type=int, metavar="N", help="reduce the model's context to N tokens")
    add("--kv-cache-block-size", type=int, metavar="N", help="tokens per block of the KV cache (default 16, mocker 64)")
    add("--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs per worker (default 1)")
    add("--base-gpu-id", type=int, default=0, metavar="N", help="first GPU (default 0)")
    add("--num-nodes", type=int, default=1, metavar="N", help="nodes of one engine; those that are here run on 1")
    add("--node-rank", type=int, default=0, metavar="N", help="which of them this is")
    add("--leader-addr", default="", metavar="HOST:PORT", help="where the first of them is")
    router_flags(add)
    add("--static-worker", action="store_true", help="with in=dyn://: at a fixed address, found without etcd")
    add("--extra-engine-args", metavar="FILE", help="JSON or YAML file with arguments of the engine")
    add(
        "--request-template", metavar="FILE", help="JSON with model, temperature, max_completion_tokens of each request"
    )
    add("--api-key", metavar="KEY", help="clients must send this key (or one of a comma separated list)")
    add("--api-key-file", metavar="FILE", help="file with one key per line")
    add("--tls-cert-path", metavar="FILE", help="serve HTTPS with this certificate")
    add("--tls-key-path", metavar="FILE", help="and this key")
    add("--socket", metavar="PATH", help="control socket (default: DYNAMOD_SOCKET, else the usual places)")
    add("--dry-run", action="store_true", help="print the graph and exit")
    add("-v", "--verbose", "--verbosity", action="count", default=0, help="-v debug, -vv trace")
    add("--version", action="version", version=f"dynamo-run {__version__}", help="print the version")
    return p


def router_flags(add: Callable[..., object]) -> None:
    """The flags of a frontend that choose among workers."""
    add("--router-mode", default="round-robin", metavar="MODE", help=f"{', '.join(MODES)} (default round-robin)")
    add("--kv-overlap-score-weight", type=float, metavar="W", help="weight of cached prefixes for kv (default 1.0)")
    add("--router-temperature", type=float, metavar="T", help="kv: 0 takes the best, above it chance (default 0.0)")
    add("--use-kv-events", type=_bool, metavar="BOOL", help="false: guess what is cached from what was sent")
    add("--migration-limit", type=_moves, metavar="N", help="moves of a request to another worker (default 3)")
    add("--migration-max-seq-len", type=int, metavar="N", help="longer answers (tokens, with the prompt) do not move")


def parse(argv: Sequence[str]) -> RunArguments:
    """Sort the words. Raises UserError for anything unknown."""
    words = list(argv)
    rest: list[str] = []
    if "--" in words:
        place = words.index("--")
        words, rest = words[:place], words[place + 1 :]
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
    flags, unknown = parser().parse_known_args(joined(others))
    models = [word for word in unknown if not word.startswith("-")]
    if wrong := [word for word in unknown if word.startswith("-")]:
        raise UserError(f"unknown flag {wrong[0]}", "see dynamo-run --help")
    if len(models) > 1:
        raise UserError(f"one model at a time, not {' and '.join(models)}", "see dynamo-run --help")
    model = models[0] if models else (flags.model_path or "")
    return RunArguments(ways["in"] or ("text" if sys.stdin.isatty() else "stdin"), ways["out"], model, flags, rest)


def joined(words: Sequence[str]) -> list[str]:
    """`--use-kv-events` alone means true; only true and false behind it are its value."""
    joined: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--use-kv-events":
            value = rest.pop(0) if rest and rest[0] in _BOOLS else "true"
            word = f"{word}={value}"
        joined.append(word)
    return joined


def _moves(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MIGRATIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {MIGRATIONS}")
    return int(text)


def _bool(text: str) -> bool:
    if text not in _BOOLS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return _BOOLS[text]


def run(argv: Sequence[str]) -> int:
    """Run `dynamo-run`."""
    try:
        if not argv:
            print(parser().format_help())
            return 0
        arguments = parse(argv)
    except SystemExit as end:  # argparse ends --help and --version this way
        return int(end.code or 0)
    make: Callable[[], Talk] | None = None
    if arguments.input in ("text", "stdin") or arguments.input.startswith("batch:"):
        from dynamod.cli.chat.start import start

        arguments, make = start(arguments)
    graph = build(arguments)
    if arguments.flags.dry_run:
        from dynamod.graph.config import dry_run_text

        print(dry_run_text(graph))
        return 0
    from .preflight import check

    check(graph)
    from .serve import foreground

    title = f"dynamo-run in={arguments.input} out={arguments.output or DEFAULT}"
    flags = arguments.flags
    talk = make() if make is not None else None
    return foreground(graph, title=title, name="", socket=flags.socket, verbose=flags.verbose, talk=talk)


def build(arguments: RunArguments) -> Graph:
    """The graph that the words describe. Raises UserError for combinations that make no sense."""
    flags, output = arguments.flags, arguments.output
    discover = output in ("auto", "dyn")
    if arguments.input.startswith("dyn://"):
        if discover or output.startswith("dyn://"):
            raise UserError("cannot use endpoints for both in and out", "a worker needs an engine: out=mistralrs")
        for flag in ("api_key", "api_key_file", "tls_cert_path", "tls_key_path", "migration_max_seq_len"):
            if getattr(flags, flag) is not None:
                name = "--" + flag.replace("_", "-")
                raise UserError(f"{name} belongs to the frontend, not to in={arguments.input}", "give it with in=http")
        mode_of(flags.router_mode)
        return worker_graph(arguments, Address.parse(arguments.input))
    if arguments.input != "http":
        raise UserError(f"unknown input in={arguments.input}", f"known inputs: {', '.join(INPUTS)}")
    if flags.request_template:
        raise UserError("--request-template belongs to in=text, in=stdin and in=batch:", "clients say what they want")
    if flags.static_worker:
        raise UserError("--static-worker belongs to a worker", "give it with in=dyn://namespace.component.endpoint")
    if discover or output.startswith("dyn://"):
        for flag in ("context_length", "kv_cache_block_size", "model_config", "extra_engine_args"):
            if getattr(flags, flag) is not None:
                name = "--" + flag.replace("_", "-")
                raise UserError(f"{name} belongs to the worker, not to out={output}", "give it where the engine runs")
        return ingress_graph(flags, *_remote(arguments))
    address = Address("dynamo", "backend", "generate")
    ingress, worker = ingress_graph(flags), worker_graph(arguments, address)
    services = {**worker.services, **ingress.services}
    processor = services["Processor"]
    services["Processor"] = _with_depends(processor, {"worker": services["Worker"]})
    name = worker.target
    return Graph("Frontend", services, "dynamo", (("Frontend", "Processor"), ("Processor", "Worker")), name)


def _remote(arguments: RunArguments) -> tuple[Address | None, str]:
    """Where workers are looked for, None for everywhere; and the path of a static one's model."""
    flags, output, model = arguments.flags, arguments.output, arguments.model
    if not output.startswith("dyn://"):
        if model or flags.model_name:
            raise UserError(
                f"out={output} takes no model: workers say what they serve",
                "leave it out, or use out=dyn://namespace.component.endpoint for a static worker",
            )
        return None, ""
    if bool(model) != bool(flags.model_name):
        raise UserError(
            "a static worker needs both --model-name and --model-path",
            "give both, or none to find workers at that address",
        )
    return Address.parse(output), model


def ingress_graph(flags: argparse.Namespace, only: Address | None = None, static_model: str = "") -> Graph:
    """Frontend and Processor, for the models that are found: everywhere, or `only` at an address."""
    frontend = {
        "host": flags.http_host,
        "port": flags.http_port,
        "api_keys": flags.api_key,
        "api_key_file": flags.api_key_file,
        "tls_cert_path": flags.tls_cert_path,
        "tls_key_path": flags.tls_key_path,
    }
    processor: dict[str, Any] = {
        "router_mode": flags.router_mode,
        "kv_overlap_score_weight": flags.kv_overlap_score_weight,
        "router_temperature": flags.router_temperature,
        "use_kv_events": flags.use_kv_events,
        "migration_limit": flags.migration_limit,
        "migration_max_seq_len": flags.migration_max_seq_len,
        "only_endpoint": f"dyn://{only}" if only is not None else None,
        "static_model": static_model or None,
        "static_model_name": flags.model_name if static_model else None,
    }
    if not 0 <= flags.http_port <= 65535:
        raise UserError(f"--http-port {flags.http_port} is out of range", "choose 0 to 65535")
    mode_of(flags.router_mode)
    specs = [
        _spec("Processor", PROCESSOR, processor, "dynamo", "Processor"),
        _spec("Frontend", FRONTEND, frontend, "dynamo", "Frontend"),
    ]
    services = {spec.name: spec for spec in specs}
    services["Frontend"] = _with_depends(services["Frontend"], {"processor": services["Processor"]})
    return Graph("Frontend", services, "dynamo", (("Frontend", "Processor"),), "run-frontend")


def worker_graph(arguments: RunArguments, address: Address) -> Graph:
    """One worker at an address."""
    from dynamod.engine.names import canonical, file_of

    flags = arguments.flags
    engine = canonical(arguments.output or DEFAULT)
    if flags.num_nodes != 1 or flags.node_rank != 0 or flags.leader_addr:
        raise UserError(
            f"--num-nodes, --node-rank and --leader-addr: {engine} runs on one node", "start a worker on each node"
        )
    file = file_of(arguments.output)
    if arguments.rest and not file:
        raise UserError(f"{engine} takes no words behind --", "pystr:FILE and pytok:FILE find them in sys.argv")
    config = {
        "engine": f"{engine}:{Path(file).expanduser().absolute()}" if file else engine,
        "model": arguments.model or None,
        "served_model_name": flags.model_name,
        "model_config": flags.model_config,
        "context_length": flags.context_length,
        "kv_cache_block_size": flags.kv_cache_block_size,
        "migration_limit": flags.migration_limit if flags.migration_limit is not None else 3,
        "tensor_parallel_size": flags.tensor_parallel_size,
        "base_gpu_id": flags.base_gpu_id,
        "static": flags.static_worker or None,
        "endpoint": address.endpoint,
        "engine_args": {"argv": _argv(arguments)} if file else _engine_args(flags.extra_engine_args),
    }
    spec = _spec("Worker", WORKER, config, address.namespace, address.component, "own")
    endpoint = {address.endpoint: EndpointInfo(address.endpoint, "generate")}
    spec = ServiceSpec(**{**_fields(spec), "endpoints": endpoint})
    return Graph("Worker", {"Worker": spec}, address.namespace, (), f"run-{engine}")


def _argv(arguments: RunArguments) -> list[str]:
    """What a user's file finds in sys.argv, in the original's order: flags of ours, then what stands behind `--`."""
    flags = arguments.flags
    words = {
        "--model-path": arguments.model or None,
        "--model-name": flags.model_name,
        "--http-port": flags.http_port,
        "--tensor-parallel-size": flags.tensor_parallel_size,
        "--base-gpu-id": flags.base_gpu_id,
        "--num-nodes": flags.num_nodes,
        "--node-rank": flags.node_rank,
        "--model-config": flags.model_config,
        "--leader-addr": flags.leader_addr or None,
        "--extra-engine-args": flags.extra_engine_args,
    }
    said = [word for name, value in words.items() if value is not None for word in (name, str(value))]
    return [*said, *arguments.rest]


def _engine_args(file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    import yaml

    try:
        with open(file, encoding="utf-8") as stream:
            text = stream.read()
        try:
            value = json.loads(text)  # YAML is nearly a superset: it takes 1e-5 for a string
        except ValueError:
            value = yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"--extra-engine-args {file}: {error.strerror}", "check the path") from None
    except yaml.YAMLError as error:
        raise UserError(f"--extra-engine-args {file}: {error}", "it must hold a JSON or YAML object") from None
    if not isinstance(value, dict):
        raise UserError(f"--extra-engine-args {file} holds no object", 'for example {"max_seqs": 8}')
    return value


def _spec(
    name: str, kind: str, config: dict[str, Any], namespace: str, component: str, placement: str = "ingress"
) -> ServiceSpec:
    kept = {key: value for key, value in config.items() if value is not None}
    return ServiceSpec(
        name=name,
        path=f"graphs.components:{name}",
        namespace=namespace,
        component=component,
        placement=placement,
        component_kind=kind,
        config=kept,
    )


def _with_depends(spec: ServiceSpec, on: dict[str, ServiceSpec]) -> ServiceSpec:
    depends = {
        attribute: DependsInfo(other.name, other.namespace, other.component, tuple(other.endpoints))
        for attribute, other in on.items()
    }
    return ServiceSpec(**{**_fields(spec), "depends": depends})


def _fields(spec: ServiceSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}
