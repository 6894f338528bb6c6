import subprocess
import sys

import msgspec
import pytest
from pydantic import BaseModel

from dynamod.graph.depends import NotLinked
from dynamod.graph.service import (
    AbstractService,
    Dependency,
    DynamoTransport,
    Service,
    abstract_endpoint,
    api,
    async_on_start,
    bind_dependencies,
    depends,
    endpoint,
    hooks,
    liveness,
    on_shutdown,
    service,
)
from dynamod.message.errors import BadRequest, UserError


class Inner(BaseModel):
    n: int


class Ask(BaseModel):
    text: str
    inner: Inner | None = None


class Raw(msgspec.Struct):
    text: str


@service
class Other:
    @endpoint()
    async def generate(self, request: Ask):
        for word in request.text.split():
            yield word


@service(
    dynamo={"name": "wire", "namespace": "space", "custom_lease": {"ttl": 3}},
    resources={"gpu": "1"},
    workers=2,
    envs=[{"name": "A", "value": "b"}],
    traffic={"timeout": 1},
)
class Main:
    """What it does."""

    other = depends(Other)

    def __init__(self) -> None:
        self.started: list[str] = []

    @async_on_start
    async def begin(self):
        self.started.append("begin")

    @on_shutdown
    def end(self): ...

    @liveness
    def alive(self):
        return True

    @endpoint(name="chat/completions", transports=[DynamoTransport.DEFAULT, DynamoTransport.HTTP])
    async def chat(self, request: Raw):
        return request.text

    @endpoint()
    async def ping(self):
        yield "pong"

    @api
    async def models(self, request):
        yield request


def test_options():
    assert (Main.name, Main.component, Main.namespace) == ("Main", "wire", "space")
    assert Main.dynamo_address() == ("space", "wire")
    assert Main.resources == {"gpu": 1}
    assert (Main.workers, Main.envs, Main.placement) == (2, {"A": "b"}, "own")
    assert Main.options == {"traffic": {"timeout": 1}}
    assert Main.dynamo.custom_lease is not None
    assert Main.dynamo.custom_lease.ttl == 3
    assert (Other.namespace, Other.placement, Other.workers) == ("dynamo", "ingress", 1)
    assert Main.__doc__ == "What it does."


def test_decorated_name_works_as_class():
    instance = Main()
    assert isinstance(instance, Main.inner)
    assert isinstance(instance, Main)  # type: ignore[arg-type]
    assert Main.chat is Main.inner.chat

    class Sub(Main):  # type: ignore[misc]
        pass

    assert issubclass(Sub, Main.inner)
    with pytest.raises(AttributeError):
        _ = Main.nothing


def test_endpoints():
    chat = Main.endpoints["chat/completions"]
    assert (chat.function, chat.http_method, chat.streams) == ("chat", "POST", False)
    assert Main.endpoints["ping"].streams
    assert Main.endpoints["ping"].parameter is None
    assert Main.endpoints["models"].transports == (DynamoTransport.HTTP,)
    assert list(Main.endpoints) == ["chat/completions", "ping", "models"]


async def test_stream_calls_both_kinds():
    async def answers(owner, name, payload=None):
        return [item async for item in owner.endpoints[name].stream(owner(), payload)]

    assert await answers(Main, "chat/completions", {"text": "hi"}) == ["hi"]
    assert await answers(Main, "ping") == ["pong"]
    assert await answers(Other, "generate", '{"text": "a b"}') == ["a", "b"]
    assert await answers(Other, "generate", Ask(text="a b")) == ["a", "b"]
    assert await answers(Main, "models", {"x": 1}) == [{"x": 1}]


async def test_closing_the_stream_closes_the_method():
    closed = []

    @service
    class S:
        @endpoint()
        async def run(self, request):
            try:
                yield 1
                yield 2
            finally:
                closed.append(True)

    stream = S.endpoints["run"].stream(S(), {})
    assert await anext(stream) == 1
    await stream.aclose()
    assert closed == [True]


@pytest.mark.parametrize(
    ("owner", "name", "payload", "param"),
    [
        (Other, "generate", {}, "text"),
        (Other, "generate", {"text": "a", "inner": {"n": "x"}}, "inner.n"),
        (Other, "generate", "not json", None),
        (Other, "generate", 5, None),
        (Main, "chat/completions", {"text": 5}, "text"),
        (Main, "chat/completions", {}, "text"),
        (Main, "chat/completions", 5, None),
    ],
)
def test_bad_request_names_the_field(owner, name, payload, param):
    with pytest.raises(BadRequest) as caught:
        owner.endpoints[name].parse(payload)
    assert caught.value.param == param
    if param:
        assert param in str(caught.value)


