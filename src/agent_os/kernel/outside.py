"""Programs outside that speak MCP with us: each is an agent of role user, without a process of ours.

In: OP_CLIENTS of an operator, and connections whose HELLO stands for one of them. Out: a row of the table with its own
capabilities and budget, as whom every call of such a connection passes the gate. A client is in the store, so it is
there again after a restart, holding what it held; it outlives its connections and has any number of them. To end it is
to forget it: whoever kills or quarantines one takes its registration along. What it may do is the gate's to say. One
for which a project was named may have children there: they are an agent's like any other, and end with it.

A call of a client that waits for a person is not held open for ever: it is answered with a state, by which the same
call takes up its place. The state goes through the client's hands, so it is good only as it was made: for that agent,
tool and parameters, until it is due, and once. Keys and used states end with this kernel; the question does not, and
the same call without a state finds it.
"""

import asyncio
import base64
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from agent_os.abi import frames
from agent_os.abi.doors import CLIENT, Clients
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, EEXIST, EINVAL, ENOENT, EPERM, EPIPE, AgentOSError
from agent_os.abi.frames import encode_body
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.abi.text import native
from agent_os.drivers.store import Put
from agent_os.kernel.authority.capability import Capability, parse
from agent_os.kernel.authority.policy.rules import Effect
from agent_os.kernel.authority.ruling import weigh
from agent_os.kernel.bus.interfaces import Interface, of_spec
from agent_os.kernel.calls import Act, Asked, Done, Need
from agent_os.kernel.egress import parse_grant
from agent_os.kernel.egress.naming import granted, named
from agent_os.kernel.journal import Draft
from agent_os.kernel.signals import HELD, STOPPED, STOPS
from agent_os.kernel.supervisor.specs import Spec
from agent_os.kernel.table import OURS, Actor, Agent, Ended, bare, qualified

if TYPE_CHECKING:
    from agent_os.kernel.connection import Connection
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.table import Agent


# Whether what a program outside could call has changed; whoever is connected as it is told. In: that the journal
# wrote something, that the registry of tools changed, that a capability's time is over. Out: the notice `tools` to
# each connection of that client, one for all that changed within a moment. What counts is what SYS_TOOLS would show
# it: a change that it could not see there is none. While nobody is connected nothing is looked at, and a look that
# finds the same rules, capabilities, tools and agents goes no further. Records nothing: the notice only says that
# it is worth asking again, and that question is on the record like any other.

TOOLS = {"type": "tools"}  # the notice
MOMENT = 0.1  # seconds between a change and the look at it, so that many are one
_LONGEST = 3600.0  # seconds until a look for a capability whose time may be over


class _Grounds(Struct, frozen=True):
    """What an offer rests on: while these are the same, so is it."""

    tools: int
    policy: bytes
    handles: tuple[int, ...]
    agents: tuple[Any, ...]


class _Known(Struct, frozen=True):
    grounds: _Grounds
    shown: bytes  # digest


class Offers:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._known: dict[Seat, _Known] = {}  # of clients that are connected
        self._tools = 0  # how often they have changed
        self._due: asyncio.TimerHandle | None = None
        self._expires: asyncio.TimerHandle | None = None
        kernel.tools.registry.changed = self._tools_changed
        kernel.journal.after_group.append(self._soon)

    def begin(self, seat: "Seat") -> None:
        """It is connected: from here on a change is told."""
        if seat not in self._known:
            self._known[seat] = self._look_at(seat.agent)
            self._watch_clock()

    def end(self, seat: "Seat") -> None:
        self._known.pop(seat, None)
        self._watch_clock()

    def _tools_changed(self) -> None:
        self._tools += 1
        self._soon()

    def _soon(self) -> None:
        if self._known and not self._due:
            self._due = asyncio.get_running_loop().call_later(MOMENT, self._look)

    def _look(self) -> None:
        self._due = None
        for seat, known in list(self._known.items()):
            if self._grounds(seat.agent) == known.grounds:
                continue
            now = self._known[seat] = self._look_at(seat.agent)
            if now.shown != known.shown:
                for line in list(seat.lines):
                    line.push("notice", TOOLS)
        self._watch_clock()

    def _watch_clock(self) -> None:
        """A capability that expires is in nobody's record at that moment."""
        if self._expires:
            self._expires.cancel()
            self._expires = None
        left = [_LONGEST]
        for seat in self._known:
            held = seat.agent.holdings
            left += [
                one.expiry / 1000 - held.clock.wall() for one in held if one.expiry and not one.expired(held.clock)
            ]
        if len(left) > 1:
            self._expires = asyncio.get_running_loop().call_later(min(left) + MOMENT, self._look)

    def _grounds(self, agent: "Agent") -> _Grounds:
        held = agent.holdings
        return _Grounds(
            self._tools,
            self._kernel.authority.policies.of(agent.id).digest,
            tuple(one.id for one in held.every() if not one.revoked and not one.expired(held.clock)),
            self._kernel.outside.exported(),
        )

    def _look_at(self, agent: "Agent") -> _Known:
        tools = [(one.name, one.digest) for one in self._kernel.tools.seen_by(agent)]
        shown = encode_body([tools, self._kernel.outside.agents(agent)])
        return _Known(self._grounds(agent), sha256(shown).digest())


