"""`dynamo infra`: the servers that several nodes need, NATS and etcd, for a developer."""

from dynamod.extension.feature import Feature


def _commands() -> object:
    from .cli import app

    return app


FEATURE = Feature("infra", "dynamo infra: a NATS and an etcd server for trying nodes", commands={"infra": _commands})
