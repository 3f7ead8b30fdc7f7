"""Every attempt in one table, by number; and the program that makes them inside a sandbox.

The attempts themselves live in `attempts_*.py`, one file per group, and enter the table when they are imported. In: a
JSON file with targets and the numbers to try, as argv. Out: one JSON line per attempt on stdout: `succeeded`,
`refused`, `n/a` or `broken`. Standard library only: this runs where the sandbox lets it.
"""

import contextlib
import errno
import json
import os
import select
import signal
import sys
from pathlib import Path

if __name__ == "__main__":  # as a program it is alone: its neighbours are found beside it
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hostile import (
    attempts_files,
    attempts_kernel,
    attempts_leaks,
    attempts_namespaces,
    attempts_network,
    attempts_proc,
    attempts_processes,
    attempts_resources,
    attempts_rights,
    attempts_socks,
    attempts_tools,
)
from hostile.attempts import ATTEMPTS, NEWNS, SECRET, Attempt, NotHere, Refused, Targets, call

GROUPS = (
    *(attempts_files, attempts_proc, attempts_namespaces, attempts_processes, attempts_kernel, attempts_network),
    *(attempts_socks, attempts_leaks, attempts_resources, attempts_rights, attempts_tools),
)
TRIES_SECONDS = 60.0  # a safety limit: filling /tmp takes beyond ten on a busy machine
REFUSALS = frozenset(
    getattr(errno, name)
    for name in """EPERM EACCES ENOENT ENOTDIR ESRCH EROFS ENOSYS ENETUNREACH EHOSTUNREACH ECONNREFUSED ETIMEDOUT
    EAFNOSUPPORT EPROTONOSUPPORT ESOCKTNOSUPPORT ENXIO ENODEV EBUSY""".split()
)


def judge(one: Attempt, targets: Targets) -> tuple[str, str]:
    try:
        found = one.take(targets)
    except Refused as refusal:
        return "refused", str(refusal)
    except NotHere as reason:
        return "n/a", str(reason)
    except OSError as problem:
        name = errno.errorcode.get(problem.errno or 0, str(problem))
        held = problem.errno in REFUSALS | one.fine or isinstance(problem, TimeoutError)
        return ("refused" if held else "broken"), f"{name}"
    if one.detect != "C":
        return "succeeded", str(found)
    data = found if isinstance(found, bytes) else str(found).encode()
    if SECRET.search(data):
        return "succeeded", SECRET.findall(data)[0].decode()
    return "refused", " ".join(data.decode("latin-1").split())[:160]


def in_child(one: Attempt, targets: Targets, private_mounts: bool) -> tuple[str, str]:
    """In a process of its own: what kills it or blocks it is an outcome, too."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            os.setsid()
            if private_mounts:
                with contextlib.suppress(OSError):  # refused under a layer; then nothing can be mounted either
                    call("unshare", NEWNS)
            result = judge(one, targets)
        except BaseException as problem:  # a mistake in the attempt itself must be seen, whatever it is
            result = "broken", f"{type(problem).__name__}: {problem}"
        os.write(theirs, json.dumps(result).encode()[:60000])
        os._exit(0)
    os.close(theirs)
    text = b""
    if select.select([ours], [], [], TRIES_SECONDS * targets.get("patience", 1))[0]:
        while part := os.read(ours, 65536):
            text += part
            if text.endswith(b"]"):
                break
        late = False
    else:
        late = True
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(ours)
    if text:
        outcome, detail = json.loads(text)
        return outcome, detail
    if late:
        return "broken", f"no end within {TRIES_SECONDS:.0f} s"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return "refused", "killed by seccomp"
    return "broken", f"ended with wait status {status}"


def run(ids: list[str], targets: Targets, private_mounts: bool = False) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for id in ids:
        one = ATTEMPTS[id]
        outcome, detail = in_child(one, targets, private_mounts)
        print(json.dumps({"id": id, "outcome": outcome, "detail": detail}), flush=True)


def own_descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own is gone already
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def main() -> None:
    """Waits for a line on stdin first, so that who we are can be checked."""
    inherited = own_descriptors()
    sys.stdin.readline()
    config = json.loads(Path(sys.argv[1]).read_text())
    run(config["ids"], config["targets"] | {"descriptors": inherited})
    print(json.dumps({"end": True}), flush=True)


if __name__ == "__main__":
    main()
