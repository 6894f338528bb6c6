"""Real certificates for tests: good ones, and each kind of bad one."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dynamod.features.infra.authority import Authority, Pair, read_certificate

HERE = ("127.0.0.1", "localhost")


class Certificates:
    """Certificates of one authority in a folder. `ca`: the file of the authority."""

    def __init__(self, folder: Path, name: str = "ours") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.authority = folder, Authority.make(name)
        self.ca = self._file(f"{name}-ca.pem", self.authority.pair.cert)

    def issue(
        self, name: str, hosts: Sequence[str] = HERE, *, expired: bool = False, client: bool = True
    ) -> tuple[str, str]:
        """The files of a certificate and its key."""
        start = datetime.now(UTC) - timedelta(days=3) if expired else None
        return self.keep(name, self.authority.issue(name, hosts, days=2, start=start, client=client))

    def keep(self, name: str, pair: Pair) -> tuple[str, str]:
        """The files of a pair."""
        return self._file(f"{name}.pem", pair.cert), self._file(f"{name}.key", pair.key)

    def revoke(self, *files: str, before: bytes = b"", age: timedelta = timedelta()) -> Path:
        """The list of revoked certificates, made so long ago, with the certificates in these files."""
        path = self.folder / "revoked.pem"
        certs = [read_certificate(Path(file)) for file in files]
        made = self.authority.revoke(certs, before, now=datetime.now(UTC) - age)
        beside = path.with_suffix(".new")
        beside.write_bytes(made)
        beside.replace(path)
        return path

    def _file(self, name: str, content: bytes) -> str:
        path = self.folder / name
        path.write_bytes(content)
        return str(path)