CLIENTS = "clients"  # the bucket: id → `Client`
SPAWN = "agent.spawn"  # for whom an operator named a project: a child runs in its parent's, and these have none
CONTROL = frozenset({SPAWN, "agent.signal", "agent.wait", "agent.list"})  # tools that control the OS
_OF_PROJECT = frozenset({"cwd", "environment", "python"})  # what of an order says where children run, and by what
_MOST = 100  # clients
_MOST_LINES = 64  # connections of one
_PASS_S, _MOST_PASSES = 30.0, 1000  # how long a pass is good for; how many may be unused
_STATE_S = 3600.0  # how long a call that waits may be taken up by its state
_MOST_STATES = 10_000


class Client(Struct):
    """As it is kept. What it holds is with everybody's capabilities."""

    id: str
    control: bool = False
    net: list[str] = []  # hosts that its operator named
    created_ns: int = 0
    by: str = ""
    project: dict[str, Any] = {}  # where its children run, as of an order; empty: it has none


class Seat:
    """Where a client's process would be: its connections. Held, none of them is read; ended, they are closed."""

    def __init__(self, kernel: "Kernel", agent: Agent) -> None:
        self._kernel, self.agent = kernel, agent
        self.lines: dict[Connection, str] = {}  # and the token by which each came, if by one

    async def freeze(self) -> bool:
        for line in self.lines:
            line.hold(True)
        return True

    async def thaw(self) -> bool:
        for line in self.lines:
            line.hold(False)
        return True

    async def destroy(self) -> int:
        ended = self.agent.fate or Ended(ExitClass.REQUESTED, -1, "it was ended")
        self.close(EPIPE("client.ended", f"{self.agent.name} was ended: {ended.reason}"))
        await self._kernel.left(self.agent, ended)
        return 0

    async def finish(self) -> None:
        await self.destroy()

    def host_signal(self, number: int) -> None:
        """There is no process that could hear it; SIGTERM's grace ends it all the same."""

    def close(self, error: AgentOSError, token: str | None = None) -> None:
        for line in [line for line, came_by in self.lines.items() if token in (None, came_by)]:
            line.bye(error)


