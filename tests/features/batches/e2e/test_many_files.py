"""Lists of files while two frontends share a folder of thousands."""

import json
from pathlib import Path
from typing import Any

import openai

COUNT = 2000
CONFIG = """\
graph: graphs.agg:Frontend
Frontend:
  port: 0
  batches_dir: {folder}
  ServiceArgs: {{workers: 2}}
Worker: {{engine: mocker, model: sample}}
"""


def fill(folder: Path) -> None:
    """Files as earlier processes have left them."""
    (folder / "files").mkdir(parents=True, mode=0o700)
    (folder / "batches").mkdir(mode=0o700)
    folder.chmod(0o700)
    for order in range(COUNT):
        name = f"file-{order:032x}"
        made = {"id": name, "bytes": 1, "created_at": order, "filename": f"{order}.jsonl", "purpose": "batch"}
        (folder / "files" / f"{name}.data").write_text("x")
        (folder / "files" / f"{name}.json").write_text(json.dumps({"owner": "", "order": order, "file": made}))


def test_lists_are_right_at_both(machine: Any) -> None:
    folder = machine.folder / "kept"
    fill(folder)
    config = machine.folder / "c.yaml"
    config.write_text(CONFIG.format(folder=folder))
    url = machine.start("dynamo", "serve", "-f", config).ready()

    def page(query: str) -> dict[str, Any]:
        """By a connection of its own: either process may answer."""
        status, text = machine.ask(url, f"/v1/files?{query}")
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def newest() -> set[str]:
        return {page("limit=1")["data"][0]["filename"] for _ in range(6)}

    assert newest() == {f"{COUNT - 1}.jsonl"}
    names: list[str] = []
    query = "limit=900&order=asc"
    while (found := page(query))["has_more"]:
        names += [one["filename"] for one in found["data"]]
        query = f"limit=900&order=asc&after={found['last_id']}"
    names += [one["filename"] for one in found["data"]]
    assert names == [f"{order}.jsonl" for order in range(COUNT)]
    client = machine.closing(openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=30))
    for number in range(4):
        new = client.files.create(file=(f"new{number}", b"x"), purpose="batch")
        assert newest() == {f"new{number}"}
        client.files.delete(new.id)
        assert newest() == {f"{COUNT - 1}.jsonl"}
