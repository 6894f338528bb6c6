"""`dynamo top`: a live view of the component processes of a node."""

from dynamod.extension.feature import Feature


def _command() -> object:
    from .cli import app

    return app


FEATURE = Feature("top", "dynamo top: CPU, memory, requests and KV blocks per process", commands={"top": _command})
