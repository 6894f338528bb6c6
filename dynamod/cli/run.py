"""`dynamo-run in=... out=... [model] [flags]`: one engine without a graph file, as a graph made from a few words.

`python -m dynamo.frontend` is its frontend alone, which finds the models of workers on this machine.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamod.discovery.keys import Address
from dynamod.engine.names import ENGINES, behind, canonical, default
from dynamod.engine.placement import Placement
from dynamod.extension.installed import inputs, pool_of, run_input, run_models
from dynamod.extension.settings import options
from dynamod.graph.graph import FRONTEND, PROCESSOR, WORKER, DependsInfo, EndpointInfo, Graph, ServiceSpec
from dynamod.graph.options import check_python
from dynamod.message.errors import UserError

from .arguments import read_object
from .completion import SCRIPTS
from .flags import EPILOG, HELP, RunArguments, frontend_parser, joined, parse
from .nvidia import accepted

if TYPE_CHECKING:
    from .interrupt import Talk

INPUTS = ("http", *inputs(), "dyn://NAMESPACE.COMPONENT.ENDPOINT", "none")
FRONTEND_KEYS = {
    "host": "http_host",
    "port": "http_port",
    "api_keys": "api_key",
    **{
        key: key
        for key in (
            *("api_key_file", "client_keys_file", "tls_cert_path", "tls_key_path", "tls_client_ca_cert_path"),
            *(name for name, option in options("frontend").items() if option.flag),
            *("ignore_unsupported_fields", "stream_tool_arguments", "malformed_tool_calls", "unenforced_tool_choice"),
        )
    },
    "per_request_metrics": "enable_per_request_metrics",
}
"""Settings of the frontend, by the flags that give them."""
FRONTEND_FLAGS = tuple(flag for flag in FRONTEND_KEYS.values() if flag not in ("http_host", "http_port"))
FRONTEND_KEYS["reasoning_field_name"] = "reasoning_field_name"  # a flag of workers too
ROUTING = (
    *("router_mode", "kv_overlap_score_weight", "router_temperature", "use_kv_events", "router_ttl_secs"),
    *("active_decode_blocks_threshold", "active_prefill_tokens_threshold", "router_min_initial_workers"),
)
MIGRATION = ("migration_limit", "migration_max_seq_len")
PLACEMENT = ("tensor_parallel_size", "base_gpu_id", "num_nodes", "node_rank", "leader_addr")
ENGINE = (
    "migration_limit",
    "model_config",
    "chat_template",
    "context_length",
    "kv_cache_block_size",
    "disaggregation_mode",
    "lora",
    "tool_call_parser",
    "reasoning_parser",
    "reasoning_field_name",
    *PLACEMENT,
)
"""Flags that are called as their settings."""
WORKER_HINT = "give it with in=dyn://namespace.component.endpoint"
HERE = "the leader, with rank 0, takes the requests: in=http or in=dyn://..."
ARGV = (
    *("model_name", "http_port", "tensor_parallel_size", "base_gpu_id", "num_nodes", "node_rank"),
    *("model_config", "leader_addr", "extra_engine_args"),
)


def run(argv: Sequence[str]) -> int:
    """Run `dynamo-run`."""
    if not argv:
        print(f"{HELP}{EPILOG}\ndynamo-run --help lists the flags")
        return 0
    arguments = parse(argv)
    if shell := arguments.flags.show_completion:
        print(SCRIPTS[shell], end="")
        return 0
    make: Callable[[], Talk] | None = None
    if not arguments.input.startswith("batch:") and (arguments.flags.resume or arguments.flags.overwrite):
        raise UserError("--resume and --overwrite belong to in=batch:", "for example in=batch:prompts.jsonl --resume")
    if (start := run_input(arguments.input)) is not None:
        arguments, make = start(arguments)
    graph = build(arguments)
    if arguments.flags.dry_run:
        from dynamod.graph.config import dry_run_text

        print(dry_run_text(graph))
        return 0
    title = f"dynamo-run in={arguments.input} out={arguments.output or default(arguments.model)}"
    return serve(graph, title, arguments.flags, make)


def run_frontend(argv: Sequence[str]) -> int:
    """Run `python -m dynamo.frontend`."""
    p, make = frontend_parser(), None
    flags = p.parse_args(joined(accepted("dynamo.frontend", argv, p.flags())))
    if flags.interactive:
        if (start := run_input("text")) is None:
            raise UserError("--interactive needs a feature that chats, and none is installed", "see dynamo features")
        arguments, make = start(RunArguments("text", "auto", "", flags))
        flags = arguments.flags
    elif flags.model_name:
        raise UserError("--model-name belongs to --interactive", "a server has all models that are found")
    return serve(ingress_graph(flags), "dynamo.frontend", flags, make)


def serve(graph: Graph, title: str, flags: argparse.Namespace, make: "Callable[[], Talk] | None" = None) -> int:
    """Serve a graph until it ends. Raises UserError for what is known to be wrong before."""
    from .preflight import check, check_hub

    check_hub(check(graph))
    from .foreground import Request
    from .foreground import serve as serve_request

    talk = make() if make is not None else None
    return serve_request(Request(graph, title, talk=talk, timeout=flags.timeout), flags.socket, flags.verbose)


def build(arguments: RunArguments) -> Graph:
    """The graph that the words describe. Raises UserError for combinations that make no sense."""
    if arguments.models:
        return run_models()(arguments)  # type: ignore[no-any-return]
    flags, output = arguments.flags, arguments.output
    discover = output in ("auto", "dyn")
    if arguments.input.startswith("dyn://"):
        if discover or output.startswith("dyn://"):
            raise UserError("cannot use endpoints for both in and out", "a worker needs an engine: out=mistralrs")
        frontend = (*FRONTEND_FLAGS, "migration_max_seq_len", *options("processor"))
        _refuse(flags, frontend, f"the frontend, not to in={arguments.input}", "give it with in=http")
        return worker_graph(arguments, Address.parse(arguments.input))
    if (arguments.input == "none") != (flags.node_rank > 0):
        raise UserError("in=none is for the nodes with --node-rank 1 and above of an engine", HERE)
    if arguments.input == "none":
        return worker_graph(arguments, Address())
    if arguments.input != "http":
        raise UserError(f"unknown input in={arguments.input}", f"known inputs: {', '.join(INPUTS)}")
    if flags.request_template:
        raise UserError("--request-template belongs to in=text, in=stdin and in=batch:", "clients say what they want")
    if flags.static_worker:
        raise UserError("--static-worker belongs to a worker", WORKER_HINT)
    if pool := pool_of(flags.disaggregation_mode or ""):
        raise UserError(f"a {pool} worker serves no clients", WORKER_HINT)
    if discover or output.startswith("dyn://"):
        names = (
            "context_length",
            "kv_cache_block_size",
            "model_config",
            "chat_template",
            "extra_engine_args",
            "python",
        )
        worker = (*names, "disaggregation_mode", "lora", "tool_call_parser", "reasoning_parser")
        _refuse(flags, worker, f"the worker, not to out={output}", "give it where the engine runs")
        return ingress_graph(flags, *_remote(arguments))
    alone = worker_graph(arguments, Address())
    services = {**alone.services, **ingress_graph(flags).services}
    services["Processor"] = _depending(services["Processor"], worker=services["Worker"])
    return Graph("Frontend", services, "dynamo", (("Frontend", "Processor"), ("Processor", "Worker")), alone.target)


def _refuse(flags: argparse.Namespace, names: Sequence[str], whose: str, hint: str) -> None:
    for name in names:
        if getattr(flags, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} belongs to {whose}", hint)


def _remote(arguments: RunArguments) -> tuple[Address | None, str]:
    """Where workers are looked for, None for everywhere; and the path of a static one's model."""
    flags, output, model = arguments.flags, arguments.output, arguments.model
    if not output.startswith("dyn://"):
        if model or flags.model_name:
            hint = "leave it out, or use out=dyn://namespace.component.endpoint for a static worker"
            raise UserError(f"out={output} takes no model: workers say what they serve", hint)
        return None, ""
    if bool(model) != bool(flags.model_name):
        hint = "give both, or none to find workers at that address"
        raise UserError("a static worker needs both --model-name and --model-path", hint)
    return Address.parse(output), model


