"""A model that reads answer.txt with the shell tool of an agent, and then says what the file says.

An agent without a shell tool gets an edit of edited.txt, as aider reads it.
"""

import json
import re
from pathlib import Path

from tokenizers import Tokenizer

import dynamod.sample

TOKENIZER = Tokenizer.from_file(str(next(Path(dynamod.sample.__file__).parent.rglob("tokenizer.json"))))
EDIT = "edited.txt\n```\n<<<<<<< SEARCH\n42\n=======\n43\n>>>>>>> REPLACE\n```\n"
ANSWER = "The file says 42."
SHELLS = ("exec_command", "Bash", "run_shell_command", "bash")


def call(shell: str) -> str:
    """The call of a shell tool."""
    arguments = {"cmd" if shell == "exec_command" else "command": "cat answer.txt", "description": "Reads the file"}
    return f"<tool_call>\n{json.dumps({'name': shell, 'arguments': arguments})}\n</tool_call>"


async def generate(request):
    prompt = TOKENIZER.decode(request["token_ids"], skip_special_tokens=False)
    names = set(re.findall(r'"name": ?"(\w+)"', prompt))
    shell = next((name for name in SHELLS if name in names), None)
    if "SEARCH/REPLACE" in prompt and shell is None:
        text = EDIT
    elif "<tool_response>" in prompt or shell is None:
        text = ANSWER
    else:
        text = call(shell)
    for token in TOKENIZER.encode(text, add_special_tokens=False).ids:
        yield {"token_ids": [token]}
    yield {"token_ids": [], "finish_reason": "stop"}
