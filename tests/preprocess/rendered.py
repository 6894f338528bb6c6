"""Chat templates as transformers renders them, in an environment that has it. Not a test.

Reads {"now": ISO time, "asked": [{"source": template, "contexts": [...]}]} as JSON; prints for each template the texts
of its contexts, null where transformers refuses.
"""

import json
import sys
from datetime import datetime
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template


def rendered(source: str, context: dict[str, Any], now: datetime) -> str | None:
    given = {"messages": None, **context, "strftime_now": now.strftime}
    messages, tools = given.pop("messages"), given.pop("tools")
    try:
        texts, _ = render_jinja_template([messages], tools=tools, chat_template=source, **given)
    except Exception:
        return None
    return str(texts[0])


def main() -> None:
    given = json.load(sys.stdin)
    now = datetime.fromisoformat(given["now"])
    texts = [[rendered(one["source"], context, now) for context in one["contexts"]] for one in given["asked"]]
    json.dump(texts, sys.stdout)


if __name__ == "__main__":
    main()
