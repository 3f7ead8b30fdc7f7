"""Unmodified programs call models: official clients and frameworks, in the real sandbox, against a provider on the
loopback. They are told an address and a placeholder, and nothing else; the key is in none of their bytes."""

import json
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

import leftovers
from guests.agentctl import AGENTCTL, Machine
from guests.canary import files_below, sought
from guests.packages import NotToBeHad, Package, obtain
from models.provider import KEY, Called, MockProvider, Say, Seen

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("model routes are the same for every user")]

OPENAI = Package("openai-client", "pip", "openai==3.49.0", 120)
ANTHROPIC = Package("anthropic-client", "pip", "anthropic==2.8.0", 120)
AGENTS = Package("openai-agents", "pip", "openai-agents==0.24.0", 300)
LANGGRAPH = Package("langgraph", "pip", "langgraph==1.2.20 langchain-openai==1.7.3", 300)
PYDANTIC = Package("pydantic-ai", "pip", "pydantic-ai-slim[openai,anthropic]==2.66.0", 300)
CLAUDE = Package("claude-agent-sdk", "pip", "claude-agent-sdk==0.2.182", 300)


@dataclass
class Desk:
    """One kernel for all, with two providers that are both the mock."""

    machine: Machine
    mock: MockProvider

    def agentctl(self, *words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        return self._done([*AGENTCTL, *words], stdin)

    def _done(self, command: list[str], stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        machine = self.machine
        done = subprocess.run(command, input=stdin, cwd=machine.project, env=machine.environment(), capture_output=True)
        assert sought(KEY.encode(), [("out", done.stdout), ("err", done.stderr)]) == []
        return done

    def begin(self) -> None:
        assert leftovers.becomes_true(lambda: self.agentctl("up", "--detach").returncode == 0, 300)
        for name, base in (("anthropic", self.mock.url), ("openai", f"{self.mock.url}/v1")):
            self.right("secrets", "set", name, stdin=f"{KEY}\n".encode())
            self.right("secrets", "bind", name, "--host", f"127.0.0.1:{self.mock.port}")
            self.right("model", "add", name, "--base", base, "--key", name)

    def right(self, *words: str, stdin: bytes | None = None) -> None:
        done = self.agentctl(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()

    def run(self, package: Package | None, program: str, *flags: str, **env: str) -> "Told":
        python = sys.executable
        if package:
            commands = obtain(package)
            if isinstance(commands, NotToBeHad):
                pytest.skip(f"{package.name}: {commands}")
            python = str(commands / "python")
        (self.machine.project / "program.py").write_text(program)
        own = [f"--env={name}={value}" for name, value in env.items()]
        command = self.machine.command(python, "program.py", flags=["--timeout", "300s", "--discard", *flags, *own])
        done = self._done(command)
        return Told(done.stdout.decode().splitlines(), done.stderr.decode())


@dataclass(frozen=True)
class Told:
    lines: list[str]
    err: str


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Generator[Desk]:
    machine, others = Machine(tmp_path_factory.mktemp("models")), set(leftovers.processes())
    with MockProvider(strict=False, answer=adds) as mock:
        made = Desk(machine, mock)
        try:
            made.begin()
            yield made
        finally:
            made.agentctl("down")
    assert leftovers.becomes_true(lambda: not set(leftovers.processes()) - others)
    machine.nothing_is_left(others)
    assert sought(KEY.encode(), files_below(machine.state)) == []


@pytest.fixture
def desk(whole: Desk) -> Generator[Desk]:
    whole.mock.seen.clear()
    yield whole
    seen = whole.mock.seen
    assert {_key_of(one) for one in seen} <= {KEY}
    assert not any("placeholder" in str(one.headers) for one in seen)


def _key_of(seen: Seen) -> str:
    return seen.headers.get("x-api-key") or seen.headers.get("authorization", "").removeprefix("Bearer ")


def adds(seen: Seen) -> Say:
    """A model that adds with the tool it is given, and says what came of it."""
    said = json.dumps(seen.body)
    if any(word in said for word in ('"tool_result"', '"role": "tool"', '"function_call_output"')):
        return Say("the sum is 5")
    names = [_name(tool) for tool in seen.body.get("tools") or []]
    tool = next((name for name in names if name.endswith("add")), None)
    return Say(calls=[Called(tool, {"a": 2, "b": 3})]) if tool else Say("héllo there")


def _name(tool: dict[str, Any]) -> str:
    return tool.get("name") or tool.get("function", {}).get("name") or ""


OPENAI_CALLS = """
import json
import openai
client = openai.OpenAI()
user = [{"role": "user", "content": "hi"}]
reply = client.chat.completions.create(model="small", messages=user, extra_body={"brand_new": 1})
print(reply.choices[0].message.content)
chunks = list(client.chat.completions.create(model="small", messages=user, stream=True))
print("".join(one.choices[0].delta.content or "" for one in chunks), all(one.choices for one in chunks))
print(client.responses.create(model="small", input="hi").output_text)
with client.responses.stream(model="small", input="hi") as stream:
    print("".join(event.delta for event in stream if event.type == "response.output_text.delta"))
print(len(client.embeddings.create(model="small", input="hi").data[0].embedding) > 0)
print([one.id for one in client.models.list()])

def refused(call, **asked):
    try:
        call(**asked)
    except openai.APIStatusError as error:
        print(type(error).__name__, error.status_code, error.code, "server_tools" in error.message or error.message)

for tool in ("web_search", "file_search", "code_interpreter", "mcp", "never_heard_of"):
    refused(client.responses.create, model="small", input="hi", tools=[{"type": tool}])
picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
refused(client.chat.completions.create, model="small", messages=[{"role": "user", "content": [picture]}])
refused(client.chat.completions.create, model="large", messages=user)
refused(client.files.list)
"""


def test_the_client_of_openai_works_unmodified(desk: Desk) -> None:
    ran = desk.run(OPENAI, OPENAI_CALLS, "--model", "openai/small")
    hello = "héllo there"
    tools = [["PermissionDeniedError", "403"]] * 6
    lines = ran.lines
    assert lines[:6] == [hello, f"{hello} True", hello, hello, "True", "['small']"], ran.err
    assert [line.split()[:2] for line in lines[6:12]] == tools
    assert all(line.endswith("True") for line in lines[6:12]), lines
    assert lines[12].startswith("PermissionDeniedError 403 ")
    assert "openai/large" in lines[12]
    assert lines[13].startswith("PermissionDeniedError 403 net.door")
    paths = [one.path for one in desk.mock.seen]
    assert paths == ["/v1/chat/completions"] * 2 + ["/v1/responses"] * 2 + ["/v1/embeddings"]  # and nothing twice
    assert desk.mock.seen[0].body["brand_new"] == 1
    assert "--model openai/large" in ran.err


ANTHROPIC_CALLS = """
import anthropic
client = anthropic.Anthropic()
asked = {"model": "small", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
print(client.messages.create(**asked, extra_body={"brand_new": 1}).content[0].text)
with client.messages.stream(**asked) as stream:
    print("".join(stream.text_stream))
    print(stream.get_final_message().stop_reason)
print(client.messages.count_tokens(model="small", messages=asked["messages"]).input_tokens > 0)
print(client.beta.messages.create(**asked, betas=["new-2099-01-01"]).content[0].text)
print([one.id for one in client.models.list()])

def refused(call, **asked):
    try:
        call(**asked)
    except anthropic.APIStatusError as error:
        print(type(error).__name__, error.status_code, "server_tools" in str(error) or error)

for kind in ("web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "never_heard_of_20990101"):
    refused(client.messages.create, **asked, tools=[{"type": kind, "name": "x"}])
refused(client.beta.messages.create, **asked, mcp_servers=[{"type": "url", "url": "https://x", "name": "x"}])
picture = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
refused(client.messages.create, **(asked | {"messages": [{"role": "user", "content": [picture]}]}))
refused(client.messages.create, **(asked | {"model": "large"}))
refused(client.messages.batches.list)
"""


def test_the_client_of_anthropic_works_unmodified(desk: Desk) -> None:
    ran = desk.run(ANTHROPIC, ANTHROPIC_CALLS, "--model", "anthropic/small")
    hello, lines = "héllo there", ran.lines
    assert lines[:6] == [hello, hello, "end_turn", "True", hello, "['small']"], ran.err
    assert [line.split()[:2] for line in lines[6:]] == [["PermissionDeniedError", "403"]] * 8, lines
    assert all(line.endswith("True") for line in lines[6:12]), lines
    paths = [one.path.partition("?")[0] for one in desk.mock.seen]
    messages, counting = "/v1/messages", "/v1/messages/count_tokens"
    assert paths == [messages, messages, counting, messages]  # and nothing twice
    assert desk.mock.seen[0].body["brand_new"] == 1
    assert desk.mock.seen[3].headers["anthropic-beta"] == "new-2099-01-01"


FRAMEWORKS: dict[str, tuple[Package, str, str]] = {
    "openai-agents": (
        AGENTS,
        "openai/small",
        """
from agents import Agent, Runner, function_tool

@function_tool
def add(a: int, b: int) -> int:
    "Adds."
    print("added", a, b, flush=True)
    return a + b

agent = Agent(name="adder", instructions="Add.", tools=[add], model="small")
print(Runner.run_sync(agent, "What is 2 + 3?").final_output)
""",
    ),
    "langgraph": (
        LANGGRAPH,
        "openai/small",
        """
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

@tool
def add(a: int, b: int) -> int:
    "Adds."
    print("added", a, b, flush=True)
    return a + b

agent = create_react_agent(ChatOpenAI(model="small"), [add])
print(agent.invoke({"messages": [("user", "What is 2 + 3?")]})["messages"][-1].content)
""",
    ),
    "pydantic-ai": (
        PYDANTIC,
        "anthropic/small",
        """
from pydantic_ai import Agent

agent = Agent("anthropic:small")

@agent.tool_plain
def add(a: int, b: int) -> int:
    "Adds."
    print("added", a, b, flush=True)
    return a + b

print(agent.run_sync("What is 2 + 3?").output)
""",
    ),
    "claude-agent-sdk": (
        CLAUDE,
        "anthropic/*",
        """
import asyncio
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

@tool("add", "Adds.", {"a": int, "b": int})
async def add(args):
    print("added", args["a"], args["b"], flush=True)
    return {"content": [{"type": "text", "text": str(args["a"] + args["b"])}]}

async def main():
    server = create_sdk_mcp_server("sums", tools=[add])
    options = ClaudeAgentOptions(
        model="claude-sonnet-4-5",
        mcp_servers={"sums": server},
        allowed_tools=["mcp__sums__add"],
        max_turns=4,
        setting_sources=[],
    )
    async for message in query(prompt="What is 2 + 3?", options=options):
        if isinstance(message, ResultMessage):
            print(message.result)

asyncio.run(main())
""",
    ),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_works_unmodified(desk: Desk, name: str) -> None:
    package, model, program = FRAMEWORKS[name]
    quiet = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    told = {
        "ENABLE_TOOL_SEARCH": "false"
    }  # else Claude offers its model a tool only once the model has searched for it
    ran = desk.run(package, program, "--model", model, **quiet, **told)
    assert ran.lines == ["added 2 3", "the sum is 5"], ran.err
    assert len(desk.mock.seen) >= 2


PLAIN = """
import json, os, urllib.error, urllib.request

def ask(**more):
    body = {"model": "small", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], **more}
    headers = {"x-api-key": "placeholder", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request("http://127.0.0.1:3128/v1/messages", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["content"][0]["text"]
    except urllib.error.HTTPError as error:
        return f"{error.code} {json.load(error)['error']['message']}"
"""


def test_without_a_grant_nothing_is_told_and_nothing_is_sent(desk: Desk) -> None:
    ran = desk.run(None, PLAIN + "print('ANTHROPIC_BASE_URL' in os.environ, ask())")
    assert ran.lines[0].startswith("False 403 Agent OS: ")
    assert "--model anthropic/small" in ran.err
    assert desk.mock.seen == []


def test_what_a_capability_grants_at_the_provider_passes(desk: Desk) -> None:
    search = "tools=[{'type': 'web_search_20250305', 'name': 's'}]"
    cap = "llm:anthropic/small:call{server_tools:web_search}"
    ran = desk.run(None, PLAIN + f"print(ask({search})); print(ask(container='c'))", "--cap", cap)
    assert ran.lines[0] == "héllo there"
    assert ran.lines[1].startswith("403 ")
    assert len(desk.mock.seen) == 1


TUNNELS = """
import http.client
way = http.client.HTTPConnection("127.0.0.1", 3128)
way.request("CONNECT", "api.example.com:443")
answer = way.getresponse()
print(answer.status, answer.read().decode())
"""


def test_a_host_that_has_a_door_is_not_tunnelled(desk: Desk) -> None:
    desk.right("model", "add", "elsewhere", "--dialect", "openai", "--base", "https://api.example.com/v1")
    ran = desk.run(None, TUNNELS, "--net", "api.example.com", "--model", "elsewhere/small")
    assert ran.lines[0].startswith("403 ")
    assert "door" in ran.lines[0]


def test_a_guest_that_is_killed_takes_its_call_along(desk: Desk) -> None:
    desk.mock.then(Say("x" * 100, hang_after=3))
    (desk.machine.project / "program.py").write_text(PLAIN + "print(ask(stream=True))")
    running = desk.machine.start(sys.executable, "program.py", flags=["--model", "anthropic/small", "--name", "caller"])
    try:
        assert leftovers.becomes_true(lambda: bool(desk.mock.seen), 120)
        desk.right("kill", "caller")
        assert desk.mock.seen[0].gone.wait(10)
    finally:
        running.kill()
        running.communicate()
    assert len(desk.mock.seen) == 1


MANIFEST = """
name = "declared"
role = "worker"
[program]
argv = ["{python}", "-c", {program}]
[capabilities]
models = ["anthropic/small"]
[health]
restart_policy = "never"
"""


def test_a_manifest_grants_a_model_to_a_program(desk: Desk) -> None:
    project = desk.machine.project
    said = "{'role': 'user', 'content': os.environ['ANTHROPIC_BASE_URL'] + ' ' + str('OPENAI_BASE_URL' in os.environ)}"
    program = json.dumps(PLAIN + f"print(ask(messages=[{said}]))")
    (project / "declared.agent.toml").write_text(MANIFEST.format(python=sys.executable, program=program))
    done = desk.agentctl("run", "declared.agent.toml")
    assert done.returncode == 0, done.stderr.decode()
    assert [one.body["messages"][0]["content"] for one in desk.mock.seen] == ["http://127.0.0.1:3128 False"]
