"""Runs a native agent inside its confinement: the first moment at which author code is imported.

Preloaded into the launcher, so nothing here may start a thread, open a file or keep state at import time.
"""

import runpy
import sys
import traceback


def run(argv: list[str]) -> int:
    """Run `FILE.py [ARG…]` or `-c CODE [ARG…]` as a program; its exit code, as `python` would give it."""
    code = 0
    try:
        if argv[0] == "-c":
            sys.argv = ["-c", *argv[2:]]
            exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = list(argv)
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        code = _exit_code(end.code)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


def _exit_code(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)
    return 1
