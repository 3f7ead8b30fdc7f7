"""What of the shell around agentctl goes with an order: words as the wire takes them, and a few variables.

Of our environment the kernel gets what planning a run looks at, and nothing that could be a secret.
"""

import os
import re
from collections.abc import Iterable, Sequence

from agent_os.abi.text import portable

_PASSED_ON = re.compile(r"PATH|HOME|LANG|LANGUAGE|TZ|TERM|LC_[A-Z]+|VIRTUAL_ENV|CONDA_PREFIX|PYENV_VERSION")


def environment(env: Sequence[str]) -> dict[str, str | bytes]:
    """What the kernel may look at: where programs are, the language, and what --env passes on by name."""
    wanted = {item for item in env if "=" not in item}
    found = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name) or name in wanted}
    return dict(zip(found, words(found.values()), strict=True))


def words(given: Iterable[str]) -> list[str | bytes]:
    return [portable(word) for word in given]
