"""Settings that a feature adds to a section, by a feature that greets in the name of a frontend."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from msgspec import Meta

from dynamod.cli.flags import frontend_parser, joined
from dynamod.extension.feature import Feature
from dynamod.extension.installed import installed
from dynamod.extension.settings import Option, extended, options
from dynamod.graph import absolute
from dynamod.graph.graph import FRONTEND, Graph, ServiceSpec
from dynamod.graph.typed import given, model_schema, validate
from dynamod.http.settings import FrontendSettings, from_environment
from dynamod.ingress.settings import ProcessorSettings
from dynamod.message.errors import UserError
from dynamod.worker.settings import WorkerSettings


class Greeting(msgspec.Struct, kw_only=True):
    greeting: Annotated[str, Meta(description="the word", max_length=5)] = "hello"
    greeting_names: list[str] = msgspec.field(default_factory=list)
    greeting_file: Annotated[str, Option("FILE", "where the words are", "GREETING_FILE")] = ""
    greet: Annotated[bool, Option("BOOL", "whether to greet", "GREET")] = True


GREETING = Feature("greeting", "", settings={"frontend": Greeting})


@pytest.fixture
def greeting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("dynamod.extension.settings.installed", lambda: {GREETING.name: GREETING})
    absolute._paths.cache_clear()
    yield
    absolute._paths.cache_clear()


def read(**config: Any) -> FrontendSettings:
    found: FrontendSettings = validate(FrontendSettings, config, "Frontend")
    return found


@pytest.mark.usefixtures("greeting")
def test_keys_of_a_feature_belong_to_the_section() -> None:
    found = read(**{"port": 7, "greeting-names": ["a"]})
    assert found.port == 7
    own = msgspec.convert(found, Greeting, from_attributes=True)
    assert own == Greeting(greeting_names=["a"])
    assert "Greeting" not in repr(found), "a log must not show what else there is"
    with pytest.raises(UserError, match=r"Frontend.greeting: .*length"):
        read(greeting="longer")
    with pytest.raises(UserError, match="TLS"):
        read(tls_cert_path="x")
    with pytest.raises(UserError, match="unknown key"):
        validate(WorkerSettings, {"greeting": "hello"}, "Worker")


@pytest.mark.usefixtures("greeting")
@pytest.mark.parametrize(("text", "greet"), [("yes", True), ("0", False)])
def test_the_environment_and_what_overrides_it(text: str, greet: bool) -> None:
    environ = {"GREET": text, "GREETING_FILE": "1"}
    found = read(**given({"greeting-file": "2"}, from_environment(environ)))
    assert msgspec.convert(found, Greeting, from_attributes=True) == Greeting(greet=greet, greeting_file="2")
    found = read(**given({}, from_environment(environ)))
    assert msgspec.convert(found, Greeting, from_attributes=True) == Greeting(greet=greet, greeting_file="1")


@pytest.mark.usefixtures("greeting")
@pytest.mark.parametrize(("words", "greet"), [(["--greet"], True), (["--greet", "false"], False), ([], None)])
def test_a_flag_alone_means_true(words: list[str], greet: bool | None) -> None:
    flags = frontend_parser().parse_args(joined([*words, "--http-port", "7"]))
    assert (flags.greet, flags.http_port) == (greet, 7)


@pytest.mark.usefixtures("greeting")
def test_they_stand_in_the_schema() -> None:
    body, _ = model_schema(FrontendSettings, "#/{name}")
    assert body["properties"]["greeting"] == {
        "default": "hello",
        "description": "the word",
        "maxLength": 5,
        "type": "string",
    }
    assert body["properties"]["port"]["default"] == 8000
    assert body["description"].startswith("The OpenAI frontend.")


@pytest.mark.usefixtures("greeting")
def test_a_feature_that_is_off_leaves_them_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "none")
    assert read(greeting="hi") == read(greeting="hi")
    assert "--greeting-file" in frontend_parser().flags()


def test_without_the_folder_they_are_unknown() -> None:
    with pytest.raises(UserError, match=r"Frontend.greeting: unknown key"):
        read(greeting="hi")
    assert "--greeting-file" not in frontend_parser().flags()


@pytest.mark.usefixtures("greeting")
def test_an_option_is_a_flag_and_its_file_is_relative_to_the_command(tmp_path: Path) -> None:
    text = frontend_parser().format_help()
    assert "--greeting-file FILE" in text
    assert "where the words are" in text
    (tmp_path / "words").touch()
    config = {"greeting": "words", "greeting_file": "words"}
    spec = ServiceSpec("F", "", "dynamo", "F", component_kind=FRONTEND, config=config)
    made = absolute.absolute(Graph("F", {"F": spec}, "dynamo", (), "t"), tmp_path)
    assert made.services["F"].config == {"greeting": "words", "greeting_file": str(tmp_path / "words")}


def test_names_are_those_of_one_feature() -> None:
    """And the section is one of the core's, whose own names differ. Each has a default."""
    core: dict[str, Any] = {kind.SECTION: kind for kind in (FrontendSettings, ProcessorSettings, WorkerSettings)}
    for section, kind in core.items():
        names = list(kind.__struct_fields__)
        for feature in installed().values():
            for name, struct in feature.settings.items():
                assert name in core
                names += struct.__struct_fields__ if name == section else ()
                struct()
        assert len(names) == len(set(names))
        assert set(extended(kind).__struct_fields__) == set(names)


def test_a_struct_without_a_section_stays_as_it_is() -> None:
    class Other(msgspec.Struct):
        SECTION: ClassVar = ""

    assert extended(Other) is Other
    assert extended(dict) is dict
    assert set(options("frontend")) <= set(options())
