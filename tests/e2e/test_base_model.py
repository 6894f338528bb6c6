"""A model without a chat template is refused by a chat before it is loaded."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from dynamod.preprocess.locate import locate

ENTRY = "from dynamod.cli.main import dynamo_run; dynamo_run()"


def base(folder: Path) -> None:
    """The sample model as a base model."""
    shutil.copytree(locate("sample"), folder)
    for name in ("chat_template.jinja", "chat_template.json"):
        (folder / name).unlink(missing_ok=True)
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings.pop("chat_template", None)
    config.write_text(json.dumps(settings))


def run(machine: Any, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", ENTRY, *words]
    environ = machine.environ()
    return subprocess.run(
        argv, input="hello", env=environ, cwd=machine.folder, capture_output=True, text=True, timeout=60
    )


def test_a_base_model_cannot_chat(machine: Any) -> None:
    base(machine.folder / "base")
    done = run(machine, "in=stdin", "out=echo_core", "base")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: the model base has no chat template, so in=stdin cannot talk to it; "
        "give `--chat-template FILE`, or serve it with in=http and ask /v1/completions\n"
    )
    done = run(machine, "in=stdin", "out=echo_core", "base", "--chat-template", "{{ messages[0].content }}")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    done = run(machine, "in=stdin", "out=echo_core", "base", "--model-config", str(locate("sample")))
    assert done.returncode == 0, done.stderr
