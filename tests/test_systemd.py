import re
import shlex
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from dynamod.cli import service
from dynamod.cli.app import app
from dynamod.cli.features import add_commands
from dynamod.cli.flags import parse
from dynamod.cli.run import build
from dynamod.graph.load import load_graph
from dynamod.graph.typed import validate
from dynamod.http.key_file import KeyFile
from dynamod.http.settings import FrontendSettings

FOLDER = Path(__file__).parent.parent / "systemd"
DAEMON, WORKER = FOLDER / "dynamod.service", FOLDER / "dynamod-worker@.service"
MANY = {"Environment", "EnvironmentFile", "After", "Wants", "DeviceAllow", "ReadWritePaths"}


def read(path: Path) -> dict[str, dict[str, list[str]]]:
    """Sections, keys and values. Every line must be a comment, a section or key=value."""
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        head = re.fullmatch(r"\[(\w+)\]", line)
        if head:
            assert head[1] not in sections
            section = sections[head[1]] = {}
            continue
        pair = re.fullmatch(r"(\w+)=(.*)", line)
        assert pair, line
        assert pair[2] == pair[2].strip()
        section.setdefault(pair[1], []).append(pair[2])
    return sections


@pytest.mark.parametrize("path", [DAEMON, WORKER], ids=lambda path: path.name)
def test_form(path: Path) -> None:
    sections = read(path)
    assert list(sections) == ["Unit", "Service", "Install"]
    for section in sections.values():
        assert [key for key, values in section.items() if len(values) > 1 and key not in MANY] == []
    service = {key: values[0] for key, values in sections["Service"].items()}
    assert service["ExecStart"].startswith("/opt/dynamod/bin/")
    assert (service["User"], service["Group"]) == ("dynamod", "dynamod")
    assert (service["KillMode"], service["Restart"]) == ("mixed", "on-failure")
    assert service["LimitNOFILE"] == "1048576"
    assert (service["ProtectSystem"], service["NoNewPrivileges"]) == ("strict", "yes")
    assert service["SystemCallFilter"] == "@system-service"
    # They would take the accelerators and the compilers away from engines.
    assert not {"PrivateDevices", "ProtectClock", "MemoryDenyWriteExecute"} & service.keys()


def test_the_daemon_notifies() -> None:
    service = {key: values[0] for key, values in read(DAEMON)["Service"].items()}
    assert (service["Type"], service["NotifyAccess"], service["WatchdogSec"]) == ("notify", "main", "30")
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    for folder in ("State", "Runtime", "Cache", "Logs"):
        assert service[f"{folder}Directory"] == "dynamod"
    assert service["RuntimeDirectoryMode"] == "0750"


def test_both_are_hardened_alike() -> None:
    keys = ("Protect", "Restrict", "SystemCall", "Lock", "Private", "Capability", "NoNew")
    daemon, worker = (
        {key: values for key, values in read(path)["Service"].items() if key.startswith(keys)}
        for path in (DAEMON, WORKER)
    )
    daemon.pop("Restart", None)
    assert {k: v for k, v in daemon.items() if k != "RestartSec"} == {
        k: v for k, v in worker.items() if k not in ("Restart", "RestartSec")
    }


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_has_nothing_to_say(tmp_path: Path) -> None:
    """With stubs for the programs, which are not installed here."""
    stub = tmp_path / "stub"
    stub.write_text("#!/bin/sh\n")
    stub.chmod(0o755)
    units = [tmp_path / "dynamod.service", tmp_path / "dynamod-worker@dynamo.backend.generate.service"]
    for source, unit in zip((DAEMON, WORKER), units, strict=True):
        unit.write_text(re.sub(r"(?m)^(ExecStart|ExecReload)=\S+", rf"\1={stub}", source.read_text()))
    command = ["systemd-analyze", "verify", "--man=no", *map(str, units)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_example_names_graphs() -> None:
    settings = yaml.safe_load((FOLDER / "dynamod.yaml").read_text())
    overrides = ["--Frontend.host=0.0.0.0", "--Frontend.client_keys_file=/etc/dynamod/keys.yaml"]
    assert settings["graphs"] == [
        {"target": "graphs.agg:Frontend", "config": "/etc/dynamod/agg.yaml", "name": "agg", "overrides": overrides}
    ]
    assert settings.keys() <= {"graphs", "socket", "log_level"}
    graph = load_graph("graphs.agg:Frontend", FOLDER.parent / "configs" / "agg.yaml", overrides=overrides)
    found = validate(FrontendSettings, graph.services["Frontend"].config, "Frontend")
    assert (found.host, found.client_keys_file) == ("0.0.0.0", "/etc/dynamod/keys.yaml")


def test_the_first_start_makes_the_key_that_the_example_names(tmp_path: Path) -> None:
    """The unit's own command, in a folder as its WorkingDirectory."""
    service = {key: values[0] for key, values in read(DAEMON)["Service"].items()}
    assert service["WorkingDirectory"] == "%S/dynamod"  # which is /var/lib/dynamod
    assert not {"%", "$"} & set(service["ExecStartPre"]), "systemd would replace them"
    keys = []
    for name in ("one", "two"):
        (folder := tmp_path / name).mkdir()
        for _ in range(2):
            subprocess.run(shlex.split(service["ExecStartPre"]), cwd=folder, check=True, timeout=30)
            (file,) = folder.iterdir()
            keys.append(file.read_text())
            assert (file.name, file.stat().st_mode & 0o777) == ("api.key", 0o600)
            assert FrontendSettings(api_key_file=str(file)).keys() == (keys[-1],)
            (client,) = KeyFile(str(_keys_of(file, tmp_path))).read()
            assert (client.name, client.admin) == ("admin", True)
            assert client.digests == [sha256(keys[-1].encode()).digest()]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


def _keys_of(key: Path, folder: Path) -> Path:
    """The shipped file of keys with another place of the generated key."""
    text = (FOLDER / "keys.yaml").read_text()
    assert "/var/lib/dynamod/api.key" in text
    (made := folder / "keys.yaml").write_text(text.replace("/var/lib/dynamod/api.key", str(key)))
    return made


def test_the_readme_names_every_file() -> None:
    text = (FOLDER / "README.md").read_text()
    assert [path.name for path in FOLDER.iterdir() if path.name != "README.md" and f"`{path.name}`" not in text] == []


def test_the_commands_of_the_readme_exist() -> None:
    add_commands(app)
    words = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    words |= {group.name for group in app.registered_groups}
    text = (FOLDER / "README.md").read_text()
    named = re.findall(r"(?m)(?:^|`)dynamo (\w+)", text)
    assert {"status", "ps", "logs"} <= set(named) <= words


@pytest.mark.parametrize("model", ["/srv/models/x", ""])
def test_the_units_start_commands_that_exist(model: str) -> None:
    (daemon,), (worker,) = (read(path)["Service"]["ExecStart"] for path in (DAEMON, WORKER))
    program, *flags = daemon.split()
    assert (Path(program).name, flags) == ("dynamod", ["--config", service.CONFIG])
    named = {"%i": "dynamo.backend.generate", "${ENGINE}": "echo_full", "${MODEL}": model}
    program, *words = worker.split()
    for old, new in named.items():
        words = [word.replace(old, new) for word in words]
    assert Path(program).name == "dynamo-run"
    spec = build(parse(words)).services["Worker"]
    assert (spec.config["engine"], spec.config.get("model", "")) == ("echo_full", model)
    assert (spec.namespace, spec.component, spec.config["endpoint"]) == ("dynamo", "backend", "generate")
