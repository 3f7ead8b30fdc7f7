"""Tools as syscalls: one call of one from its name to its recorded outcome, and what of it the gate must know.

In: SYS_EXEC of an agent, resolved and checked by `tools.Registry`. Out: an `Act` that says what it needs, where what
its caller carries goes, how it is recorded, and what its result carries. A deed works through what `Under` gives it:
there everything it meets on its way is judged, what it read joins the label, what is too long is kept. After a crash
the kernel passes every call the same key and the same plan again.

`Tool` is one in few words, for the program around a kernel: a name, an effect and a coroutine, answered as it is.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL, EIO, ELABEL, EPIPE, EPROTO, ETIMEDOUT, AgentOSError
from agent_os.abi.frames import encode_body
from agent_os.abi.syscalls import Effect, Exec
from agent_os.abi.tools import EFFECTS, LARGEST_OUTPUT, LONGEST_TIMEOUT_S, EffectClass, ToolInfo, ToolResult, ToolSpec
from agent_os.drivers.store import Blob, Put
from agent_os.kernel.authority.labels import Label, joined, of_source, packed, unpacked, untrusted
from agent_os.kernel.authority.policy.rules import Effect as Verdict
from agent_os.kernel.authority.ruling import weigh
from agent_os.kernel.calls import SAID, Act, Asked, Done, Need, Way
from agent_os.kernel.journal import Draft
from agent_os.kernel.tools import native
from agent_os.kernel.tools.kept import Kept
from agent_os.kernel.tools.registry import RESERVED, Call, Deed, Registry, Verified
from agent_os.kernel.tools.registry import Tool as Registered
from agent_os.kernel.vfs import Stream as Content

if TYPE_CHECKING:
    from agent_os.kernel.helpers.serving import Helped
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.table import Agent
    from agent_os.kernel.tools.servers import Servers
    from agent_os.kernel.tools.working import Working

Params = Mapping[str, Any]
INTERPRETER = os.path.realpath("/usr/bin/python3")  # of tools that agents add
OWN = "tools.own"  # the bucket: agent NUL name@version → spec and code
BLOBS = "tools.kept"  # the bucket: agent NUL digest → the label of what was kept
_EXEC = 5
_KEPT_FROM = 512  # bytes of a whole result from which it can be asked for again
_TOLD_BY_NEEDS = frozenset({"file", "mem", "http"})  # kinds that say where data comes from
_LOOKS = frozenset({"browser.screenshot", "browser.close"})  # opaque, and still nothing outside is changed
_CLASSES: Mapping[Effect, EffectClass] = {effect: name for name, effect in EFFECTS.items()}


class Tool(Struct, frozen=True):
    name: str
    run: Callable[[str, Params], Awaitable[Any]]  # key, parameters → result
    effect: Effect = Effect.OPAQUE
    verify: Callable[[str, Params], Awaitable[Verified]] | None = None
    summary: str = ""

    def __post_init__(self) -> None:
        if (self.effect is Effect.VERIFIABLE) != (self.verify is not None):
            raise EINVAL("tool.verify", f"{self.name}: a verifiable tool, and no other, has a verify function")
        if self.effect is Effect.TOOL:
            raise EINVAL("tool.effect", f"{self.name}: a tool says itself what its effect is")

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description=self.summary or self.name,
            input_schema={"type": "object", "additionalProperties": True},
            effect=_CLASSES[self.effect],
            requires=("tool:call",),
            timeout_s=LONGEST_TIMEOUT_S,
            output_limit=LARGEST_OUTPUT,
            concurrency=1000,
            sandbox="driver",
        )

    @property
    def deed(self) -> Deed:
        async def run(call: Call) -> Any:
            return await self.run(call.key, call.params)

        async def verified(call: Call) -> Verified:
            return await self.verify(call.key, call.params) if self.verify else Verified("unsure")

        return Deed(run, verify=verified if self.verify else None, plain=True)


class Tools:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self.registry = Registry(time.monotonic, self._line, self._sees)
        native.register(self.registry)
        self.servers: Servers | None = None  # of MCP; None until there is one
        self.make_servers: Callable[[], Servers] | None = None  # set by the composition root
        self._browsers: dict[str, Helped] = {}
        self._starting: dict[str, asyncio.Lock] = {}

    def means(self, call: Call) -> "Working":
        """What a deed works with."""
        from agent_os.kernel.tools.working import Working  # which needs Linux, as whoever can spawn does

        return Working(call)

    def register(self, tool: Tool) -> None:
        if tool.name in self.classes():
            raise EINVAL("tool.exists", f"there is a tool {tool.name} already")
        self.registry.register(tool.spec, tool.deed, short=True)

    def classes(self) -> dict[str, str | None]:
        """What each declares of its effect."""
        return {info.name: str(EFFECTS[info.effect]) for info in self.registry.list()}

    def find(self, name: str, agent: str = "") -> Registered:
        return self.registry.get(name, agent)

    def seen_by(self, agent: "Agent", query: str = "", tag: str = "") -> list[ToolInfo]:
        """What it may call: it holds the capability for the tool itself."""

        def may(tool: Registered) -> bool:
            own = Need("shell", "execute", INTERPRETER)
            try:
                agent.holdings.find([own if tool.owner else Need("tool", "call", tool.spec.name)])
            except AgentOSError:
                return False
            return not agent.outside or self._is_offered(agent, tool.spec.name)

        return self.registry.list(query, tag, agent.id, may=may)

    def _is_offered(self, agent: "Agent", name: str) -> bool:
        """To a program outside: what no rule forbids whatever it asks for, and what controls the OS only if said so."""
        policy = self._kernel.authority.policies.of(agent.id)
        forbidden = weigh(policy, agent, [Need("tool", "call", name)]).effect is Verdict.FORBID
        return not forbidden and self._kernel.outside.offers(agent, name)

    def prepare(
        self,
        agent: "Agent",
        request: Exec,
        key: str,
        plan: Mapping[str, Any] | None = None,
        *,
        cap: int | None = None,
    ) -> Act:
        """`plan`: of the same call before a crash."""
        call = self.registry.prepare(request.tool, request.params, agent.id, key=key)
        call.plan = dict(plan or {})
        spec, said = call.tool.spec, list[str]()
        needs = [_placed(agent, need, said) for need in call.needs]
        needs += [Need("secret", "use", name) for name in spec.secrets]
        if call.tool.owner:  # its own code, run for it: that needs what any such run needs, and no further name
            needs = [*needs[1:], Need("shell", "execute", INTERPRETER)]
        call.needs = list(dict.fromkeys(needs))
        facts = {**call.facts, SAID: tuple(said)} if said else call.facts
        if request.dry_run:
            would = {"would": spec.name, "effect": call.effect}
            return Act(lambda: Done(would), call.needs, facts=facts)
        under = call.under = Under(self._kernel, agent, call, request.whole)
        under.require_accepted()
        pure = call.effect is Effect.PURE
        act = Act(under.run, call.needs, Way.RESULT if pure else Way.EFFECT, call.effect, under.record)
        act.facts, act.label, act.sinks, act.refused = facts, under.brings, _sinks(call), call.tool.health.deny
        if make := call.tool.deed.act:
            asked = Asked(_EXEC, encode_body(request), cap=cap)
            under.be(act, make(self._kernel, agent, call.params, asked))
        act.cost = {"cost": spec.cost_microusd} if spec.cost_microusd else {}
        if call.tool.deed.plan and plan is None:
            act.plan = under.plan
        under.act = act
        return act

    def again(self, agent: "Agent", record: Mapping[str, Any]) -> Act:
        """A call of before a crash, as its record has it."""
        request = Exec(tool=record["tool"], params=record["params"], whole=record.get("whole", False))
        return self.prepare(agent, request, record["key"], record.get("plan", {}))

    def needs_life(self, record: Mapping[str, Any]) -> bool:
        """Whether what became of a call can be told only when its agent has its files again."""
        try:
            return not self.registry.get(record["tool"]).deed.plain
        except AgentOSError:
            return True  # an agent's own, which runs beside it

    async def verify(self, agent: "Agent", record: Mapping[str, Any], effect: Effect) -> Verified:
        """What became of a call whose outcome is not on the record: `done` with its `Done`. `unsure`: only a person can
        tell."""
        tool = self.registry.get(record["tool"], agent.id)
        if effect in (Effect.PURE, Effect.IDEMPOTENT):
            return Verified("not_done")
        same = record.get("digest", tool.spec.digest) == tool.spec.digest
        if effect is not Effect.VERIFIABLE or not tool.deed.verify or not same:
            return Verified("unsure")
        under = under_of(self.again(agent, record))
        seen = await tool.deed.verify(under.call)
        return Verified("done", under.finish(seen.value)) if seen.state == "done" else seen

    async def browser(self, agent: "Agent") -> "Helped":
        """The agent's own, started with its first call. It goes out as the agent itself does."""
        from agent_os.abi.helpers import Nothing, Op, OpenBrowser
        from agent_os.kernel.helpers import serving
        from agent_os.kernel.tools.working import egress_of

        async with self._starting.setdefault(agent.id, asyncio.Lock()):
            there = self._browsers.get(agent.id)
            if there and there.alive:
                return there
            name = f"{agent.id.replace('/', '-')[:40]}"
            program = os.environ.get("AGENT_OS_CHROMIUM", "")
            shown = [os.path.dirname(program)] if program and not program.startswith("/usr/") else []
            helper = await serving.start(self._kernel, "browser", name, egress_of(self._kernel, agent), shown=shown)
            try:
                await helper.ask(Op.OPEN, OpenBrowser(program=program), Nothing, seconds=60.0)
            except BaseException:
                await helper.end("it could not be opened")
                raise
            self._browsers[agent.id] = helper
            return helper

    async def left(self, agent: str) -> None:
        """Its process is gone, and so is its browser."""
        self._starting.pop(agent, None)
        if helper := self._browsers.pop(agent, None):
            await helper.end("its agent has ended")

    async def close(self) -> None:
        for agent in list(self._browsers):
            await self.left(agent)
        if self.servers:
            await self.servers.close()

    def buried(self, agent: str) -> list[Put]:
        """It is over, and with it what it added and what was kept for it."""
        self.registry.forget(agent)
        store = self._kernel.store
        return [Put(bucket, key, None) for bucket in (OWN, BLOBS) for key, _ in store.items(bucket, f"{agent}\0")]

    def _sees(self, agent: str, tool: Registered) -> bool:
        """What an ancestor wrote after it had read more than this agent has would bring that along unseen."""
        return self._kernel.authority.labels.of(agent).holds(tool.deed.carries)

    def _line(self, agent: str) -> Sequence[str]:
        found: list[str] = []
        table, store = self._kernel.table, self._kernel.store
        while len(found) < 64:
            row = table.row(agent)
            parent = row.parent if row else (store.get("parents", agent) or b"").decode() or None
            if parent is None:
                break
            found.append(parent)
            agent = parent
        return found


