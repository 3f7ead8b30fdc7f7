"""Any program. It sees this folder and nothing else of the machine, and reaches no network unless you allow it."""

import pathlib
import socket

here = pathlib.Path(__file__).parent
names = sorted(path.name for path in here.iterdir())
(here / "seen.txt").write_text("\n".join(names) + "\n")
print(f"I see {len(names)} files here, and have written seen.txt.")
try:
    socket.create_connection(("example.com", 443), timeout=2)
    print("I am on the internet.")
except OSError as refused:
    print(f"I am not on the internet: {refused}")
