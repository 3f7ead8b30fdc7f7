"""The kernel's process: `python -m agent_os.daemon`. See `process`."""

import gc
import sys

# Our modules are compiled once: with PYTHONDONTWRITEBYTECODE, each start would take three times as long.
sys.dont_write_bytecode = False


def run() -> int:
    gc.disable()  # of what is loaded nothing is garbage: looking for some took a seventh of the start
    from agent_os.daemon.process import main

    gc.enable()
    return main()


sys.exit(run())