def ingress_graph(flags: argparse.Namespace, only: Address | None = None, static_model: str = "") -> Graph:
    """Frontend and Processor, for the models that are found: everywhere, or `only` at an address."""
    processor = {name: getattr(flags, name) for name in (*ROUTING, *MIGRATION)}
    for name, option in options("processor").items():
        processor[name] = value = getattr(flags, name)
        if value is not None and option.metavar == "JSON":
            processor[name] = read_object(value, f"--{name.replace('_', '-')} {value}", option.help)
    if only is not None:
        processor["only_endpoint"] = f"dyn://{only}"
    if static_model:
        processor |= {"static_model": static_model, "static_model_name": flags.model_name}
    behind = _spec("Processor", PROCESSOR, processor)
    frontend = _spec("Frontend", FRONTEND, {key: getattr(flags, flag) for key, flag in FRONTEND_KEYS.items()})
    services = {"Processor": behind, "Frontend": _depending(frontend, processor=behind)}
    return Graph("Frontend", services, "dynamo", (("Frontend", "Processor"),), "run-frontend")


def worker_graph(arguments: RunArguments, address: Address) -> Graph:
    """One worker at an address."""
    flags = arguments.flags
    engine, place = canonical(arguments.output or default(arguments.model)), behind(arguments.output)
    file = place if ENGINES[engine].file else ""
    placement = Placement(**{name: getattr(flags, name) for name in PLACEMENT})
    placement.check(engine, lambda name: f"--{name.replace('_', '-')}")
    if arguments.rest and not (file or ENGINES[engine].words or ENGINES[engine].flags):
        raise UserError(
            f"{engine} takes no words after --",
            "pystr:FILE and pytok:FILE find them in sys.argv, others read them as their own flags",
        )
    if ENGINES[engine].model and not arguments.model:
        where = f"in={arguments.input} out={engine}{f':{file}' if file else ''}"
        raise UserError(f"engine '{engine}' needs a model", f"for example: dynamo-run {where} sample")
    if file:
        engine_args: dict[str, Any] = {"argv": _argv(arguments)}
    else:
        engine_args = _engine_args(engine, arguments)
    config = {
        "engine": f"{engine}:{Path(file).expanduser().absolute() if file else place}" if place else engine,
        "model": arguments.model or None,
        "served_model_name": flags.model_name,
        **{name: getattr(flags, name) for name in ENGINE},
        "static": flags.static_worker or None,
        "endpoint": address.endpoint,
        "engine_args": engine_args,
    }
    spec = replace(
        _spec("Worker", WORKER, config),
        namespace=address.namespace,
        component=address.component,
        placement="own",
        workers=getattr(flags, "num_workers", 1),
        python=check_python(flags.python) if flags.python is not None else "",
        endpoints={address.endpoint: EndpointInfo(address.endpoint, "generate")},
    )
    return Graph("Worker", {"Worker": spec}, address.namespace, (), f"run-{engine}")


