"""A frontend of the command's own that answers nothing is an error, not a wait without end."""

import asyncio
import socket

import pytest

from dynamod.features.chat import client
from dynamod.features.chat.client import chat_client
from dynamod.message.errors import UserError


@pytest.mark.parametrize("accepts", [False, True])
async def test_a_frontend_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, accepts: bool) -> None:
    monkeypatch.setattr(client, "UNREACHABLE_S", 0.3)
    monkeypatch.setattr(client, "CONNECT", 0.1)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        if accepts:
            sock.listen()
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with asyncio.timeout(20), chat_client(url, "key", {}) as chat:
            with pytest.raises(UserError, match=r"has not answered for 0\.3 s"):
                await chat.model("sample")
