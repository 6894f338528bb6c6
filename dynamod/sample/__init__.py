"""The sample model: a toy Llama in both file formats that engines load (see README.md in this folder)."""

from pathlib import Path

_FILES = {"sample": "hf", "sample.gguf": "sample.gguf"}


def path(name: str) -> Path:
    """Where the sample model lies: "sample" is the Hugging Face folder, "sample.gguf" the GGUF file."""
    return Path(__file__).resolve().parent / _FILES[name]
