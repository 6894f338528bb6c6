"""`dynamo doctor`: what is wrong on this machine, and how to mend it."""

from dynamod.extension.feature import Feature


def _command() -> object:
    from .cli import app

    return app


FEATURE = Feature("doctor", "dynamo doctor: looks for problems of this machine", commands={"doctor": _command})
