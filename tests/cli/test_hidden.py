"""Which words of a command line are secret, and that they are gone from the real one."""

import subprocess
import sys
from pathlib import Path

import pytest

from dynamod.cli.hidden import secrets


def hidden(*words: str) -> list[str]:
    """The words as other users see them."""
    result = []
    for word, spans in zip(words, secrets([word.encode() for word in words]), strict=True):
        text = word.encode()
        for start, end in spans:
            text = text[:start] + b"*" * (end - start) + text[end:]
        result.append(text.decode())
    return result


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--api-key k1", "--api-key **"),
        ("--api-key=k1,k2 -v", "--api-key=***** -v"),
        ("--Frontend.api_keys=k1", "--Frontend.api_keys=**"),
        ("--Frontend.api-keys k1", "--Frontend.api-keys **"),
        ("-- --hf-token abc --seed 3", "-- --hf-token *** --seed 3"),
        ("--Worker.ServiceArgs.envs.HF_TOKEN=abc", "--Worker.ServiceArgs.envs.HF_TOKEN=***"),
        ("--api-key -v", "--api-key -v"),
        ("--api-key", "--api-key"),
        ("--api-key-file keys --client-keys-file=keys", "--api-key-file keys --client-keys-file=keys"),
        ("--tokenizer abc --max-tokens 5 --api-key-env NAME", "--tokenizer abc --max-tokens 5 --api-key-env NAME"),
        ('{"api_keys":"k1","hf_token":"a\\"b"}', '{"api_keys":"**","hf_token":"****"}'),
        ('{"tokenizer":"k1"}', '{"tokenizer":"k1"}'),
    ],
)
def test_what_is_secret(words: str, shown: str) -> None:
    assert hidden(*words.split()) == shown.split()


PROGRAM = """
import sys
from dynamod.cli.hidden import hide_secrets
hide_secrets()
print(sys.argv[1:], flush=True)
sys.stdin.read()
"""


def test_the_command_line_of_the_process_changes_and_its_words_do_not() -> None:
    words = ["--api-key", "se cret", "é", "", '--x={"api_keys": "hid\\"den"}', "--Frontend.api_keys=third"]
    command = [sys.executable, "-c", PROGRAM, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == str(words)
            line = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[3:]
            shown = ["--api-key", "*" * 7, "é", "", '--x={"api_keys": "********"}', "--Frontend.api_keys=*****", ""]
            assert [word.decode() for word in line] == shown
        finally:
            process.communicate("")
