"""The agents of the demo that are models: one mends a program, one reads and answers, one trades and asks a person.

Their models are scripts and are called so; the tools, the gate, the questions and the record are real. The same files
run with a real model: `agentctl run code/code.agent.toml --model PROVIDER/NAME`.
"""

import json
import subprocess
import sys
import time

from stage import STAGE, NotShown, agentctl, require


def coder() -> str:
    """A model from a manifest, without code: it runs the tests, finds the mistake and mends it, in a layer of its own.
    The model is a script and is called so; the tools, the gate and the record are real."""
    project = STAGE / "code" / "project"
    before = (project / "basket.py").read_text()
    ran = agentctl("run", "code/code.agent.toml", together=True)
    require(ran.returncode == 0, "it did not finish")
    require("scripted/code (scripted)" in ran.stdout, "a script passes for a model")
    require('"passes": true' in ran.stdout, f"it handed over {ran.stdout[-300:]}")
    require((project / "basket.py").read_text() == before, "the project was changed without a commit")
    agentctl("diff", "--patch", "code")
    agentctl("commit", "code")
    tests = subprocess.run([sys.executable, "-B", "-m", "unittest", "-q"], cwd=project, capture_output=True)
    require(tests.returncode == 0, "the tests still fail")
    return "4 turns of a scripted model, 5 tool calls: the mistake found and mended, kept apart, then committed"


def research() -> str:
    """One model reads pages, which may say anything, and one that never sees a page answers. What no page says, and
    what nobody opened, does not reach the answer."""
    ran = agentctl("run", "research/research.agent.toml")
    require(ran.returncode == 0, "it did not finish")
    sources = json.loads(ran.stdout)["sources"]
    require(sources == ["/work/library/compost.md"], f"it cites {sources}")
    leaves = (STAGE / "research" / "library" / "leaves.md").read_text()
    require("my system message" not in leaves, "a page made it write a file")
    return (
        "2 models, one of them behind a check: the answer cites the 1 page that has it, an invented source is left out"
    )


def trader() -> str:
    """A model trades with a market, which is another agent. A large order waits for a person; the demo answers."""
    require(agentctl("apply", "-f", "trading/market.agent.toml", "--wait").returncode == 0, "there is no market")
    require(agentctl("run", "--detach", "trading/trader.agent.toml").returncode == 0, "it did not start")
    asked = _question("trader")
    agentctl("approvals")
    require(agentctl("answer", asked, "true", together=True).returncode == 0, "the answer was not taken")
    ended = json.loads(agentctl("wait", "trader", "-o", "json", quiet=True).stdout)
    result = ended["result"]
    require(ended["status"] == 0 and result["stop"] == "done", f"it ended so: {ended}")
    require(result["orders"] == 4, f"it made {result['orders']} orders")
    print(json.dumps(result, indent=2), flush=True)
    return "4 orders of a scripted model, each booked once, the large one after a person agreed"


def _question(agent: str) -> str:
    """The number of what an agent asks, as soon as it does."""
    for _ in range(300):
        asked = agentctl("approvals", "-o", "json", quiet=True)
        rows = json.loads(asked.stdout)["approvals"] if asked.returncode == 0 else []
        for row in rows:
            if row["agent"].endswith(f"/{agent}") or row["agent"] == agent:
                return row["id"]
        time.sleep(0.1)
    raise NotShown(f"{agent} asks nobody")
