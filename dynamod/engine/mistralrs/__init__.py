"""mistral.rs, a Rust engine with its own wheel: safetensors folders and GGUF files, on CPU and GPU. A text engine."""

from .engine import MistralRs

__all__ = ["MistralRs"]
