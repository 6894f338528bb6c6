"""`dynamo manifest` by the real command; the commands of its pods, run here with the config of its ConfigMap."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[4]
DGD = "examples/kubernetes/disagg.yaml"


def test_pods_of_a_deployment_serve_its_model(machine: Any) -> None:
    """The commands and the config are those of the pods; the nodes are one daemon instead of the API server."""
    printed = machine.run("dynamo", "manifest", "-f", f"{ROOT}/{DGD}", "--secret", "shared")
    assert printed.code == 0, printed.err
    assert len(printed.err.splitlines()) == 3, "an image of each component is not carried over"
    found = list(yaml.safe_load_all(printed.out))
    (config,) = [one["data"]["graph.yaml"] for one in found if one["kind"] == "ConfigMap"]
    (machine.folder / "graph.yaml").write_text(config)
    pods = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] in ("Deployment", "StatefulSet")}
    assert {name: pod["replicas"] for name, pod in pods.items()} == {
        "disagg-dynamod-frontend": 1,
        "disagg-dynamod-decode": 2,
        "disagg-dynamod-prefill": 1,
    }
    url = ""
    for name, pod in reversed(pods.items()):
        (container,) = pod["template"]["spec"]["containers"]
        args = [word.replace("/etc/dynamod/graph/", "") for word in container["args"]]
        front = ("--Frontend.port=0",) if name.endswith("frontend") else ()
        command = machine.start(*container["command"], *args, *front, f"--name={name}", DYNAMO_HOST="127.0.0.1")
        url = command.ready()
    machine.until(lambda: machine.ask(url, "/v1/models")[1].count('"sample"') > 0)
    (text,) = machine.chats(url, ["hello"], max_tokens=8)
    assert text
    machine.until(lambda: machine.ask(url, "/health")[0] == 200)
    names = {row["component"] for row in machine.raw("GET", "/v1/ps")[1]}
    assert {"Decode", "Prefill"} <= names


def test_what_is_wrong_is_one_line(machine: Any) -> None:
    (machine.folder / "dgd.yaml").write_text("apiVersion: nvidia.com/v1\nkind: DynamoGraphDeployment\n")
    done = machine.run("dynamo", "manifest", "-f", "dgd.yaml")
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert "dgd.yaml:1: apiVersion: unknown version 'nvidia.com/v1'" in line
