"""`dynamo-run in=http a.gguf b.gguf --max-models 1`: several models, loaded on demand."""

from dataclasses import replace
from pathlib import Path

from dynamod.cli.flags import RunArguments
from dynamod.cli.run import ingress_graph, worker_graph
from dynamod.discovery.keys import Address
from dynamod.graph.graph import Graph
from dynamod.message.errors import UserError
from dynamod.preprocess.locate import local
from dynamod.preprocess.reference import model_name

from .models import ON_DEMAND, PROCESSOR, components

ONE = ("model_name", "model_path", "python", "static_worker")
"""Flags that mean one model that is always there."""


def models_graph(arguments: RunArguments) -> Graph:
    """The graph of several models. Raises UserError for what belongs to one, and for names that are taken."""
    flags, models = arguments.flags, arguments.models
    if arguments.output in ("auto", "dyn") or arguments.output.startswith("dyn://"):
        raise UserError(f"out={arguments.output} takes no models", "name an engine, or leave out= away")
    for name in ONE:
        if getattr(flags, name):
            raise UserError(f"--{name.replace('_', '-')} belongs to one model, not to several", "leave it out")
    if flags.lora and len(models) > 1:
        hint = "in a config file each model has its own: models: {NAME: {worker: {lora: [NAME=PATH]}}}"
        raise UserError("--lora belongs to one model, not to several", hint)
    named = dict[str, str]()
    for model in models:
        name = model_name(model, local(model) or Path(model))
        if name in named:
            raise UserError(f"{named[name]} and {model} are both called {name}", "rename one of them")
        named[name] = model
    places = components(named, taken={"Frontend", PROCESSOR})
    budget = {} if flags.max_models is None else {"models": flags.max_models}
    entries = {name: {"component": places[name]} for name in named}
    ingress = ingress_graph(flags)
    processor = ingress.services[PROCESSOR]
    config = {**processor.config, "models": entries, "budget": budget}
    services = {
        **ingress.services,
        PROCESSOR: replace(processor, component_kind=ON_DEMAND, config=config),
    }
    for name, model in named.items():
        one = worker_graph(replace(arguments, model=model), Address(component=places[name])).services["Worker"]
        config = {**one.config, "served_model_name": name}
        services[places[name]] = replace(one, name=places[name], workers=0, config=config)
    links = (*ingress.edges, *((PROCESSOR, place) for place in places.values()))
    sections = {name: spec.config for name, spec in services.items()}
    return Graph("Frontend", services, "dynamo", links, "run-models", "", sections)
