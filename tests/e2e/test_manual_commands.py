"""The how-to and operation pages of the manual do what they say: every `sh` block is run, every output compared."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from .manual_page import KINDS, Reader, blocks_of
from .shell import joined
from .together import together

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for folder in ("how-to", "operate") for page in DOCS.glob(f"{folder}/*.md"))
RUN = [page for page in PAGES if any(block.kind == "sh" for block in blocks_of(page.read_text()))]

NOT_RUN = {
    "journalctl -u dynamod -f -o cat": "systemd",
    "/opt/dynamod/bin/pip install -U '/path/to/dynamod[mistralrs]'": "systemd; test_upgrade.py upgrades a package beneath a daemon",
    "dynamo-run in=http out=llamacpp model.gguf --lora german=german.gguf --lora sql=sql.gguf": "llama.cpp; test_lora.py",
    "dynamo-run in=http out=llamacpp minilm -- --embeddings": "llama.cpp compiles for minutes",
}
"""The first command of each `console` block, with what it needs that a test does not have."""

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("curl") is None, reason="no curl"),
]


@pytest.mark.parametrize("page", RUN, ids=[str(page.relative_to(DOCS)) for page in RUN])
@together
def test_a_page(machine: Any, page: Path) -> None:
    Reader(machine, page).follow()


def test_what_is_not_run_has_a_reason() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page.read_text())]
    assert {block.kind for block in blocks} <= KINDS
    shown = {joined(block.text)[0] for block in blocks if block.kind == "console"}
    assert shown == NOT_RUN.keys()
