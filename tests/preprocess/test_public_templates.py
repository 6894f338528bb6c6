"""The chat templates of public models in thirty conversations each: the texts are those of transformers itself.

`DYNAMOD_TEST_TEMPLATES` names a folder of *.jinja files (`models/templates` of llama.cpp), `DYNAMOD_TEST_VLLM_PYTHON`
an interpreter with transformers; tests/engine/run_heavy.sh has both.
"""

import collections
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod.message.errors import BadRequest
from dynamod.message.openai import Message
from dynamod.preprocess.conversation import as_dict
from dynamod.preprocess.template import ChatTemplate

from .test_parity import plain
from .test_template import NOW

FOLDER, PYTHON = os.environ.get("DYNAMOD_TEST_TEMPLATES", ""), os.environ.get("DYNAMOD_TEST_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not (FOLDER and PYTHON), reason="DYNAMOD_TEST_TEMPLATES or DYNAMOD_TEST_VLLM_PYTHON is not set"),
]

OTHERWISE = {
    "Kimi-K3.jinja": "a float of a tool's schema",
    "meetkai-functionary-medium-v3.1.jinja": "its filter `safe` makes jinja2 escape HTML, which the model never saw",
}
"""Templates whose texts differ, and why."""

PROPERTIES = {"city": {"type": "string", "description": "c"}, "n": {"type": "number", "minimum": 0.0}}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": PARAMETERS}}]
ARGUMENTS = (
    '{"city":"Köln","n":1.0}',
    '{"n":1e-07,"deep":{"x":[1.0,2.5,1e20,null,true]}}',
    "",
    "{oops",
    {"city": "x", "n": 3},
)
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
Said = list[dict[str, Any]]


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def tool(content: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": "call00001", "name": "get_weather"}


def conversations() -> list[tuple[Said, Any]]:
    """Thirty, each with its tools."""
    thought = "<think>\na\n</think>\n\nb"
    both = [call('{"city":"a"}'), call('{"city":"b"}')]
    calls: list[tuple[Said, Any]] = [
        ([system("sys"), user("hi"), assistant(content, tool_calls=[call(given)]), tool("rain"), user("and?")], TOOLS)
        for given in ARGUMENTS
        for content in ("", None, "calling")
    ]
    others: list[tuple[Said, Any]] = [
        ([user("hi")], None),
        ([system("s"), user("hi")], None),
        ([user("hi"), assistant("yo"), user("ok")], None),
        ([user(PARTS)], None),
        ([system(PARTS), user(PARTS), assistant("x"), user("y")], None),
        ([user("hi")], TOOLS),
        ([user("q"), assistant("ans", reasoning_content="think"), user("more")], None),
        ([user("q"), assistant("ans", reasoning="think"), user("more")], TOOLS),
        ([user("q"), assistant(thought), user("z")], None),
        ([user("q"), assistant(None, tool_calls=both), tool("1"), tool("2")], TOOLS),
        (
            [
                *(user("q"), assistant("", tool_calls=[call("{}")], reasoning_content="hm")),
                *(tool(PARTS), assistant("done"), user("x")),
            ],
            TOOLS,
        ),
        ([user(" sp \n")], None),
        ([user("é😀<&>'")], TOOLS),
        ([user("a"), user("b")], None),
        ([{"role": "developer", "content": "dev"}, user("x")], None),
    ]
    return calls + others


def theirs(asked: list[dict[str, Any]]) -> list[list[str | None]]:
    given = json.dumps({"now": NOW.isoformat(), "asked": asked})
    command = [PYTHON, str(Path(__file__).with_name("rendered.py"))]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[str | None]] = json.loads(done.stdout)
    return found


def test_texts_are_those_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    files, said = sorted(Path(FOLDER).glob("*.jinja")), conversations()
    assert (len(files) >= 60, len(said)) == (True, 30)
    templates = [ChatTemplate(file.read_text(), "<s>", "</s>", now=lambda: NOW) for file in files]
    asked, ours = [], []
    for file, template in zip(files, templates, strict=True):
        contexts, texts = [], list[str | None]()
        for messages, tools in said:
            read = [as_dict(one, template.form(one.role)) for one in msgspec.convert(messages, list[Message])]
            common = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
            contexts.append({"messages": plain(read), "tools": tools, "documents": None, **common})
            try:
                texts.append(template.render(read, tools))
            except BadRequest:
                texts.append(None)
        asked.append({"source": file.read_text(), "contexts": contexts})
        ours.append(texts)
    counts, otherwise = collections.Counter[str](), set[str]()
    for file, mine, other in zip(files, ours, theirs(asked), strict=True):
        for place, (text, expected) in enumerate(zip(mine, other, strict=True)):
            assert text is not None or expected is None, f"{file.name} fails in conversation {place}"
            kind = "equal" if text == expected else "only here" if expected is None else "otherwise"
            counts[kind] += 1
            if kind == "otherwise":
                otherwise.add(file.name)
    assert otherwise == OTHERWISE.keys()
    with capsys.disabled():
        print(f"\n{len(files)} public chat templates, {len(said)} conversations each: {dict(counts)}")
