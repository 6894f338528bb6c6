"""Pages about the HTTP API and its errors."""

import ast
from pathlib import Path
from typing import Any

import dynamod
from dynamod.extension.installed import enabled
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.openapi import document
from dynamod.ingress.api.table import endpoints
from dynamod.message.errors import REQUEST_ERRORS

from .text import code, page, table


def http() -> str:
    """The page of all routes."""
    intro = (
        "Every server describes itself at `/openapi.json`, and as a page at `/docs`. The table is made from the same "
        "description. The errors have the form of the API that the route belongs to: [error codes](errors.md)."
    )
    paths: dict[str, dict[str, Any]] = document(endpoints(), FrontendSettings())["paths"]
    rows = [
        (code(method.upper()), code(path), operation["summary"], ", ".join(sorted(operation["responses"])))
        for path, methods in sorted(paths.items())
        for method, operation in methods.items()
    ]
    return page("HTTP API", intro, table(("method", "path", "what it does", "statuses"), rows))


def errors() -> str:
    """The page of error classes and codes."""
    intro = (
        "An error has a `type`, a `code`, a `message`, and a `param` that names the field. A client should decide by "
        "the status and the code, and show the message."
    )
    rows = [
        (str(error.status), code(error.kind), code(error.code_default or ""), (error.__doc__ or "").partition("\n")[0])
        for error in sorted(REQUEST_ERRORS.values(), key=lambda error: error.status)
    ]
    kinds = "## Statuses\n\n" + table(("status", "`type`", "default `code`", "meaning"), rows)
    found = sorted(_codes().items())
    codes = "## Codes\n\n" + table(("`code`", "set by"), [(code(name), ", ".join(where)) for name, where in found])
    return page("Error codes", intro, kinds, codes)


def _codes() -> dict[str, list[str]]:
    """Each `code="..."` of the package, with the packages or features that set it."""
    found: dict[str, set[str]] = {}
    root = Path(dynamod.__path__[0])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        where = f"feature {parts[1]}" if parts[0] == "features" else parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.keyword(arg="code", value=ast.Constant(value=str(name))) if name:
                    found.setdefault(name, set()).add(where)
    return {name: sorted(where) for name, where in found.items()}


def features() -> str:
    """The page of optional capabilities."""
    intro = (
        "A feature is an optional capability. All features are on by default. `DYNAMOD_FEATURES=-lora,-planner` "
        "switches features off, `DYNAMOD_FEATURES=none` all of them. `dynamo features` shows the state."
    )
    rows = [(code(one.name), one.summary, ", ".join(map(code, one.requires))) for one in enabled()]
    return page("Features", intro, table(("feature", "what it adds", "requires"), rows))
