"""What a tool works with for one call of one agent: its files, one-shot runs beside it, the web, a place for output.

In: a call that passed the gate. Out: the narrow interfaces of `drivers.tools`, made when they are first used. What a
tool meets on its way is judged as a call of the agent's own would be, and what it reads joins the label of its result.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from agent_os.abi.errors import EHOSTUNREACH, EISOLATION, AgentOSError
from agent_os.drivers.tools import Answer
from agent_os.kernel import safe
from agent_os.kernel.authority.bindings import Binding
from agent_os.kernel.authority.labels import of_source
from agent_os.kernel.authority.redaction import Needles
from agent_os.kernel.calls import Need
from agent_os.kernel.egress import Connection, Egress
from agent_os.kernel.egress.addresses import Address, canonical_host
from agent_os.kernel.egress.asking import Wanted
from agent_os.kernel.egress.attempt import Attempt
from agent_os.kernel.egress.fetching import Fetching
from agent_os.kernel.egress.routes import Route, Use
from agent_os.kernel.outward import Outward
from agent_os.kernel.plan import loopback_doors
from agent_os.kernel.records import Records
from agent_os.kernel.running import Run
from agent_os.kernel.table import Agent, as_file
from agent_os.kernel.tools.kept import Kept
from agent_os.kernel.tools.means import SandboxRuns, TreeFiles
from agent_os.kernel.tools.oneshot import WayOut
from agent_os.kernel.tools.registry import Call
from agent_os.kernel.tools.spec import web
from agent_os.sandbox.spawner import Launcher, SandboxError

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.tooling import Under

_UNSAID = ("agent", "time", "leave")  # of a connection: its entry has them already


class Working:
    def __init__(self, call: Call) -> None:
        self._under: Under = call.under
        self._agent, self._kernel = self._under.agent, self._under.kernel
        self._web: AgentWeb | None = None

    @property
    def files(self) -> TreeFiles:
        return TreeFiles(self._kernel.vfs, self._agent.files, self._under.confirm, self._under.carry)

    @property
    def keep(self) -> Kept:
        return self._under.keep

    @property
    def runs(self) -> SandboxRuns:
        running = self._agent.running
        beside = running.guest if isinstance(running, Run) else None

        def way_out() -> WayOut:
            doors = loopback_doors(beside.order.net) if beside else ()
            return WayOut(egress_of(self._kernel, self._agent), doors)

        return SandboxRuns(self._launcher, self._agent.id, beside=beside, confirm=self._still, way_out=way_out)

    @property
    def web(self) -> "AgentWeb":
        self._web = self._web or AgentWeb(self._under)
        return self._web

    def _still(self) -> None:
        self._under.confirm((), {})

    async def _launcher(self) -> Launcher:
        if not hasattr(self._kernel, "guests"):
            reason = "this kernel starts no processes, so it has no sandbox for a tool"
            raise EISOLATION("tool.sandbox", reason, ran=False)
        try:
            return await self._kernel.guests.launcher()
        except SandboxError as problem:
            raise EISOLATION("tool.sandbox", f"no sandbox could be made: {problem}", ran=False) from None


class AgentWeb:
    """Requests that the kernel makes for an agent: `drivers.tools.Web`. Each goes the way of all its requests."""

    def __init__(self, under: "Under") -> None:
        self._under, self._agent, self._kernel = under, under.agent, under.kernel
        self._outward = Outward(self._kernel, self._agent, self._approved)
        self._egress = egress_of(self._kernel, self._agent, self._outward)

    def _approved(self, needs: Sequence[Need]) -> Collection[str]:
        """What was agreed to is the first address; where that sends on is another question."""
        return self._under.approved if set(needs) <= set(self._under.call.needs) else ()

    async def request(
        self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes, most: int
    ) -> Answer:
        target, facts = web(url)
        need = Need("http", method.lower(), target)
        self._under.confirm([need], facts)
        try:
            secret = self._bound(target.partition("/")[0], facts, method)
            if secret is None:
                fetching = Fetching(self._egress.attempt, self._egress.open, needles=self._needles)
            else:
                fetching = await self._guarded(secret, target, facts["port"], method, headers, body)
            return await fetching.request(method, url, headers, body, most)
        finally:
            rules = self._kernel.authority.policies.flow(self._agent).sources
            self._under.carry(of_source(need, rules))

    # Secrets.

    def _bound(self, host: str, facts: dict[str, Any], method: str) -> Binding | None:
        """The secret that its operator bound to that host, if this agent holds it."""
        if facts["scheme"] != "https" or self._kernel.home is None or not self._kernel.safe.exists:
            return None
        for shown in self._kernel.safe.listed():
            for one in shown.bindings:
                fits = one.place == "header" and one.covers_host(host, facts["port"]) and method in one.methods
                if fits and one.covers_agent(self._agent.name) and self._holds(one.name):
                    return one
        return None

    def _holds(self, name: str) -> bool:
        try:
            self._agent.holdings.find([Need("secret", "use", name)])
        except AgentOSError:
            return False
        return True

    async def _guarded(
        self, secret: Binding, target: str, port: int, method: str, headers: Sequence[tuple[str, str]], body: bytes
    ) -> Fetching:
        """With the secret put on when all else was waited for. Its use is on the record before anything is dialled."""
        name, slash, path = target.partition("/")
        agent, value = self._agent.name, self._kernel.safe.use(secret.name, self._agent.name, name, port, method)

        async def whole() -> bytes:
            return body

        shown = [(one.encode(), value.encode()) for one, value in headers]
        where = (name, port, method, slash + path, slash + path, shown)
        use = Use(agent, secret.name, value.version, *where, whole if body else None)
        permission = await safe.used(self._kernel, self._agent, self._outward, use)

        def begin() -> Attempt:
            attempt = self._egress.attempt()
            attempt.leave = permission
            return attempt

        async def opened(attempt: Attempt, wanted: Wanted) -> Any:
            return await self._egress.open_door(attempt, wanted.host, wanted.port)

        def put_on(host: str | Address, port: int, method: str) -> Sequence[tuple[str, str]]:
            if host != canonical_host(name):
                raise EHOSTUNREACH("secret.host", f"{secret.name} is not for {host}", ran=False)
            given = self._kernel.safe.use(secret.name, agent, str(host), port, method)
            return [(given.binding.key, given.filled.decode())]

        return Fetching(begin, opened, secret=put_on, needles=self._needles)

    def _needles(self) -> Needles:
        if self._kernel.home is None or not self._kernel.safe.exists:
            return Needles(())
        return self._kernel.safe.needles()


def egress_of(kernel: "Kernel", agent: Agent, outward: Outward | None = None, routes: Sequence[Route] = ()) -> Egress:
    """A way out for what works for an agent: the same gate and the same record as for its own program. `routes`: doors
    that bring a key, of an agent without a program."""
    running, outward = agent.running, outward or Outward(kernel, agent)
    routed = running.guest.order.routed if isinstance(running, Run) else tuple(route.host for route in routes)
    doors = safe.doors(kernel, agent, routes, outward) if routes else None
    records, name = Records(kernel.journal, agent.incarnation), as_file(agent.id)

    def saw(connection: Connection) -> Any:
        facts = {one: getattr(connection, one) for one in connection.__struct_fields__ if one not in _UNSAID}
        if not connection.done:
            return records.connecting(name, facts, connection.leave)
        records.connected(name, facts, connection.leave)
        return None

    return Egress(agent.name, (), saw, asking=outward, routed=routed, doors=doors)