def _engine_args(engine: str, arguments: RunArguments) -> dict[str, Any]:
    """The engine's own arguments, from a file and from flags. Raises UserError."""
    own = arguments.engine_args
    if arguments.rest and ENGINES[engine].words:
        own = {"argv": [*arguments.rest]}
    elif arguments.rest:
        from .worker import own_arguments

        own = own_arguments(engine, arguments.rest)
    extra = arguments.flags.extra_engine_args
    read = read_object(extra, f"--extra-engine-args {extra}", 'for example {"max_seqs": 8}') if extra else {}
    if twice := {key.replace("-", "_") for key in read} & own.keys():
        name = min(twice)
        raise UserError(f"--{name.replace('_', '-')} is given twice", "once in --extra-engine-args: give one of them")
    return {**read, **own}


def _argv(arguments: RunArguments) -> list[str]:
    """What a user's file finds in sys.argv, in NVIDIA Dynamo's order: flags of ours, then what follows `--`."""
    words = {"model_path": arguments.model, **{name: getattr(arguments.flags, name) for name in ARGV}}
    given = ((f"--{name.replace('_', '-')}", str(value)) for name, value in words.items() if value not in (None, ""))
    return [*chain.from_iterable(given), *arguments.rest]


def _spec(name: str, kind: str, config: Mapping[str, Any]) -> ServiceSpec:
    kept = {key: value for key, value in config.items() if value is not None}
    return ServiceSpec(name, "", "dynamo", name, component_kind=kind, config=kept)


def _depending(spec: ServiceSpec, **others: ServiceSpec) -> ServiceSpec:
    depends = {
        attribute: DependsInfo(other.name, other.namespace, other.component, tuple(other.endpoints))
        for attribute, other in others.items()
    }
    return replace(spec, depends=depends)
