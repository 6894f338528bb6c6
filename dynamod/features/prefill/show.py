"""How `dynamo explain` shows where a prompt was computed."""

from typing import Any


def prefill(record: dict[str, Any]) -> str:
    """Where the prompt was computed."""
    state, where = record["state"], "by a prefill worker" if record["remote"] else "where it was answered"
    way = state.get("way")  # the daemon may be of another version
    measured = "" if way is None else f", last blocks {way:.0f} tokens on their way as measured"
    return (
        f"prompt computed {where}: {record['rule']} ({state['tokens'] - state['cached']} tokens not cached there, "
        f"{state['requests']} prompts at {state['workers']} prefill workers, {state['before']} tokens before it"
        f"{measured})"
    )
