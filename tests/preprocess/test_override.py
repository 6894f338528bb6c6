"""Another chat template: it is the only thing that changes, for folders and GGUF files."""

from pathlib import Path

import pytest

from dynamod.message.errors import UserError
from dynamod.preprocess.override import template_text, with_template
from dynamod.preprocess.source import open_source
from dynamod.sample import path

TEMPLATE = "{% for message in messages %}<{{ message.content }}>{% endfor %}"


@pytest.mark.parametrize("name", ["sample", "sample.gguf"])
def test_only_the_template_is_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = with_template(path(name), TEMPLATE)
    assert found.is_relative_to(tmp_path / "dynamod/templates")
    assert with_template(path(name), TEMPLATE) == found
    assert with_template(path(name), TEMPLATE + " ") != found
    assert with_template(found, TEMPLATE) == found
    own, other = open_source(path(name)), open_source(found)
    assert other.templates == {"default": TEMPLATE} != own.templates
    assert (other.context_length, other.eos_ids, other.sampling) == (own.context_length, own.eos_ids, own.sampling)
    assert other.build().encode("Who are you?").ids == own.build().encode("Who are you?").ids
    assert sum(file.stat().st_size for file in found.parent.rglob("*") if file.is_file()) < 2_000_000, "no weights"


def test_a_template_is_a_file_or_its_text(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(TEMPLATE)
    assert template_text(str(tmp_path / "own.jinja")) == template_text(TEMPLATE) == TEMPLATE
    with pytest.raises(UserError, match="`chat_template` 'chatml' cannot be read: No such file") as raised:
        template_text("chatml")
    assert "names of built-in templates are not known" in raised.value.hint
