"""The chart with etcd and NATS, as on nodes without Kubernetes: the same faults, the same answers; `run_real.sh`."""

from collections.abc import Iterator

import pytest

from tests.e2e.command import until
from tests.e2e.nodes import Servers
from tests.ports import free_port

from .cluster import Cluster, alone, is_killed, is_scaled, is_updated, under_way
from .control_plane import NAMESPACE

pytestmark = pytest.mark.heavy


class Place:
    """What servers are started in."""

    def __init__(self, cluster: Cluster) -> None:
        self.folder = cluster.plane.folder / "brokers"

    def port(self) -> int:
        return free_port()


@pytest.fixture(scope="module")
def servers(shared_cluster: Cluster) -> Iterator[Servers]:
    made = Servers(Place(shared_cluster), shared_cluster.network.address)
    yield made
    made.down()


@pytest.fixture(scope="module")
def brokers(shared_cluster: Cluster, servers: Servers) -> Iterator[Cluster]:
    """A release of its own; the other one has no pods meanwhile."""
    shared_cluster.scale(0, 0)
    made = shared_cluster.another("brokers")
    env = servers.env
    made.install(
        *("discovery=etcd", f"etcd.endpoints={env['ETCD_ENDPOINTS']}"),
        *("requests=nats", f"nats.server={env['NATS_SERVER']}"),
    )
    made.settled()
    yield made
    made.scale(0, 0)


def test_pods_find_each_other_without_asking_the_api_server(brokers: Cluster) -> None:
    fronts = brokers.ready("frontend").values()
    until(lambda: all(brokers.served(one) == 4 for one in fronts), 30, "four workers at each frontend")
    found = brokers.plane.get(f"/apis/dynamod.dev/v1alpha1/namespaces/{NAMESPACE}/dynamodinstances")["items"]
    assert not [one for one in found if one["metadata"]["name"].startswith(brokers.graph)]


def test_a_pod_killed_in_mid_answer_changes_no_text(brokers: Cluster) -> None:
    is_killed(brokers)


def test_kubectl_scale_ends_no_stream(brokers: Cluster) -> None:
    is_scaled(brokers)


def test_a_rolling_update_ends_no_stream(brokers: Cluster) -> None:
    is_updated(brokers)


def test_brokers_that_restart_change_no_text(brokers: Cluster, servers: Servers) -> None:
    wanted = alone(brokers)

    def restart() -> None:
        servers.down()
        servers.up()

    assert under_way(brokers, restart) == wanted
    fronts = brokers.ready("frontend").values()
    until(lambda: all(brokers.served(one) == 4 for one in fronts), 60, "the workers are there again")
