"""The program of an author's agent: found, known by a digest, and run under their interpreter with our package.

In: an order, as it was written and as it was understood. Out: what to run, and what it is made of. A program lies in
what its agent will see: by whatever names it is called, what is looked at is what is read. Starts nothing.
"""

import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from agent_os.abi import frames
from agent_os.abi.errors import EACCES, EINVAL
from agent_os.abi.text import native
from agent_os.kernel import orders, plan

_LARGEST = 16 << 20  # bytes
# Our package is loaded by its place: an agent may not list the folder around it, so Python would not find it there.
BOOT = """
import sys, importlib.util as util
place = sys.argv.pop(1)
if util.find_spec("agent_os") is None:
    spec = util.spec_from_file_location("agent_os", f"{place}/__init__.py", submodule_search_locations=[place])
    sys.modules["agent_os"] = util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["agent_os"])
from agent_os.userland import native
sys.exit(native.run(sys.argv[1:]))
"""
_PACKAGE = Path(__file__).resolve().parent.parent


def order(wanted: plan.Order, written: orders.Written) -> plan.Order:
    """With how an author's agent is run: under their own interpreter, with our package beside what that has."""
    if written.file is None:
        return wanted
    if written.tty:
        raise EINVAL("tty.native", "an @agent has no terminal: its output is plain", hint="agentctl run -T FILE.py")
    with _found(Path(native(written.file)), wanted):
        pass
    argv = (native(written.python), "-c", BOOT, str(_PACKAGE), f"{native(written.file)}:{written.function}")
    return replace(wanted, argv=(*argv, *wanted.argv), socket=True, shown=(_PACKAGE,))


def told(argv: Sequence[str], cwd: Path) -> tuple[str, ...]:
    """As its author calls it, `FILE.py:NAME WORD…`; any other command as it is."""
    if BOOT not in argv:
        return tuple(argv)
    _, program, *words = argv[argv.index(BOOT) + 1 :]
    return (program.removeprefix(f"{cwd}/").removesuffix(":"), *words)


def order_in_what_is_left(left: plan.Order, first: plan.Order, written: orders.Written) -> plan.Order:
    """As `order`, in what is left to it of all that it was first given."""
    try:
        return order(left, written)
    except EINVAL as error:
        if (left.project, left.mounts) == (first.project, first.mounts):
            raise
        reason = f"its program {native(written.file or '')} lies in what was revoked"
        hint = "run it anew, or grant that to it before it ends"
        raise EACCES("cap.revoked", reason, hint=hint) from error


def digest(wanted: plan.Order, written: orders.Written, caps: Sequence[str]) -> str:
    """What an author's agent was started from, as a digest: a changed one is another one to whoever approved of it. A
    guest has none: its code can be anywhere."""
    if written.file is None:
        return ""
    try:
        with _found(Path(native(written.file)), wanted) as found, open(found, "rb") as file:
            source = file.read(_LARGEST + 1)
    except OSError as error:
        raise EINVAL("file.unread", f"{written.file} cannot be read: {error.strerror}") from None
    if len(source) > _LARGEST:
        raise EINVAL("file.large", f"{written.file} has more than {_LARGEST >> 20} MiB and is no program of ours")
    code = sha256(source).hexdigest()
    return sha256(frames.encode_body([code, written.function, written.argv, sorted(caps)])).hexdigest()


@contextmanager
def _found(file: Path, wanted: plan.Order) -> Generator[str]:
    """The program of an order, by a name that stays its own: what is looked at is what is read, whatever takes its path
    meanwhile. It is not opened before it is known to be a file: a pipe would hold us, and a device may act."""
    places = [_PACKAGE, *([wanted.project] if wanted.project else []), *(mount.source for mount in wanted.mounts)]
    hint = f"--mount {file.parent}, or change to its directory"
    outside = EINVAL("file.outside", f"{file} is not there, or outside of what the agent will see", hint=hint)
    try:
        fd = os.open(file, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        raise outside from None
    try:
        itself = f"/proc/self/fd/{fd}"
        real = Path(os.readlink(itself))
        if not stat.S_ISREG(os.fstat(fd).st_mode) or not any(real.is_relative_to(place) for place in places):
            raise outside
        yield itself
    finally:
        os.close(fd)
