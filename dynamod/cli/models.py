"""`dynamo pull` and `dynamo models`: models on this machine, without serving one."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from . import complete
from .options import Form, Output
from .tables import table

if TYPE_CHECKING:
    from dynamod.preprocess.cache import Model

_MODEL = "org/name, org/name:Q4_K_M for one quantization of GGUF files, or org/name/file.gguf"


def pull(
    model: Annotated[str, typer.Argument(help=_MODEL, autocompletion=complete.models)],
    weights: Annotated[bool, typer.Option("--weights/--no-weights", help="or only tokenizer and template")] = True,
    output: Output = Form.TEXT,
) -> None:
    """Download a model into the local cache, and print where it is."""
    from dynamod.observe.progress import ProgressLine
    from dynamod.preprocess.fetch import fetch

    line = ProgressLine()
    try:
        path = asyncio.run(fetch(model, line.show, weights=weights))
    except KeyboardInterrupt:
        line.end("interrupted")
        raise
    finally:
        line.end()
    print(json.dumps({"name": model, "path": str(path)}, indent=2) if output is Form.JSON else path)


def models(output: Output = Form.TEXT) -> None:
    """List the models that are here: the sample, those of installed packages, and the cache of Hugging Face."""
    from dynamod.preprocess.selection import bytes_text

    found = known()
    if output is Form.JSON:
        print(json.dumps([model._asdict() for model in found], indent=2))
        return
    rows = [(model.name, bytes_text(model.size), model.kind, model.path) for model in found]
    print(table(("NAME", "SIZE", "KIND", "PATH"), rows))


def known() -> "list[Model]":
    """The shipped models, those of installed packages, then those of the cache."""
    from dynamod.preprocess import cache
    from dynamod.preprocess.locate import locate
    from dynamod.preprocess.packaged import PACKAGED, converted
    from dynamod.preprocess.reference import SHIPPED

    paths = {name: locate(name) for name in SHIPPED}
    for name, model in PACKAGED.items():
        if (path := model.path) is not None:
            ready = converted(name) if path.is_dir() else None
            paths[name] = ready if ready is not None and ready.is_file() else path
    shipped = []
    for name, path in paths.items():
        size = sum(cache.files(path).values()) if path.is_dir() else path.stat().st_size
        shipped.append(cache.Model(name, size, "safetensors" if path.is_dir() else "GGUF", str(path)))
    return [*shipped, *cache.models()]