class Outside:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._clients: dict[str, Client] = {}
        self._passes: dict[str, tuple[str, float]] = {}  # unused: for whom, until when
        self._key = secrets.token_bytes(32)
        self._states: dict[str, float] = {}  # unused: until when
        self._offers = Offers(kernel)

    async def restore(self) -> None:
        """Those of before a restart sit where they sat. One that is quarantined comes no further than here."""
        for _, kept in self._kernel.store.items(CLIENTS):
            client = msgspec.msgpack.decode(kept, type=Client)
            self._clients[client.id] = client
            await self._seat(client, None, ())

    def keeps(self, agent: Agent) -> bool:
        """It does not end with the kernel."""
        return agent.id in self._clients

    # Who comes.

    def pass_for(self, name: str) -> str:
        """For one HELLO of a local operator's process."""
        client, now = self.find(name), time.monotonic()
        self._passes = {key: one for key, one in self._passes.items() if one[1] > now}
        if len(self._passes) >= _MOST_PASSES:
            raise EBUSY("client.passes", f"{_MOST_PASSES} passes are unused", hint="wait half a minute")
        made = secrets.token_urlsafe(32)
        self._passes[made] = (client.id, now + _PASS_S)
        return CLIENT + made

    def by_pass(self, word: str, connection: "Connection") -> Agent:
        """Whoever shows it first. EPERM: it is none, or not any more."""
        agent_id, until = self._passes.pop(word.removeprefix(CLIENT), ("", 0.0))
        if not agent_id or until < time.monotonic():
            raise EPERM("client.pass", "this pass is not good any more", hint="agentctl mcp serve --as NAME gets one")
        return self.enter(agent_id, connection)

    def enter(self, name: str, connection: "Connection", token: str = "") -> Agent:
        """As whom a connection acts from here on."""
        agent = self._agent(self.find(name).id)
        seat = cast("Seat", agent.running)
        if len(seat.lines) >= _MOST_LINES:
            raise EBUSY("client.lines", f"{agent.name} has {_MOST_LINES} connections", hint="close some")
        seat.lines[connection] = token
        self._offers.begin(seat)
        connection.hold(not agent.clock.awake.is_set())
        return agent

    def left(self, connection: "Connection") -> None:
        """A connection is gone; the client stays."""
        seat = connection.caller.running if isinstance(connection.caller, Agent) else None
        if isinstance(seat, Seat):
            seat.lines.pop(connection, None)
            if not seat.lines:
                self._offers.end(seat)

    def token_over(self, token: str, why: AgentOSError) -> None:
        """Whoever came by it goes."""
        for client in self._clients.values():
            agent = self._kernel.table.living(client.id)
            if agent and isinstance(agent.running, Seat):
                agent.running.close(why, token)

    def find(self, name: str) -> Client:
        client = self._clients.get(qualified(name, strict=False))
        if client is None:
            hint = f"agentctl mcp register {name[:63]}"
            raise ENOENT("client.unknown", f"no outside client {name[:63]!r} is registered", hint=hint)
        return client

    def _agent(self, agent_id: str) -> Agent:
        self._kernel.check_admission(agent_id)
        agent = self._kernel.table.living(agent_id)
        if agent is None or agent.fate:
            raise ENOENT(
                "client.unknown", f"{bare(agent_id)} has ended", hint="agentctl mcp register registers it anew"
            )
        return agent

    # What operators ask.

    async def register(self, request: Clients, by: str) -> dict[str, Any]:
        kernel, agent_id = self._kernel, qualified(request.name)
        name = bare(agent_id)
        if name in OURS:
            raise EINVAL("agent.name", f"{name!r} is ours", hint="choose another name")
        if agent_id in self._clients or not kernel.table.is_free(agent_id):
            hint = f"choose another name; of an outside client, agentctl mcp unregister {name} comes first"
            raise EEXIST("agent.exists", f"{name} is there already", hint=hint)
        if len(self._clients) >= _MOST:
            raise EBUSY(
                "client.many", f"{_MOST} outside clients are the most there are", hint="agentctl mcp unregister"
            )
        kernel.check_admission(agent_id)
        kernel.fleet.require_own(agent_id)
        if kernel.tools.servers:
            kernel.tools.servers.require_no_server(name)
        project = self._project(request)
        client = Client(agent_id, request.control, list(request.net), time.time_ns(), by, project)
        net = [parse_grant(host) for host in request.net]
        wanted = [*map(parse, request.capabilities), *granted(net, ())]
        self._clients[agent_id] = client
        kept = Put(CLIENTS, agent_id, msgspec.msgpack.encode(client))
        try:
            agent = await self._seat(client, wanted, [kept], dict(request.budget))
        except BaseException:
            del self._clients[agent_id]
            raise
        return self._row(client, agent)

    def _project(self, request: Clients) -> dict[str, Any]:
        """Where its children will run, with the real places of it: whoever writes there can make a link of them."""
        if not request.project:
            return {}
        if not request.control:
            reason = "a project is for who may start agents"
            raise EINVAL("client.project", reason, hint="agentctl mcp register NAME --control --project DIR")
        if unknown := sorted(set(request.project) - _OF_PROJECT):
            raise EINVAL("client.project", f"{unknown[0]} is nothing that a project says")
        from agent_os.kernel import orders  # which needs Linux, as whoever can spawn does

        order = {**request.project, "net": list(request.net)}
        written = orders.read(order)
        return orders.pinned(order, orders.parse(written, orders.host_of(written, self._kernel.guests.home)))

    async def _seat(
        self,
        client: Client,
        wanted: list[Capability] | None,
        puts: "list[Put] | tuple[()]",
        limits: Mapping[str, int] | None = None,
    ) -> Agent:
        """Its row. `wanted`: what it is given, the first time; later it holds what it held."""
        kernel = self._kernel
        agent = kernel.table.admit(client.id, "context", isolation="none")
        agent.order = {**client.project, "kind": "context", "roles": ["user"], "client": True}
        agent.outside = True
        agent.named_hosts = named([parse_grant(host) for host in client.net], ())
        agent.running = Seat(kernel, agent)
        try:
            more = list[Put]()
            if wanted is not None:
                more += kernel.authority.anew(agent.id)
                agent.holdings = kernel.authority.holdings(agent.id)
                for one in wanted:
                    agent.holdings.grant(one, "operator")
                if client.project:
                    _give_project(agent)
                more += kernel.authority.begin(agent.id, None, limits=limits)
            kernel.furnish(agent)
            await kernel.governing.begin(agent, None, again=wanted is None)
            caps = [one.canonical for one in wanted or ()]
            told = {"event": "spawn", "kind": "context", "client": True, "by": client.by, "caps": caps}
            draft = Draft(agent.id, Kind.SPAWN, agent.incarnation, isolation="none", body=frames.encode_body(told))
            await kernel.journal.record(draft, sync=True, puts=[*kernel.table.puts(agent), *more, *puts])
        except BaseException:
            kernel.table.forget(agent)
            raise
        agent.become(Incarnation.RUNNING)
        stands = kernel.store.get(STOPS, agent.id) or b""
        if stands:  # it was told to stand still before the restart
            agent.held, agent.stopped = HELD in stands, STOPPED in stands
            agent.clock.stop()
            agent.become(Incarnation.SUSPENDED)
        return agent

    async def remove(self, name: str, by: str) -> None:
        agent = self._kernel.table.living(self.find(name).id)
        if agent:
            await self._kernel.end(agent, Ended(ExitClass.REQUESTED, 0, f"unregistered by {by}"))

    def buried(self, agent_id: str) -> list[Put]:
        """It has ended for good, and with it its registration."""
        if self._clients.pop(agent_id, None) is None:
            return []
        return [Put(CLIENTS, agent_id, None), *self._kernel.tokens.buried(bare(agent_id))]

    def rows(self) -> list[dict[str, Any]]:
        return [self._row(one, self._kernel.table.row(one.id)) for one in self._clients.values()]

    def _row(self, client: Client, agent: Agent | None) -> dict[str, Any]:
        seat = agent.running if agent else None
        held = agent.holdings if agent else ()
        return {
            "name": bare(client.id),
            "state": str(agent.state) if agent else "ended",
            "connections": len(seat.lines) if isinstance(seat, Seat) else 0,
            "capabilities": [str(one.capability) for one in held if one.origin == "operator"],
            "net": client.net,
            "control": client.control,
            "project": native(client.project["cwd"]) if client.project else "",
            "created_ns": client.created_ns,
            "by": client.by,
        }

    # What it sees.

    def offers(self, agent: Agent, tool: str) -> bool:
        """Whether a tool is among those that a client is shown: what controls the OS is for whom it was said."""
        client = self._clients.get(agent.id)
        return client is None or tool not in CONTROL or (client.control and (tool != SPAWN or bool(client.project)))

    def exported(self) -> tuple[Spec, ...]:
        """What declares an agent that is a tool over MCP."""
        specs = self._kernel.fleet.kept.specs.values()
        return tuple(one for one in specs if one.tree["interface"]["protocol"] == "mcp")

    def agents(self, agent: Agent) -> list[dict[str, Any]]:
        """Agents that are tools over MCP, of those that it may ask: each as a tool is listed, with `seconds` to answer.
        `wrapped`: its request is no map, and stands under the key `input`."""
        kernel = self._kernel
        policy = kernel.authority.policies.of(agent.id)
        rows: list[dict[str, Any]] = []
        for spec in self.exported():
            needs = [Need("ipc", "send", f"agent/{bare(spec.id)}")]
            try:
                agent.holdings.find(needs)
                promised = of_spec(spec)
            except AgentOSError:
                continue
            if weigh(policy, agent, needs).effect is not Effect.FORBID:
                rows.append(_as_tool(bare(spec.id), str(spec.tree.get("description") or ""), promised))
        return rows

    def require_offered(self, agent: Agent, tool: str) -> None:
        name = tool.partition("@")[0]
        if not self.offers(agent, name):
            hint = f"agentctl mcp register NAME --control{' --project DIR' * (name == SPAWN)} offers it"
            raise EPERM("client.control", f"{tool} controls the OS, and is not offered to this client", hint=hint)

    # Calls that wait for a person.

    def state(self, agent: Agent, tool: str, params: Mapping[str, Any], approval: str) -> str:
        """By which this very call takes up its place in the line."""
        now = time.monotonic()
        if len(self._states) >= _MOST_STATES:
            self._states = {key: until for key, until in self._states.items() if until > now}
        if len(self._states) >= _MOST_STATES:
            raise EBUSY("state.many", f"{_MOST_STATES} calls wait for people", hint="agentctl approvals")
        number = secrets.token_urlsafe(12)
        self._states[number] = now + _STATE_S
        said = f"{number}.{approval}.{int(time.time() + _STATE_S)}"
        return f"{said}.{self._mac(said, agent, tool, params)}"

    def take_up(self, agent: Agent, tool: str, params: Mapping[str, Any], state: str) -> None:
        """EPERM: it was changed, is another call's or another client's, too old, or used. The gate records that."""
        said, _, mac = state.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(said, agent, tool, params).encode()):
            raise _refused("it was changed, or belongs to another call, another client or an earlier kernel")
        until = self._states.pop(said.partition(".")[0], None)
        if until is None:
            raise _refused("it was used before")
        if until < time.monotonic():
            raise _refused("it is too old")

    def _mac(self, said: str, agent: Agent, tool: str, params: Mapping[str, Any]) -> str:
        call = json.dumps([said, agent.id, agent.incarnation, tool, params], sort_keys=True, default=repr)
        made = hmac.new(self._key, call.encode(errors="surrogatepass"), sha256).digest()
        return base64.urlsafe_b64encode(made).decode().rstrip("=")


