"""A conversation beside a client that is made up: its commands, and what a refusal says."""

from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from dynamod.actor.testing import run
from dynamod.cli.interrupt import Interrupts
from dynamod.features.chat.client import Answer, ChatClient, Refused
from dynamod.features.chat.text import Chat

FULL = "This model's maximum context length is 9 tokens, but the prompt has 12"


class Client:
    """Answers with the number of messages; refuses what is too long."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def show(self, _model: str, messages: Sequence[Mapping[str, str]], answer: Answer) -> None:
        self.asked.append([message["content"] for message in messages])
        if messages[-1]["content"] == "long":
            raise Refused(FULL)
        answer.pieces.append(f"answer {len(messages)}")
        answer.tokens_in, answer.tokens_out, answer.seconds = 3, 4, 2.0

    async def models(self) -> list[str]:
        return ["m", "n"]


def talk(*lines: str) -> tuple[Client, int]:
    client, rest = Client(), list(lines)

    async def read() -> str:
        if not rest:
            raise EOFError
        return rest.pop(0)

    return client, run(Chat(Interrupts(), cast(ChatClient, client), "m", read, stats=False).run())


def test_a_full_context_says_how_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    client, code = talk("hello", "long", "again", "/clear", "new")
    assert code == 0
    assert f"error: {FULL}; /clear forgets the conversation" in capsys.readouterr().out
    assert client.asked[2] == ["hello", "answer 1", "again"], "what was refused is not part of the conversation"
    assert client.asked[3] == ["new"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/foo", "There is no /foo; /help says"),
        ("/foo and more", "There is no /foo; /help says"),
        ("/model n", "Talking to n."),
        ("/model x", "models: m, n; none is called x"),
        ("/help", "Alt-Enter"),
        ("/stats", "Tokens per second are said."),
    ],
)
def test_commands_are_not_asked(capsys: pytest.CaptureFixture[str], line: str, says: str) -> None:
    client, _ = talk(line)
    assert says in capsys.readouterr().out
    assert client.asked == []


@pytest.mark.parametrize("line", ["/etc/passwd", "/usr/bin/env does what?", "/2", "a /foo"])
def test_what_only_looks_like_a_command_is_asked(line: str) -> None:
    assert talk(line)[0].asked == [[line]]


def test_stats_can_be_wanted_and_not(capsys: pytest.CaptureFixture[str]) -> None:
    talk("/stats", "one", "/stats", "two")
    assert capsys.readouterr().out.count("(3 tokens in, 4 out, 2.0 tokens/s)") == 1


@pytest.mark.parametrize("word", ["/exit", "/quit"])
def test_the_last_word_ends_it(word: str) -> None:
    assert talk(word, "never")[0].asked == []