def test_endpoint_rules():
    with pytest.raises(ValueError, match="HTTP transport"):
        endpoint(http_method="GET")
    with pytest.raises(UserError, match="parentheses"):
        endpoint(lambda self: None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must be async"):

        @endpoint()
        def plain(self): ...

    with pytest.raises(UserError, match="may not hold"):

        @endpoint("a.b")
        async def dotted(self): ...

    with pytest.raises(UserError, match="two endpoints named 'x'"):

        @service
        class Twice:
            @endpoint("x")
            async def a(self): ...

            @endpoint("x")
            async def b(self): ...


def test_hooks():
    found = hooks(Main)
    assert (found.on_start, found.on_shutdown, found.liveness, found.readiness) == (
        ("begin",),
        ("end",),
        ("alive",),
        (),
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"resources": {"cpu": "ten"}}, "service X: resources.cpu: 'ten' is not digits"),
        ({"resources": {"memory": "20Gb"}}, "resources.memory"),
        ({"resources": {"gpu": "1m"}}, "resources.gpu"),
        ({"resources": {"gpus": 1}}, "did you mean 'gpu'? known keys: cpu, gpu, memory"),
        ({"dynamo": {"namspace": "x"}}, "did you mean 'namespace'"),
        ({"dynamo": {"namespace": "a.b"}}, "may hold only letters"),
        ({"dynamo": {"enabled": "yes"}}, "enabled: expected a boolean, got a string"),
        ({"dynamo": {"custom_lease": {"tll": 1}}}, "custom_lease: unknown key 'tll'"),
        ({"workers": "2"}, "workers: expected an integer, got a string"),
        ({"workers": -1}, "0 or more"),
        ({"placement": "moon"}, "known placements: ingress, own"),
        ({"resource": {"gpu": 1}}, "did you mean 'resources'?"),
        ({"envs": [{"name": "A"}]}, "envs: each entry needs exactly 'name' and 'value'"),
        ({"config": int}, "is no pydantic model"),
    ],
)
def test_wrong_options_say_what_is_known(options, says):
    with pytest.raises(UserError) as caught:

        @service(**options)
        class X: ...

    assert says in caught.value.line()


def test_option_forms():
    @service(resources={"cpu": "100m", "memory": "2G"}, dynamo={"component_type": "planner"}, envs={"A": True})
    class Planner: ...

    assert Planner.resources == {"cpu": "100m", "memory": "2G"}
    assert (Planner.placement, Planner.envs) == ("own", {"A": "true"})


def test_depends():
    record = Main.other
    assert isinstance(record, Dependency)
    assert record.on is Other
    instance = Main()
    with pytest.raises(NotLinked, match=r"Main\.other: Other is not linked") as caught:
        _ = instance.other
    assert "Main.link(Other)" in caught.value.line()
    assert not hasattr(instance, "other")
    bind_dependencies(instance, {"other": "client"})
    assert instance.other == "client"
    with pytest.raises(UserError, match="has no dependency 'othr'"):
        bind_dependencies(instance, {"othr": 1})
    with pytest.raises(UserError, match="is no service"):
        depends(int)


def test_create_binds_before_init():
    seen = []

    @service
    class Early:
        other = depends(Other)

        class Config(BaseModel):
            port: int = 1

        def __init__(self):
            seen.append((self.other, self.config.port))  # type: ignore[attr-defined]

    Early.create({"other": "client"}, {"port": 5})
    assert seen == [("client", 5)]
    with pytest.raises(UserError, match=r"Early\.prt: unknown key"):
        Early.create({}, {"prt": 1})


def test_abstract():
    class Face(AbstractService):
        @abstract_endpoint
        async def generate(self, request): ...

    @service
    class Unfinished(Face): ...

    @service
    class Finished(Face):
        @endpoint()
        async def generate(self, request):
            yield request

    assert Unfinished.abstract
    assert not Finished.abstract
    assert isinstance(depends(Face), Dependency)
    with pytest.raises(UserError, match="generate must be an endpoint"):

        @service
        class Forgotten(Face):
            async def generate(self, request):
                yield request


def test_link_returns_the_other_and_wants_a_service():
    assert Main.link(Other) is Other
    with pytest.raises(UserError, match="expected a service"):
        Main.link(int)  # type: ignore[type-var]
    assert isinstance(Main, Service)


def test_import_is_light():
    code = (
        "import sys, dynamod.graph.service as s; print([m for m in ('yaml','pydantic','msgspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
