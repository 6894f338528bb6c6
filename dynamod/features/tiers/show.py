"""How `dynamo explain` shows whether blocks of a prompt were read from another worker."""

from typing import Any


def peer(record: dict[str, Any]) -> str:
    """Whether blocks of the prompt were read from another worker."""
    read = "read from" if record["fetch"] else "not read from"
    return (
        f"blocks {read} {record['process'] or format(record['instance'], 'x')}: {record['rule']} "
        f"(it has {record['blocks']}, the answering worker {record['own']})"
    )
