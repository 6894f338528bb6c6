"""From what a user names to the GGUF file that llama.cpp loads."""

from pathlib import Path

from dynamod.message.errors import UserError
from dynamod.preprocess.gguf_file import shards


def gguf_file(path: Path) -> Path:
    """The file, or the only model in a folder; of a model in several files the first. Raises UserError."""
    if not path.is_dir():
        return _first(path)
    models = sorted(file for file in path.iterdir() if file.suffix.lower() == ".gguf")
    models = [file for file in models if not file.name.lower().startswith("mmproj") and shards(file)[0] == file]
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
    files = shards(path)
    missing = [file.name for file in files if not file.is_file()]
    if len(files) > 1 and missing:
        raise UserError(f"model {path} lacks {len(missing)} of its {len(files)} files", f"put {missing[0]} beside it")
    return files[0]
