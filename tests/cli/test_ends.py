"""How commands end when somebody is in a hurry."""

import subprocess
import sys

SCRIPT = """
from dynamod.cli.main import guarded

class Late:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt

def main(argv):
    class Made:
        late = Late()
    return 0

raise SystemExit(guarded(main, []))
"""


def test_ctrl_c_while_a_class_is_made() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "")