def _placed(agent: "Agent", need: Need, said: list[str]) -> Need:
    """A path as the agent's own tree has it: what it is there, and by what other names it was called."""
    if need.kind not in ("file", "mem") or agent.root is None:
        return need
    place = agent.root.find(need.target)
    if place is None:
        return need._replace(target=agent.root.resolve(need.target))
    said += place.said
    return Need(place.backend.kind, need.action, place.path)


def _sinks(call: Call) -> Sequence[Need] | None:
    """Of a tool of ours its templates name all that it touches, so its own name is no further place; what only looks
    has none. A request that sends a body changes something, whatever its method promises."""
    others = [need for need in call.needs if need.kind != "tool"]
    if call.tool.owner or (others and others[0].kind == "http" and call.params.get("body")):
        return None
    space = call.tool.spec.name.partition(".")[0]
    looks = call.effect is not Effect.OPAQUE or call.tool.spec.name in _LOOKS
    return others if others or (looks and space in RESERVED and space != "mcp") else None


def under_of(act: Act) -> "Under":
    under = getattr(act.do, "__self__", None)
    if not isinstance(under, Under):
        raise EIO("tool.under", "this is no call of a tool")
    return under


class Under:
    """One call while it is carried out: what it may touch, what it has brought, what is to be kept of it."""

    def __init__(self, kernel: "Kernel", agent: "Agent", call: Call, whole: bool) -> None:
        self.kernel, self.agent, self.call, self._whole = kernel, agent, call, whole
        self.act: Act | None = None  # set once it is made
        self.carried: Label | None = None  # of all that it read
        self._blobs: dict[str, bytes] = {}
        self._size = 0
        self._syscall: Act | None = None

    def be(self, act: Act, syscall: Act) -> None:
        """It is that syscall under another name: what that needs and does, it does."""
        self._syscall = syscall
        self.call.needs = act.needs = list(dict.fromkeys([*self.call.needs, *syscall.needs]))
        act.way, act.effect, act.can_stop = syscall.way, syscall.effect, syscall.can_stop
        act.facts, act.label, act.sinks = {**act.facts, **syscall.facts}, syscall.label, syscall.needs

    # What it may touch.

    def confirm(self, needs: Sequence[Need], facts: Mapping[str, Any]) -> None:
        """Before each thing that it touches, with nothing awaited in between. Raises what forbids it now."""
        act = self.act
        if act and act.leave:
            act.leave.confirm()
        if set(needs) <= set(self.call.needs):
            return
        part = Act(Done, needs, facts=facts)
        self.kernel.gate.weighing.require_allowed(self.agent, _OP_OF.get(needs[0].action, 1), part, self.approved)

    @property
    def approved(self) -> set[str]:
        """The rules to which a person said yes for this call."""
        passing = getattr(self.act.leave, "passing", None) if self.act else None
        return {one.rule for one in passing.marks.questions} if passing else set()

    def carry(self, label: Label) -> None:
        self.carried = label if self.carried is None else self.carried.join(label)

    def require_accepted(self) -> None:
        label = self.kernel.authority.labels.of(self.agent.id)
        if self.call.tool.spec.labels.accepts == "trusted" and label.untrusted:
            name = self.call.tool.spec.name
            self.call.tool.health.deny()
            hint = "an agent that has read nothing untrusted can call it"
            raise ELABEL("label.tool", f"{name} takes nothing untrusted, which you carry", hint=hint)

    def brings(self) -> Label:
        """What its caller carries afterwards, also of an error."""
        spec, rules = self.call.tool.spec, self.kernel.authority.policies.flow(self.agent).sources
        own = Need("tool", "call", spec.name)
        if any(one.covers(own) for rule in rules for one in rule.what):
            return of_source(own, rules)
        told = [need for need in self.call.needs if need.kind in _TOLD_BY_NEEDS]
        if told and not self.call.tool.owner:
            return self.carried if self.carried is not None else joined(of_source(one, rules) for one in told)
        classes = frozenset(spec.labels.classes)
        label = Label(classes=classes) if spec.labels.integrity == "trusted" else untrusted(self.call.source, *classes)
        return label if self.carried is None else label.join(self.carried)

    # What is too long for an answer.

    @property
    def keep(self) -> Kept:
        return Kept(self._keep, self._kept)

    def _keep(self, digest: str, data: bytes) -> None:
        self._blobs[digest] = data

    def _kept(self, digest: str) -> bytes | None:
        if digest in self._blobs:
            return self._blobs[digest]
        store = self.kernel.store
        label = store.get(BLOBS, f"{self.agent.id}\0{digest}")
        if label is None:
            return None
        self.carry(unpacked(label))
        return store.blob(bytes.fromhex(digest))

    # The deed.

    @property
    def record(self) -> dict[str, Any]:
        return {**self.call.record, "whole": True} if self._whole else self.call.record

    async def plan(self) -> None:
        deed = self.call.tool.deed
        if deed.plan and self.act:
            self.call.plan = await deed.plan(self.call)
            self.act.record = self.record

    async def run(self) -> Done:
        """Cancelled or out of time, what it began is ended by its driver."""
        self.require_accepted()
        tool, began = self.call.tool, time.monotonic()
        error: AgentOSError | None = None
        size = 0
        tool.health.begin(self.agent.id)
        try:
            if self._syscall:
                return await self._as_syscall(self._syscall)
            done = self.finish(await self._in_time(), round((time.monotonic() - began) * 1000))
            size = self._size
            return done
        except AgentOSError as problem:
            error = problem
            if self._blobs:
                await self._keep_of_failed()
            raise
        finally:
            tool.health.end((time.monotonic() - began) * 1000, size, error, self.agent.id)

    async def _as_syscall(self, syscall: Act) -> Done:
        syscall.leave = self.act.leave if self.act else None
        came = syscall.do()
        inner = came if isinstance(came, Done) else await came
        value: Any = inner.value
        if isinstance(value, Content):
            with closing(value):
                pieces: list[Any] = list(value.chunks)
                value = {**value.head, "data": ("" if value.text else b"").join(pieces)}
        if isinstance(value, dict) and isinstance(data := cast("dict[str, Any]", value).get("data"), bytes):
            value = {**cast("dict[str, Any]", value), "data": data.decode(errors="replace")}
        done = self.finish(value)
        if self.act and syscall.answered:
            self.act.answered = syscall.answered
        label = inner.label if inner.label is not None else syscall.label() if syscall.label else None
        puts, blobs = [*inner.puts, *done.puts], [*inner.blobs, *done.blobs]
        return Done(done.value, puts, blobs, label=label, beside=inner.beside)

    async def _in_time(self) -> Any:
        spec = self.call.tool.spec
        limit = asyncio.timeout(spec.timeout_s)
        try:
            async with limit:
                return await self.call.tool.deed.run(self.call)
        except TimeoutError:
            if not limit.expired():
                raise
            reason = f"{spec.name} took longer than {spec.timeout_s:g} s and was ended"
            raise ETIMEDOUT("tool.timeout", reason, ran=True, retryable=self.call.effect is Effect.PURE) from None
        except (EPIPE, EPROTO) as problem:  # what works for it broke; its agent's own connection did not
            raise EIO(problem.code, problem.reason, hint="the next call begins anew", ran=True) from problem

    def finish(self, value: Any, duration_ms: int = 0) -> Done:
        """Limit, check and label what it gave. ETYPE: it ran, and that is not what it promised."""
        if self.call.tool.deed.plain:
            return Done(ToolResult(value=value, tool=self.call.tool.id) if self._whole else value)
        finished = self.call.finish(value, duration_ms=duration_ms)
        self._size = finished.result.size
        if finished.blob is not None:
            self._blobs[finished.result.blob] = finished.blob
        if finished.error:
            raise finished.error
        return self._done(finished.result)

    def _done(self, result: ToolResult) -> Done:
        if self._whole and not result.blob and result.size >= _KEPT_FROM:
            data = result.value.encode() if isinstance(result.value, str) else msgspec.json.encode(result.value)
            result.blob = sha256(data).hexdigest()
            self._blobs[result.blob] = data
        told: Any = result if self._whole else result.text or result.value
        label = self.brings()
        return Done(told, self._rows(label), self._bodies(), label=label)

    def _rows(self, label: Label) -> list[Put]:
        return [Put(BLOBS, f"{self.agent.id}\0{digest}", packed(label)) for digest in self._blobs]

    def _bodies(self) -> list[Blob]:
        """They fill the disk as its record does, and count with that."""
        self.agent.allowance.spend(sum(map(len, self._blobs.values())))
        return [Blob(bytes.fromhex(digest), data) for digest, data in self._blobs.items()]

    async def _keep_of_failed(self) -> None:
        """What it gave before it failed is there to be looked at."""
        body = encode_body({"kept": sorted(self._blobs), "tool": self.call.tool.id})
        draft = Draft(self.agent.id, Kind.CHANGE, self.agent.incarnation, body=body)
        await self.kernel.journal.record(draft, puts=self._rows(self.brings()), blobs=self._bodies())


_OP_OF = {"read": 1, "write": 2, "delete": 24}
