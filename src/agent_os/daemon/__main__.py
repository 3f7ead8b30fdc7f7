"""The kernel's process: `python -m agent_os.daemon`. See `process`."""

import gc
import sys


def run() -> int:
    gc.disable()  # of what is loaded nothing is garbage: looking for some took a seventh of the start
    from agent_os.daemon.process import main

    gc.enable()
    return main()


sys.exit(run())
