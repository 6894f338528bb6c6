"""Prints the flags of NVIDIA Dynamo's modules as JSON, by module; run by a python with the package ai-dynamo."""

import argparse
import json
from importlib import import_module


class _Asked(Exception):
    """Carries the parser that a module has made."""


def _caught(parser: argparse.ArgumentParser, *_given: object, **_named: object) -> None:
    raise _Asked(parser)


def flags() -> dict[str, list[str]]:
    """The modules that can be imported, each with its flags."""
    found = {}
    parser = argparse.ArgumentParser()
    import_module("dynamo.frontend.frontend_args").FrontendArgGroup().add_arguments(parser)
    found["dynamo.frontend"] = [*parser._option_string_actions]
    read = argparse.ArgumentParser.parse_args, argparse.ArgumentParser.parse_known_args
    argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_known_args = _caught  # type: ignore[assignment]
    try:
        import_module("dynamo.mocker.args").parse_args([])
    except _Asked as asked:
        found["dynamo.mocker"] = [*asked.args[0]._option_string_actions]
    argparse.ArgumentParser.parse_args, argparse.ArgumentParser.parse_known_args = read  # type: ignore[method-assign]
    groups = vars(import_module("dynamo.common.configuration.groups.runtime_args"))
    common = [group for name, group in groups.items() if name.endswith("ArgGroup") and name != "ArgGroup"]
    for engine in ("vllm", "sglang", "trtllm"):
        try:
            own = vars(import_module(f"dynamo.{engine}.backend_args"))
        except ImportError:  # of the engine, which is not installed
            continue
        parser = argparse.ArgumentParser()
        made = [group for name, group in own.items() if name.startswith("Dynamo") and name.endswith("ArgGroup")]
        for group in (*common, *made):
            group().add_arguments(parser)
        found[f"dynamo.{engine}"] = [*parser._option_string_actions]
    return found


if __name__ == "__main__":
    print(json.dumps(flags()))
