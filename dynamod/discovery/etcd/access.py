"""Users and roles of an etcd whose clients show certificates: the name in a certificate is the user."""

from collections.abc import Collection
from typing import Any

from dynamod.discovery.keys import OPERATOR_SETTINGS, SHARED
from dynamod.message.errors import UserError

from .client import CALL, after, channel, library
from .settings import Endpoint, EtcdSettings

ROOT = "root"
"""The user of etcd that may do everything. Without this user there is no authentication."""
ROLE = "dynamod"
"""The role of nodes: they write what they share, and read what operators set."""
_AWAY = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"}


async def restrict(endpoint: Endpoint, settings: EtcdSettings, users: Collection[str]) -> None:
    """Let in only ROOT and these users, which get ROLE. `settings`: certificate of ROOT. Raises UserError.

    A second call changes nothing: users and roles that exist stay.
    """
    grpc, rpc = library()
    async with channel(endpoint, settings) as opened:
        auth = rpc.AuthStub(opened)

        async def call(method: Any, request: Any) -> Any:
            try:
                return await method(request, timeout=CALL)
            except (grpc.aio.AioRpcError, grpc.aio.BaseError) as error:
                details = str(error.details() if isinstance(error, grpc.aio.AioRpcError) else error)
                if "already exists" in details:
                    return None
                hint = "start it again: dynamo infra down, then up" if _code(error) in _AWAY else "see its log"
                raise UserError(f"etcd at {endpoint} does not set up its users: {details}", hint) from None

        if (await call(auth.AuthStatus, rpc.AuthStatusRequest())).enabled:
            wanted = [user for user in users if user not in await _known(call, auth, rpc)]
        else:
            await call(auth.RoleAdd, rpc.AuthRoleAddRequest(name=ROOT))
            await _user(call, auth, rpc, ROOT, ROOT)
            wanted = list(users)
        await call(auth.RoleAdd, rpc.AuthRoleAddRequest(name=ROLE))
        for prefix, kind in ((SHARED, rpc.Permission.READWRITE), (OPERATOR_SETTINGS, rpc.Permission.READ)):
            permission = rpc.Permission(permType=kind, key=prefix.encode(), range_end=after(prefix))
            await call(auth.RoleGrantPermission, rpc.AuthRoleGrantPermissionRequest(name=ROLE, perm=permission))
        for user in wanted:
            await _user(call, auth, rpc, user, ROLE)
        await call(auth.AuthEnable, rpc.AuthEnableRequest())


async def _known(call: Any, auth: Any, rpc: Any) -> Collection[str]:
    return set((await call(auth.UserList, rpc.AuthUserListRequest())).users)


async def _user(call: Any, auth: Any, rpc: Any, name: str, role: str) -> None:
    """A user without a password: only a certificate lets it in."""
    await call(auth.UserAdd, rpc.AuthUserAddRequest(name=name, options=rpc.UserAddOptions(no_password=True)))
    await call(auth.UserGrantRole, rpc.AuthUserGrantRoleRequest(user=name, role=role))


def _code(error: Any) -> str:
    code = getattr(error, "code", None)
    return getattr(code(), "name", "") if code is not None else ""
