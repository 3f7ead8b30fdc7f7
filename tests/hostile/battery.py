"""Every attempt in one table, by number; and the program that makes them inside a sandbox.

The attempts themselves live in `attempts*.py`, one file per group, and enter the table when they are imported. In: a
JSON file with targets and the numbers to try, as argv. Standard library only: this runs where the sandbox lets it.
"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":  # as a program it is alone: its neighbours are found beside it
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hostile import attempts, attempts_network, attempts_proc, attempts_resources, attempts_rights, attempts_tools

GROUPS = (attempts, attempts_network, attempts_proc, attempts_resources, attempts_rights, attempts_tools)
ATTEMPTS = attempts.ATTEMPTS
run = attempts.run


def main() -> None:
    """Waits for a line on stdin first, so that who we are can be checked."""
    inherited = attempts.own_descriptors()
    sys.stdin.readline()
    config = json.loads(Path(sys.argv[1]).read_text())
    run(config["ids"], config["targets"] | {"descriptors": inherited})
    print(json.dumps({"end": True}), flush=True)


if __name__ == "__main__":
    main()
