"""Refusals of a fake API server: each is one line, nothing hangs, and the bridge continues without the cause."""

import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.discovery.conftest import until

from .conftest import Pod
from .fake_api import FakeApi, endpoint_slice, resource

pytestmark = pytest.mark.usefixtures("quick")
Pods = Callable[[str], Pod]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "continuing" in one.getMessage()]


def server_of(certificates: Certificates, name: str, *, expired: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue(name, expired=expired))
    return context


@pytest.mark.parametrize(
    ("expired", "trusted", "says"),
    [
        (True, "ours", "its certificate is not taken: certificate has expired; authorities are those of"),
        (False, "others", "its certificate is not taken: unable to get local issuer certificate; authorities are"),
    ],
)
async def test_a_certificate_that_is_not_taken(
    fake: FakeApi,
    pods: Pods,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    expired: bool,
    trusted: str,
    says: str,
) -> None:
    certificates = Certificates(tmp_path / "ours", "ours")
    authority = certificates.ca if trusted == "ours" else Certificates(tmp_path / "others", "others").ca
    (tmp_path / "ca.crt").write_bytes(Path(authority).read_bytes())
    await fake.stop()
    await fake.start(server_of(certificates, "server", expired=expired))
    one = pods("one")
    await one.start()
    await until(lambda: bool(lines(caplog)))
    (line,) = lines(caplog)
    assert says in line
    assert str(tmp_path / "ca.crt") in line
    if trusted == "ours":
        await fake.stop()
        await fake.start(server_of(certificates, "renewed", expired=False))
        await until(lambda: one.bridge.inspection()["connected"] and one.bridge.inspection()["written"])


async def test_a_wrong_namespace(fake: FakeApi, pods: Pods, caplog: pytest.LogCaptureFixture) -> None:
    one = pods("one")
    one.settings = replace(one.settings, namespace="other")
    await one.start()
    await until(lambda: bool(lines(caplog)))
    (line,) = lines(caplog)
    assert 'in namespace other is not found (namespaces "other" not found); is the namespace right' in line


async def test_a_store_that_has_gone_back_is_listed_again(
    fake: FakeApi, pods: Pods, caplog: pytest.LogCaptureFixture
) -> None:
    """An API server whose etcd was restored has older versions than its clients."""
    one = pods("one")
    await one.start()
    await fake.put("dynamodinstances", resource("w", {"v1/wanted/1/m": ""}))
    await until(lambda: "v1/wanted/1/m" in one.keys)
    await fake.stop()
    fake.version, fake.history = 50, []
    fake.objects["dynamodinstances"] = {}
    await fake.start()
    await until(lambda: "v1/wanted/1/m" not in one.keys)
    await fake.put("dynamodinstances", resource("w", {"v1/wanted/2/m": ""}))
    await until(lambda: "v1/wanted/2/m" in one.keys)


async def test_what_others_have_under_our_label_is_skipped_and_counted(
    fake: FakeApi, pods: Pods, caplog: pytest.LogCaptureFixture
) -> None:
    one = pods("one")
    await one.start()
    foreign = {"metadata": {"name": "theirs", "labels": {"dynamod.dev/graph": "g"}}, "spec": {"replicas": 3}}
    await fake.put("dynamodinstances", foreign)
    await fake.put("endpointslices", {"metadata": {"name": "odd"}, "endpoints": "none"})
    await fake.put("endpointslices", endpoint_slice({"stranger": True}, "strange"))
    await fake.put("dynamodinstances", resource("w", {"v1/wanted/1/m": ""}))
    await until(lambda: "v1/wanted/1/m" in one.keys)
    assert one.bridge.inspection()["skipped"] == 2
    assert caplog.text.count("theirs") == 1
    await fake.remove("dynamodinstances", "theirs")
    await until(lambda: one.bridge.inspection()["skipped"] == 1)


async def test_two_graphs_with_one_name(fake: FakeApi, pods: Pods, caplog: pytest.LogCaptureFixture) -> None:
    """Two pods say that they are the same node: the first counts, and the second is named."""
    one = pods("one")
    await one.start()
    for pod in ("a-0", "b-0"):
        await fake.put("dynamodinstances", resource(pod, {"v1/wanted/1/m": pod}))
    await until(lambda: one.bridge.inspection()["contested"] == 1)
    (line,) = [record.getMessage() for record in caplog.records if "held by" in record.getMessage()]
    assert line == "v1/wanted/1/m is held by the pods a-0 and b-0; the first one counts"
