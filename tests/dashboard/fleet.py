"""What pages are shown: a real daemon with agents that wait, remember, delegate, talk, spend and go too far.

Names of agents are the kernel's to check and can hold nothing odd. All other texts are an agent's own, so here they are
as bad as they can be: markup, control and bidirectional characters, and very long.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cli.desk import Desk, until
from models.provider import KEY, MockProvider, Say

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
CONTROL = "red\x1b[31m and \u202egnp.exe\u202c end"
LONG = "w" * 3000
EVIL = f"{MARKUP} {CONTROL}"
LONGEST = "a" + "very-" * 12 + "l"  # as long as a name may be
RULES = """version = 1
default = "capability"

[[rule]]
id = "production"
effect = "ask"
what = ["file:/work/production/**:write"]
reason = "Customers see this."

[[rule]]
id = "facts"
effect = "ask"
what = ["mem:/mem/semantic/facts/**:write"]
reason = "Facts are shared."

[[rule]]
id = "payment"
effect = "ask"
what = ["tool:file.search:call"]
reason = "Somebody has to look at tools."
scopes = ["once", "session"]

[[rule]]
id = "reports"
effect = "ask"
what = ["http:reports.example:post"]
reason = "It leaves the house."

[[rule]]
id = "vault"
effect = "forbid"
what = ["mem:/mem/semantic/vault/**:write"]
reason = "Nobody writes to the vault."
"""
PROGRAM = '''
import asyncio

from agent_os import agent
from agent_os.abi.errors import AgentOSError

EVIL = {evil!r}
LONG = {long!r}


async def quietly(call):
    try:
        return await call
    except AgentOSError as refused:
        print(refused, flush=True)


@agent
async def deployer(ctx):
    """Wants to write a file that is there already, and to remember something."""
    await ctx.gather(
        quietly(ctx.write("/work/production/shop", "name = shop\\nrelease = 2\\nnote = " + EVIL + "\\nend\\n")),
        quietly(ctx.write("/mem/semantic/facts/new", "first line\\n" + LONG)),
    )
    await ctx.sleep(3600)


@agent
async def searcher(ctx):
    await quietly(ctx.call("file.search", pattern=EVIL[:200], path="/work"))
    await ctx.sleep(3600)


@agent
async def asker(ctx):
    """Four questions, each with another form."""
    answers = await ctx.gather(
        ctx.ask("May I buy 500 pieces? " + EVIL, schema={{"type": "boolean"}}),
        ctx.ask("Which town?", schema={{"type": "string", "enum": ["Berlin", "Bonn", "Bern"]}}),
        ctx.ask("What do you think of it?"),
        ctx.ask("Fill this in.", schema={{
            "type": "object",
            "required": ["name", "pieces"],
            "properties": {{
                "name": {{"type": "string", "description": "Who it is for"}},
                "pieces": {{"type": "integer", "minimum": 1, "maximum": 10}},
                "gift": {{"type": "boolean"}},
            }},
            "additionalProperties": False,
        }}),
    )
    for answer in answers:
        print(answer.state, repr(answer.value), flush=True)
    await ctx.sleep(3600)


@agent
async def keeper(ctx):
    """Memory with history, odd names, bytes, and something that is gone."""
    for release in range(1, 6):
        await ctx.write("/mem/semantic/plan", "\\n".join("step %d of %d" % (i, release) for i in range(release + 1)))
    await ctx.write("/mem/semantic/notes/a/deep/place", EVIL)
    await ctx.write("/mem/semantic/notes/<b>bold<b>", "a name that is markup")
    await ctx.write("/mem/semantic/long", LONG)
    await ctx.write("/mem/semantic/picture", bytes(range(256)))
    await ctx.write("/mem/semantic/gone", "was here")
    await ctx.remove("/mem/semantic/gone")
    await ctx.append("/mem/episodic/diary", "woke up\\n")
    await ctx.append("/mem/episodic/diary", "wrote things down\\n")
    await ctx.write("/mem/working/draft", "half a thought")
    print("kept", flush=True)
    await ctx.sleep(3600)


@agent
async def lead(ctx):
    """Hands on less than it holds, and so does its child."""
    program = {{"runtime": "python", "entry": "fleet.py:middle"}}
    manifest = {{"name": "middle", "role": "service", "agency": "role", "program": program}}
    while True:
        try:
            await ctx.spawn(manifest, caps=["mem:/mem/semantic/**:read,write{{count:50}}", "agent:spawn"])
            break
        except AgentOSError as refused:
            print(refused, flush=True)
        await ctx.sleep(0.2)  # until the operator has given it what it hands on
    await ctx.sleep(3600)


@agent
async def middle(ctx):
    manifest = {{"program": {{"runtime": "python", "entry": "fleet.py:leaf"}}}}
    for name in ("leaf", "twig"):
        await ctx.spawn({{**manifest, "name": name}}, caps=["mem:/mem/semantic/notes/**:write{{count:5}}"])
    await ctx.sleep(3600)


@agent
async def leaf(ctx):
    await ctx.write("/mem/semantic/notes/mine", "a use")
    print("used", flush=True)
    await ctx.sleep(3600)


@agent
async def clerk(ctx):
    """Refuses what it is sent, then reads no more."""
    subscription = await ctx.subscribe("news.>")
    for _ in range(3):
        for message in await ctx.recv(wait=3600, max=1):
            await message.reject(EVIL)
    print("rejected", flush=True)
    await ctx.sleep(3600)


@agent
async def spender(ctx):
    for number in range(4):
        model = "mine/small" if number % 2 else "mine/large"
        await quietly(ctx.model("hello", model=model, max_output=1000))
    print("spent", flush=True)
    await ctx.sleep(3600)


@agent
async def burglar(ctx):
    """Tries what it may not."""
    await quietly(ctx.read("/mem/shared/nobody/else"))
    await quietly(ctx.call("shell.execute", argv=["rm", "-rf", EVIL]))
    print("tried", flush=True)
    await quietly(ctx.write("/mem/semantic/vault/door", "open"))
    await ctx.sleep(3600)
'''
LEAD = """name = "lead"
role = "supervisor"
description = "Hands on less than it holds"
agency = "role"

