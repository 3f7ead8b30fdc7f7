"""Checks the record of a home, as a process of its own: `python -m agent_os.gateway.verifying HOME` prints the report.

Reads the journal, the public key and the anchored heads; changes nothing, and asks no kernel.
"""

import sys
from pathlib import Path

import msgspec

from agent_os.client.verify import verify


def main(home: Path) -> None:
    key, heads = home / "keys" / "journal.pub", home / "anchor" / "heads"
    report = verify(
        home / "journal.db",
        key=key.read_text() if key.exists() else None,
        anchor=heads if heads.exists() else None,
    )
    told = {"ok": report.ok, "first_bad": report.first_bad, **msgspec.to_builtins(report)}
    sys.stdout.buffer.write(msgspec.json.encode(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
