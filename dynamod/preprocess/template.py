"""Chat templates: messages in, prompt text out, as transformers renders them.

minijinja does the work (compiled once, about 10 us per short conversation), and nothing else does: what a template
gives must not depend on what else is installed, and jinja2 has no bound of work. `tests/preprocess/test_template.py`
compares the two.

How much one rendering may do has a bound: instructions, bytes that filters make, and processor time. A template comes
with a model, and a rendering keeps all other requests of its process waiting. So the bound is low, and only messages
that are large raise it: a small request cannot cause much work, whatever the template does with it.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from numbers import Number
from operator import attrgetter
from typing import Any

from dynamod.message.errors import BadRequest, UserError

from .contents import OTHER, ROLES, Form, Reading, reading_of

Render = Callable[..., str]

WIDEST = 100
"""Characters of indentation."""

# transformers marks the assistant's text for training with {% generation %}; for a prompt the tags mean nothing. They
# become an `if`, not nothing, so that trim_blocks and `-` work on the white space around them as before.
_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class Float:
    """A number that minijinja writes otherwise than Python: 1.0 is 1 to filters, 1e-07 is shown as 0.0000001."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def read_float(text: str) -> "float | Float":
    """A number of JSON text, so that a template shows it as transformers does."""
    value = float(text)
    return Float(value) if value.is_integer() or "e" in repr(value) else value


class Refused(Exception):
    """The template called `raise_exception`: these messages are not for this model."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The most work of one rendering.

    `fuel`: units of minijinja; an instruction costs one, copying instructions more. `size`: bytes that the filters of
    this package produce. `seconds`: processor time, checked when such a filter runs.
    """

    fuel: int
    size: int
    seconds: float


def _bound(fuel: int) -> Bound:
    return Bound(fuel, 8 * fuel, 0.1 + fuel / 10_000_000)


BOUNDS = tuple(_bound(fuel) for fuel in (250_000, 1_000_000, 4_000_000, 10_000_000))
"""The least is enough for 5,000 short messages (about 10 ms of work), the most for 200,000."""
FUEL_PER_SIZE = 16
"""Fuel per unit of `size_of` that a large request gets, as 1,000 messages need in a template that compares each two."""
VALUE_SIZE = 50
"""What a value counts in `size_of`, beyond the characters of a text."""


class TooMuch(Exception):
    """A filter has made too many bytes, or the rendering has taken too long."""


