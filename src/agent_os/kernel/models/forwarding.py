"""One request of an unmodified program, through the same gate, queue and budget as a native call, byte for byte.

In: a passage that its door has read. Out: the provider's answer in the door's sink, its usage on the bill and its hash
on the record. It is tried again only while the guest has seen nothing; a provider's own refusal is handed on as it is.
"""

import asyncio
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Any, cast

from msgspec import Raw

from agent_os.abi.errors import EINVAL, EIO, AgentOSError
from agent_os.drivers.models import Forwarded
from agent_os.drivers.models import Forwarding as Forwards
from agent_os.drivers.store import Blob
from agent_os.kernel.calls import Act, Done, Need, Way, leave_of
from agent_os.kernel.models.backlog import Backlog
from agent_os.kernel.models.calling import Calling, Plan
from agent_os.kernel.models.passage import LONGEST_WAIT_S, Passage, Sink

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.models.gateway import Gateway
    from agent_os.kernel.table import Agent

_ERROR_BYTES = 64 << 10  # of an answer that is no reply, kept until it is known whether it is tried again
_KEPT_BYTES = 8 << 20  # of an answer
_LARGEST = 128 << 20  # bytes of an answer
_LONGEST_S = 3600.0  # of an answer
_OVER = 512  # tokens that an answer may have beyond twice what was allowed
_THINK = 19


class Forwarding:
    def __init__(self, gateway: "Gateway", kernel: "Kernel", agent: "Agent", passage: Passage, sink: Sink) -> None:
        self._gateway, self._kernel, self._agent = gateway, kernel, agent
        self._passage, self._sink = passage, sink
        self._said = bytearray()  # the answer as far as it is kept
        self._hash = sha256()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()

        def answer(body: Raw, error: AgentOSError | None) -> None:
            if answered.done():
                return
            if error is None:
                answered.set_result(None)
            else:
                answered.set_exception(error)

        act = self._act()
        passing = self._kernel.gate.admit(self._agent, act, _THINK, answer, request=act.record)
        try:
            await answered
        except asyncio.CancelledError:
            self._kernel.gate.cancel(passing)
            raise

    def _act(self) -> Act:
        passage = self._passage
        digest = sha256(passage.body).digest()
        full = passage.model
        needs = [Need("llm", passage.action, full)]
        facts: dict[str, Any] = {"model": full, "size": len(passage.body), "server_tools": sorted(passage.server_tools)}
        plan = self._gateway.plan_of(self._agent, needs, facts, passage)
        facts["local"] = plan.info.local
        record = {"door": passage.path, "model": full, "request": digest, "stream": passage.stream}
        act = Act(Done, needs, Way.RESULT, record=record, facts=facts, cost=plan.cost, lost={})
        act.blobs = [Blob(digest, passage.body)]

        async def do() -> Done:
            with self._gateway.under_way(self._agent.id):
                await self._gateway.open_safe()
                calling = Calling(self._gateway, self._agent, plan, act)
                calling.patience = LONGEST_WAIT_S
                status = await calling.each(lambda key: self._attempt(act, plan, calling, key))
            value = {"status": status, "usage": calling.total, "answer": self._hash.digest()}
            return Done(value, spent=calling.spent, blobs=self._kept())

        act.do = do
        return act

    async def _attempt(self, act: Act, plan: Plan, calling: Calling, key: str | None) -> int:
        passage, provider = self._passage, plan.provider
        if passage.path not in getattr(provider, "paths", ()):
            raise EINVAL("request", f"{plan.named.provider.name} does not speak the dialect of {passage.path}")
        body = passage.written(plan.named.model, plan.max_output if plan.clamped else None)
        calling.sent()
        answer: Forwarded | None = None
        backlog = Backlog(self._sink.chunk)
        try:
            answer = await cast("Forwards", provider).forward(
                passage.target, passage.headers, body, key, hide_usage=passage.hide_usage
            )
            if answer.status != 200:
                return await self._refused(answer, plan, calling)
            calling.began(provider.limits(answer.headers))
            await self._read(answer, act, calling, backlog)
            calling.finished(answer.result().usage)
            await answer.close()
            await backlog.end()
            return answer.status
        except asyncio.CancelledError:
            if not passage.stream and calling.seen is not None and (answer is None or answer.status == 200):
                calling.unheard()
            raise
        finally:
            await backlog.close()
            if answer is not None:
                await answer.close()

    async def _read(self, answer: Forwarded, act: Act, calling: Calling, backlog: Backlog[bytes]) -> None:
        leave_of(act).confirm()
        calling.delivered = True
        await self._sink.head(answer.status, answer.headers)
        size, until = 0, asyncio.get_running_loop().time() + _LONGEST_S
        while (data := await answer.chunk()) is not None:
            used = answer.used()
            calling.used(used)
            size += len(data)
            if used.output > self._most(calling.plan) or size > _LARGEST or asyncio.get_running_loop().time() > until:
                raise EIO("length", "the provider writes more than it was allowed")
            leave_of(act).confirm()
            self._keep(data)
            await backlog.put(data, len(data))

    def _most(self, plan: Plan) -> float:
        """Tokens, by our own count, after which an answer is cut: a provider need not do as it is told."""
        if plan.clamped or self._passage.max_output is not None:
            return 2 * plan.max_output + _OVER
        return inf

    async def _refused(self, answer: Forwarded, plan: Plan, calling: Calling) -> int:
        """Tried again where that helps; else the guest sees what the provider says."""
        body = bytearray()
        while len(body) < _ERROR_BYTES and (data := await answer.chunk()) is not None:
            body += data
        fault = plan.provider.fault(answer.status, answer.headers, bytes(body))
        if not calling.last(fault):
            raise fault
        calling.delivered = True
        await self._sink.head(answer.status, answer.headers)
        said = self._gateway.masked(bytes(body))
        self._keep(said)
        calling.gone_wrong(fault)
        await self._sink.chunk(said)
        return answer.status

    def _keep(self, data: bytes) -> None:
        self._hash.update(data)
        if len(self._said) <= _KEPT_BYTES:
            self._said += data

    def _kept(self) -> list[Blob]:
        """The answer by its hash. One that is very long, or holds a secret, is only told of."""
        said = bytes(self._said)
        if len(said) > _KEPT_BYTES or self._gateway.masked(said) != said:
            return []
        return [Blob(self._hash.digest(), said)]
