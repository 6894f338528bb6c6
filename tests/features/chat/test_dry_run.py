"""`dynamo-run in=stdin --dry-run`: the settings of the server that the command would run for itself."""

import pytest

from ...cli.test_dry_run import shown


def test_a_prompt_has_a_frontend_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    sections, _ = shown(capsys, "in=stdin out=echo_core sample")
    assert sections["Frontend"] == {"host": "127.0.0.1", "port": 0, "api_keys": "***"} | sections["Frontend"]
    assert sections["Frontend"]["api_keys"] == "***"
