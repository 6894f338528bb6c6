"""/docs: a page that shows what /openapi.json says, and needs nothing from elsewhere."""

import html
import http.client
import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.chat import ChatCompletions
from dynamod.ingress.api.docs import HEADERS, page
from dynamod.ingress.api.openapi import document
from dynamod.ingress.api.table import ENDPOINTS, endpoints


class Reader(HTMLParser):
    """Texts, ids, links and the names of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            {"id": self.ids, "href": self.links}.get(name, set()).add(value or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


def test_all_routes_fields_and_errors_are_there(threaded) -> None:
    host, port, _ = threaded
    connection = http.client.HTTPConnection(host, port, timeout=5)
    connection.request("GET", "/docs")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    found = read(text)
    described = document(ENDPOINTS, FrontendSettings())
    texts = {*found.texts}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert {f"{method.upper()} {path}", operation["summary"], *operation["responses"]} <= texts
    for name, schema in described["components"]["schemas"].items():
        assert {name, *schema.get("properties", {})} <= texts
    assert "No worker can take the request now; see Retry-After: " in texts
    assert "integer (at least 1, at most 2147483647) or null" in texts


def test_nothing_is_loaded_and_all_links_lead_somewhere() -> None:
    found = read(page(document(ENDPOINTS, FrontendSettings())))
    assert found.links == {"openapi.json", *(link for link in found.links if link.startswith("#"))}
    assert {link[1:] for link in found.links if link.startswith("#")} <= found.ids
    assert not {"img", "link", "iframe"} & found.elements
    assert not {"src", "style", "onclick"} & found.attributes


def test_only_the_script_and_the_style_of_the_page_are_run_and_they_ask_this_server_alone() -> None:
    text = page(document(ENDPOINTS, FrontendSettings()))
    rules = dict(rule.strip().split(" ", 1) for rule in HEADERS["Content-Security-Policy"].split(";"))
    for name, rule in (("script", "script-src"), ("style", "style-src")):
        (inside,) = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
        assert text.count(f"<{name}") == 1
        assert rules.pop(rule) == f"'sha256-{b64encode(sha256(inside.encode()).digest()).decode()}'"
        assert not re.search(r"innerHTML|insertAdjacent|document.write|eval\(|https?:", inside)
    assert rules.pop("connect-src") == "'self'"
    assert rules.pop("img-src") == "'self'", "the icon"
    assert {*rules.values()} == {"'none'"}


def test_each_route_with_a_json_body_has_an_example_and_a_form() -> None:
    made = document(endpoints(), FrontendSettings())
    text = page(made)
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            bodies = operation.get("requestBody", {"content": {"application/json": {"example": None}}})["content"]
            if "application/json" in bodies:
                assert "example" in bodies["application/json"], (method, path)
                assert f'data-method="{method.upper()}" data-path="{path}"' in text


def test_what_is_said_is_text_and_no_markup() -> None:
    made = document(ENDPOINTS, FrontendSettings(api_keys="x"))
    made["paths"]["/v1/models"]["get"]["summary"] = "<script>alert(1)</script>"
    made["components"]["schemas"]["<b>"] = {"properties": {"<i>": {"enum": ["<u>"], "description": "<s>"}}}
    text = page(made)
    assert not {"b", "i", "u", "s"} & read(text).elements
    assert text.count("<script") == 1
    assert {"<script>alert(1)</script>", "<b>", "<i>", '"<u>"'} <= {*read(text).texts}
    assert re.search(r"<td><code>key</code><td>needed", text)


def test_chats_come_first_with_a_command_and_all_routes_are_in_the_contents() -> None:
    made = document(ENDPOINTS, FrontendSettings(api_keys="x"))
    assert next(iter(made["paths"])) == "/v1/chat/completions"
    text = page(made)
    contents, _, rest = text.partition("</nav>")
    for path, methods in made["paths"].items():
        for method in methods:
            assert f">{method.upper()} {path}</a>" in contents
    command = html.unescape(rest.partition("<pre tabindex=0>")[2].partition("</pre>")[0])
    assert command.startswith("curl \"$URL/v1/chat/completions\" -H 'Authorization: Bearer KEY'")
    body = json.loads(command.partition(" -d '")[2].removesuffix("'"))
    assert ChatCompletions().read(json.dumps(body).encode())[0].max_tokens == 50


def test_the_document_has_servers_groups_and_keys() -> None:
    made = document(ENDPOINTS, FrontendSettings())
    assert made["servers"] == [{"url": "/"}]
    assert [tag["name"] for tag in made["tags"]][:2] == ["chat", "completions"]
    chat = made["paths"]["/v1/chat/completions"]["post"]
    assert chat["security"] == [{}, {"key": []}, {"header": []}], "a key may be sent"
    assert chat["requestBody"]["content"]["application/json"]["example"]["messages"]
    assert {*made["components"]["securitySchemes"]} == {"key", "header"}
    for methods in made["paths"].values():
        for operation in methods.values():
            assert operation["tags"]
