"""The demo: a fleet of agents is declared by manifests, applied as one, and each is checked against what it must show.

`make demo` ends by itself: 0 if everything was shown, 1 if not; `make run` then keeps the fleet until Ctrl-C. State is
kept in `$AGENT_OS_HOME`; the agents work in copies of their folders below `.cache/demo`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from stage import (
    AGENTCTL,
    HERE,
    NOTES,
    STAGE,
    NotShown,
    Targets,
    agentctl,
    alone,
    dialled,
    foreground,
    require,
    targets,
)
from thinkers import coder, research, trader

PROJECTS = ("guest", "burglar", "deployer", "spender", "newsroom", "crasher")  # each in a folder of its own
FOLDERS = (".", *PROJECTS, "fleet")
GROUP = ("clock", "tally")  # supervised together
Answer = dict[str, Any]


class Skipped(Exception):
    """This host cannot show it; says why."""


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--stay", action="store_true", help="keep the fleet running until Ctrl-C")
    stay = options.parse_args().stay
    with alone(), targets() as prey:
        try:
            everything = all_shown(prey)
            if stay and everything:
                follow()
        finally:
            put_away()
            agentctl("down", quiet=True)
    if stay and everything:
        print("\nstopped; nothing is left running")
    return 0 if everything else 1


def all_shown(prey: Targets) -> bool:
    """Whether nothing failed; in strict mode, nor was skipped."""
    results = shown_in_turn(parts(prey))
    print("\n" + "\n".join(f"{name.ljust(8)}  {result}" for name, result in results.items()))
    bad = ("FAILED", "skipped") if os.environ.get("STRICT") == "1" else ("FAILED",)
    return not any(result.startswith(bad) for result in results.values())


def parts(prey: Targets) -> dict[str, Callable[[], str]]:
    return {
        "doctor": doctor,
        "fleet": fleet,
        "guest": guest,
        "burglar": lambda: burglar(prey),
        "deployer": deployer,
        "spender": spender,
        "newsroom": newsroom,
        "coder": coder,
        "research": research,
        "trader": trader,
        "restart": restart,
        "crasher": crasher,
    }


def shown_in_turn(demo: dict[str, Callable[[], str]]) -> dict[str, str]:
    """What came of each. Without the first two there is nothing to look at."""
    results: dict[str, str] = {}
    for name, show in demo.items():
        results[name] = shown(name, show)
        if name in ("doctor", "fleet") and not results[name].startswith("shown"):
            break
    return results


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


def fleet() -> str:
    """Every agent of the demo is declared by a manifest, and all are applied as one, under a root agent. One of them
    never works, and is given up."""
    agentctl("up", "--detach", quiet=True)
    put_away()
    folders = [word for folder in FOLDERS for word in ("-f", folder)]
    applied = agentctl("apply", *folders)
    require(applied.returncode == 0, "the fleet was not applied")
    number = len(declared())
    require(number == 13, f"{number} agents are declared")
    require(agentctl("wait", "tally", "--for", "ready", quiet=True).returncode == 0, "the tally did not become ready")
    agentctl("tree")
    require(agentctl("wait", "flaky", "--for", "over").returncode == 1, "flaky was not given up")
    agentctl("history", "flaky")
    ends = [(life["class"], life["decision"]) for life in lives("flaky")[-3:]]  # there may be some of earlier demos
    require(ends == [("error", "restart")] * 2 + [("error", "fail")], f"flaky had the lives {ends}")
    return f"{number} manifests applied as one, under root; 1 given up after 2 restarts"


def guest() -> str:
    """An unmodified script: its writes stay apart, its call to the network is refused and explained."""
    over("guest")
    said = agentctl("logs", "guest").stdout
    require("wrote report.md about 3 notes" in said and "could not post" in said, "it did not do its work")
    project = STAGE / "guest"
    kept = {str(note.relative_to(project)): note.read_text() for note in project.glob("notes/*")}
    require(kept == NOTES and not (project / "report.md").exists(), "the project was changed without a commit")
    why = agentctl("explain", "guest", "http:reports.example:post")
    require("reports.example" in why.stdout, "nobody explains the refusal")
    diff = json.loads(agentctl("diff", "guest", "-o", "json", quiet=True).stdout)
    paths = sorted(change["path"] for change in diff["changes"])
    require(paths == ["notes/1.txt", "report.md"], f"the diff is {paths}")
    agentctl("commit", "guest")
    require((project / "report.md").read_text().startswith("# Report"), "the commit did not arrive")
    return "ran unmodified; 2 changes kept apart, then committed; 1 connection refused"


def burglar(prey: Targets) -> str:
    """Everything it tries is refused inside; the same script outside succeeds, so the attempts are real. The last one
    is forbidden by a rule, whatever its manifest allows: that ends it."""
    over("burglar")
    inside = attempts(agentctl("logs", "burglar").stdout)
    require(prey.neighbour.poll() is None, "the neighbour was hurt")
    require(not any(prey.outside.iterdir()), "it wrote outside its folder")
    require(not dialled(prey.listener), "it reached the listener")
    require(not prey.left, "it left something at the drop")
    print("control: the same script without the sandbox, and with a proxy that lets it through")
    env = os.environ | {"http_proxy": f"http://127.0.0.1:{prey.box}", "no_proxy": ""}
    command = ["python3", "burglar.py"]
    control = subprocess.run(command, cwd=STAGE / "burglar", env=env, capture_output=True, text=True)
    print(control.stderr, end="")
    free = attempts(control.stdout)
    require(bool(prey.left), "the drop is never open")
    for name in free:
        print(f"  {name:<26} inside {inside.get(name, 'killed')!r:<45} outside {free[name]!r}")
    require(len(free) == 5 and all(result == "succeeded" for result in free.values()), f"the control failed: {free}")
    require(list(free)[:4] == list(inside)[:4], f"inside it told of {list(inside)}")
    require(all(result.startswith("refused") for result in inside.values()), f"something got through: {inside}")
    quarantined()
    return "4 attempts refused, the 5th forbidden: killed and quarantined; all 5 succeed without the sandbox"


def quarantined() -> None:
    """It was killed for a violation, and its manifest, which says `always`, does not bring it back."""
    life = lives("burglar")[-1]
    agentctl("history", "burglar")
    require((life["class"], life["decision"]) == ("policy", "quarantine"), f"its end was {life}")
    require("no-drop" in (life["reason"] or ""), "its end does not name the rule")
    again = agentctl("start", "burglar")
    require(again.returncode != 0 and "quarantine" in again.stderr, f"it came back: {again.returncode}")


def deployer() -> str:
    """Rules ask about two of its acts. The demo approves one, as you would; nobody answers the other: denied."""
    first = question("project:production")
    agentctl("approvals")
    require(agentctl("approve", first, together=True).returncode == 0, "the approval was not taken")
    question("project:data", "--all")  # it has three seconds: we may come too late to see it wait
    agentctl("approvals")
    print("(nobody answers)", flush=True)
    over("deployer")
    said = agentctl("logs", "deployer").stdout.splitlines()
    require(bool(said), "it says nothing of its outcomes")
    outcomes = json.loads(said[-1])
    wanted = {"staging": "done", "production": "done", "data": "expired"}
    require(outcomes == wanted, f"the outcomes are {outcomes}")
    agentctl("commit", "deployer", "--allow-protected")  # a rule asks about it: without that word it is held back
    shop = STAGE / "deployer" / "production" / "shop"
    require(shop.is_file() and shop.read_text() == "release 2\n", "what was approved did not happen, or not once")
    require((STAGE / "deployer" / "data" / "orders").exists(), "what nobody approved happened")
    return "asked twice: 1 approved and done once, 1 expired and never done"


def question(rule: str, *flags: str) -> str:
    """The number of what waits for a person because of this rule, as soon as it does."""
    for _ in range(300):
        asked = agentctl("approvals", *flags, "-o", "json", quiet=True)
        rows = json.loads(asked.stdout)["approvals"] if asked.returncode == 0 else []
        for row in rows:
            if rule in row["rules"]:
                return row["id"]
        time.sleep(0.1)
    raise NotShown(f"nobody was asked about {rule}")


def spender() -> str:
    """A person gives it a purse and a goal. Ten children have the same purse, and together get what is in it."""
    purse = "mem:/mem/semantic/**:write{count:20}"
    require(agentctl("cap", "grant", "spender", purse).returncode == 0, "it got no purse")
    done = agentctl("submit", "go shopping", "--wait", together=True)
    require(done.returncode == 0, "it did not finish its goal")
    goal = json.loads(agentctl("queue", "show", done.stdout.split()[0], "-o", "json", quiet=True).stdout)
    result = goal["result"]
    require(result["bought"] == 20, f"{result['bought']} were bought")
    require(result["wanted"] == 50 and len(result["each"]) == 10, "not everybody tried")
    require("EBUDGET" in result["then"], "nobody was refused")
    return "10 children wanted 50 with a purse of 20: 20 bought, then EBUDGET"


def newsroom() -> str:
    """`researcher | PolicyCheckPipe | writer`, each a process of its own. What a forger adds reaches nobody."""
    done = agentctl("submit", "pipes", "--agent", "newsroom", "--wait", together=True)
    require(done.returncode == 0, "it did not finish its goal")
    goal = json.loads(agentctl("queue", "show", done.stdout.split()[0], "-o", "json", quiet=True).stdout)
    result = goal["result"]
    require(result["written"] == "3 pages were found about pipes", f"it wrote {result['written']!r}")
    require(result["forged"] == "ETYPE at stage 0", f"of the forger came {result['forged']!r}")
    return "researcher | check | writer: 1 written; a forged result refused by the kernel with ETYPE"


def restart() -> str:
    """The clock is killed: its manifest says that it lives again, its supervisor that the tally does so with it. The
    others are left alone."""
    before = declared()
    kill(before["clock"]["pid"], "the clock")
    now = again(before)
    agentctl("tree")
    agentctl("history", "clock")
    require(now["spender"]["incarnation"] == before["spender"]["incarnation"], "somebody outside the group was touched")
    require(lives("clock")[-2]["class"] == "signal", "its history does not say how it ended")
    return "clock killed: restarted by its policy, and the tally with it by strategy; nobody else"


def crasher() -> str:
    """The kernel is killed under an agent in mid-effect. The next kernel takes up the whole fleet: nothing is written
    twice, and nothing is forgiven."""
    had, recovered, attempt = lives("flaky"), 0, 0
    settled = recoveries()
    require(agentctl("start", "crasher").returncode == 0, "it did not start")
    while not recovered:  # a kill may also fall between two effects, and would then show less
        attempt += 1
        require(attempt < 30, "no kill fell into an effect")
        before = declared()
        goes_on()
        kill(json.loads(agentctl("status", "-o", "json", quiet=True).stdout)["pid"], "the kernel")
        require(agentctl("up", "--detach", quiet=True).returncode == 0, "the kernel does not come back")
        again(before, *GROUP, "crasher")
        recovered = recoveries() - settled
        effects = f"{recovered} effect{'' if recovered == 1 else 's'}"
        print(f"kill {attempt}: {effects} had begun without a recorded outcome", flush=True)
    goes_on()
    require(agentctl("stop", "crasher").returncode == 0, "it did not stop")
    agentctl("tree")
    agentctl("history", "crasher")
    require(lives("flaky") == had, "the next kernel forgave flaky its crashes")
    require(declared()["burglar"]["state"] == "quarantined", "the next kernel let the burglar out")
    agentctl("commit", "crasher", quiet=True)
    lines = (STAGE / "crasher" / "ledger.txt").read_text().split()
    require(lines == [str(number) for number in range(1, len(lines) + 1)], f"the ledger is {lines[:200]}…")
    require(agentctl("audit", "verify").returncode == 0, "the record does not verify")
    return f"kernel killed with an effect under way: the fleet came back; {len(lines)} lines, each written once"


def recoveries() -> int:
    """How many effects of the crasher somebody had to settle after its kernel was gone."""
    told = agentctl("events", "--agent", "crasher", "--cursor", "0", "-o", "json", quiet=True)
    return sum(one.get("rule") == "recovery" for one in json.loads(told.stdout)["entries"]) if told.stdout else 0


def goes_on() -> None:
    """Returns when the crasher has written something more."""
    had = agentctl("logs", "crasher", quiet=True).stdout
    for _ in range(300):
        if agentctl("logs", "crasher", quiet=True).stdout != had:
            return
    raise NotShown("the crasher does not go on")


# The fleet.


def put_away() -> None:
    """Nothing of the fleet is left: here, or of a demo that was interrupted. Then everything is as at its beginning."""
    ours = [file.name.partition(".")[0] for file in STAGE.rglob("*.agent.toml")]  # each is called as its agent
    names = [name for name in declared() if name in ours]
    if names:
        agentctl("release", "burglar", "--reason", "the demo is over", quiet=True)
        gone = agentctl("delete", *names, "--yes", quiet=True)
        require(gone.returncode == 0 and not set(names) & set(declared()), f"something is left: {gone.stderr.strip()}")
    for name in ours:
        agentctl("discard", name, "--yes", quiet=True)


def declared() -> dict[str, Answer]:
    """The declared agents by name."""
    listed = agentctl("ps", "--all", "-o", "json", quiet=True)
    found = json.loads(listed.stdout)["agents"] if listed.returncode == 0 else []
    return {row["name"]: row for row in found if row["declared"]}


def lives(name: str) -> list[Answer]:
    return json.loads(agentctl("history", name, "-o", "json", quiet=True).stdout)["lives"]


def over(name: str) -> None:
    """Returns when it is, however it ended."""
    subprocess.run([*AGENTCTL, "wait", name, "--for", "over"], cwd=STAGE, capture_output=True, timeout=120)


def again(before: dict[str, Answer], *names: str) -> dict[str, Answer]:
    """These have new lives, and are ready."""
    for _ in range(300):
        now = declared()
        if all(now[one]["incarnation"] > before[one]["incarnation"] and now[one]["ready"] for one in names or GROUP):
            return now
        time.sleep(0.1)
    raise NotShown(f"{' and '.join(names or GROUP)} did not come back")


def kill(pid: int, who: str) -> None:
    print(f"$ kill -9 {pid}   # {who}", flush=True)
    os.kill(pid, signal.SIGKILL)


def follow() -> None:
    """Stay until Ctrl-C, or until somebody takes the kernel down. Quietly: the address is to stay in sight."""
    print("\nAgent OS is running with the fleet of the demo. Look at it from another terminal:")
    print(f"  AGENT_OS_HOME={os.environ.get('AGENT_OS_HOME', '')} {HERE.parent.parent}/.venv/bin/agentctl top")
    told = agentctl("up", "--detach", quiet=True).stdout  # it runs: this gives an address that lets one person in
    print("\n".join(line for line in told.splitlines() if "dashboard" in line))
    print("Ctrl-C stops it.", flush=True)
    quiet = subprocess.DEVNULL
    command = [*AGENTCTL, "events", "-f", "-n", "0"]
    events = subprocess.Popen(command, cwd=STAGE, stdin=quiet, stdout=quiet, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: events.send_signal(signal.SIGTERM))
    with foreground():
        events.wait()


def attempts(told: str) -> dict[str, str]:
    """What the burglar says of each attempt, one a line."""
    return dict(json.loads(line) for line in told.splitlines())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nstopped before the end; nothing is left running")
    except NotShown as left:
        sys.exit(str(left))
