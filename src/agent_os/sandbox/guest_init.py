"""Pid 1 of a guest or tool run: starts the command, reaps orphans, passes signals on, ends with its status.

An init of our own because Linux ignores signals that pid 1 does not handle, and because whatever outlives the command
dies with pid 1. Runs confined; holds none of the command's streams, so their end is the command's end. Beside the
command it runs others that the kernel names, for an operator or to see whether the agent is well: they see what the
agent sees, and may do what it may.
"""

import array
import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
from typing import Any

from agent_os.sandbox.spec import MAX_BYTES

COULD_NOT_START = 125
_STREAMS = 3
_FORWARDED = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGABRT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGWINCH,
}


def run(
    argv: list[str],
    env: dict[str, str],
    status: socket.socket,
    *,
    keep_agent_socket: bool,
    terminal: bool,
    asked: socket.socket | None = None,
) -> int:
    """Returns the exit code: the command's own, or 128+n if a signal ended it. `asked`: where the kernel names
    commands to run beside it."""
    watched = _FORWARDED | {signal.SIGCHLD, signal.SIGIO}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        command = _start(argv, env, keep_agent_socket, terminal)
    except OSError as problem:
        status.send(json.dumps({"failed": {"step": "exec", "errno": problem.errno, "why": problem.strerror}}).encode())
        return COULD_NOT_START
    os.closerange(0, 4)
    status.close()  # only now: its end tells the kernel that the command runs
    beside = _Beside(asked, env) if asked else None
    while True:
        received = signal.sigwait(watched)
        if received == signal.SIGCHLD:
            ended = _reap(command, beside)
            if ended is not None:
                return _code(ended)
        elif received == signal.SIGIO:
            if beside:
                beside.hear()
        else:
            _pass_on(command, received)


def _start(argv: list[str], env: dict[str, str], keep_agent_socket: bool, terminal: bool) -> int:
    """Not by fork: copying an interpreter only to replace it is the larger part of starting a small tool."""
    actions: list[tuple[int, ...]] = [] if keep_agent_socket else [(os.POSIX_SPAWN_CLOSE, 3)]
    if not terminal:
        return os.posix_spawnp(argv[0], argv, env, file_actions=actions, setpgroup=0, setsigmask=())
    # The first terminal that a session's leader opens becomes its own: job control works, and Ctrl-C reaches it.
    own = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(0), os.O_RDWR, 0)
    return os.posix_spawnp(argv[0], argv, env, file_actions=[own, *actions], setsid=True, setsigmask=())


class _Beside:
    """Commands that the kernel asks for: `{"run": 3, "argv": […], "env": {…}}` is answered `{"ended": 3, "code": 0}`;
    `{"signal": 3, "number": 15}` goes to all of its process group. Its streams come with the question, or are none. The
    socket tells of its news by SIGIO, so that there is one thing to wait for."""

    def __init__(self, asked: socket.socket, env: dict[str, str]) -> None:
        self._asked = asked
        self._env = {name: value for name, value in env.items() if name != "AGENT_OS_FD"}  # which is the agent's alone
        self._running: dict[int, int] = {}  # pid → number
        for _ in range(_STREAMS):  # what comes with a question must not be one of the three that its command gets
            os.open(os.devnull, os.O_RDWR)
        asked.setblocking(False)
        fcntl.fcntl(asked, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(asked, fcntl.F_SETFL, fcntl.fcntl(asked, fcntl.F_GETFL) | os.O_ASYNC)
        self.hear()

    def hear(self) -> None:
        while True:
            try:
                room, cloexec = socket.CMSG_SPACE(_STREAMS * 4), socket.MSG_CMSG_CLOEXEC
                message, ancillary, flags, _ = self._asked.recvmsg(MAX_BYTES, room, cloexec)
            except BlockingIOError:
                return
            if not message:  # the kernel has lost interest
                return
            said = json.loads(message)
            if "run" in said:
                streams = array.array("i", b"".join(data for _, _, data in ancillary)).tolist()
                self._run(said["run"], said["argv"], said["env"], streams, whole=not flags & socket.MSG_CTRUNC)
            else:
                self._signal(said["signal"], said["number"])

    def _run(self, number: int, argv: list[str], env: dict[str, str], streams: list[int], *, whole: bool) -> None:
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(streams)]
        if not streams:
            actions = [(os.POSIX_SPAWN_OPEN, target, os.devnull, os.O_RDWR, 0) for target in range(_STREAMS)]
        try:
            if not whole:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = os.posix_spawnp(argv[0], argv, {**self._env, **env}, file_actions=actions, setpgroup=0, setsigmask=())
        except (OSError, ValueError) as problem:  # a word with a NUL in it is no reason to end the agent
            why = problem.strerror if isinstance(problem, OSError) else str(problem)
            self._tell({"ended": number, "code": COULD_NOT_START, "why": why})
        else:
            self._running[pid] = number
        finally:
            for fd in streams:
                os.close(fd)

    def _signal(self, number: int, signal_number: int) -> None:
        for pid, running in self._running.items():
            if running == number:
                _pass_on(pid, signal_number)
                with contextlib.suppress(ProcessLookupError):
                    if os.getpgid(pid) != pid:  # it went over to somebody else's group, and is meant all the same
                        os.kill(pid, signal_number)

    def over(self, pid: int, ended: int) -> None:
        if (number := self._running.pop(pid, None)) is not None:
            self._tell({"ended": number, "code": _code(ended)})

    def _tell(self, said: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # nobody asks any more
            self._asked.send(json.dumps(said).encode())


def _code(ended: int) -> int:
    code = os.waitstatus_to_exitcode(ended)
    return code if code >= 0 else 128 - code


def _reap(command: int, beside: _Beside | None = None) -> int | None:
    """Collect every ended child; the wait status of the command itself if it is among them."""
    result = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return result
        if pid == 0:
            return result
        if pid == command:
            result = ended
        elif beside:
            beside.over(pid, ended)


def _pass_on(command: int, received: int) -> None:
    try:
        os.killpg(command, received)
    except OSError as problem:
        if problem.errno != errno.ESRCH:  # it ended just now; SIGCHLD is on its way
            raise
