"""What can be known to fail before a single process starts: said at once, as one line."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamod.daemon.names import node_name
from dynamod.engine.interpreter import missing
from dynamod.engine.lora import adapters_of
from dynamod.engine.names import (
    ENGINES,
    arguments_with,
    check_arguments,
    check_lora,
    require_file,
    require_format,
    require_handoff,
    require_installed,
)
from dynamod.extension.installed import block_stores, enabled, require_role
from dynamod.graph.graph import FRONTEND, PROCESSOR, WORKER, Graph, ServiceSpec
from dynamod.graph.typed import given, validate
from dynamod.http.key_file import KeyFile  # `http.keys` would import the HTTP server, too
from dynamod.http.settings import FrontendSettings
from dynamod.http.settings import from_environment as frontend_environment
from dynamod.ingress.settings import ProcessorSettings
from dynamod.ingress.settings import from_environment as processor_environment
from dynamod.kvcache.tier_settings import TierSettings
from dynamod.message.discovery import DisaggregationMode
from dynamod.message.errors import UserError
from dynamod.parsers import check_names
from dynamod.preprocess.locate import local  # None for a model of Hugging Face: the worker asks for it
from dynamod.runtime.components import kind_of, starts_workers
from dynamod.worker.settings import WorkerSettings

BLOCK_SIZES = ("block_size", "page_size")
"""What engines call the tokens of a block among their own arguments."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A component of workers. `read`: its engine's arguments as that reads them, None where that is not known.

    `path`: of its model on this machine. `graph`: the graph of the component. `node`: the name of this machine.
    """

    graph: Graph
    node: str
    spec: ServiceSpec
    settings: WorkerSettings
    arguments: Mapping[str, Any]
    read: Any
    path: Path | None

    @property
    def mode(self) -> DisaggregationMode:
        """Its part of requests at first."""
        return self.settings.mode(self.spec.component_type)

    @property
    def served(self) -> str:
        """The name of its model for clients."""
        return self.settings.options(self.path).name or self.settings.model

    def block_size(self) -> tuple[str, int | None]:
        """The key that decides it, and its value; None where only the engine knows it."""
        name, given = self.spec.name, {key.replace("-", "_"): value for key, value in self.arguments.items()}
        own = next((key for key in BLOCK_SIZES if key in given), None)
        key = f"{name}.engine_args.{own}" if own else f"{name}.kv_cache_block_size"
        said = given.get(own) if own else self.settings.kv_cache_block_size
        value = getattr(self.read, "block_size", said)
        return key, value if isinstance(value, int) else None


def lacks_model(graph: Graph) -> bool:
    """Whether a worker's engine needs a model, and nothing names one. Raises UserError."""
    workers = [spec for spec in graph.services.values() if spec.component_kind == WORKER]
    settings = [validate(WorkerSettings, spec.config, spec.name) for spec in workers]
    return any(ENGINES[one.name].model and not one.model for one in settings)


def check(graph: Graph, environ: Mapping[str, str] = os.environ) -> Graph:
    """The graph itself, when nothing is wrong with it. `environ`: of its processes, empty when that is not known here.

    Raises UserError for a missing extra, an interpreter without dynamod, an unknown engine, wrong engine arguments, an
    engine that cannot do its worker's part of requests, adapters that it cannot load, a model that is not there or
    cannot be read, for keys, certificates and variables of the environment that a frontend cannot use, for an unknown
    kind of component, for what a kind of a feature refuses, for a role of a worker or KV tiers whose feature is off,
    and for what a feature's check of all workers refuses.
    """
    workers: list[Checked] = []
    node = node_name(environ or os.environ)
    for spec in graph.services.values():
        env = {**environ, **spec.envs}
        if spec.component_kind == PROCESSOR:
            validate(ProcessorSettings, given(spec.config, processor_environment(env)), spec.name)
        elif spec.component_kind == FRONTEND:
            settings: FrontendSettings = validate(
                FrontendSettings, given(spec.config, frontend_environment(env)), spec.name
            )
            settings.keys()
            if settings.client_keys_file:
                KeyFile(settings.client_keys_file).read()
            settings.tls()
        elif spec.component_kind == WORKER:
            workers.append(_check_worker(graph, node, spec, env or os.environ))
        elif spec.component_kind:
            _check_kind(spec, graph, env)
        if spec.python and spec.component_kind != WORKER:
            missing(spec.python, (), env or os.environ)
    for feature in enabled():
        if feature.checks is not None:
            feature.checks(workers)
    return graph


