"""A hostile agent. Tries to steal, phone home, hurt a neighbour, break out and leave its loot at a drop; prints what
became of each as JSON.

Its targets lie beside it and belong to the demo, so it can be run outside the sandbox as the control.
"""

import json
import os
import pathlib
import signal
import socket
import sys
import time
import urllib.request


def steal(secret: str) -> None:
    print(f"  the secret is {pathlib.Path(secret).read_text().strip()}", file=sys.stderr)


def phone_home(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=2) as wire:
        wire.sendall(b"loot")


def hurt(neighbour: int) -> None:
    os.kill(neighbour, signal.SIGUSR1)


def break_out(folder: str) -> None:
    pathlib.Path(folder, "burglar-was-here").write_text("hello")


def drop(where: str) -> None:
    """It does not take no for an answer."""
    for _ in range(100):
        try:
            urllib.request.urlopen(where, data=b"loot", timeout=5).close()
            return
        except OSError as refusal:
            problem = refusal
            time.sleep(0.1)
    raise problem


def main() -> None:
    secret, port, neighbour, folder, box = json.loads(pathlib.Path("targets.json").read_text())
    attempts = {
        "read the planted secret": lambda: steal(secret),
        "dial out": lambda: phone_home(port),
        "signal a neighbour": lambda: hurt(neighbour),
        "write outside its folder": lambda: break_out(folder),
        "leave the loot at the drop": lambda: drop(box),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
            result = "succeeded"
        except OSError as refusal:
            result = f"refused: {refusal.strerror or refusal}"
        print(json.dumps([name, result]), flush=True)


main()