def _give_project(agent: Agent) -> None:
    """It has no such folder itself, so this is good for nothing but to be handed on to its children."""
    from agent_os.kernel import endowment  # which needs Linux, as whoever can spawn does

    agent.holdings.grant(endowment.work(), endowment.MOUNT)


def _as_tool(name: str, description: str, promised: Interface) -> dict[str, Any]:
    schema: Any = promised.request.written if promised.request else {"type": "object"}
    wrapped = not (isinstance(schema, dict) and cast("dict[str, Any]", schema).get("type") == "object")
    around: dict[str, Any] = {"type": "object", "properties": {"input": schema}, "required": ["input"]}
    return {
        "name": f"agent.{name}",
        "description": description or f"Ask the agent {name}.",
        "effect": "opaque",
        "input_schema": around if wrapped else schema,
        "output_schema": promised.response.written if promised.response else None,
        "seconds": promised.seconds,
        "wrapped": wrapped,
    }


def _refused(why: str) -> EPERM:
    hint = "call the tool again without it: the question is still there"
    return EPERM("state.refused", f"this state of a call that waits is refused: {why}", hint=hint)


def _clients(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request, outside = cast("Clients", asked.request), kernel.outside

    async def do() -> Done:
        if request.do == "register":
            return Done({"clients": [await outside.register(request, caller.actor)]})
        if request.do == "remove":
            await outside.remove(request.name, caller.actor)
        elif request.do == "token":
            name = bare(outside.find(request.name).id)
            called = f"mcp-{name}"[:63]
            text = await kernel.tokens.add(caller.actor, called, "client", request.ttl_s, client=name)
            return Done({"clients": outside.rows(), "token": text}, kept={"clients": outside.rows()})
        elif request.do == "enter":
            return Done({"token": outside.pass_for(request.name)}, kept={})
        return Done({"clients": outside.rows()})

    return Act(do)


PREPARE: dict[int, Callable[["Kernel", Any, Asked], Act]] = {BY_REQUEST[Clients].number: _clients}
