"""How an answer is printed: `--output`."""

import enum
from typing import Annotated

import typer


class Form(enum.StrEnum):
    """How an answer is printed."""

    TEXT = "text"
    JSON = "json"


Output = Annotated[Form, typer.Option("--output", "-o", help="how to print the answer")]
