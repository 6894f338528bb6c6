"""The cluster in one view: `dynamo nodes`, `--all`, and commands to other nodes by `NODE/Component`."""

from typing import TYPE_CHECKING, Any

from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamod.extension.command import CommandHandler


def _daemon() -> type:
    from .daemon import ClusterPart

    return ClusterPart


def _command() -> object:
    from .cli import app

    return app


def _controls() -> "Sequence[CommandHandler[Any, Any]]":
    from .control import HANDLERS

    return HANDLERS


def _ps() -> "Callable[[str | None, Any], int]":
    from .everywhere import ps

    return ps


def _status() -> "Callable[[str | None, Any], int]":
    from .everywhere import status

    return status


def _checks() -> object:
    from .doctor import checks

    return checks


FEATURE = Feature(
    "cluster",
    "all nodes in one view: dynamo nodes, ps --all, status --all; commands to others by NODE/Component",
    uses=("doctor",),
    daemon=_daemon,
    commands={"nodes": _command},
    controls=_controls,
    everywhere={"ps": _ps, "status": _status},
    extends={"doctor": _checks},
)
