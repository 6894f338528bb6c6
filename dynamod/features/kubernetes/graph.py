"""A DynamoGraphDeployment as a graph of this machine: services, links and a section for each component."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dynamod.cli.flags import frontend_parser, joined
from dynamod.cli.nvidia import accepted
from dynamod.cli.run import ingress_graph, worker_graph
from dynamod.cli.worker import read_worker
from dynamod.engine.names import canonical
from dynamod.graph.document import Document
from dynamod.graph.graph import FRONTEND
from dynamod.message.errors import UserError

from .deployment import RESOURCE, Component, Deployment, read

CLASSES = "graphs.components"
PROCESSOR = "Processor"


def expand(document: Document, wanted: object) -> tuple[Document, str | None]:
    """The document with the components as a graph. Prints to stderr what is not carried over. Raises UserError.

    `wanted`: what command or file name as the graph; None, since the deployment is the graph.
    """
    return as_graph(document, deployment_of(document, wanted)), None


def deployment_of(document: Document, wanted: object, *, pods: bool = False) -> Deployment:
    """The deployment that a document is; see `deployment.read`. Raises UserError also where a graph is named."""
    if wanted is not None:
        raise document.error(("kind",), "the deployment is the graph", "leave out the name of a graph")
    return read(document, pods=pods)


def as_graph(document: Document, deployment: Deployment) -> Document:
    """The document of the graph; prints to stderr what is not carried over. Raises UserError.

    Sections of the command line go over those of the deployment.
    """
    for path, what in deployment.notes:
        print(f"{document.source}: {'.'.join(path)}: {what}", file=sys.stderr)
    data = {key: value for key, value in document.data.items() if key not in RESOURCE}
    services, sections, origins = dict[str, Any](), dict[str, dict[str, Any]](), dict(document.origins)
    frontends = [one for one in deployment.components if one.type == "frontend"]
    workers = [one for one in deployment.components if one.type in ("worker", "decode")]
    prefills = [one for one in deployment.components if one.type == "prefill"]
    if len(frontends) != 1:
        raise document.error(("spec",), f"{len(frontends)} frontends", "a graph has one component of type frontend")
    frontend = frontends[0]
    if any(one.name == PROCESSOR for one in deployment.components):
        raise document.error(("spec",), f"a component is called {PROCESSOR}", "give it another name")
    sections |= _ingress(document, frontend)  # first: what it reads may become variables of the process
    services[frontend.name] = _service(frontend, "Frontend")
    services[PROCESSOR] = {"class": f"{CLASSES}:Processor", "workers": frontend.replicas or 1}
    for one in (*workers, *prefills):
        sections[one.name] = _worker(document, one)
        services[one.name] = _service(one, "PrefillWorker" if one in prefills else "Worker")
    if prefills:
        sections[PROCESSOR]["remote_prefill"] = True
    for one in deployment.components:
        origins.setdefault((one.name,), origins.get(one.path, document.source))
        if one.name not in services:
            print(f"{document.source}: {'.'.join(one.path)}: {_LEFT_OUT[one.type]}", file=sys.stderr)
    links = [f"{frontend.name} -> {PROCESSOR}", *(f"{PROCESSOR} -> {one.name}" for one in (*workers, *prefills))]
    graph = {"services": services, "links": links, "root": frontend.name}
    merged = {name: _over(section, data.pop(name, None)) for name, section in sections.items()}
    return replace(document, data={**data, "graph": graph, **merged}, origins=origins)


_LEFT_OUT = {
    "planner": "a planner needs a section of its own here; see docs/how-to/autoscaling",
    "epp": "an endpoint picker belongs to a gateway of the cluster, and is left out",
}


def _service(one: Component, of: str) -> dict[str, Any]:
    made: dict[str, Any] = {"class": f"{CLASSES}:{of}", "workers": one.replicas}
    if one.env:
        made["envs"] = [{"name": name, "value": value} for name, value in one.env.items()]
    if one.gpus:
        made["resources"] = {"gpu": str(one.gpus)}
    return made


def _ingress(document: Document, one: Component) -> dict[str, dict[str, Any]]:
    """The sections of the frontend and of its processor."""
    module, words = _module(document, one, "dynamo.frontend")
    if module.rpartition(".")[2] != "frontend":
        raise _not_here(document, one, module)
    parser = frontend_parser()
    try:
        words = accepted("dynamo.frontend", words, parser.flags(), one.env, _teller(document, one))
        graph = ingress_graph(parser.parse_args(joined(words)))
    except UserError as error:
        raise document.error(one.words_at or one.path, str(error), error.hint) from None
    found = {spec.component_kind: dict(spec.config) for spec in graph.services.values()}
    return {one.name: found.pop(FRONTEND), PROCESSOR: next(iter(found.values()))}


def _worker(document: Document, one: Component) -> dict[str, Any]:
    """The section of a worker."""
    module, words = _module(document, one, "")
    try:
        engine = canonical(module.rpartition(".")[2])
    except UserError:
        raise _not_here(document, one, module) from None
    try:
        arguments, address = read_worker(engine, module, words, one.env, _teller(document, one))
        (spec,) = worker_graph(arguments, address).services.values()
    except UserError as error:
        raise document.error(one.words_at, str(error), error.hint) from None
    return {key: value for key, value in spec.config.items() if key != "endpoint"}


def _teller(document: Document, one: Component) -> Callable[[str], None]:
    """Says what has no effect of the words and variables of a component."""
    where = ".".join(one.words_at[:-1] or one.path)
    return lambda line: print(f"{document.source}: {where}: {line}", file=sys.stderr)


def _module(document: Document, one: Component, default: str) -> tuple[str, list[str]]:
    """The module that the command of a component runs, and the words after it. Raises UserError."""
    words = [*one.words]
    if not words and default:
        return default, []
    for place, word in enumerate(words):
        if word == "-m" and place + 1 < len(words):
            return words[place + 1], words[place + 2 :]
    if default and words[0].startswith("-"):  # arguments of the image's own command
        return default, words
    raise _not_here(document, one, " ".join(words[:3]))


def _not_here(document: Document, one: Component, what: str) -> UserError:
    problem = f"'{what}' cannot be run here" if what else "there is no command"
    hint = "a component runs python3 -m dynamo.frontend, dynamo.vllm, dynamo.sglang, dynamo.trtllm or dynamo.mocker"
    return document.error(one.words_at or one.path, problem, hint)


def _over(section: Mapping[str, Any], above: object) -> dict[str, Any]:
    """A section with what flags of the command line say, in the spelling of the section."""
    flags = above if isinstance(above, dict) else {}
    return {**section, **{str(key).replace("-", "_"): value for key, value in flags.items()}}
