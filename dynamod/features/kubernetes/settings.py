"""Where the API server is and which pod this is, from environment variables and the files of the service account."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dynamod.message.errors import UserError

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod finds its token, its namespace and the authorities of the API server."""
GRAPH_VARIABLE = "DYNAMOD_KUBERNETES_GRAPH"
URL_VARIABLE = "DYNAMOD_KUBERNETES_URL"
COST_VARIABLE = "DYNAMOD_KUBERNETES_COST"
ACCOUNT_VARIABLE = "DYNAMOD_KUBERNETES_ACCOUNT"

_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`account`: folder of the files of the service account."""

    url: str
    namespace: str
    account: Path

    @classmethod
    def server(cls, environ: Mapping[str, str], what: str, url: str = "", namespace: str = "") -> "ServerSettings":
        """The API server by the variables, unless `url` and `namespace` say it. `what` needs it, for the error.

        Raises UserError that names the variable.
        """
        host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
        url = (url or environ.get(URL_VARIABLE, "")).rstrip("/")
        if not url:
            if not host:
                raise UserError(f"{what}, and this is no pod", f"set {URL_VARIABLE}")
            url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        if not url.startswith(("https://", "http://")):
            raise UserError(f"{URL_VARIABLE} is {url!r}", "write https://localhost:6443")
        account = Path(environ.get(ACCOUNT_VARIABLE, "") or ACCOUNT)
        namespace = namespace or environ.get("POD_NAMESPACE", "") or _file(account / "namespace")
        return ServerSettings(url=url, namespace=namespace, account=account)

    def token(self) -> str:
        """The token of the service account as it is now: Kubernetes replaces the file. Empty: there is none."""
        return _file(self.account / "token")

    def trust(self) -> ssl.SSLContext | bool:
        """What proves the API server. Raises UserError."""
        authorities = self.account / "ca.crt"
        if not authorities.exists():
            return True
        try:
            return ssl.create_default_context(cafile=str(authorities))
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"{authorities} holds no certificate: {error}", "give a PEM file") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings(ServerSettings):
    """`graph`: the value of the label that all pods, services and resources of one deployment have."""

    pod: str
    uid: str
    graph: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "KubernetesSettings":
        """Read the variables. Raises UserError that names the variable."""
        server = cls.server(environ, "DYNAMOD_DISCOVERY is 'kubernetes'")
        pod = {
            "POD_NAME": environ.get("POD_NAME", ""),
            "POD_NAMESPACE": server.namespace,
            "POD_UID": environ.get("POD_UID", ""),
        }
        for name, text in pod.items():
            if not text:
                raise UserError(f"{name} is not set", "the template of the pod sets it from a field of the pod")
            if not _NAME.fullmatch(text):
                raise UserError(f"{name} is {text!r}, which no resource is called", "lower-case letters, digits, '-'")
        graph = environ.get(GRAPH_VARIABLE, "").strip() or "dynamod"
        if not _LABEL.fullmatch(graph):
            raise UserError(f"{GRAPH_VARIABLE} is {graph!r}, which is no label", "at most 63 letters, digits")
        name, namespace, uid = pod.values()
        return cls(url=server.url, namespace=namespace, pod=name, uid=uid, graph=graph, account=server.account)


def _file(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
