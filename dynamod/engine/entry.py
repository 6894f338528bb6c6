"""What is known of an engine before the engine is imported: a line of the registry."""

from typing import Any, Literal, NamedTuple

from dynamod.message.install import extra_hint, origin, packages, source_folder


class HandoffEntry(NamedTuple):
    """How an engine can be a prefill or decode worker. Protocols: `capabilities.HandsOffBlocks`, `MovesBlocks`.

    `module`: the engine needs this module to move KV blocks; empty: none. `argument`: the argument of the engine that
    names another way of moving them. `only_decode`: an aggregated worker takes no prompts of prefill workers.
    """

    module: str = ""
    argument: str = ""
    only_decode: bool = False


class VectorsEntry(NamedTuple):
    """How an engine is started to make vectors instead of answers: with `value` for `argument`.

    `target`: the class that makes vectors; empty: the class of answers makes them too.
    """

    argument: str
    value: Any
    target: str = ""


class EngineEntry(NamedTuple):
    """Where the class of an engine is (`target`), and what the engine needs and takes.

    Package: `extra` of pyproject.toml brings the module `needs`. `apart`: the extra pins so many versions that it has
    an environment of its own.

    Model: `model`: the engine needs one; `weights`: not only the tokenizer of one; `gguf`: the engine reads GGUF files.
    `file_of`: a function from the path of a model to the file that the engine loads, which raises UserError for a path
    without such a file; empty: the engine takes any path. `types`: what the engine serves.

    Arguments: `check`: a function that takes the engine's arguments and `kv_cache_block_size`, and raises UserError.
    The function imports no large module, so that mistakes are reported before a process is started. `flags`: a function
    that adds the engine's arguments to a parser. `words`: what comes after `--` goes to the engine unchanged. `behind`:
    the argument that may come after a colon; the file of a user's engine must. `devices`: the engine takes the number
    of GPUs and the first GPU; `nodes`: one engine may run on several nodes.

    Capabilities: `handoff`, `vectors`: None for an engine without them. `lora`: a function that takes adapters and the
    path of the model or None, and raises UserError for files that are no adapters; empty: the engine loads no adapters.
    """

    target: str
    extra: str = ""
    needs: str = ""
    check: str = ""
    model: bool = True
    weights: bool = True
    gguf: bool = True
    words: bool = False
    flags: str = ""
    devices: bool = False
    nodes: bool = False
    apart: bool = False
    behind: Literal["", "file", "url"] = ""
    handoff: HandoffEntry | None = None
    vectors: VectorsEntry | None = None
    types: tuple[str, ...] = ("chat", "completions")
    lora: str = ""
    file_of: str = ""

    @property
    def file(self) -> bool:
        """Whether the engine is a file of the user's."""
        return self.behind == "file"

    def hint(self, python: str = "") -> str:
        """How the package of the engine is installed: here, or for another interpreter."""
        wanted = packages(self.extra)
        if python:
            return f"{python} -m pip install {wanted}"
        if self.apart:
            also = "" if source_folder() is not None else f" {origin()}"  # the checkout with the extra is both
            install = f"PYTHON -m pip install {wanted}{also}"
            return f"in an environment of its own: {install}, and name that PYTHON with --python"
        return extra_hint(self.extra)
