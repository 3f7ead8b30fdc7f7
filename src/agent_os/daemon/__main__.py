"""The kernel's process: `python -m agent_os.daemon`. See `process`."""

import gc
import os
import sys

# Our modules are compiled once: with PYTHONDONTWRITEBYTECODE, each start would take three times as long.
sys.dont_write_bytecode = False
_WARM = "--warm"


def run() -> int:
    gc.disable()  # of what is loaded nothing is garbage: looking for some took a seventh of the start
    from agent_os.lazy import load

    load("msgspec", without="typing_extensions")  # a twentieth of the start; `typing` has what it takes from there
    argv, launcher = [word for word in sys.argv[1:] if word != _WARM], None
    if _WARM in sys.argv:  # a run asked for us: what starts its agent loads while we do
        from agent_os.sandbox.spawner import Launcher

        launcher = Launcher.begin()
    from agent_os.daemon.process import main

    gc.freeze()
    gc.enable()
    return main(argv, launcher)


code = run()
for stream in (sys.stdout, sys.stderr):
    stream.flush()
os._exit(code)  # everything is closed; to take the interpreter apart would take a third of what its start took
