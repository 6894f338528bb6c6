"""Sums up requests, tokens and errors by key.

dynamo audit --since 1d -n 0 --output json | python examples/audit/use_by_key.py
"""

import json
import sys
from collections import Counter


def main() -> None:
    """Read entries from stdin, one JSON object per line, and print a line per key."""
    requests, tokens, errors = Counter[str](), Counter[str](), Counter[str]()
    for line in sys.stdin:
        entry = json.loads(line)
        if entry["kind"] != "request":
            continue
        key = entry["key"] or "(no key)"
        requests[key] += 1
        tokens[key] += entry["prompt_tokens"] + entry["completion_tokens"]
        errors[key] += entry["status"] >= 400
    for key, count in requests.most_common():
        print(f"{key}: {count} requests, {tokens[key]} tokens, {errors[key]} errors")


if __name__ == "__main__":
    main()
