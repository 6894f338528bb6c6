"""Fields that an operator has left out, for features that are APIs: `ignore_unsupported_fields`."""

from typing import Any

import aiohttp


async def ask(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and JSON of the answer."""
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        return answer.status, await answer.json()


async def check_left_out(
    serve: Any, path: str, asked: dict[str, Any], unserved: list[tuple[str, dict[str, Any]]], held: list[dict[str, Any]]
) -> str:
    """Ask `path` for each field of `unserved`, which may be left out, and of `held`, which may not; the lax URL."""
    strict, lax = await serve(), await serve(ignore_unsupported_fields=True)
    for name, fields in unserved:
        assert (await ask(strict + path, {**asked, **fields}))[0] == 400, name
        status, answer = await ask(lax + path, {**asked, **fields})
        assert status == 200, (name, answer)
    for fields in held:
        assert (await ask(lax + path, {**asked, **fields}))[0] == 400, "it would be another conversation"
    async with aiohttp.ClientSession() as session, session.get(f"{lax}/metrics") as found:
        counted = await found.text()
    for name, _ in unserved:
        assert f'dynamo_frontend_unsupported_fields_total{{field="{name}"}} 1.0' in counted
    return lax + path
