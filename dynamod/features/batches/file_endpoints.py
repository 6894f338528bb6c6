"""/v1/files: the files of batches, kept in a folder. A file is visible to the key that made it."""

import asyncio
import os
import time
from collections.abc import Mapping
from io import FileIO
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from dynamod.http.answer import json_response
from dynamod.http.body import BodyClock
from dynamod.http.context import RequestContext
from dynamod.http.errors import UnsupportedMedia
from dynamod.ingress.api.endpoint import Bytes, Endpoint, Frontend
from dynamod.ingress.api.pages import ascending, limit_of, listed
from dynamod.message.errors import BadRequest, NotFound, unsupported

from .quotas import check_files
from .records import (
    LONGEST_LIFE,
    PURPOSES,
    SHORTEST_LIFE,
    DeletedFile,
    FileObject,
    file_id,
    gone,
    room_on_disk,
)

if TYPE_CHECKING:
    from .store import Store

PART = 65_536
"""Bytes that are read at a time."""
LOOK = 4 * 1024 * 1024
"""Bytes of an upload between two checks of the size of all files."""
FORM = 4096
"""Bytes of a form that may be no bytes of its file: an early refusal must be right about the file."""
NAME = 512
"""Most characters of a file's name."""
MOST = 10_000
"""Most files of one page."""
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FIELDS = {
    "purpose": f"one of {', '.join(PURPOSES)}",
    ANCHOR: "created_at",
    SECONDS: f"a number from {SHORTEST_LIFE} to {LONGEST_LIFE}",
}
"""Parts of an upload besides the file, and what they must be."""
PARTS = ", ".join(f"`{name}`" for name in ("file", *FIELDS))


class FileList(msgspec.Struct):
    """Files in pages."""

    object: str
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


def store_of(frontend: Frontend) -> "Store":
    """The store of files and batches. Raises NotFound where the setting `batches_dir` names no folder."""
    store: Store | None = frontend.parts["batches"]
    if store is None:
        text = "files and batches are off here: the setting batches_dir of the frontend names a folder for them"
        raise NotFound(text, code="batches_off")
    return store


class Upload(Endpoint):
    """POST /v1/files."""

    method = "POST"
    path = "/v1/files"
    summary = "Keep a file, for example of requests for /v1/batches"
    response = FileObject
    errors = (400, 401, 404, 408, 413, 415, 429, 500, 507)
    form: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "purpose": {"enum": [*PURPOSES]},
            "file": {"type": "string", "format": "binary"},
            ANCHOR: {"enum": ["created_at"]},
            SECONDS: {"type": "integer", "minimum": SHORTEST_LIFE, "maximum": LONGEST_LIFE},
        },
        "required": ["purpose", "file"],
    }

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """Write an upload to the disk as its parts arrive. Raises RequestError; then no part of the upload is kept."""
        store, headers, request = store_of(frontend), context.request.headers, context.request
        if not headers.get("Content-Type", "").lower().startswith("multipart/form-data"):
            raise UnsupportedMedia("a file is sent as multipart/form-data, with the parts `purpose` and `file`")
        await asyncio.to_thread(store.check_count)
        await asyncio.to_thread(store.check_room, request.content_length or 0)
        owner, length = context.caller.owner, max(0, (request.content_length or 0) - FORM)
        check_files(frontend.settings, await asyncio.to_thread(store.files, owner), length)
        if headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        name = file_id()
        part = store.upload(name)
        try:
            with room_on_disk(), store.create(part) as file:
                given = await _parts(request, store, file, frontend.settings.body_min_rate)
                size = file.tell()
                await asyncio.to_thread(os.fsync, file.fileno())
            purpose = next((one for one in PURPOSES if one == given.get("purpose")), None)
            if purpose is None:
                said = f"`purpose` is {given.get('purpose')!r}; it must be one of {', '.join(PURPOSES)}"
                raise BadRequest(said, param="purpose")
            if "file" not in given:
                raise BadRequest("`file` is required", param="file", code="missing_required_parameter")
            if not size:
                raise BadRequest("`file` must not be empty", param="file")
            check_files(frontend.settings, await asyncio.to_thread(store.files, owner), size)
            now, life = int(time.time()), _life(given)
            expires = now + life if life else msgspec.UNSET
            made = FileObject(name, size, now, given["file"], purpose, expires_at=expires)
            store.show(part, owner, made)
        finally:
            part.unlink(missing_ok=True)
        return json_response(made)


def _life(given: Mapping[str, str]) -> int:
    """Seconds after which an upload expires; 0: never. Raises BadRequest."""
    anchor, seconds = given.get(ANCHOR), given.get(SECONDS)
    if anchor is None and seconds is None:
        return 0
    if anchor != "created_at":
        raise BadRequest(f"`{ANCHOR}` is {anchor!r}; it must be 'created_at'", param=ANCHOR)
    life = int(seconds) if seconds is not None and seconds.isdecimal() else 0
    if not SHORTEST_LIFE <= life <= LONGEST_LIFE:
        said = f"`{SECONDS}` is {seconds!r}; it must be a number from {SHORTEST_LIFE} to {LONGEST_LIFE}"
        raise BadRequest(said, param=SECONDS)
    return life


