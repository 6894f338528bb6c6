"""Files and pairs of environment variables by which NATS and etcd take credentials. All raise UserError."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from dynamod.message.errors import UserError


def readable_file(env: Mapping[str, str], name: str) -> Path | None:
    """The file that a variable names, which can be read; None when it is not set."""
    text = env.get(name, "")
    if not text:
        return None
    path = Path(text).expanduser()
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise UserError(f"{name}: cannot read {path}: {error.strerror}", "give the path of an existing file") from None
    return path


def tls_files(env: Mapping[str, str], ca: str, cert: str, key: str) -> tuple[Path | None, Path | None, Path | None]:
    """Authorities, client certificate and its key, of the variables with these names."""
    files = tuple(readable_file(env, name) for name in (ca, cert, key))
    _require_both(cert, key, files[1], files[2], "a client certificate needs its key")
    return files[0], files[1], files[2]


def client_context(names: tuple[str, str, str], ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """What TLS connections trust and show. `names`: of the variables that the files come from.

    Raises UserError for files that hold no certificate, or do not belong together.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{names[0]}: {ca} holds no certificate: {error}", "give a PEM file") from None
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            why = f"{names[1]} and {names[2]} do not belong together or are no PEM files: {error}"
            raise UserError(why, "give a certificate and its own key") from None
    return context


def user_and_password(env: Mapping[str, str], prefix: str) -> tuple[str, str]:
    """`{prefix}_USERNAME` and `{prefix}_PASSWORD`; both empty when they are not set."""
    names = f"{prefix}_USERNAME", f"{prefix}_PASSWORD"
    username, password = (env.get(name, "") for name in names)
    _require_both(*names, username, password, "a user needs a password")
    return username, password


def _require_both(one: str, other: str, first: object, second: object, why: str) -> None:
    if bool(first) != bool(second):
        raise UserError(f"{other if first else one} is not set", f"{why}: set both or neither")
