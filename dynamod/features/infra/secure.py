"""The files of a secure set-up: a private authority, certificates, the configuration of NATS, variables of daemons."""

import asyncio
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynamod.discovery.etcd.access import ROOT, restrict
from dynamod.discovery.etcd.settings import Endpoint, EtcdSettings
from dynamod.message.errors import UserError

if TYPE_CHECKING:
    from .authority import Authority

NODE = "dynamod-node"
"""The name in the certificates of nodes, and so the user of NATS and etcd."""
REVOKED_FILE = "revoked.pem"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")

_NATS = """\
# Written by `dynamo infra up --secure`, again at each start.
tls {{
  cert_file: "{cert}"
  key_file: "{key}"
  ca_file: "{ca}"
  verify_and_map: true
  timeout: 5
}}
accounts {{
  DYNAMOD {{
    users: [
      {{
        user: "CN={node},O=dynamod"
        permissions: {{
          publish: {{ allow: ["*.*", "_INBOX.>"], deny: ["$SYS.>", "$JS.>"] }}
          subscribe: {{ allow: ["*.*", "_INBOX.>"], deny: ["$SYS.>", "$JS.>"] }}
        }}
      }}
    ]
  }}
  SYS {{ users: [ {{ user: "CN={root},O=dynamod" }} ] }}
}}
system_account: SYS
"""
"""Subjects of dynamod have two words (`transport/nats/transport.py`), addresses of answers begin with `_INBOX`."""


@dataclass(frozen=True)
class Secure:
    """The files in a data folder."""

    data: Path

    @property
    def folder(self) -> Path:
        """Certificates and keys. They stay when servers and data go."""
        return self.data / "tls"

    @property
    def there(self) -> bool:
        """Whether the folder is that of a secure set-up."""
        return self.folder.is_dir()

    @property
    def nats(self) -> Path:
        """The configuration of the NATS server."""
        return self.folder / "nats.conf"

    @property
    def environment_file(self) -> Path:
        """Variables of daemons on this machine."""
        return self.folder / "node.env"

    @property
    def revoked(self) -> Path:
        """The list of certificates that are no longer taken."""
        return self.folder / REVOKED_FILE

    def file(self, name: str) -> Path:
        """One of the files: `ca.pem`, `ca.key`, `server.pem`, `node.pem`, `root.pem` and their keys."""
        return self.folder / name

    def prepare(self, host: str) -> Iterator[str]:
        """Make what is missing; says what was made. Raises UserError. An authority is never written over."""
        from .authority import write

        if host in ("0.0.0.0", "::"):
            raise UserError(f"--host {host} is no address that a certificate is for", "give the one that nodes use")
        authority = self.authority()
        if authority is None:
            authority = self._new_authority()
            yield f"made a private authority: {self.folder}"
        hosts = _hosts([host])
        for name, subject in (("server", "dynamod-server"), ("node", NODE), ("root", ROOT)):
            at = hosts if name != "root" else []
            if not self._has(authority, name, at):
                self._issue(authority, self.folder, name, subject, at)
                yield f"made the certificate {self.file(f'{name}.pem')}"
        if not self.revoked.exists():
            write(self.revoked, authority.revoke([]), mode=0o644)
        files = {"cert": self.file("server.pem"), "key": self.file("server.key"), "ca": self.file("ca.pem")}
        write(self.nats, _NATS.format(**files, node=NODE, root=ROOT).encode())

    def authority(self) -> "Authority | None":
        """The authority that is there. Raises UserError for one that is incomplete or of no use."""
        from .authority import Authority

        cert, key = self.file("ca.pem"), self.file("ca.key")
        if not (cert.exists() or key.exists()):
            if self.there and any(self.folder.glob("*.pem")):
                hint = "put ca.pem and ca.key back, or move the folder away and run up --secure again"
                raise UserError(f"{self.folder} has certificates, and no authority", hint)
            return None
        return Authority.load(cert, key)

    def _new_authority(self) -> "Authority":
        from .authority import Authority, write

        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = Authority.make(f"dynamod of {socket.gethostname()}"[:64])
        write(self.file("ca.key"), authority.pair.key, new=True)
        write(self.file("ca.pem"), authority.pair.cert, mode=0o644, new=True)
        return authority

    def _has(self, authority: "Authority", name: str, hosts: Sequence[str]) -> bool:
        return self.file(f"{name}.key").exists() and authority.made(self.file(f"{name}.pem"), hosts)

    def _issue(
        self, authority: "Authority", folder: Path, name: str, subject: str, hosts: Iterable[str], *, new: bool = False
    ) -> None:
        from .authority import write

        pair = authority.issue(subject, hosts)
        write(folder / f"{name}.key", pair.key, new=new)
        write(folder / f"{name}.pem", pair.cert, mode=0o644, new=new)

    def node(self, name: str, addresses: Sequence[str], folder: Path, at: Path) -> Path:
        """Make the files of a node on another machine, in a folder that is new; returns it. Raises UserError.

        `at`: where they will be there.
        """
        from .authority import write

        if not _NAME.fullmatch(name):
            raise UserError(f"the node {name!r} has no name for a file", "use letters, digits, dots, hyphens")
        for address in addresses:
            if not _HOST.fullmatch(address):
                raise UserError(f"--address {address!r} is neither a name nor an address", "for example 10.0.0.2")
        authority = self.authority()
        if authority is None or not self.environment_file.exists():
            raise UserError(f"no secure servers were started with {self.data}", "dynamo infra up --secure first")
        known = dict(line.split("=", 1) for line in self.environment_file.read_text().splitlines() if "=" in line)
        urls: dict[str, str] = {key: known[key] for key in ("NATS_SERVER", "ETCD_ENDPOINTS") if key in known}
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UserError(f"--output {folder}: {error.strerror}", "choose a folder that you may write") from None
        self._issue(authority, folder, "node", NODE, [*addresses, name], new=True)
        write(folder / "ca.pem", authority.pair.cert, mode=0o644, new=True)
        listed = self.revoked.read_bytes() if self.revoked.exists() else authority.revoke([])
        write(folder / REVOKED_FILE, listed, mode=0o644, new=True)
        write(folder / "node.env", _environment({**urls, **_variables(at)}).encode(), new=True)
        return folder

    def revoke(self, files: Sequence[Path]) -> Path:
        """Put the certificates in these files on the list of revoked ones; returns its path. Raises UserError."""
        from .authority import read_certificate, write

        authority = self.authority()
        if authority is None:
            raise UserError(f"no secure servers were started with {self.data}", "dynamo infra up --secure first")
        before = self.revoked.read_bytes() if self.revoked.exists() else b""
        write(self.revoked, authority.revoke(map(read_certificate, files), before), mode=0o644)
        return self.revoked

    def etcd_flags(self) -> list[str]:
        """Flags of the etcd server."""
        files = {"cert-file": "server.pem", "key-file": "server.key", "trusted-ca-file": "ca.pem"}
        files["client-crl-file"] = REVOKED_FILE
        return [*(f"--{flag}={self.file(name)}" for flag, name in files.items()), "--client-cert-auth"]

    def admin(self, url: str) -> EtcdSettings:
        """How etcd is reached as the user that may do everything."""
        ca, cert, key = self.file("ca.pem"), self.file("root.pem"), self.file("root.key")
        return EtcdSettings(endpoints=(Endpoint.parse(url),), ca=ca, client_cert=cert, client_key=key)

    def admin_context(self) -> ssl.SSLContext:
        """The same for HTTPS. Raises UserError."""
        try:
            context = ssl.create_default_context(cafile=self.file("ca.pem"))
            context.load_cert_chain(self.file("root.pem"), self.file("root.key"))
        except OSError as error:  # also of ssl
            raise UserError(f"cannot use the certificates in {self.folder}: {error}", "run up --secure again") from None
        return context

    def restrict(self, url: str) -> None:
        """Let in only nodes, and owners of the certificate `root`. Raises UserError."""
        asyncio.run(restrict(Endpoint.parse(url), self.admin(url), [NODE]))

    def variables(self) -> dict[str, str]:
        """What a daemon on this machine needs besides the URLs of the servers."""
        return _variables(self.folder)

    def write_environment(self, environment: Mapping[str, str]) -> None:
        """Keep the variables in the file for daemons on this machine. Raises UserError."""
        from .authority import write

        write(self.environment_file, _environment(environment).encode())


