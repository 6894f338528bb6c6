"""What else of the original's `dynamo.llm` and `dynamo.runtime` is offered here, and how what is missing is said."""

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from dynamod.kvcache.hashes import local_hashes
from dynamod.message import tokens

from .publishers import whole_number


def compute_block_hash_for_seq_py(ids: Iterable[int], kv_block_size: int) -> list[int]:
    """Local hashes (64 bits, unsigned) of the full blocks of token ids. Raises UserError for a block size below 1."""
    return local_hashes(tokens.pack(ids), whole_number("kv_block_size", kv_block_size))


def configure_dynamo_logging() -> None:
    """Show the process's log lines as the commands do (DYN_LOG and the other variables). Raises UserError."""
    from dynamod.observe.logs import configure

    from .connection import script_name

    configure(component=script_name())


def missing(module: str, known: Iterable[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module of names: what is not there is an ImportError that says what is."""
    names = ", ".join(sorted(known))

    def lookup(name: str) -> Any:
        if name.startswith("__") or importlib.util.find_spec(f"{module}.{name}") is not None:  # it can be imported
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise ImportError(f"{module} has no {name} here; it has: {names}", name=name)

    return lookup
