"""Entry points of the console scripts. Imports wait until it is known what is needed: help must be quick."""

import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NoReturn

from dynamod.message.errors import DynamodError, UserError

from .completion import COMPLETE
from .hidden import hide_secrets
from .output import FULL, leave_stdout, tolerate_letters, unwritten


def dynamo() -> None:
    """`dynamo`: serve graphs and control the daemon."""
    _enter(_dynamo)


def dynamod() -> None:
    """`dynamod`: the daemon as a service."""
    _enter(_dynamod)


def dynamo_run() -> None:
    """`dynamo-run`: one engine without a graph file."""
    _enter(_dynamo_run)


def frontend() -> None:
    """`python -m dynamo.frontend`: the frontend alone."""
    _enter(_frontend)


def worker(engine: str, module: str) -> None:
    """`python -m dynamo.mocker` and its like: a worker of one engine."""
    _enter(partial(_worker, engine, module))


def _enter(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command with the words of the command line, whose secrets other users do not see from here on."""
    hide_secrets()
    _end(guarded(main, sys.argv[1:]))


def _dynamo(argv: Sequence[str]) -> int:
    if argv and argv[0] == "run":
        return _dynamo_run(argv[1:])
    if argv and argv[-1] in ("--version", "-V") and len(argv) <= 2:  # `dynamo serve --version` too
        argv = ["--version"]
    if argv and argv[0] == "serve":
        _attach(argv[1:], ("ingress", "worker"), ("--detach", "-d", "--dry-run"))
    from .app import run

    return run(argv)


def _dynamod(argv: Sequence[str]) -> int:
    from .service import run

    return run(argv)


def _dynamo_run(argv: Sequence[str]) -> int:
    if (line := os.environ.get(COMPLETE)) is not None:
        from .complete import run_words

        print(*run_words(line), sep="\n")
        return 0
    if argv:
        worker_only = any(word.startswith(("in=dyn", "in=none")) for word in argv)
        ingress_only = any(word in ("out=auto", "out=dyn") for word in argv)
        other = any(word.partition("=")[0] == "--python" for word in argv)  # no spare worker of ours
        needed = {"ingress": not worker_only, "worker": not ingress_only and not other}
        kinds = tuple(kind for kind, wanted in needed.items() if wanted)
        _attach(argv, kinds, ("--dry-run", "--show-completion"))
    from .run import run

    return run(argv)


def _frontend(argv: Sequence[str]) -> int:
    _attach(argv, ("ingress",))
    from .run import run_frontend

    return run_frontend(argv)


def _worker(engine: str, module: str, argv: Sequence[str]) -> int:
    if argv:
        _attach(argv, ("worker",))
    from .worker import run_worker

    return run_worker(engine, module, argv)


def _attach(argv: Sequence[str], kinds: Sequence[str], without: Collection[str] = ()) -> None:
    """Reach or fork the daemon, which warms up component processes while this one reads its arguments and files."""
    if not {*without, "--help", "-h", "--version"} & set(argv):
        from .attach import attach_early

        attach_early(argv, kinds)


def _end(code: int) -> NoReturn:
    """End the process, also when the output is not read any more."""
    backlog = sys.modules.get("dynamod.observe.backlog")
    if backlog is not None and not backlog.written():
        os._exit(code)
    if why := unwritten():
        code = _mistake(f"the output cannot be written: {why}", code or 1)
    sys.exit(code)


def guarded(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command. UserError becomes its line on stderr, Ctrl-C exit code 130, a closed pipe no error at all."""
    tolerate_letters()
    try:
        _check_variables()
        return main(argv)
    except UserError as error:
        return _mistake(error.line(), error.exit_code or 2)
    except DynamodError as error:
        return _mistake(str(error), 1)
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # it came while a class was made, in an import
            return 130
        raise
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        return _mistake("the current folder is not there any more; go to another", 2)  # os.getcwd says so
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except SystemExit as end:  # help of argparse
        if not isinstance(end.code, int | None):
            raise
        return end.code or 0
    except OSError as error:
        if error.filename is not None or error.errno not in FULL:
            raise
        leave_stdout()
        return _mistake(f"the output cannot be written: {error.strerror}", 1)
    finally:
        if (attached := sys.modules.get("dynamod.cli.attach")) is not None:  # not imported for its own sake
            attached.leave_early()


def _check_variables() -> None:
    """Raise UserError for variables that cannot be read: before a daemon is forked, and for every command alike."""
    if any(os.environ.get(name) for name in ("DYN_LOG", "DYN_LOGGING_CONFIG_PATH")):
        from dynamod.observe.logs import chosen_levels

        chosen_levels(os.environ)
    if os.environ.get("DYNAMOD_FEATURES"):
        from dynamod.extension.installed import disabled

        disabled()


def _mistake(line: str, code: int) -> int:
    """Print the line that ends the command; the user may press Ctrl-C at it before the interpreter has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(f"error: {line}", file=sys.stderr)
    return code
