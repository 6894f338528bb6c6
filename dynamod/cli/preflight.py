"""What can be known to fail before a single process starts: said at once, as one line."""

from dynamod.engine.names import ENGINES, arguments_with, check_arguments, require_installed
from dynamod.graph.graph import FRONTEND, PROCESSOR, WORKER, Graph, ServiceSpec
from dynamod.graph.typed import validate
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.settings import ProcessorSettings
from dynamod.message.errors import UserError
from dynamod.worker.settings import WorkerSettings


def check(graph: Graph) -> Graph:
    """The graph itself, when nothing is wrong with it.

    Raises UserError for a missing extra, an unknown engine, wrong engine arguments, a model that is not there.
    """
    for spec in graph.services.values():
        if spec.component_kind == PROCESSOR:
            validate(ProcessorSettings, spec.config, spec.name)
        elif spec.component_kind == FRONTEND:
            validate(FrontendSettings, spec.config, spec.name).keys()
        elif spec.component_kind == WORKER:
            _check_worker(spec)
    return graph


def _check_worker(spec: ServiceSpec) -> None:
    settings: WorkerSettings = validate(WorkerSettings, spec.config, spec.name)
    name, model = settings.name, settings.model
    require_installed(name)
    check_arguments(name, arguments_with(settings.engine, settings.engine_args), settings.kv_cache_block_size)
    if not ENGINES[name].model:
        return
    if not model:
        raise UserError(f"{spec.name}: engine '{name}' needs a model", f"set {spec.name}.model, for example: sample")
    from dynamod.preprocess.locate import local

    local(model)  # the worker asks Hugging Face