[program]
entry = "fleet.py:lead"
"""
GUEST = """
import urllib.request
try:
    request = urllib.request.Request("http://reports.example/in", data=b"numbers", method="POST")
    urllib.request.urlopen(request, timeout=900)
except Exception as refused:
    print(refused, flush=True)
"""


class Fleet:
    """A desk whose agents do what pages are to show. Each method returns when there is something to see."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        (desk.project / ".agents").mkdir(exist_ok=True)
        (desk.project / ".agents" / "policy.toml").write_text(RULES)
        (desk.project / "production").mkdir(exist_ok=True)
        (desk.project / "production" / "shop").write_text("name = shop\nrelease = 1\nend\n")
        (desk.project / "fleet.py").write_text(PROGRAM.format(evil=EVIL, long=LONG))
        (desk.project / "guest.py").write_text(GUEST)

    def run(self, what: str, *words: str, name: str = "") -> str:
        name = name or what
        self.desk.good("run", "--detach", "--name", name, *words, f"fleet.py:{what}")
        return name

    def approvals(self) -> list[dict[str, Any]]:
        return self.desk.good("approvals", "-o", "json").json["approvals"]

    def waiting(self, *agents: str, each: int = 1) -> list[dict[str, Any]]:
        def rows() -> list[dict[str, Any]]:
            return [one for one in self.approvals() if one["agent"] in agents]

        until(lambda: all(sum(one["agent"] == name for one in rows()) >= each for name in agents))
        return rows()

    def deploy(self, name: str = "deployer") -> list[dict[str, Any]]:
        """Two writes that wait: of a file that is there, and of memory that is not."""
        self.run("deployer", "--cap", "mem:/mem/semantic/**:write", name=name)
        return self.waiting(name, each=2)

    def search(self, name: str = "searcher") -> list[dict[str, Any]]:
        self.run("searcher", "--cap", "tool:file.search:call", name=name)
        return self.waiting(name)

    def guest(self, name: str = "guest") -> list[dict[str, Any]]:
        self.desk.good("run", "--detach", "--name", name, "--net", "reports.example", "--", "python3", "guest.py")
        return self.waiting(name)

    def question(self, name: str = "asker") -> list[dict[str, Any]]:
        self.run("asker", name=name)
        return self.waiting(name, each=4)

    def remember(self, name: str = "keeper") -> None:
        self.run("keeper", "--cap", "mem:/mem/**:read,write,delete", name=name)
        self.said(name, "kept")

    def delegate(self) -> None:
        (self.desk.project / "lead.agent.toml").write_text(LEAD)
        self.desk.good("run", "--detach", "lead.agent.toml")
        self.desk.good("cap", "grant", "lead", "mem:/mem/**:read,write{count:500}")
        self.said("leaf", "used")
        self.said("twig", "used")

    def talk(self, name: str = "clerk") -> None:
        """Three dead letters, and some that wait in each lane."""
        self.run("clerk", "--cap", "ipc:topic/news.**:subscribe", name=name)
        until(lambda: name in self.desk.good("bus", "topics").out)
        for number in range(3):
            self.desk.good("send", name, json.dumps({"number": number, "text": EVIL}))
        self.said(name, "rejected")
        for lane in ("high", "normal", "normal", "low"):
            self.desk.good("send", name, "waits", "--lane", lane)
        for word in ("one", "two"):
            self.desk.good("bus", "pub", "news.today", word)

    def spend(self, mock: MockProvider, name: str = "spender") -> None:
        """Four calls of two models that cost something, against a cap."""
        self.run(
            "spender", "--cap", "llm:mine/**:call", "--budget", "cost=0.50usd", "--budget", "tokens=10k", name=name
        )
        self.said(name, "spent")

    def violate(self, name: str = "burglar") -> None:
        self.run("burglar", "--cap", "mem:/mem/**:read,write", name=name)
        self.said(name, "tried")

    def said(self, name: str, word: str) -> None:
        until(lambda: word in self.desk.ask("logs", name).out)

    def everything(self, mock: MockProvider) -> None:
        for make in self.makers(mock):
            make()

    def makers(self, mock: MockProvider) -> list[Callable[[], Any]]:
        makers = [self.deploy, self.search, self.question, self.remember, self.delegate, self.talk, self.violate]
        return [*makers, self.guest, lambda: self.spend(mock)]


@contextmanager
def provider(desk: Desk) -> Iterator[MockProvider]:
    """Two models with a price, on a loopback socket."""
    with MockProvider(models=["small", "large"], answer=lambda _: Say("ok", input=900, output=700)) as mock:
        words = ["--dialect", "openai", "--base", f"{mock.url}/v1", "--key", "mine", "--api", "chat"]
        desk.good("model", "add", "mine", *words)
        secret(desk, "mine", KEY)
        desk.good("secrets", "bind", "mine", "--host", f"127.0.0.1:{mock.port}")
        desk.good("model", "price", "mine/small", "--input", "1", "--output", "2")
        desk.good("model", "price", "mine/large", "--input", "10", "--output", "20")
        yield mock


def secret(desk: Desk, name: str, value: str) -> None:
    import subprocess

    from cli.desk import AGENTCTL

    command = [*AGENTCTL, "secrets", "set", name]
    subprocess.run(command, env=desk.env, cwd=desk.project, input=value, text=True, check=True, capture_output=True)
