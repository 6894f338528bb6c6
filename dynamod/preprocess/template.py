"""Chat templates: messages in, prompt text out, as transformers renders them.

minijinja does the work (compiled once, about 10 us per short conversation). A template that it cannot compile or run
is tried with jinja2, where that is installed; `tests/preprocess/test_template.py` compares the two.
"""

import json
import logging
import re
from collections.abc import Callable
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from dynamod.message.errors import BadRequest, UserError

log = logging.getLogger(__name__)

Render = Callable[..., str]

# transformers marks the assistant's text for training with {% generation %}; for a prompt the tags mean nothing. They
# become an `if`, not nothing, so that trim_blocks and `-` work on the white space around them as before.
_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class Refused(Exception):
    """The template called `raise_exception`: these messages are not for this model."""


class ChatTemplate:
    """One compiled chat template.

    `tokens`: further special tokens that the template may name, e.g. pad_token. `now`: what `strftime_now` reads.
    Raises UserError when the source is not a valid template.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        *,
        tokens: dict[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._source = _GENERATION.sub(_as_if, source)
        self._context = {**(tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._helpers: dict[str, Any] = {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now().strftime(form),
        }
        self.engine = "minijinja"
        try:
            self._render = _minijinja(self._source, self._helpers)
        except Exception as error:
            if not self._use_other(error):
                raise UserError(f"the model's chat template is not valid: {_reason(error)}") from None

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Return the prompt. Raises BadRequest (param "messages") with the template's own message when it refuses."""
        given = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        context = {**self._context, **kwargs, **given, "documents": None}
        try:
            return self._render(**context)
        except Refused as error:
            raise _refusal(error) from None
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            failure = error
        # It may be a gap in minijinja: if jinja2 can render this, it does so from here on.
        if self.engine == "jinja2" or self._other is None:
            raise _refusal(failure)
        try:
            text = self._other(**context)
        except Exception as error:
            raise _refusal(error) from None
        self._use_other(failure)
        return text

    @cached_property
    def _other(self) -> Render | None:
        """The template in jinja2, compiled when it is first needed; None when jinja2 is missing or refuses it too."""
        try:
            return _jinja2(self._source, self._helpers)
        except Exception as error:
            log.debug("no jinja2 for the chat template: %s", error)
            return None

    def _use_other(self, error: BaseException) -> bool:
        if self._other is None:
            return False
        log.warning("minijinja cannot render the chat template (%s), jinja2 does from here on", _reason(error))
        self.engine, self._render = "jinja2", self._other
        return True


def _refusal(error: BaseException) -> BadRequest:
    return BadRequest(f"The model's chat template refused the messages: {_reason(error)}", param="messages")


def _reason(error: BaseException) -> str:
    """One line: minijinja's text of an error is a page with the template's source."""
    text = str(getattr(error, "message", None) or error) or type(error).__name__
    return text.splitlines()[0]


def _as_if(match: re.Match[str]) -> str:
    left, end, right = match.groups()
    return f"{{%{left} {'endif' if end else 'if true'} {right}%}}"


def _raise_exception(message: str) -> None:
    raise Refused(message)


def to_json(
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` of transformers: no HTML escaping, non-ASCII as it is, keys in order."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)


def _minijinja(source: str, helpers: dict[str, Any]) -> Render:
    from minijinja import Environment

    environment = Environment(trim_blocks=True, lstrip_blocks=True, filters={"tojson": to_json}, globals=helpers)
    environment.auto_escape_callback = lambda _name: False
    environment.add_template("chat", source)
    return partial(environment.render_template, "chat")


def _jinja2(source: str, helpers: dict[str, Any]) -> Render:
    """The same template in jinja2, set up as transformers sets it up. Raises ImportError without jinja2."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals.update(helpers)
    return environment.from_string(source).render
