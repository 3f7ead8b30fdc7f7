"""The demo: every agent of the table below runs for real and is checked against what it must show.

`make demo` ends by itself: 0 if everything was shown, 1 if not; `make run` then keeps a resident agent until Ctrl-C.
State is kept in `$AGENT_OS_HOME`; the agents work in `.cache/demo`.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
    except (NotShown, subprocess.TimeoutExpired) as problem:
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
    """Everything it tries is refused inside; the same script outside succeeds, so the attempts are real. The last one
    is forbidden by a rule: that ends it."""
    project = stage("burglar")
    rules(project, "burglar.toml")
    secret = STAGE / "secret.txt"
    secret.write_text("the vault code is 4711\n")
    secret.chmod(0o600)
    script = STAGE / "burglar.py"
    shutil.copy(HERE / "burglar.py", script)
    outside = stage("outside")
    with socket.create_server(("127.0.0.1", 0)) as listener, dropbox() as (box, left):
        listener.setblocking(False)
        neighbour = subprocess.Popen(["sleep", "600"])
        targets = [str(secret), str(listener.getsockname()[1]), str(neighbour.pid), str(outside), str(box)]
        try:
            net = ("--net", f"127.0.0.1:{box}")  # even what its operator opened for it
            done = agentctl("run", *net, "--mount", str(script), "--", "python3", str(script), *targets, cwd=project)
            inside = attempts(done.stdout)
            require(neighbour.poll() is None, "the neighbour was hurt")
            require(not any(outside.iterdir()), "it wrote outside its folder")
            require(not dialled(listener), "it reached the listener")
            require(not left, "it left something at the drop")
            print("control: the same script without the sandbox")
            control = subprocess.run(["python3", script, *targets], cwd=project, capture_output=True, text=True)
            print(control.stderr, end="")
            free = attempts(control.stdout)
            require(bool(left), "the drop is never open")
        finally:
            neighbour.kill()
            neighbour.wait()
    for name in free:
        print(f"  {name:<26} inside {inside.get(name, 'killed')!r:<45} outside {free[name]!r}")
    require(len(free) == 5 and all(result == "succeeded" for result in free.values()), f"the control failed: {free}")
    require(list(free)[:4] == list(inside)[:4], f"inside it told of {list(inside)}")
    require(all(result.startswith("refused") for result in inside.values()), f"something got through: {inside}")
    quarantined(project, done)
    return "4 attempts refused, the 5th forbidden: killed and quarantined; all 5 succeed without the sandbox"


def quarantined(project: Path, done: "subprocess.CompletedProcess[str]") -> None:
    """It was killed for a violation, and stays away until an operator lets it come back."""
    require(done.returncode == 137, f"the burglar ended {done.returncode}, and not by SIGKILL")
    require("no-drop" in done.stderr, "its end does not name the rule")
    name = next(line.split()[0] for line in done.stderr.splitlines() if "isolation" in line)
    again = agentctl("run", "--name", name, "--", "true", cwd=project)
    require(again.returncode == 125 and "quarantined" in again.stderr, f"it came back: {again.returncode}")
    released = agentctl("release", name, "--reason", "the demo is over", cwd=project)
    require(released.returncode == 0, "it cannot be released")


def deployer() -> str:
    """Rules ask about two of its acts. The demo approves one, as you would; nobody answers the other: denied."""
    project = stage("deployer")
    rules(project, "deployer.toml")
    shutil.copy(HERE / "deployer.py", project)
    (project / "data").mkdir()
    (project / "data" / "orders").write_text("a thousand orders\n")
    begun = time.monotonic()
    with started("deployer.py:deployer", cwd=project) as agent:
        first = question(project, agent, begun, "project:production")
        agentctl("approvals", cwd=project)
        approved = agentctl("approve", first, cwd=project, together=True)
        require(approved.returncode == 0, "the approval was not taken")
        question(project, agent, begun, "project:data")
        agentctl("approvals", cwd=project)
        print("(nobody answers)", flush=True)
        out, told = agent.communicate(timeout=60)
    print(out + told, end="", flush=True)
    require(agent.returncode == 0, f"it ended {agent.returncode}")
    outcomes = json.loads(out.splitlines()[-1])
    wanted = {"staging": "done", "production": "done", "data": "expired"}
    require(outcomes == wanted, f"the outcomes are {outcomes}")
    agentctl("commit", "--allow-protected", cwd=project)  # a rule asks about it, so without that word it is held back
    shop = project / "production" / "shop"
    require(shop.is_file() and shop.read_text() == "release 2\n", "what was approved did not happen, or not once")
    require((project / "data" / "orders").exists(), "what nobody approved happened")
    return "asked twice: 1 approved and done once, 1 expired and never done"


def question(project: Path, agent: "subprocess.Popen[str]", begun: float, rule: str) -> str:
    """The number of what waits for a person because of this rule, as soon as it does."""
    for _ in range(100):
        asked = agentctl("approvals", "--all", "-o", "json", cwd=project, quiet=True)
        rows = json.loads(asked.stdout)["approvals"] if asked.returncode == 0 else []
        for row in rows:
            if rule in row["rules"] and row["seconds"] < time.monotonic() - begun:  # older ones are of earlier runs
                return row["id"]
        require(agent.poll() is None, f"it ended without asking about {rule}")
        time.sleep(0.1)
    raise NotShown(f"nobody was asked about {rule}")


def spender() -> str:
    """Ten children have the same purse, and together get what is in it."""
    project = stage("spender")
    shutil.copy(HERE / "spender.py", project)
    purse = "mem:/mem/semantic/**:write{count:20}"
    done = agentctl("run", "--cap", "agent:spawn", "--cap", purse, "spender.py:spender", cwd=project)
    require(done.returncode == 0, f"it ended {done.returncode}")
    result = json.loads(done.stdout.splitlines()[-1])
    require(result["bought"] == 20, f"{result['bought']} were bought")
    require(result["wanted"] == 50 and len(result["each"]) == 10, "not everybody tried")
    require("EBUDGET" in result["then"], "nobody was refused")
    return "10 children wanted 50 with a purse of 20: 20 bought, then EBUDGET"


def crasher() -> str:
    """The kernel is killed under an agent in mid-effect; the next kernel takes it up, and no line is written twice."""
    for attempt in range(1, 16):  # a kill may also fall between two effects, and would then show less
        recovered = crash()
        print(f"kill {attempt}: {recovered} effect{'' if recovered == 1 else 's'} had begun without a recorded outcome")
        if recovered:
            return "kernel killed with an effect under way; 300 lines, each written once"
    raise NotShown("no kill fell into an effect")


def crash() -> int:
    """One run with a kill in the middle: how many effects recovery had to settle."""
    project = stage("crasher")
    shutil.copy(HERE / "crasher.py", project)
    with started("crasher.py:crasher", cwd=project) as agent:
        assert agent.stdout
        agent.stdout.readline()
        status = agentctl("status", "-o", "json", cwd=project, quiet=True)
        require(status.returncode == 0, f"it does not run: {status.stderr.strip()}")
        kernel = json.loads(status.stdout)["pid"]
        for line in agent.stdout:
            if int(line) >= 100:
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
    require(lines == [str(number) for number in range(1, 301)], f"the ledger has {len(lines)} lines: {lines[:120]}…")
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


@contextmanager
def started(*words: str, cwd: Path) -> "Iterator[subprocess.Popen[str]]":
    """An agent under way; gone when this is left, however."""
    print(f"$ agentctl run {shlex.join(words)}", flush=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    agent = subprocess.Popen([*AGENTCTL, "run", *words], cwd=cwd, stdin=subprocess.DEVNULL, **pipes)
    try:
        yield agent
    finally:
        agent.terminate()
        agent.wait()


@contextmanager
def dropbox() -> Iterator[tuple[int, list[bytes]]]:
    """A server that takes what is posted to it: its port, and what was left there so far."""
    left: list[bytes] = []

    class Box(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            left.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Box) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1], left
        finally:
            server.shutdown()


def attempts(told: str) -> dict[str, str]:
    """What the burglar says of each attempt, one a line."""
    return dict(json.loads(line) for line in told.splitlines())


def rules(project: Path, name: str) -> None:
    """Rules as a project brings them. They can only narrow what its agents may."""
    (project / ".agents").mkdir()
    shutil.copy(HERE / name, project / ".agents" / "policy.toml")


def agentctl(*words: str, cwd: Path, quiet: bool = False, together: bool = False) -> "subprocess.CompletedProcess[str]":
    """`together`: both streams as one, in the order in which a person sees them."""
    if not quiet:
        print(f"$ agentctl {shlex.join(words)}", flush=True)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT if together else subprocess.PIPE, "text": True}
    done = subprocess.run([*AGENTCTL, *words], cwd=cwd, stdin=subprocess.DEVNULL, **streams)
    if not quiet:
        print(done.stdout + (done.stderr or ""), end="", flush=True)
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


DEMO: dict[str, Callable[[], str]] = {
    "doctor": doctor,
    "guest": guest,
    "burglar": burglar,
    "deployer": deployer,
    "spender": spender,
    "crasher": crasher,
}

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped before the end")
