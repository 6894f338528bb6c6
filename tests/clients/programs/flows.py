"""What the programs share: `main(flows)` runs each flow and prints what came of it as one line of JSON."""

import argparse
import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

QUESTION = "What is the weather in Paris?"
WEATHER = "sunny"


class Parcel(BaseModel):
    size: Literal["small", "large"]
    fragile: bool


class Order(BaseModel):
    """An order"""

    customer: Literal["Ann", "Bo"]
    paid: bool
    parcel: Parcel
    gift: Parcel | None


@dataclass(frozen=True)
class Settings:
    """Where the server is, and whether its model has to be told to call a tool (`required`) or does so (`auto`)."""

    url: str
    model: str
    choice: str

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


def main(*flows: Callable[[Settings], Any]) -> None:
    """`PROGRAM URL MODEL [auto|required]`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("choice", choices=("auto", "required"), default="auto", nargs="?")
    settings = Settings(**vars(parser.parse_args()))
    for flow in flows:
        try:
            line = {"flow": flow.__name__, "value": flow(settings)}
        except Exception:
            line = {"flow": flow.__name__, "error": traceback.format_exc()}
        print(json.dumps(line), flush=True)
