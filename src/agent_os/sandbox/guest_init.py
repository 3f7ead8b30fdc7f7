"""Pid 1 of a guest or tool run: starts the command, reaps orphans, passes signals on, ends with its status.

An init of our own because Linux ignores signals that pid 1 does not handle, and because whatever outlives the command
dies with pid 1. Runs confined; holds none of the command's streams, so their end is the command's end.
"""

import errno
import json
import os
import signal
import socket

COULD_NOT_START = 125
_FORWARDED = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGWINCH,
}


def run(argv: list[str], env: dict[str, str], status: socket.socket, keep_agent_socket: bool) -> int:
    """Returns the exit code: the command's own, or 128+n if a signal ended it."""
    watched = _FORWARDED | {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    command = os.fork()
    if command == 0:
        _become(argv, env, status, keep_agent_socket)
    os.closerange(0, 4)
    status.close()
    while True:
        received = signal.sigwait(watched)
        if received == signal.SIGCHLD:
            ended = _reap(command)
            if ended is not None:
                code = os.waitstatus_to_exitcode(ended)
                return code if code >= 0 else 128 - code
        else:
            _pass_on(command, received)


def _become(argv: list[str], env: dict[str, str], status: socket.socket, keep_agent_socket: bool) -> None:
    """In the new process: exec the command. The status socket closes with the exec; until then it can tell why not."""
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if not keep_agent_socket:
        os.closerange(3, 4)
    os.set_inheritable(status.fileno(), False)
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as problem:
        status.send(json.dumps({"failed": {"step": "exec", "errno": problem.errno, "why": str(problem)}}).encode())
    os._exit(COULD_NOT_START)


def _reap(command: int) -> int | None:
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


def _pass_on(command: int, received: int) -> None:
    try:
        os.killpg(command, received)
    except OSError as problem:
        if problem.errno != errno.ESRCH:  # it ended just now; SIGCHLD is on its way
            raise
