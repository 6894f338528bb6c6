"""Which features are on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.cli.app import run
from dynamod.extension import installed as features
from dynamod.extension.feature import Feature
from dynamod.extension.installed import explanation, extensions, installed, require, why_off
from dynamod.message.errors import UserError

CHAIN = {
    "planner": Feature("planner", ""),
    "prefill": Feature("prefill", ""),
    "role_switch": Feature("role_switch", "", requires=("planner", "prefill")),
    "extra": Feature("extra", "", requires=("role_switch",)),
}


def test_all_are_on_without_the_variable() -> None:
    assert set(why_off(CHAIN, "").values()) == {""}
    assert {feature.name for feature in installed().values()} == set(installed())


def test_what_requires_a_feature_that_is_off_is_off() -> None:
    off = why_off(CHAIN, "-planner")
    assert off == {
        "planner": "switched off by DYNAMOD_FEATURES",
        "prefill": "",
        "role_switch": "requires planner, which is off",
        "extra": "requires role_switch, which is off",
    }


def test_what_requires_an_absent_feature_is_off() -> None:
    left = {name: feature for name, feature in CHAIN.items() if name != "prefill"}
    assert why_off(left, "")["role_switch"] == "requires prefill, which is not installed"


def test_none_switches_all_off() -> None:
    assert all(why_off(CHAIN, " none ").values())


@pytest.mark.parametrize(
    ("text", "says"), [("-nobody", "known features: planner"), ("planner", "-planner switches it off")]
)
def test_mistakes_name_the_variable_and_what_is_allowed(text: str, says: str) -> None:
    with pytest.raises(UserError, match="DYNAMOD_FEATURES") as caught:
        why_off(CHAIN, text)
    assert says in caught.value.line()


@given(st.sets(st.sampled_from(sorted(CHAIN))))
def test_what_is_on_has_what_it_requires(off: set[str]) -> None:
    found = why_off(CHAIN, ",".join(f"-{name}" for name in off))
    for name, feature in CHAIN.items():
        if not found[name]:
            assert name not in off
            assert not any(found[other] for other in feature.requires)


def test_what_a_feature_uses_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "installed", lambda: CHAIN)
    monkeypatch.setenv("DYNAMOD_FEATURES", "-planner")
    require("prefill", "--prefill-workers")
    for name, why in {
        "planner": "which is off: switched off by DYNAMOD_FEATURES",
        "role_switch": "which is off: requires planner, which is off",
        "nobody": "which is not installed",
    }.items():
        with pytest.raises(UserError) as caught:
            require(name, "--flag")
        assert caught.value.line() == f"--flag needs the feature '{name}', {why}; see dynamo features"


def test_a_feature_adds_to_the_feature_that_it_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    base, more = Feature("base", ""), Feature("more", "", requires=("base",), extends={"base": lambda: "more of it"})
    monkeypatch.setattr(features, "installed", lambda: {"base": base, "more": more})
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)
    assert (extensions("base"), extensions("more")) == (["more of it"], [])
    monkeypatch.setenv("DYNAMOD_FEATURES", "-more")
    assert extensions("base") == []


def test_a_feature_explains_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told = lambda socket, output: print(socket, output)  # noqa: E731
    monkeypatch.setattr(features, "installed", lambda: {"toy": Feature("toy", "", explains={"tags": lambda: told})})
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)
    assert run(["explain", "tags", "--socket", "s", "--output", "json"]) == 0
    assert capsys.readouterr().out == "s json\n"
    assert explanation("request") is None
    monkeypatch.setenv("DYNAMOD_FEATURES", "none")
    with pytest.raises(UserError, match="`dynamo explain tags` belongs to the feature 'toy', which is off"):
        explanation("tags")
