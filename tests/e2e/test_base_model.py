"""A model without a chat template is refused by a chat before it is loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

from dynamod.preprocess.locate import locate


def base(folder: Path) -> None:
    """The sample model as a base model."""
    shutil.copytree(locate("sample"), folder)
    for name in ("chat_template.jinja", "chat_template.json"):
        (folder / name).unlink(missing_ok=True)
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings.pop("chat_template", None)
    config.write_text(json.dumps(settings))


def test_a_base_model_cannot_chat(machine: Any) -> None:
    base(machine.folder / "base")
    words = ("in=stdin", "out=echo_core", "base")
    done = machine.run("dynamo-run", *words, text="hello")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: the model base has no chat template, so in=stdin cannot talk to it; "
        "give `--chat-template FILE`, or serve it with in=http and ask /v1/completions\n"
    )
    done = machine.run("dynamo-run", *words, "--chat-template", "{{ messages[0].content }}", text="hello")
    assert (done.code, done.out) == (0, "hello\n"), done.err
    done = machine.run("dynamo-run", *words, "--model-config", str(locate("sample")), text="hello")
    assert done.code == 0, done.err
