"""What the environment says about NATS, and what is said about mistakes in it."""

from pathlib import Path

import pytest

from dynamod.message.errors import UserError
from dynamod.transport.nats.settings import NatsSettings


def read(**env: str) -> NatsSettings:
    settings = NatsSettings.from_environment(env)
    assert settings is not None
    return settings


def test_no_server_no_nats() -> None:
    assert NatsSettings.from_environment({}) is None
    assert NatsSettings.from_environment({"NATS_SERVER": " , "}) is None


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("one", ("nats://one:4222",)),
        ("nats://one:1,two:2, nats://two:2/", ("nats://one:1", "nats://two:2")),
        ("tls://one,nats://[::1]:5", ("tls://one:4222", "tls://[::1]:5")),
    ],
)
def test_servers(text: str, servers: tuple[str, ...]) -> None:
    settings = read(NATS_SERVER=text)
    assert settings.servers == servers
    assert settings.tls == text.startswith("tls")


def test_credentials_in_the_url_are_taken_out_of_it() -> None:
    settings = read(NATS_SERVER="nats://me:pa%40ss@one:1,nats://two:2")
    assert (settings.username, settings.password) == ("me", "pa@ss")
    assert settings.servers == ("nats://one:1", "nats://two:2")
    assert "pa@ss" not in repr(settings)
    assert read(NATS_SERVER="nats://secret@one").token == "secret"
    named = read(NATS_SERVER="nats://me:no@one", NATS_AUTH_USERNAME="a", NATS_AUTH_PASSWORD="b")
    assert (named.username, named.password) == ("a", "b")
    assert named.credentials == "NATS_AUTH_USERNAME and NATS_AUTH_PASSWORD"


def test_mistakes_name_the_variable(tmp_path: Path) -> None:
    cases = [
        ({"NATS_SERVER": "http://localhost"}, "NATS_SERVER"),
        ({"NATS_SERVER": "one:99999"}, "NATS_SERVER"),
        ({"NATS_SERVER": "one two"}, "NATS_SERVER"),
        ({"NATS_AUTH_USERNAME": "a"}, "NATS_AUTH_PASSWORD"),
        ({"NATS_AUTH_PASSWORD": "a"}, "NATS_AUTH_USERNAME"),
        ({"NATS_AUTH_CREDENTIALS_FILE": str(tmp_path / "no")}, "NATS_AUTH_CREDENTIALS_FILE"),
        ({"NATS_TLS_CA": str(tmp_path / "no")}, "NATS_TLS_CA"),
        ({"NATS_TLS_CERT": __file__}, "NATS_TLS_KEY"),
        ({"NATS_AUTH_NKEY": "nonsense"}, "NATS_AUTH_NKEY"),
    ]
    for env, name in cases:
        with pytest.raises(UserError, match=name):
            NatsSettings.from_environment({"NATS_SERVER": "one", **env})
    with pytest.raises(UserError) as caught:
        NatsSettings.from_environment({"NATS_SERVER": "nats://me:precious@one:x"})
    assert "precious" not in caught.value.line()


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NATS_TLS_CA"):
        read(NATS_SERVER="one", NATS_TLS_CA=__file__).tls_context()
    with pytest.raises(UserError, match="NATS_TLS_CERT"):
        read(NATS_SERVER="one", NATS_TLS_CERT=__file__, NATS_TLS_KEY=__file__).tls_context()
