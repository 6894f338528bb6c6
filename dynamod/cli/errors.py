"""How commands end: a mistake is one line that says what to do, and an exit code that is not 0."""

import sys
from collections.abc import Callable, Sequence

from dynamod.message.errors import DynamodError, UserError


def guarded(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command. UserError becomes its line on stderr, Ctrl-C exit code 130, a closed pipe no error at all."""
    try:
        return main(argv)
    except UserError as error:
        print(f"error: {error.line()}", file=sys.stderr)
        return error.exit_code or 2
    except DynamodError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # it came while a class was made, in an import
            return 130
        raise
    except BrokenPipeError:
        sys.stderr.close()
        return 0