def _variables(folder: Path) -> dict[str, str]:
    ca, cert, key = (str(folder / name) for name in ("ca.pem", "node.pem", "node.key"))
    return {
        "NATS_TLS_CA": ca,
        "NATS_TLS_CERT": cert,
        "NATS_TLS_KEY": key,
        "ETCD_AUTH_CA": ca,
        "ETCD_AUTH_CLIENT_CERT": cert,
        "ETCD_AUTH_CLIENT_KEY": key,
        "DYN_TCP_TLS_CA_CERT_PATH": ca,
        "DYN_TCP_TLS_CERT_PATH": cert,
        "DYN_TCP_TLS_KEY_PATH": key,
        "DYNAMOD_TCP_TLS_CRL": str(folder / REVOKED_FILE),
    }


def _environment(variables: Mapping[str, str]) -> str:
    """Lines that a shell and systemd both read."""
    lines = []
    for name, value in variables.items():
        if "\n" in value or '"' in value or "$" in value or "`" in value or "\\" in value:
            raise UserError(f"{value!r} cannot stand in a file of variables", "choose a folder with a plain name")
        lines.append(f"{name}={value}\n" if _PLAIN.fullmatch(value) else f'{name}="{value}"\n')
    return "".join(lines)


def _hosts(more: Iterable[str]) -> list[str]:
    """What this machine is called by its clients."""
    own = socket.gethostname()
    known = [own] if _HOST.fullmatch(own) else []
    return list(dict.fromkeys([*more, "localhost", "127.0.0.1", "::1", *known]))
