"""/docs: the OpenAPI document as one page of HTML with forms, which needs nothing from elsewhere."""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

Schema = Mapping[str, Any]

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff; }
code, pre { font-family: monospace; } pre { background: #f4f4f4; padding: .6rem; overflow-x: auto; }
h2, h3 { margin-bottom: .2rem; } summary { cursor: pointer; }
table { border-collapse: collapse; width: 100%; margin: .4rem 0 1rem; }
td, th { border-bottom: 1px solid #ddd; text-align: left; padding: .15rem .6rem .15rem 0; vertical-align: top; }
label { display: block; margin: .3rem 0; } textarea { width: 100%; font: 13px monospace; }
[role=status] { max-height: 30rem; }
"""
_SCRIPT = Path(__file__).with_name("docs_try.js").read_text(encoding="utf-8")


def _source(text: str) -> str:
    """What lets a browser use this text alone, as a part of a Content-Security-Policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src {_source(_STYLE)}; script-src {_source(_SCRIPT)}; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}
"""Of the answer: a browser runs the page's own style and script, loads only the icon, and asks this server only."""

_BOUNDS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "at most {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("pattern", "like {}"),
)


def page(document: Mapping[str, Any]) -> str:
    """The page: each route with its summary, the fields of its request and its answer, and its errors."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    parts = [f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"]
    parts.append(
        f"</head><body><h1>{title}</h1><p>The same as <a href=openapi.json>openapi.json</a>. In the commands, "
    )
    parts.append("URL is the address of this server: <code>URL=http://localhost:8000</code>.</p><p id=key></p>")
    schemas: Mapping[str, Schema] = document["components"]["schemas"]
    routes = [
        (f"{method.upper()} {path}", path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts += _contents([(name, operation) for name, _, operation in routes])
    for name, path, operation in routes:
        parts += _operation(name, path, operation)
    parts.append("<h2 id=types>Types</h2>")
    for name, schema in schemas.items():
        parts.append(f"<h3 id={_anchor(name)}>{escape(name)}</h3>")
        parts += _fields(schema)
    return "".join([*parts, f"<script>{_SCRIPT}</script></body></html>"])


def _contents(routes: Sequence[tuple[str, Schema]]) -> Iterator[str]:
    """Links to all routes, by group."""
    groups: dict[str, list[str]] = {}
    for name, operation in routes:
        link = f"<a href=#{_anchor(name, 'route')}>{escape(name)}</a> {escape(operation['summary'])}"
        groups.setdefault(operation["tags"][0], []).append(f"<li>{link}")
    yield "<nav><h2>Contents</h2>"
    for group, links in groups.items():
        yield f"<details open><summary>{escape(group)}</summary><ul>{''.join(links)}</ul></details>"
    yield "<p><a href=#types>Types</a></p></nav>"


def _operation(name: str, path: str, operation: Schema) -> Iterator[str]:
    heading = f"<h2 id={_anchor(name, 'route')}><code>{escape(name)}</code></h2>"
    yield f"{heading}<p>{escape(operation['summary'])}</p>"
    if (command := _command(name, path, operation)) is not None:
        yield f"<pre tabindex=0>{escape(command)}</pre>{_form(name, path, operation)}"
    yield "<table>"
    if "security" in operation:
        yield _row("key", "not needed" if {} in operation["security"] else "needed")
    for one in operation.get("parameters", ()):
        yield _row(f"{one['name']} ({one['in']})", _kind(one["schema"]))
    if "requestBody" in operation:
        yield _row("request", _content(operation["requestBody"]["content"]))
    for status, response in operation["responses"].items():
        body = _content(response["content"])
        yield _row(status, f"{escape(response['description'])}: {body}")
    yield "</table>"


def _command(name: str, path: str, operation: Schema) -> str | None:
    """A curl command; None where the body of the request has no example."""
    key = " -H 'Authorization: Bearer KEY'" if {} not in operation.get("security", [{}]) else ""
    method, bodies = name.partition(" ")[0], operation.get("requestBody", {}).get("content", {})
    option = "" if method == ("POST" if bodies else "GET") else f" -X {method}"
    line = f'curl{option} "$URL{path}"{key}'
    if not bodies:
        return line
    body = bodies.get("application/json", {})
    if "example" not in body:
        return None
    given = json.dumps(body["example"]).replace("'", "\\u0027")
    return f"{line} -H 'Content-Type: application/json' \\\n  -d '{given}'"


def _form(name: str, path: str, operation: Schema) -> str:
    """The place of a form that sends the request: the script makes the form of these attributes."""
    fields = [[one["name"], one["in"]] for one in operation.get("parameters", ())]
    given = {"method": name.partition(" ")[0], "path": path, "fields": json.dumps(fields)}
    if body := operation.get("requestBody", {}).get("content", {}).get("application/json"):
        given["body"] = json.dumps(body["example"], indent=2)
    attributes = [f' data-{attribute}="{escape(value)}"' for attribute, value in given.items()]
    return f"<div class=try{''.join(attributes)}></div>"


def _content(content: Mapping[str, Schema]) -> str:
    """What a body is, by content type."""
    return ", ".join(f"{_kind(body['schema'])} as <code>{escape(kind)}</code>" for kind, body in content.items())


def _fields(schema: Schema) -> Iterator[str]:
    if text := schema.get("description"):
        yield f"<p>{escape(text)}</p>"
    if "properties" not in schema:
        yield f"<p>{_kind(schema)}</p>"
        return
    needed = schema.get("required", ())
    yield "<table><tr><th>field<th>value<th>"
    for name, value in schema["properties"].items():
        said = escape(value.get("description", ""))
        default = f"default <code>{_json(value['default'])}</code>" if value.get("default") is not None else ""
        yield _row(name, _kind(value), " ".join(["needed" if name in needed else default, said]))
    yield "</table>"


def _kind(schema: Schema) -> str:
    """A value in a few words, as HTML."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"<a href=#{_anchor(name)}>{escape(name)}</a>"
    if "const" in schema:
        return f"<code>{_json(schema['const'])}</code>"
    if "enum" in schema:
        return _either(f"<code>{_json(value)}</code>" for value in schema["enum"])
    if "anyOf" in schema:
        return _either(_kind(one) for one in schema["anyOf"])
    kinds = schema.get("type", "anything")
    words = _either(escape(kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))
    if kinds == "array" and isinstance(schema.get("items"), dict):
        words = f"list of {_kind(schema['items'])}"
    bounds = [text.format(escape(str(schema[name]))) for name, text in _BOUNDS if name in schema]
    return f"{words} ({', '.join(bounds)})" if bounds else words


def _either(found: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(found))


def _row(name: str, *cells: str) -> str:
    return f"<tr><td><code>{escape(name)}</code>" + "".join(f"<td>{cell}" for cell in cells)


def _anchor(name: str, kind: str = "type") -> str:
    return escape(f"{kind}-" + "".join(sign for sign in name if sign.isalnum() or sign in "_-"))


def _json(value: Any) -> str:
    return escape(json.dumps(value))
