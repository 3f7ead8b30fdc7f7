"""The demo: every agent of the table below runs for real and is checked against what it must show.

`make demo` ends by itself: 0 if everything was shown, 1 if not; `make run` then keeps a resident agent until Ctrl-C.
State is kept in `$AGENT_OS_HOME`; the agents work in `.cache/demo`.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAGE = HERE.parent.parent / ".cache" / "demo"
AGENTCTL = [sys.executable, "-m", "agent_os.cli.main"]


class NotShown(Exception):
    """An agent did not end as it must."""


class Skipped(Exception):
    """This host cannot show it; says why."""


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--stay", action="store_true", help="keep a resident agent running until Ctrl-C")
    stay = options.parse_args().stay
    results = {name: shown(name, show) for name, show in DEMO.items()}
    print("\n" + "\n".join(f"{name.ljust(8)}  {result}" for name, result in results.items()))
    strict = os.environ.get("STRICT") == "1"
    failed = [r for r in results.values() if r.startswith("FAILED") or (strict and r.startswith("skipped"))]
    if failed:
        return 1
    return resident() if stay else 0


def shown(name: str, show: Callable[[], str]) -> str:
    print(f"\n── {name} " + "─" * (70 - len(name)), flush=True)
    try:
        return f"shown    {show()}"
    except Skipped as reason:
        return f"skipped: {reason}"
    except NotShown as problem:
        return f"FAILED   {problem}"


def doctor() -> str:
    """What this machine can isolate."""
    done = subprocess.run([*AGENTCTL, "doctor", "-o", "json"], capture_output=True, text=True)
    facts = json.loads(done.stdout or "{}")
    for check in facts.get("checks", []):
        if check["status"] != "ok" or check["name"] in ("isolation", "canary", "spawn"):
            print(f"{check['status']:<5} {check['name']:<10} {check['cause']}")
    require(bool(facts), f"the doctor did not answer: {done.stderr.strip()}")
    if facts["level"] == "S0":
        raise Skipped("this host cannot isolate anything; agentctl doctor says why")
    require(facts["ok"], "the doctor found something wrong")
    return f"isolation {facts['level']}"


def guest() -> str:
    """An unmodified script: its writes stay apart, its call to the network is refused and explained."""
    project = stage("guest")
    notes = project / "notes"
    notes.mkdir()
    for number in (1, 2, 3):
        (notes / f"{number}.txt").write_text(f"note number {number}\n")
    before = contents(project)
    script = STAGE / "guest.py"
    shutil.copy(HERE / "guest.py", script)
    done = agentctl("run", "--mount", str(script), "--", "python3", str(script), cwd=project)
    require(done.returncode == 0, f"ended {done.returncode}")
    require(contents(project) == before, "the project was changed without a commit")
    require("allow: --net reports.example" in done.stderr, "the refusal did not name the flag that would allow it")
    diff = json.loads(agentctl("diff", "-o", "json", cwd=project, quiet=True).stdout)
    paths = sorted(change["path"] for change in diff["changes"])
    require(paths == ["notes/1.txt", "report.md"], f"the diff is {paths}")
    agentctl("commit", cwd=project)
    require((project / "report.md").read_text().startswith("# Report"), "the commit did not arrive")
    return "ran unmodified; 2 changes kept apart, then committed; 1 connection refused"


def burglar() -> str:
    """Everything it tries is refused inside; the same script outside succeeds, so the attempts are real."""
    project = stage("burglar")
    secret = STAGE / "secret.txt"
    secret.write_text("the vault code is 4711\n")
    secret.chmod(0o600)
    script = STAGE / "burglar.py"
    shutil.copy(HERE / "burglar.py", script)
    outside = stage("outside")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        neighbour = subprocess.Popen(["sleep", "600"])
        targets = [str(secret), str(listener.getsockname()[1]), str(neighbour.pid), str(outside)]
        try:
            done = agentctl("run", "--mount", str(script), "--", "python3", str(script), *targets, cwd=project)
            inside = json.loads(done.stdout or "{}")
            require(neighbour.poll() is None, "the neighbour was hurt")
            require(not any(outside.iterdir()), "it wrote outside its folder")
            require(not dialled(listener), "it reached the listener")
            print("control: the same script without the sandbox")
            control = subprocess.run(["python3", script, *targets], cwd=project, capture_output=True, text=True)
            print(control.stderr, end="")
            free = json.loads(control.stdout or "{}")
        finally:
            neighbour.kill()
            neighbour.wait()
    for name in free:
        print(f"  {name:<26} inside {inside.get(name, 'not tried')!r:<45} outside {free[name]!r}")
    require(len(free) == 4 and all(result == "succeeded" for result in free.values()), f"the control failed: {free}")
    require(inside.keys() == free.keys(), "not everything was tried inside")
    require(all(result.startswith("refused") for result in inside.values()), f"something got through: {inside}")
    return "4 attempts, none succeeded; all 4 succeed without the sandbox"


def crasher() -> str:
    """The kernel is killed under an agent in mid-effect; the next kernel takes it up, and no line is written twice."""
    for attempt in range(1, 16):  # a kill may also fall between two effects, and would then show less
        recovered = crash()
        print(f"kill {attempt}: {recovered} effect{'' if recovered == 1 else 's'} had begun without a recorded outcome")
        if recovered:
            return "kernel killed with an effect under way; 1,000 lines, each written once"
    raise NotShown("no kill fell into an effect")


def crash() -> int:
    """One run with a kill in the middle: how many effects recovery had to settle."""
    project = stage("crasher")
    shutil.copy(HERE / "crasher.py", project)
    print("$ agentctl run crasher.py:crasher", flush=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    agent = subprocess.Popen([*AGENTCTL, "run", "crasher.py:crasher"], cwd=project, stdin=subprocess.DEVNULL, **pipes)
    assert agent.stdout
    agent.stdout.readline()
    kernel = json.loads(agentctl("status", "-o", "json", cwd=project, quiet=True).stdout)["pid"]
    for line in agent.stdout:
        if int(line) >= 300:
            break
    print(f"$ kill -9 {kernel}", flush=True)
    os.kill(kernel, signal.SIGKILL)
    _, told = agent.communicate(timeout=60)
    said = [line for line in told.splitlines() if "goes on from its record" in line]
    require(agent.returncode == 0, f"it ended {agent.returncode}: {told.strip()}")
    require(bool(said), f"it did not go on: {told.strip()}")
    print(said[0])
    name = said[0].split()[0]
    agentctl("commit", name, cwd=project, quiet=True)
    lines = (project / "ledger.txt").read_text().split()
    require(lines == [str(number) for number in range(1, 1001)], f"the ledger has {len(lines)} lines: {lines[:120]}…")
    verified = agentctl("audit", "verify", cwd=project)
    require(verified.returncode == 0, "the record does not verify")
    events = agentctl("events", "--agent", name, "--cursor", "0", "-o", "json", cwd=project, quiet=True).stdout
    return sum(entry.get("rule") == "recovery" for entry in json.loads(events)["entries"])


def resident() -> int:
    """Keep one agent running; Ctrl-C ends it and leaves nothing."""
    project = stage("clock")
    script = project / "clock.py"
    shutil.copy(HERE / "clock.py", script)
    print("\nAgent OS is running with one resident agent. Ctrl-C stops it.", flush=True)
    # no terminal of its own: there Ctrl-C would be a key for the agent, and a traceback its answer
    command = [*AGENTCTL, "run", "-T", "--discard", "-q", "--", "python3", str(script)]
    agent = subprocess.Popen(command, cwd=project, stdin=subprocess.DEVNULL, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: agent.send_signal(signal.SIGTERM))
    with foreground():
        agent.wait()
    print("\nstopped; nothing is left running")
    return 0


@contextmanager
def foreground() -> Iterator[None]:
    """Take the terminal for ourselves: a Ctrl-C then reaches us and not `make`, which would call it an error."""
    if not sys.stdin.isatty():
        yield
        return
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or giving the terminal back would stop us
    before = os.tcgetpgrp(0)
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    try:
        yield
    finally:
        os.tcsetpgrp(0, before)


def agentctl(*words: str, cwd: Path, quiet: bool = False) -> "subprocess.CompletedProcess[str]":
    if not quiet:
        print("$ agentctl " + " ".join(words), flush=True)
    done = subprocess.run([*AGENTCTL, *words], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if not quiet:
        print(done.stdout + done.stderr, end="", flush=True)
    return done


def stage(name: str) -> Path:
    """A fresh folder for an agent."""
    folder = STAGE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def dialled(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def require(true: bool, problem: str) -> None:
    if not true:
        raise NotShown(problem)


DEMO: dict[str, Callable[[], str]] = {"doctor": doctor, "guest": guest, "burglar": burglar, "crasher": crasher}

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped before the end")
