"""Settings: what the environment says, and mistakes that must be told."""

import pytest

from dynamod.graph.typed import given, validate
from dynamod.http.settings import FrontendSettings, from_environment, metric_name
from dynamod.message.errors import UserError


def test_the_environment_and_what_overrides_it(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nc\n\n d \n")
    environ = {
        "DYN_HTTP_BODY_LIMIT_MB": "2",
        "DYN_HTTP_OVERLOAD_STATUS_CODE": "529",
        "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS": "1500",
        "DYN_HTTP_BODIES_LIMIT_MB": "64",
        "DYN_HTTP_ALLOWED_ORIGINS": "https://example.org, https://other",
        "DYN_HTTP_GUARD_STATUS": "1",
        "DYN_ENABLE_FORCE_INCLUDE_USAGE": "true",
        "DYN_METRICS_PREFIX": "9-my.service",
        "DYN_API_KEYS": "a, b,",
        "DYN_API_KEY_FILE": str(file),
    }
    config = {"port": 1234, "host": None}
    settings: FrontendSettings = validate(FrontendSettings, given(config, from_environment(environ)), "Frontend")
    assert (settings.body_limit, settings.overload_status, settings.keep_alive) == (2 * 1024 * 1024, 529, 1.5)
    assert settings.force_include_usage
    assert (settings.bodies_limit, settings.guard_status) == (64 * 1024 * 1024, True)
    assert settings.origins == {"https://example.org", "https://other"}
    assert settings.metrics_prefix == "_9_my_service"
    assert settings.keys() == ("a", "b", "c", "d")
    assert (settings.port, settings.host) == (1234, "localhost")
    assert "a, b" not in repr(settings)
    assert from_environment({}) == {"metrics_prefix": FrontendSettings().metrics_prefix}


def test_the_environment_says_how_calls_reach_clients() -> None:
    environ = {
        "DYN_STREAM_TOOL_ARGUMENTS": "chat, messages",
        "DYN_MALFORMED_TOOL_CALLS": "content",
        "DYN_UNENFORCED_TOOL_CHOICE": "refuse",
    }
    settings: FrontendSettings = validate(FrontendSettings, given({}, from_environment(environ)), "Frontend")
    assert settings.streamed_arguments == {"chat", "messages"}
    assert (settings.malformed_tool_calls, settings.unenforced_tool_choice) == ("content", "refuse")
    assert FrontendSettings(stream_tool_arguments="none").streamed_arguments == frozenset()
    for name in environ:
        with pytest.raises(UserError, match=name.removeprefix("DYN_").lower()):
            validate(FrontendSettings, given({}, from_environment({name: "maybe"})), "Frontend")


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70000},
        {"body_limit_mb": 0},
        {"unknown_fields": "maybe"},
        {"overload_status": 200},
        {"tls_cert_path": "x"},
        {"keep_alive": -1},
        {"request_timeout": -1},
        {"bodies_limit_mb": 0},
        {"allowed_origins": "example.org"},
        {"allowed_origins": ["https://example.org/"]},
    ],
)
def test_wrong_settings_are_told(wrong) -> None:
    with pytest.raises(UserError):
        validate(FrontendSettings, wrong, "Frontend")


def test_wrong_environment_is_told(tmp_path) -> None:
    with pytest.raises(UserError, match="DYN_HTTP_BODY_LIMIT_MB"):
        from_environment({"DYN_HTTP_BODY_LIMIT_MB": "many"})


def test_a_key_file_without_keys_does_not_open_the_door(tmp_path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("# nothing\n")
    with pytest.raises(UserError, match="holds no key"):
        FrontendSettings(api_key_file=str(empty)).keys()
    with pytest.raises(UserError, match="cannot read"):
        FrontendSettings(api_key_file=str(tmp_path / "missing")).keys()


def test_metric_names() -> None:
    assert [metric_name(text) for text in ("dynamo_frontend", "a-b", "--", "1x")] == [
        "dynamo_frontend",
        "a_b",
        "dynamo_frontend",
        "_1x",
    ]


async def test_missing_tls_files_are_told(serve) -> None:
    with pytest.raises(UserError, match="TLS"):
        await serve(tls_cert_path="/nowhere/a", tls_key_path="/nowhere/b")
