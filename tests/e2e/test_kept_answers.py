"""A response that a client has is kept, also when the frontend's process is killed at once."""

import os
import signal
from typing import Any

import openai

CONFIG = """\
graph: graphs.agg:Frontend
Frontend:
  port: 0
  responses_dir: {folder}
Worker:
  engine: mocker
  model: sample
  engine_args: {{speedup_ratio: 100, block_size: 16}}
"""
KILLS = 2


def test_a_response_is_there_after_a_kill_right_after_its_end(machine: Any) -> None:
    config = machine.folder / "c.yaml"
    config.write_text(CONFIG.format(folder=machine.folder / "kept"))
    command = machine.start("dynamo", "serve", "-f", config)
    client = machine.closing(openai.OpenAI(base_url=f"{command.ready()}/v1", api_key="none", max_retries=0, timeout=10))
    names: list[str] = []
    killed: list[int] = []

    def asked(stream: bool) -> tuple[str, int] | None:
        """The id of an answer, and the process that gave it; None: there is no frontend yet."""
        try:
            pid = machine.row("Frontend")["pid"]
            if not pid or pid in killed:  # it is being started again
                return None
            if not stream:
                return client.responses.create(model="sample", input="x", max_output_tokens=4).id, pid
            events = client.responses.create(model="sample", input="x", max_output_tokens=4, stream=True)
            for event in events:
                if event.type in ("response.completed", "response.incomplete"):
                    return event.response.id, pid
        except (openai.OpenAIError, KeyError, TypeError):
            return None
        raise AssertionError("the stream has no end")

    for number in range(KILLS):
        name, pid = machine.until(lambda number=number: asked(stream=bool(number % 2)), seconds=60)
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        names.append(name)

    def there(name: str) -> bool:
        try:
            return client.responses.retrieve(name).id == name
        except (openai.APIConnectionError, openai.InternalServerError):
            return False

    for name in names:  # one that was lost is a 404 at once
        machine.until(lambda name=name: there(name), seconds=60)
    command.end()
