"""Another chat template by flag and by setting: frontends render with it."""

import json
from typing import Any

from .asking import chat_body

TEMPLATE = "{% for message in messages %}Q: {{ message.content }}\n{% endfor %}A:"


def test_a_template_by_flag_and_by_setting(machine: Any) -> None:
    (machine.folder / "own.jinja").write_text(TEMPLATE)
    cache = str(machine.folder / "cache")
    run = ("dynamo-run", "in=http", "out=echo_core", "sample", "--http-port", 0)
    serve = ("dynamo", "serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Frontend.port=0")
    for words in (
        (*run, "--chat-template-file", "own.jinja"),
        (*run, "--chat-template", TEMPLATE),
        (*serve, "--Worker.engine=echo_core", "--Worker.chat_template=own.jinja"),
    ):
        command = machine.start(*words, XDG_CACHE_HOME=cache, DYN_TOKEN_ECHO_DELAY_MS="1")
        url = command.ready()
        machine.until(lambda url=url: machine.serves(url))
        status, text = machine.ask(url, "/v1/chat/completions/render", chat_body("Who are you?"))
        assert status == 200, text
        assert "Q: Who are you?\\nA:" in text
        assert "im_start" not in json.dumps(text)
        command.end()
    line = machine.run(*run, "--chat-template", "chatml").mistake()
    assert "`chat_template` 'chatml' cannot be read" in line
