"""What this host isolated when somebody last looked: `level.json` in the home.

In: a level. Out: the one that was known. It only rises by itself: a host that isolates less than before is an alarm,
and whoever looks next must still see it.
"""

import json
from contextlib import suppress
from pathlib import Path

from agent_os.sandbox.spec import LEVELS

_FILE = "level.json"


def known(home: Path) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((home / _FILE).read_text())["level"]
        return found if found in LEVELS else None
    return None


def is_lower(level: str, before: str | None) -> bool:
    return before is not None and level in LEVELS and LEVELS.index(level) < LEVELS.index(before)


def remember(home: Path, level: str) -> None:
    """Unless it was higher."""
    if level in LEVELS and not is_lower(level, known(home)):
        (home / _FILE).write_text(json.dumps({"level": level}))
