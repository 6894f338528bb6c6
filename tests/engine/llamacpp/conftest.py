"""What llama_cpp leaves open is closed at the end."""

import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from dynamod.actor import System


@pytest.fixture(scope="session", autouse=True)
def closed() -> Iterator[None]:
    """It opens /dev/null at import for its own `Llama`, which is a warning at the end, and those are errors."""
    yield
    utils = sys.modules.get("llama_cpp._utils")
    if utils is not None:
        utils.outnull_file.close()
        utils.errnull_file.close()


@pytest.fixture
async def system() -> AsyncIterator[System]:
    async with System() as started:
        yield started
