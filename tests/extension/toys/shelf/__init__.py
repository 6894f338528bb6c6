"""A toy that keeps KV blocks on a shelf, and tells routers which worker would take blocks from its shelf."""

from typing import TYPE_CHECKING

from dynamod.extension.feature import Feature

if TYPE_CHECKING:
    from dynamod.kvcache.store import BlockStores
    from dynamod.router.overlap import MakeSource


def _stores() -> "BlockStores":
    from .blocks import Shelves

    return Shelves()


def _source() -> "MakeSource":
    from .blocks import ShelfIndex

    return ShelfIndex


FEATURE = Feature("shelf", "a toy: blocks on a shelf", block_stores=_stores, overlaps=_source)
