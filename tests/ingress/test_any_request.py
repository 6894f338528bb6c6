"""Random requests over HTTP: no 500, and every answer as /openapi.json says."""

import functools
import http.client
import json

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dynamod
from dynamod.extension.installed import enabled
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.openapi import document
from dynamod.ingress.api.table import ENDPOINTS, endpoints

GOOD = {"model": "org/model", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "n": 2, "tokens": [1]}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["model", "stop", "stream", "n", "nvext", "messages", "prompt", "logprobs", "stream_options", "tokens", "tools"]
)
BODIES = (
    st.binary(max_size=40)
    | VALUES.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(NAMES, VALUES, max_size=3).map(lambda change: json.dumps(GOOD | change).encode())
)
OF_ERRORS = frozenset({"message", "type", "param", "code"})
FEW = settings(
    derandomize=True, database=None, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck)
)
OF_DOCUMENT = settings(FEW, max_examples=25)
"""Of each operation, besides the 200 cases with which schemathesis covers its schema: the same each time."""


@FEW
@given(BODIES)
@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
    ],
)
def test_no_body_causes_a_500(threaded, path, body) -> None:
    check_no_500(threaded, path, body)


def check_no_500(threaded, path, body, fields=OF_ERRORS) -> None:
    """`fields`: those of an error of this route; None: the error is a text."""
    host, port, _ = threaded
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    assert answer.status in (200, 400, 404)
    if answer.status != 200:
        error = json.loads(text)["error"]
        assert isinstance(error, str) if fields is None else set(error) == fields


@pytest.fixture
def described(request):
    """The document of the core's routes."""
    return of_document(request, document(ENDPOINTS, FrontendSettings()))


def of_document(request, made):
    """A schema of which schemathesis makes the examples when the test begins, and not in each process that collects."""
    request.node._nodeid = request.node.nodeid  # schemathesis 4.32 reads this name, which pytest 9.2 no longer has
    return schemathesis.openapi.from_dict(made)