class Work:
    """What the renderings of a template have done so far; each thread has one of its own at a time."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._now = threading.local()

    def begin(self, bound: Bound) -> None:
        """A rendering begins in this thread."""
        self._now.bound, self._now.made, self._now.begun = bound, 0, None

    def enter(self) -> None:
        """A filter begins: the first one starts the clock, which is a system call. Fuel bounds all before that."""
        if getattr(self._now, "begun", 0.0) is None:
            self._now.begun = self._clock()

    def charge(self, size: int) -> None:
        """A filter has made so many bytes. Raises TooMuch."""
        now = self._now
        if (bound := getattr(now, "bound", None)) is None:
            return  # not in a rendering
        now.made += size
        if now.made > bound.size:
            raise TooMuch(f"its filters make more than {bound.size} bytes")
        spent = self._clock()
        if now.begun is None:
            now.begun = spent
        if spent - now.begun > bound.seconds:
            raise TooMuch(f"it takes more than {bound.seconds:g} s")


def bound_of(context: Mapping[str, Any]) -> Bound:
    """The bound of a rendering of these values."""
    wanted = FUEL_PER_SIZE * size_of(context, BOUNDS[-1].fuel // FUEL_PER_SIZE)
    return next((bound for bound in BOUNDS if bound.fuel >= wanted), BOUNDS[-1])


def size_of(value: Any, most: int) -> int:
    """Characters of all texts in a value and VALUE_SIZE for each value; it stops to count above `most`."""
    size, waiting = 0, [value]
    while waiting and size <= most:
        one = waiting.pop()
        size += VALUE_SIZE
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, Mapping):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
    return size


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
        self.source = source
        self._source = _GENERATION.sub(_as_if, source)
        self._readings: dict[str, Reading] = {}  # by role
        self._context = {**(tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._helpers: dict[str, Any] = {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: self._charged(now().strftime(form)),
        }
        self._work = Work()
        self._renders: dict[Bound, Render] = {}
        try:
            self._render_within(BOUNDS[0])
        except Exception as error:
            raise UserError(f"the model's chat template is not valid: {_reason(error)}") from None

    def form(self, role: str) -> Form:
        """The form in which it reads what messages of `role` say; found out at the first one."""
        return self._reading(role).form

    def takes(self, role: str) -> bool:
        """Whether the prompt has what messages of `role` say."""
        return self._reading(role).shown

    def _reading(self, role: str) -> Reading:
        known = self._named(role)
        found = self._readings.get(known)
        if found is None:
            found = self._readings[known] = reading_of(self.render, known)
        return found

    def _named(self, role: str) -> str:
        """The role as the template knows it: clients may send any number of roles, and a template names few."""
        return role if role in ROLES or f"'{role}'" in self.source or f'"{role}"' in self.source else OTHER

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
            try:
                return self._rendered(BOUNDS[0], context)
            except Exception as error:
                bound = bound_of(context)
                if bound is BOUNDS[0] or not _is_too_much(error):
                    raise
            return self._rendered(bound, context)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise _refusal(error) from None

    def _rendered(self, bound: Bound, context: dict[str, Any]) -> str:
        render = self._render_within(bound)
        self._work.begin(bound)
        return render(**context)

    def _render_within(self, bound: Bound) -> Render:
        found = self._renders.get(bound)
        if found is None:
            filters = {"tojson": self._charging(to_json), "indent": self._charging(indent)}
            found = self._renders[bound] = _minijinja(self._source, self._helpers, filters, bound.fuel)
        return found

    def _charging(self, made: Callable[..., str]) -> Callable[..., str]:
        def charged(*values: Any, **options: Any) -> str:
            self._work.enter()
            return self._charged(made(*values, **options))

        return charged

    def _charged(self, text: str) -> str:
        self._work.charge(len(text))
        return text


def _is_too_much(error: Exception) -> bool:
    """Whether the bound of work has ended a rendering."""
    return isinstance(error, TooMuch) or "ran out of fuel" in str(error)


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
    """The `tojson` of transformers: no HTML escaping, non-ASCII as it is, keys in order. Raises ValueError."""
    _check_margin(indent or 0)
    return json.dumps(
        value,
        indent=indent,
        ensure_ascii=ensure_ascii,
        separators=separators,
        sort_keys=sort_keys,
        default=attrgetter("value"),  # of a Float
    )


def _check_margin(width: int) -> None:
    if width > WIDEST:
        raise ValueError(f"an indentation of more than {WIDEST} characters")


def indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """The `indent` of jinja2; minijinja's drops a newline at the end and takes any width. Raises ValueError."""
    margin = width if isinstance(width, str) else " " * min(width, WIDEST + 1)
    _check_margin(len(margin))
    head, *rest = f"{text}\n".splitlines()
    rest = [margin + line if line or blank else line for line in rest]
    return "\n".join([margin + head if first else head, *rest])


def _minijinja(source: str, helpers: dict[str, Any], filters: dict[str, Any], fuel: int) -> Render:
    from minijinja import Environment

    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        filters=filters,
        tests={
            "iterable": lambda value: isinstance(value, Iterable),  # none is iterable for minijinja
            "number": lambda value: isinstance(value, Number | Float),
        },
        globals=helpers,
    )
    environment.auto_escape_callback = lambda _name: False
    environment.fuel = fuel
    environment.add_template("chat", source)
    return partial(environment.render_template, "chat")
