"""Calls in a thought that is not closed, and prompts that have begun an answer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamod.parsers import Broken, Call, Content, Dropped, Reasoning, ToolSpec, assemble, make_parser
from tests.parsers.test_laws import arguments, cuts, parse, shown, texts
from tests.parsers.vectors import FORMATS, TOOLS

WORDS = ("phi4", "xlam code")
"""Formats with no marker in front of a call but a word: a thought that has it is no call."""
TURN = "gigachat3 turn"
"""In front of its calls is a token that ends a turn: the tokenizer names it as `special`."""
NESTED = {name: form for name, form in FORMATS.items() if not form.bare and name not in (*WORDS, TURN)}
each = pytest.mark.parametrize("form", NESTED.values(), ids=NESTED.keys())
asked = st.lists(st.tuples(st.just("find"), arguments) | st.tuples(st.just("now"), st.just({})), min_size=1, max_size=3)


@each
@settings(max_examples=15)
@given(thought=texts, calls=asked, after=texts, answer=st.just("") | texts, sizes=cuts, ends=st.booleans())
def test_a_thought_goes_on_after_its_calls_until_its_end(form, thought, calls, after, answer, sizes, ends) -> None:
    text = f"{form.think[0]}{thought}{form.calls(calls)}{after}"
    parts = [("reasoning", thought), *calls, ("reasoning", after)]
    if ends:
        text += form.think[1] + (form.say.format(answer) if answer else "")
        parts += [("content", answer)] if answer else []
    made = assemble(parse(form, text, sizes))
    assert shown(made) == parts, text
    assert made == assemble(parse(form, text, None)) == assemble(parse(form, text, []))
    for pieces in (True, False):
        kept = assemble(parse(form, text, sizes, pieces=pieces))
        assert shown(kept) == parts == shown(assemble(parse(form, text, [], pieces=pieces))), text


@each
@settings(max_examples=15)
@given(thought=texts, calls=asked, share=st.floats(0, 1), sizes=cuts)
def test_a_text_that_a_limit_cuts_off_in_a_thought_has_no_content(form, thought, calls, share, sizes) -> None:
    text = form.think[0] + thought + form.calls(calls)
    text = text[: len(form.think[0]) + int((len(text) - len(form.think[0])) * share)]
    made = assemble(parse(form, text, sizes, "length"))
    assert made == assemble(parse(form, text, None, "length"))
    assert not [one for one in made if isinstance(one, Content)], text


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - NESTED.keys() - {TURN}))
def test_words_and_json_in_a_thought_are_no_call(name) -> None:
    form = FORMATS[name]
    draft = form.calls([("find", {"text": "x"})])
    made = assemble(parse(form, f"{form.think[0]}I write {draft} next.{form.think[1]}{draft}", []))
    assert [type(one) for one in made] == [Reasoning, Call]
    assert made[0] == Reasoning(f"I write {draft} next.")


BROKEN = '<tool_call>\n{"name": "find", "arguments": {place: 1}}\n</tool_call>'
SHOWN = '{"name": "find", "arguments": {place: 1}}\n'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"<think>a {BROKEN} b</think>c", [("reasoning", "a "), ("content", SHOWN), ("reasoning", "b"),
                                           ("content", "c")]),
        (f"<think>a {BROKEN}", [("reasoning", "a "), ("content", SHOWN)]),
        (f"<think>a {BROKEN}{BROKEN} b", [("reasoning", "a "), ("content", SHOWN), ("content", SHOWN),
                                               ("reasoning", "b")]),
        (f"<think>a {BROKEN}{NOW} b", [("reasoning", "a "), ("content", SHOWN), ("now", {}), ("reasoning", "b")]),
        (f"<think>a</think>{BROKEN} b", [("reasoning", "a"), ("content", f"{SHOWN}b")]),
        (f"<think>a {NOW} </tool_call> b</think>c", [("reasoning", "a "), ("now", {}), ("reasoning", "b"),
                                                    ("content", "c")]),
        (f"<think>a {NOW} b </tool_call> c", [("reasoning", "a "), ("now", {}), ("reasoning", "b </tool_call> c")]),
        (f"<think>a {NOW} b <think>c</think>d", [("reasoning", "a "), ("now", {}), ("reasoning", "b c"),
                                                ("content", "d")]),
        ("<think>a <tool_call> b</think>c", [("reasoning", "a  b"), ("content", "c")]),
    ],
)  # fmt: skip
def test_broken_calls_and_stray_markers_in_a_thought(text, parts) -> None:
    for sizes in (None, [], [5] * 60):
        assert shown(assemble(parse(FORMATS["hermes"], text, sizes))) == parts


def test_a_broken_call_that_stays_is_a_call_of_the_thought() -> None:
    for sizes in (None, [], [5] * 60):
        made = assemble(parse(FORMATS["hermes"], f"<think>a {BROKEN} b</think>c", sizes, pieces=True))
        assert [type(one) for one in made] == [Reasoning, Call, Broken, Reasoning, Content]
        assert [one.text for one in made if isinstance(one, Reasoning | Content)] == ["a ", "b", "c"]


FOUND = '{"text": "a"}'
THOUGHT = [("reasoning", "so"), ("content", "Yes")]
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>"


@pytest.mark.parametrize(
    ("tool", "end", "text", "inside", "parts"),
    [
        ("harmony", "<|channel|>analysis<|message|>", f"so{FINAL}", True, THOUGHT),
        ("harmony", "<|channel|>analysis<|message|>I think", f" so{FINAL}", True,
         [("reasoning", " so"), ("content", "Yes")]),
        ("harmony", "<|channel|>analysis", f"<|message|>so{FINAL}", False, THOUGHT),
        ("harmony", "<|channel|>", f"analysis<|message|>so{FINAL}", False, THOUGHT),
        ("harmony", "", f"<|channel|>analysis<|message|>so{FINAL}", False, THOUGHT),
        ("harmony", "<|channel|>final<|message|>", "to be", False, [("content", "to be")]),
        ("harmony", "<|channel|>final<|message|>It", " is<|return|>", False, [("content", " is")]),
        ("harmony", "<|channel|>commentary<|message|>", "I look.<|end|>", False, [("content", "I look.")]),
        ("harmony", "<|channel|>commentary to=functions.find <|constrain|>json<|message|>", f"{FOUND}<|call|>", False,
         [("find", json.loads(FOUND))]),
        ("harmony", '<|channel|>commentary to=functions.find <|constrain|>json<|message|>{"text"', ': "a"}<|call|>',
         False, [("find", json.loads(FOUND))]),
        ("harmony", " to=functions.find", f"<|channel|>commentary json<|message|>{FOUND}<|call|>", False,
         [("find", json.loads(FOUND))]),
        ("harmony", "", f" to=functions.find<|channel|>commentary json<|message|>{FOUND}<|call|>", False,
         [("find", json.loads(FOUND))]),
        ("beam", "<|channel|>analysis<|message|>", f"so{FINAL}", True, THOUGHT),
        ("muse_glimmer", " to=self<|message|>", "so<|eom|><|start|>assistant to=user<|message|>Yes<|eot|>", True,
         THOUGHT),
        ("inkling", "<|message_model|><|content_thinking|>", "so<|end_message|>", True, [("reasoning", "so")]),
    ],
)  # fmt: skip
def test_an_answer_continues_from_what_the_prompt_has_begun(tool, end, text, inside, parts) -> None:
    history = "<|start|>assistant<|channel|>analysis<|message|>Before.<|end|><|start|>user<|message|>Hi<|end|>"
    history = "" if tool == "inkling" else history.replace("<|end|>", "<|eot|>") if tool == "muse_glimmer" else history
    for size in (1, 4, len(text)):
        prompt = f"{history}<|start|>assistant{end}" if tool != "inkling" else end
        parser = make_parser(tool, None, TOOLS, seed="s", prompt=prompt)
        assert parser.reasoning is inside
        made = [one for at in range(0, len(text), size) for one in parser.feed(text[at : at + size])]
        assert shown(assemble(made + parser.finish())) == parts


def test_a_message_of_another_role_is_no_beginning_of_an_answer() -> None:
    for prompt in ("<|start|>user<|message|>Hi", "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>", "Hi"):
        parser = make_parser("harmony", None, [ToolSpec("now")], prompt=prompt)
        assert not parser.reasoning
        assert assemble(parser.feed("Yes") + parser.finish()) == [Content("Yes")]


def test_a_call_that_the_prompt_has_begun_and_a_limit_cuts_off_is_a_note() -> None:
    prompt = "<|start|>assistant<|channel|>commentary to=functions.find <|constrain|>json<|message|>"
    parser = make_parser("harmony", None, TOOLS, seed="s", prompt=prompt)
    assert assemble(parser.feed('{"text": "a') + parser.finish("length")) == [Dropped(0, "find", "truncated")]