def written(value):
    """A value as clients write it: whole numbers without a point."""
    if isinstance(value, dict):
        return {name: written(one) for name, one in value.items()}
    if isinstance(value, list):
        return [written(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def name_a_tool(body):
    """Where a call is asked for by name it is that of one of the tools, which a document cannot say."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if isinstance(choice, dict) and isinstance(tools, list):
        names = [one.get("function", one).get("name") for one in tools if isinstance(one, dict)]
        called = choice.get("function", choice)
        if names and isinstance(called, dict) and "name" in called:
            called["name"] = names[0]


@OF_DOCUMENT
@schemathesis.pytest.from_fixture("described").parametrize()
def test_answers_are_as_the_document_says(threaded, case) -> None:
    # Rendering looks at the model: its ids, context and template, which a document cannot know; else it is as a chat.
    check_answer(threaded, case, accepts=not case.path.endswith("/render"))


@functools.cache
def session() -> requests.Session:
    """For all cases: to make one takes as long as to ask. It looks for no proxies in the environment."""
    made = requests.Session()
    made.trust_env = False
    return made


def check_answer(threaded, case, *, accepts) -> None:
    """`accepts`: what the document allows is not refused."""
    host, port, _ = threaded
    if isinstance(case.body, dict):
        case.body = written(case.body)
        case.body.pop("model", None)  # with random names every answer would be the same 404
        name_a_tool(case.body)
        tokens = case.body.get("tokens")
        if isinstance(tokens, list) and all(type(token) is int for token in tokens):
            case.body["tokens"] = [token % 1024 for token in tokens]  # of the model that is served
    case.call_and_validate(
        base_url=f"http://{host}:{port}",
        session=session(),
        timeout=60,  # an answer of 2,048 choices takes its time on a machine that has other work
        checks=[
            schemathesis.checks.not_a_server_error,
            schemathesis.checks.CHECKS.get_one("status_code_conformance"),
            schemathesis.checks.CHECKS.get_one("content_type_conformance"),
            schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
            *map(schemathesis.checks.CHECKS.get_one, ["positive_data_acceptance"] if accepts else []),
        ],
    )


TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PARTS = [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ChatRequest", {"messages": [{"role": "user", "content": "x"}], "stream": True, "stream_options": {}}),
        ("ChatRequest", {"messages": [{"role": "user", "content": PARTS}], "temperature": 0.5, "extra": 1}),
        ("ChatRequest", {"messages": [{"role": "developer", "content": "x"}], "tools": [TOOL], "tool_choice": TOOL}),
        (
            "ChatRequest",
            {"messages": [{"role": "assistant", "tool_calls": [CALL]}], "logprobs": True, "top_logprobs": 2},
        ),
        ("ChatRequest", {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}], "n": 3, "max_tokens": 1}),
        (
            "ChatRequest",
            {"messages": [{"role": "assistant", "content": [*PARTS, {"type": "refusal", "refusal": "no"}]}]},
        ),
        ("CompletionRequest", {"prompt": "x", "echo": True, "suffix": None, "n": 128}),
        ("CompletionRequest", {"prompt": ["a"] * 64, "logit_bias": {"5": -100}}),
        ("CompletionRequest", {"prompt": [1] * 64, "n": 2, "logprobs": 0}),
        ("CompletionRequest", {"prompt": [[1], [2]], "nvext": {"annotations": ["token_ids"]}}),
    ],
)
def test_usual_bodies_are_in_the_document(threaded, name, body) -> None:
    check_usual(threaded, name, body)


def check_usual(threaded, name, body) -> None:
    made = document(endpoints(), FrontendSettings())
    jsonschema_rs.validate({"$ref": f"#/components/schemas/{name}", "components": made["components"]}, body)
    host, port, _ = threaded
    path = next(one.path for one in endpoints() if one.request is not None and one.request.__name__ == name)
    connection = http.client.HTTPConnection(host, port, timeout=5)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ChatRequest", {"messages": [{"role": "<|im_start|>", "content": "x"}]}),
        ("ChatRequest", {"messages": [{"role": "user"}]}),
        ("ChatRequest", {"messages": [{"role": "user", "content": "x"}], "stream_options": {}}),
        ("ChatRequest", {"messages": [{"role": "user", "content": "x"}], "tool_choice": "bogus"}),
        ("ChatRequest", {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "bogus"}}),
        ("ChatRequest", {"messages": [{"role": "user", "content": "x"}], "prediction": {}}),
        ("ChatRequest", {"messages": [{"role": "tool", "content": [{"type": "text", "text": "x", "refusal": {}}]}]}),
        (
            "ChatRequest",
            {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "n", "text": 1}]}]},
        ),
        ("CompletionRequest", {"prompt": ""}),
        ("CompletionRequest", {"prompt": ["a", 1]}),
    ],
)
def test_what_is_refused_is_not_in_the_document(name, body) -> None:
    check_refused(name, body)


def check_refused(name, body) -> None:
    made = document(endpoints(), FrontendSettings())
    assert not jsonschema_rs.is_valid({"$ref": f"#/components/schemas/{name}", "components": made["components"]}, body)


def test_the_document_covers_every_route(threaded) -> None:
    host, port, _ = threaded
    connection = http.client.HTTPConnection(host, port, timeout=5)
    connection.request("GET", "/openapi.json")
    served = json.loads(connection.getresponse().read())
    connection.close()
    assert served == json.loads(json.dumps(document(endpoints(), FrontendSettings())))
    assert served["openapi"] == "3.1.0"
    assert served["info"]["version"] == dynamod.__version__
    added = {one.path for feature in enabled() for one in feature.endpoints()} - {one.path for one in ENDPOINTS}
    assert set(served["paths"]) - added == {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{id}", "/openapi.json", "/docs", "/health",
        "/live", "/metrics", "/", "/ping", "/version",
    }  # fmt: skip
    temperature = served["components"]["schemas"]["ChatRequest"]["properties"]["temperature"]["anyOf"][0]
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    assert set(served["paths"]["/v1/completions"]["post"]["responses"]) >= {"200", "400", "401", "404", "413", "503"}


def test_keys_and_the_overload_status_show_in_the_document() -> None:
    made = document(endpoints(), FrontendSettings(api_keys="x", overload_status=529))
    assert made["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert made["components"]["securitySchemes"]["header"]["name"] == "x-api-key"
    assert made["paths"]["/v1/models"]["get"]["security"] == [{"key": []}, {"header": []}]
    assert "529" in made["paths"]["/v1/completions"]["post"]["responses"]