async def _parts(request: web.BaseRequest, store: "Store", file: FileIO, rate: float) -> dict[str, str]:
    """Write the part `file` of a form into `file`; return the fields, where `file` is the name. Raises RequestError."""
    given: dict[str, str] = {}
    try:
        async with BodyClock(rate) as clock:
            came = 0
            reader = await request.multipart()
            while (part := await reader.next()) is not None:
                name = part.name if isinstance(part, BodyPartReader) else None
                if isinstance(part, MultipartReader) or name is None:
                    raise BadRequest("a part of the form has no name")
                if name not in ("file", *FIELDS):
                    raise unsupported(name[:NAME], f"`{name[:NAME]}` is not served; the parts are {PARTS}")
                if name in given:
                    raise BadRequest(f"`{name}` is there twice", param=name)
                if "\0" in (part.filename or ""):
                    raise BadRequest("`file`: its name has a NUL character", param="file")
                given[name] = (part.filename or "upload.jsonl")[:NAME] if name == "file" else ""
                end = 0  # offset up to which the last check found room
                while data := await part.read_chunk(PART):
                    came += len(data)
                    clock.came(came)
                    if name in FIELDS:
                        given[name] += data.decode("utf-8", "replace")
                        if len(given[name]) > NAME:
                            raise BadRequest(f"`{name}` must be {FIELDS[name]}", param=name)
                        continue
                    if file.tell() + len(data) > end:
                        end = file.tell() + min(LOOK, await asyncio.to_thread(store.check_room, len(data)))
                    while data:
                        data = data[file.write(data) or 0 :]
    except BadHttpMessage as error:  # the headers of a part have the name of the file
        text = f"`file`: a header of its part is not valid ({error.message})"
        raise BadRequest(" ".join(text.split())[:NAME], param="file") from None
    except (ValueError, AssertionError, web.RequestPayloadError) as error:
        raise BadRequest("the body is no multipart/form-data, or is cut short") from error
    return given


class Files(Endpoint):
    """GET /v1/files."""

    path = "/v1/files"
    summary = "The files of this key"
    response = FileList
    counted = True  # each request reads files of the disk
    errors = (400, 401, 404)
    query: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "purpose": {"enum": [*PURPOSES, "batch_output"]},
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST, "default": MOST},
        "order": {"enum": ["asc", "desc"], "default": "desc"},
        "after": {"type": "string", "description": "Only files after the one with this id"},
    }

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """A page of files. Raises NotFound, BadRequest."""
        store, query = store_of(frontend), context.request.query
        up = ascending(query)
        limit_of(query.get("limit"), MOST, MOST)  # a wrong value is refused before the folder is read

        def page() -> dict[str, Any]:
            found = store.files(context.caller.sees)
            if (purpose := query.get("purpose")) is not None:
                found = [one for one in found if one.purpose == purpose]
            return listed(found[::-1] if up else found, query, MOST, MOST)

        return json_response(await asyncio.to_thread(page))


class OneFile(Endpoint):
    """GET /v1/files/{id}."""

    path = "/v1/files/{id}"
    prefix = "/v1/files/"
    summary = "What a file is"
    response: ClassVar[type[msgspec.Struct]] = FileObject
    errors: ClassVar[tuple[int, ...]] = (401, 404)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """The file as an object. Raises NotFound."""
        return json_response(store_of(frontend).file(self.named(context), context.caller.sees))


class DeleteFile(OneFile):
    """DELETE /v1/files/{id}."""

    method = "DELETE"
    summary = "Keep a file no more"
    response = DeletedFile
    errors = (401, 404, 409)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """Delete a file. Raises NotFound, StoreInUse."""
        name = self.named(context)
        await asyncio.to_thread(store_of(frontend).delete, name, context.caller.sees)
        return json_response(DeletedFile(name))


class FileContent(OneFile):
    """GET /v1/files/{id}/content."""

    path = "/v1/files/{id}/content"
    suffix = "/content"
    summary = "The bytes of a file"
    response = Bytes

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """Send the bytes of a file as fast as the client reads. Raises NotFound."""
        store = store_of(frontend)
        found = store.file(self.named(context), context.caller.sees)
        headers = {"Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff"}
        try:
            file = store.data(found.id).open("rb")
        except FileNotFoundError:
            raise gone(found.id) from None
        with file:
            response = web.StreamResponse(headers={**headers, **context.headers})
            response.content_length = left = found.bytes
            await response.prepare(context.request)
            if context.request.method != "HEAD":
                while left and (data := await asyncio.to_thread(file.read, min(left, 4 * PART))):
                    left -= len(data)
                    await response.write(data)  # `client_timeout` ends a connection whose client reads nothing
            await response.write_eof()
            return response
