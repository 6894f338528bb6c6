"""What is checked before a graph with models on demand starts."""

from dynamod.engine.lora import adapters_of
from dynamod.graph.graph import Graph
from dynamod.graph.typed import validate
from dynamod.message.errors import UserError
from dynamod.worker.settings import WorkerSettings

from .settings import OnDemandSettings, names_of


def check_adapters(settings: OnDemandSettings, graph: Graph) -> None:
    """Raise UserError where an adapter of a worker has the name of a model, or of an adapter of another worker."""
    models = settings.read()[0]
    taken = {name: f"a name of the model '{model}'" for name, model in names_of(models).items()}
    for name, model in models.items():
        if (spec := graph.services.get(model.component)) is None:
            continue  # it is in other pods, which check it
        worker: WorkerSettings = validate(WorkerSettings, spec.config, spec.name)
        for one in adapters_of(worker.lora):
            if one.name in taken:
                raise UserError(f"models.{name}: lora: '{one.name}' is {taken[one.name]}", "each name means one model")
            taken[one.name] = f"an adapter of the model '{name}'"
