"""Variables and file of the secret: what is wrong is one line that says what to do."""

import os
from pathlib import Path

import pytest

from dynamod.features.trust.secret import (
    CLOCK,
    MODE,
    SECRET,
    SECRET_FILE,
    key_of,
    settings,
    write_new,
)
from dynamod.message.errors import UserError

from .conftest import NEXT, OURS, THEIRS


def file(folder: Path, text: str | bytes, mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


def line(environ: dict[str, str]) -> str:
    with pytest.raises(UserError) as caught:
        settings(environ)
    found = caught.value.line()
    assert "\n" not in found
    assert caught.value.hint
    assert OURS not in found, "no message has the secret"
    return found


def test_nothing_set_is_off() -> None:
    assert settings({}) == ("off", (), 60.0)


def test_a_secret_alone_accepts() -> None:
    found = settings({SECRET: OURS})
    assert (found.mode, found.keys) == ("accept", (key_of(OURS),))


@pytest.mark.parametrize("mode", ["off", "accept", "require"])
def test_each_mode(mode: str, tmp_path: Path) -> None:
    assert settings({SECRET_FILE: file(tmp_path, OURS), MODE: mode, CLOCK: "5"})[::2] == (mode, 5.0)


def test_two_secrets_the_first_signs(tmp_path: Path) -> None:
    both = (key_of(NEXT), key_of(OURS))
    assert settings({SECRET_FILE: file(tmp_path, f"# comment\n\n {NEXT}\n{OURS}\n")}).keys == both
    assert settings({SECRET: f"{NEXT},{OURS}"}).keys == both


def test_a_digest_tells_secrets_apart_and_has_nothing_of_them() -> None:
    keys = [key_of(one) for one in (OURS, THEIRS, NEXT)]
    assert len({key.digest for key in keys}) == 3
    assert all(len(key.digest) == 8 and key.digest not in key.key.hex() for key in keys)
    assert all(key.digest not in secret for key, secret in zip(keys, (OURS, THEIRS, NEXT), strict=True))


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("short\n", 0o600, "has a secret of 5 characters; give at least 32 random ones; dynamo trust new FILE"),
        ("a" * 40, 0o600, "has a secret of 1 different characters"),
        (OURS, 0o644, "can be read by other users (mode 0644); chmod 600 "),
        (OURS, 0o660, "can be read by other users (mode 0660)"),
        ("# only a comment\n", 0o600, "is empty; dynamo trust new FILE makes one"),
        (b"\xff\xfe\xfa", 0o600, "is no text"),
        (f"{OURS}\n{NEXT}\n{THEIRS}", 0o600, "has 3 secrets; give at most 2"),
    ],
)
def test_a_wrong_file(text: str | bytes, mode: int, why: str, tmp_path: Path) -> None:
    path = file(tmp_path, text, mode)
    found = line({SECRET_FILE: path})
    assert found.startswith(f"{SECRET_FILE}: {path} ")
    assert why in found


def test_a_path_that_depends_on_the_folder_is_refused() -> None:
    assert line({SECRET_FILE: "secret"}) == f"{SECRET_FILE}: secret is no absolute path; give the path from / on"


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "does not exist" in line({SECRET_FILE: str(tmp_path / "none")})
    assert "is no file" in line({SECRET_FILE: str(tmp_path)})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no devices here")
def test_a_device_is_no_file() -> None:
    assert "is no file" in line({SECRET_FILE: "/dev/null"})


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({MODE: "on"}, "DYNAMOD_TRUST is 'on'"),
        ({MODE: "require"}, "DYNAMOD_TRUST=require needs a cluster secret"),
        ({SECRET: OURS, SECRET_FILE: "x"}, "are both set"),
        ({SECRET: "short"}, "DYNAMOD_CLUSTER_SECRET has a secret of 5 characters"),
        ({SECRET: OURS, CLOCK: "0"}, "DYNAMOD_TRUST_CLOCK_S=0 is no allowed clock difference"),
        ({SECRET: OURS, CLOCK: "nan"}, "seconds from 1 to 3600"),
        ({SECRET: OURS, CLOCK: "long"}, "seconds from 1 to 3600"),
    ],
)
def test_a_wrong_variable(environ: dict[str, str], why: str) -> None:
    assert why in line(environ)


def test_a_new_file_and_a_second_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert not write_new(path, OURS)
    assert path.stat().st_mode & 0o777 == 0o600
    assert settings({SECRET_FILE: str(path)}).keys == (key_of(OURS),)
    assert write_new(path, NEXT)
    assert settings({SECRET_FILE: str(path)}).keys == (key_of(OURS), key_of(NEXT))
    assert write_new(path, THEIRS), "the second one did not sign yet and is replaced"
    assert settings({SECRET_FILE: str(path)}).keys == (key_of(OURS), key_of(THEIRS))
    assert os.listdir(tmp_path) == ["secret"]


def test_a_new_secret_after_a_wrong_one_is_refused(tmp_path: Path) -> None:
    path = Path(file(tmp_path, "short"))
    with pytest.raises(UserError, match="5 characters"):
        write_new(path, OURS)
    assert path.read_text() == "short"
    with pytest.raises(UserError, match="cannot be written"):
        write_new(tmp_path / "none" / "secret", OURS)
