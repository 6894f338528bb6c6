"""From what a user names to the GGUF file that llama.cpp loads."""

import re
from pathlib import Path

from dynamod.message.errors import UserError

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


def gguf_file(path: Path) -> Path:
    """The file, or the only model in a folder; of a model in several files the first. Raises UserError."""
    if not path.is_dir():
        return _first(path)
    models = sorted(file for file in path.iterdir() if file.suffix.lower() == ".gguf")
    models = [file for file in models if not file.name.lower().startswith("mmproj")]
    models = [file for file in models if (shard := _SHARD.search(file.name)) is None or int(shard[1]) == 1]
    if not models:
        only = " (only safetensors)" if any(path.glob("*.safetensors")) else ""
        raise UserError(
            f"llamacpp needs a GGUF file, and the folder {path} has none{only}",
            "give a .gguf file of the model (llama.cpp's convert_hf_to_gguf.py makes one), or use out=mistralrs",
        )
    if len(models) > 1:
        raise UserError(
            f"the folder {path} has {len(models)} GGUF files", f"name one: {', '.join(file.name for file in models)}"
        )
    return _first(models[0])


def _first(path: Path) -> Path:
    shard = _SHARD.search(path.name)
    if shard is None:
        return path
    names = [f"{path.name[: shard.start()]}-{number:05}-of-{shard[2]}.gguf" for number in range(1, int(shard[2]) + 1)]
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise UserError(f"model {path} lacks {len(missing)} of its {len(names)} files", f"put {missing[0]} beside it")
    return path.parent / names[0]
