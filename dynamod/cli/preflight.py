"""What can be known to fail before a single process starts: said at once, as one line."""

from pathlib import Path

from dynamod.engine.names import DEFAULT, ENGINES, arguments_with, canonical, check_arguments, require_installed
from dynamod.graph.graph import PROCESSOR, WORKER, Graph
from dynamod.message.errors import UserError


def check(graph: Graph) -> None:
    """Raise UserError for a missing extra, an unknown engine, wrong engine arguments, a model that is not there."""
    for spec in graph.services.values():
        if spec.component_kind == PROCESSOR:
            from dynamod.router.settings import settings_of

            settings_of({key.replace("-", "_"): value for key, value in spec.config.items()})
        if spec.component_kind != WORKER:
            continue
        config = {key.replace("-", "_"): value for key, value in spec.config.items()}
        typed = str(config.get("engine") or DEFAULT)
        name = canonical(typed)
        require_installed(name)
        arguments = arguments_with(typed, config.get("engine_args") or {})
        check_arguments(name, arguments, config.get("kv_cache_block_size"))
        model = str(config.get("model") or config.get("model_path") or "")
        if not ENGINES[name].model:
            continue
        if not model:
            raise UserError(
                f"{spec.name}: engine '{name}' needs a model", f"set {spec.name}.model, for example: sample"
            )
        from dynamod.preprocess.locate import locate, may_be_repository

        if Path(model).expanduser().exists() or not may_be_repository(model):  # the worker asks Hugging Face
            locate(model, download=False)