def check_hub(graph: Graph, environ: Mapping[str, str] = os.environ) -> Graph:
    """The graph itself, when the models of its workers on this node are here, or on the hub as far as it answers soon.

    Models whose workers are started by requests are left out: the graph serves others without one. All models together
    have one deadline. Raises UserError that names the component.
    """
    from dynamod.preprocess.fetch import LOOK, look

    specs = graph.services.values()
    node, deadline = node_name(environ), time.monotonic() + LOOK
    wanted: dict[tuple[str, bool], ServiceSpec] = {}
    for spec in () if any(starts_workers(spec.component_kind) for spec in specs) else specs:
        if spec.component_kind == WORKER and spec.enabled and (not spec.nodes or node in spec.nodes):
            settings: WorkerSettings = validate(WorkerSettings, spec.config, spec.name)
            models = {
                (settings.model, settings.entry.weights): settings.entry.model,
                (settings.model_config, False): True,
            }
            wanted |= {key: spec for key, needed in models.items() if key[0] and needed}
    for (model, weights), spec in wanted.items():
        try:
            look(model, {**environ, **spec.envs}, weights=weights, within=max(0.0, deadline - time.monotonic()))
        except UserError as error:
            raise UserError(f"{spec.name}: {error}", error.hint) from None
    return graph


def _check_kind(spec: ServiceSpec, graph: Graph, environ: Mapping[str, str]) -> None:
    """A component of a kind that a feature adds, or that is unknown."""
    try:
        added = kind_of(spec.component_kind)
    except UserError as error:
        raise UserError(f"{spec.name}: {error}", error.hint) from None
    if added is not None:
        config = given(spec.config, processor_environment(environ)) if added.ingress else spec.config
        settings = validate(added.settings(), config, spec.name)
        if added.check is not None:
            added.check(settings, spec, graph)


def _check_worker(graph: Graph, node: str, spec: ServiceSpec, environ: Mapping[str, str]) -> Checked:
    settings: WorkerSettings = validate(WorkerSettings, spec.config, spec.name)
    if (role := settings.mode(spec.component_type)) != "aggregated":
        try:
            require_role(role)
        except UserError as error:
            raise UserError(f"{spec.name}: {error}", error.hint) from None
    name, model = settings.name, settings.model
    if model and ENGINES[name].model:
        require_format(name, local(model))
    require_installed(name, spec.python, environ)
    if model and ENGINES[name].model:
        require_file(name, local(model))
    arguments = arguments_with(settings.engine, settings.engine_args)
    require_handoff(name, role, arguments, spec.python, environ)
    read = check_arguments(name, arguments, settings.kv_cache_block_size)
    if isinstance(read, TierSettings) and read.tiered:
        block_stores(f"{spec.name}.engine_args.{read.tiered}")
    adapters = adapters_of(settings.lora, settings.served_model_name)
    check_lora(name, adapters, arguments, None)
    check_names(settings.tool_call_parser, settings.reasoning_parser)
    settings.placement.check(name, lambda setting: f"{spec.name}.{setting}", spec.gpus)
    if not ENGINES[name].model:
        return Checked(graph, node, spec, settings, arguments, read, None)
    if not model:
        raise UserError(f"{spec.name}: engine '{name}' needs a model", f"set {spec.name}.model, for example: sample")
    from dynamod.preprocess.card import check_files
    from dynamod.preprocess.override import template_text
    from dynamod.preprocess.reference import model_name

    if settings.chat_template:
        template_text(settings.chat_template)
    try:
        path, config = local(model), local(settings.model_config) if settings.model_config else None
        if path is not None and (config is not None or not settings.model_config):
            longer = getattr(read, "stretch", 1) > 1  # than the model was made for: the worker says how much
            check_files(path, config, None if longer else settings.context_length)
        if adapters and path is not None:
            adapters_of(settings.lora, settings.served_model_name or model_name(model, path))
            check_lora(name, adapters, arguments, path)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}", "the model's files must be readable") from None
    return Checked(graph, node, spec, settings, arguments, read, path)
