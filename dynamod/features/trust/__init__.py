"""Nodes know each other: what crosses nodes is signed with a secret of the cluster."""

from typing import TYPE_CHECKING, Any

from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamod.extension.command import CommandHandler


def _daemon() -> type:
    from .daemon import TrustPart

    return TrustPart


def _signer() -> "Callable[[Any, Any], Any]":
    from .signer import signer_of

    return signer_of


def _command() -> object:
    from .cli import app

    return app


def _controls() -> "Sequence[CommandHandler[Any, Any]]":
    from .control import HANDLERS

    return HANDLERS


def _facts() -> object:
    from .agreement import FACTS

    return FACTS


def _checks() -> object:
    from .doctor import checks

    return checks


FEATURE = Feature(
    "trust",
    "nodes that know each other by a secret: what crosses nodes is signed; dynamo trust",
    uses=("cluster", "doctor"),
    daemon=_daemon,
    signer=_signer,
    commands={"trust": _command},
    controls=_controls,
    extends={"cluster": _facts, "doctor": _checks},
)
