"""The model gateway: every model call of every agent, native or at a door, through one gate and one queue for each key.

In: SYS_THINK of native agents (`prepare` makes its `Act`), and what unmodified programs ask at their doors
(`pass_through`, see `passage.py`). Out: replies. Keys, addresses and retries exist here and nowhere else; an agent
names a model. What a call may cost is reserved with its intent and settled with its outcome; a call that was under way
when the kernel died is charged in full, and made anew.

Where calls wait is `traffic.py`. What a provider is and how it is spoken to is a driver's business: `makes` is given by
whoever puts the kernel together.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from agent_os.abi.errors import EBUDGET, EINVAL, ENOENT, ENOSYS, AgentOSError
from agent_os.abi.models import LEAST_OUTPUT, ImageBlock, ModelReply, ModelRequest, ToolResultBlock
from agent_os.abi.syscalls import Effect
from agent_os.drivers.models import ModelInfo, ModelProvider
from agent_os.drivers.store import Blob, Put
from agent_os.kernel.authority import charges
from agent_os.kernel.authority.budget import UNLIMITED
from agent_os.kernel.authority.redaction import Needles
from agent_os.kernel.calls import Act, Asked, Done, Need, Way
from agent_os.kernel.models.calling import Plan
from agent_os.kernel.models.catalogue import Catalogue, Named, Provider
from agent_os.kernel.models.estimate import BYTES_PER_TOKEN, Estimates, raw_estimate
from agent_os.kernel.models.keys import Keys
from agent_os.kernel.models.passage import COUNT_TOKENS, Dialect, Passage, Sink
from agent_os.kernel.models.prices import FREE, Rates, own_rates
from agent_os.kernel.models.traffic import Traffic
from agent_os.kernel.tooling import BLOBS

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.table import Agent

THINK = 19  # the syscall
LEARNED, REPLIES = "models learned", "model replies"  # buckets
DOOR_OUTPUT = 4096  # tokens reserved for a guest that does not say how many it wants
_UNSAID = ("model", "waits")  # of a request, in its record
_KEEP_EVERY = 50  # replies, after which what was learned is kept
_canonical = msgspec.msgpack.Encoder(order="deterministic").encode


class Makes(Protocol):
    """The drivers."""

    def provider(self, provider: Provider, project: str) -> ModelProvider:
        """One that speaks as `provider` says. `project`: the folder of whoever calls, for scripted models alone."""
        ...

    def rates(self, provider: str, model: str) -> Rates | None:
        """Of the public price table; None: it has none."""
        ...

    def warm(self) -> None:
        """Load the price table, which takes as long as many calls. In a thread."""
        ...


class Gateway(Traffic):
    def __init__(self, kernel: "Kernel") -> None:
        self.catalogue = Catalogue(kernel.store)
        super().__init__(kernel, self.catalogue.weights, _unpacked(kernel.store.get(LEARNED, "sizes")))
        self.makes: Makes | None = None
        self.keys = Keys(kernel)
        self.estimates = Estimates(_unpacked(kernel.store.get(LEARNED, "estimates")))
        self._providers: dict[tuple[str, str], ModelProvider] = {}
        self._warm = False  # the price table is there, or on its way
        self._replies = 0

    def expect(self, agent: "Agent") -> None:
        """An agent begins. If it may call a model that has a price, the prices are there when it does."""
        if self._warm or self.makes is None:
            return
        held = [one.capability for one in agent.holdings if one.capability.kind == "llm"]
        if any(not str(one.target).startswith(("scripted/", "ollama/")) for one in held):
            self._warm = True
            self._kernel.start(asyncio.to_thread(self.makes.warm))

    # Native calls.

    def prepare(self, agent: "Agent", asked: Asked) -> Act:
        from agent_os.kernel.models.provider import require_sound  # few programs ask the kernel itself

        request = cast("ModelRequest", asked.request)
        require_sound(request)
        named = self.catalogue.named(request.model)
        self._require_images(agent, request)
        provider = self._provider(named.provider, agent)
        info = provider.info(named.model)
        needs = [Need("llm", "call", named.full)]
        facts = {"model": named.full, "local": info.local, "size": len(asked.raw)}
        if request.cache != "off" and (kept := self._reused(agent, request, named)) is not None:
            return Act(lambda: Done(kept), needs, facts=facts)
        if request.cache == "replay_only":
            raise ENOENT("cache", "no run has had a reply to this request, and replay_only makes no call")
        plan = self._plan(
            agent, needs, facts, asked.cap, (named, provider, info, raw_estimate(request)), request.max_output
        )
        plan.deadline = _deadline(asked, request)
        record, blobs = self._record(named, request)
        act = Act(_NEVER, needs, Way.RESULT, Effect.PURE, record, facts=facts, cost=plan.cost, lost={}, blobs=blobs)
        act.do = partial(self._think, agent, asked, plan, act)
        return act

    async def _think(self, agent: "Agent", asked: Asked, plan: Plan, act: Act) -> Done:
        from agent_os.kernel.models.thinking import Thinking

        return await Thinking(self, agent, asked, plan, act).run()

    def _require_images(self, agent: "Agent", request: ModelRequest) -> None:
        """An image is sent by its hash; only what the agent has had itself is sent for it."""
        for message in request.messages:
            for block in message.blocks:
                inner = block.content if isinstance(block, ToolResultBlock) else [block]
                for one in inner:
                    if isinstance(one, ImageBlock) and not self._kernel_has(agent, one.blob):
                        raise ENOENT("image", f"you have no blob {one.blob[:80]!r} that could be sent as an image")

    def _kernel_has(self, agent: "Agent", blob: str) -> bool:
        try:
            digest = bytes.fromhex(blob)
        except ValueError:
            return False
        return self.owns(agent.id, digest)

    def owns(self, agent: str, digest: bytes) -> bool:
        """Whether a blob is one of this agent's: what a tool gave it and a result could not hold."""
        return self._kernel.store.get(BLOBS, f"{agent}\0{digest.hex()}") is not None

    # What it may cost.

    def _plan(
        self,
        agent: "Agent",
        needs: Sequence[Need],
        facts: dict[str, Any],
        cap: int | None,
        about: tuple[Named, ModelProvider, ModelInfo, int],
        wanted: int,
    ) -> Plan:
        named, provider, info, raw = about
        prompt = self.estimates.estimate(named.full, raw)
        rates = FREE if info.free or info.scripted else self.rates(named)
        plan = Plan(named, provider, info, raw, prompt, wanted, rates)
        try:
            handles = agent.holdings.find_all(needs, cap, facts)
        except AgentOSError:  # the gate says so
            return plan
        budgets = self._kernel.budgets
        tokens, money = (_least(budgets.room(agent.id, row), charges.room(handles, row)) for row in ("tokens", "cost"))
        plan.limited = min(tokens, money) < UNLIMITED
        most = tokens - prompt
        if rates is not None:
            most = min(most, rates.output_for(prompt, money))
        elif money < UNLIMITED:
            raise _no_price(named)
        if LEAST_OUTPUT <= most < wanted:
            plan.max_output, plan.clamped = most, True
        return plan

    def rates(self, named: Named) -> Rates | None:
        """The operator's price, or that of the public table."""
        own = named.provider.prices.get(named.model) or named.provider.prices.get("*")
        if own:
            return own_rates(named.full, own)
        return self._makes.rates(named.provider.name, named.model)

    def counted(self, agent: "Agent", plan: Plan, reported: int) -> None:
        """The provider has said how long the prompt was."""
        if self.estimates.reported(plan.named.full, plan.raw, reported):
            from agent_os.kernel.models.thinking import suspected

            self._kernel.journal.put(suspected(agent.id, plan, reported), sync=False)

    # Drivers.

    @property
    def _makes(self) -> Makes:
        if self.makes is None:
            raise ENOSYS("model.drivers", "this kernel was put together without drivers for models")
        return self.makes

    def _provider(self, provider: Provider, agent: "Agent") -> ModelProvider:
        project = (
            str(agent.order.get("project") or agent.order.get("cwd") or "") if provider.dialect == "scripted" else ""
        )
        found = self._providers.get((provider.name, project))
        if found is None:
            found = self._providers[provider.name, project] = self._makes.provider(provider, project)
        return found

    def driver(self, provider: Provider) -> ModelProvider:
        """For an operator, who has no project."""
        if provider.dialect == "scripted":
            raise EINVAL("model.scripted", "a scripted model belongs to a project; run an agent there")
        found = self._providers.get((provider.name, ""))
        if found is None:
            found = self._providers[provider.name, ""] = self._makes.provider(provider, "")
        return found

    def changed(self, name: str) -> None:
        """A provider was added, changed or removed. What is under way goes on as it began."""
        for known in [one for one in self._providers if one[0] == name]:
            self._kernel.start(self._providers.pop(known).close())
        self._clear_lanes(name)

    async def close(self) -> None:
        self._close_lanes()
        for provider in self._providers.values():
            await provider.close()

    # Secrets.

    async def open_safe(self) -> None:
        """Where there is one: opening it may take a moment."""
        if self._kernel.home is not None and not self._kernel.safe.is_open and self._kernel.safe.exists:
            await asyncio.to_thread(self._kernel.safe.open)

    def needles(self) -> Needles:
        return self._kernel.safe.needles() if self._kernel.home is not None else Needles(())

    def masked(self, data: bytes) -> bytes:
        return self.needles().mask(data)

    def clean(self, error: AgentOSError) -> AgentOSError:
        """A provider's words may quote what it was sent."""
        needles = self.needles()
        if needles:
            error.reason = needles.mask_text(error.reason)
            error.hint = needles.mask_text(error.hint) if error.hint else error.hint
            if needles.within(repr(error.detail).encode(errors="replace")):
                error.detail.clear()
        return error

    # The record.

    def _record(self, named: Named, request: ModelRequest) -> tuple[dict[str, Any], list[Blob]]:
        """A conversation grows by a little with every call: what was said is kept once, by its hash."""
        parts = [_canonical(one) for one in request.messages]
        if request.tools:
            parts.append(_canonical(request.tools))
        blobs = [Blob(sha256(part).digest(), part) for part in parts]
        digests = [one.digest for one in blobs]
        tools = digests.pop() if request.tools else None
        asked = msgspec.to_builtins(msgspec.structs.replace(request, messages=[], tools=[]), str_keys=True)
        about = {key: value for key, value in asked.items() if value not in (None, [], False) and key not in _UNSAID}
        return {"model": named.full, "messages": digests, "tools": tools, **about}, blobs

    def remembered(self, agent: "Agent", request: ModelRequest, plan: Plan, reply: ModelReply) -> list[Put]:
        """What the store holds of a reply beside its record."""
        puts: list[Put] = []
        if request.cache != "off" and reply.stop in ("end", "tool", "stop_sequence"):
            puts.append(Put(REPLIES, self._reuse_key(agent, request, plan.named), msgspec.msgpack.encode(reply)))
        self._replies += 1
        return puts + self.learned() if self._replies % _KEEP_EVERY == 0 else puts

    def learned(self) -> list[Put]:
        """Sizes of programs and of prompts, for the next kernel."""
        packed = {"sizes": self.sizes.packed(), "estimates": self.estimates.packed()}
        return [Put(LEARNED, name, msgspec.msgpack.encode(value)) for name, value in packed.items() if value]

    def _reused(self, agent: "Agent", request: ModelRequest, named: Named) -> Any:
        kept = self._kernel.store.get(REPLIES, self._reuse_key(agent, request, named))
        if kept is None:
            return None
        reply = msgspec.msgpack.decode(kept, type=ModelReply)
        reply = msgspec.structs.replace(reply, cached=True, cost_microusd=0, attempts=0, queued_ms=0)
        return {"reply": reply, "cuts": []} if request.stream else reply

    def _reuse_key(self, agent: "Agent", request: ModelRequest, named: Named) -> str:
        """The same request in one tenant, of somebody who carries the same."""
        plain = msgspec.structs.replace(
            request, model=named.full, deadline_ms=None, stream=False, cache="off", waits=True
        )
        label = self._kernel.authority.labels.of(agent.id).words()
        digest = sha256(_canonical([plain, label])).hexdigest()
        return f"{agent.namespace}\0{digest}"

    # Doors: see `passage.py`.

    async def pass_through(self, agent: "Agent", passage: Passage, sink: Sink) -> None:
        from agent_os.kernel.models.forwarding import Forwarding

        await Forwarding(self, self._kernel, agent, passage, sink).run()

    def plan_of(self, agent: "Agent", needs: Sequence[Need], facts: dict[str, Any], passage: Passage) -> Plan:
        named = self.catalogue.named(passage.model)
        provider = self._provider(named.provider, agent)
        raw = max(1, len(passage.body) // BYTES_PER_TOKEN)
        said = passage.max_output is not None
        wanted = passage.max_output if passage.max_output is not None else DOOR_OUTPUT * passage.answers
        plan = self._plan(agent, needs, facts, None, (named, provider, provider.info(named.model), raw), wanted)
        plan.clamped |= plan.limited and not said  # whoever names no limit writes no more than was reserved for it
        if passage.path == COUNT_TOKENS:
            plan.prompt, plan.rates = 0, FREE
        return plan

    def named(self, agent: "Agent", dialect: Dialect, name: str) -> str:
        """By whatever name a program knows it: ours, an alias, or the provider's own where one of the providers that
        speak the dialect may be called for it."""
        if name in self.catalogue.aliases:
            return self.catalogue.named(name).full
        spoken = [one for one in self.catalogue if (one.dialect == "anthropic") == (dialect == "anthropic")]
        spoken = [one for one in spoken if one.dialect != "scripted"]
        first, slash, rest = name.partition("/")
        if slash and rest and any(one.name == first for one in spoken):
            return name
        for provider in sorted(spoken, key=lambda one: (one.name != dialect, one.name)):
            if self._may(agent, f"{provider.name}/{name}"):
                return f"{provider.name}/{name}"
        return self.catalogue.named(f"{dialect}/{name}").full

    def models(self, agent: "Agent") -> Sequence[str]:
        """What it may call and can be named: capabilities for one model, and what aliases stand for."""
        held = [one.capability for one in agent.holdings if one.capability.kind == "llm"]
        exact = {one.target.exact for one in held if one.target.exact}
        return sorted(exact | {full for full in self.catalogue.aliases.values() if self._may(agent, full)})

    def _may(self, agent: "Agent", full: str) -> bool:
        for action in ("call", "embed"):
            try:
                agent.holdings.find([Need("llm", action, full)])
            except AgentOSError:
                continue
            return True
        return False

    def hosts(self) -> set[str]:
        """That have a door here, and are not tunnelled."""
        return {one.host for one in self.catalogue if one.host}


def _deadline(asked: Asked, request: ModelRequest) -> float | None:
    ends = [asked.deadline] if asked.deadline is not None else []
    if request.deadline_ms is not None:
        ends.append(asyncio.get_running_loop().time() + request.deadline_ms / 1000)
    return min(ends, default=None)


def _least(room: int, of_handles: int | None) -> int:
    return room if of_handles is None else min(room, of_handles)


def _no_price(named: Named) -> EBUDGET:
    reason = f"no price of {named.full} is known, and what it costs is limited"
    hint = f"agentctl model price {named.full} --input DOLLARS --output DOLLARS, for a million tokens"
    return EBUDGET("no_price", reason, hint=hint, model=named.full)


def _unpacked(kept: bytes | None) -> dict[str, Any]:
    return msgspec.msgpack.decode(kept) if kept else {}


_NEVER: Callable[[], Done] = Done
