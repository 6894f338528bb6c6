"""Which file llama.cpp loads."""

from pathlib import Path

from dynamod.message.errors import UserError
from dynamod.preprocess.gguf_file import shards
from dynamod.preprocess.locate import typed


def gguf_file(path: Path) -> Path:
    """The file, or the only model in a folder; of a model in several files the first. Raises UserError."""
    if path.is_dir():
        path = _only_model(path)
    files = shards(path)
    missing = [file.name for file in files if not file.is_file()]
    if len(files) > 1 and missing:
        raise UserError(f"model {path} lacks {len(missing)} of its {len(files)} files", f"put {missing[0]} next to it")
    return files[0]


def _only_model(folder: Path) -> Path:
    models = _models(folder)
    if not models:
        only = " (only safetensors)" if any(folder.glob("*.safetensors")) else ""
        above = ", ".join(f"`{typed(file)}`" for file in _models(folder.parent)[:3])
        hint = f"did you mean {above}? " if above else ""
        hint += "give a .gguf file of the model (llama.cpp's convert_hf_to_gguf.py makes one), or use out=mistralrs"
        raise UserError(f"llamacpp needs a GGUF file, and the folder {folder} has none{only}", hint)
    if len(models) > 1:
        named = ", ".join(file.name for file in models)
        raise UserError(f"the folder {folder} has {len(models)} GGUF files", f"name one: {named}")
    return models[0]


def _models(folder: Path) -> list[Path]:
    """The GGUF files in a folder, of models in several files the first."""
    models = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".gguf")
    return [file for file in models if not file.name.lower().startswith("mmproj") and shards(file)[0] == file]
