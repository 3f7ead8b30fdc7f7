"""Checkpoints: a named moment of an agent that a replay can start from.

A checkpoint is one journal entry: name, the place in the agent's record, the versions of its files, its signal mask,
hashes of what it may read of its workspace, what it carried, and, if the agent gave one, its own state. With a state a
replay starts there; without, at the beginning.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Checkpoint, Effect
from agent_os.drivers.store import Put
from agent_os.kernel.authority.labels import Label, joined, of_words
from agent_os.kernel.authority.policy.rules import Effect as Verdict
from agent_os.kernel.authority.ruling import weigh
from agent_os.kernel.calls import Act, Done, Need, Way
from agent_os.kernel.journal import Draft
from agent_os.kernel.opened import is_held
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.signals import KERNEL
from agent_os.kernel.table import Agent
from agent_os.kernel.vfs.paths import composed
from agent_os.kernel.vfs.root import WORK

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

EVERY = 1000  # entries
MOST = 16  # of an agent; the oldest goes when another comes
_LONGEST_NAME = 128
_AT_ONCE = 500  # files that are judged before others have their turn
_BUCKET = "checkpoints"


class Checkpoints:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._kept: dict[Agent, int] = {}  # agents that can give a state → entries they had when last asked

    def keep(self, agent: Agent) -> None:
        """It has `on_checkpoint`, and is asked for its state now and then: no replay has to begin far back."""
        newest = self.newest_with_state(agent)
        self._kept[agent] = newest["aseq"] if newest else agent.first_aseq

    def forget(self, agent: Agent) -> None:
        self._kept.pop(agent, None)

    def ask(self) -> None:
        """After each commit."""
        for agent, before in self._kept.items():
            now = self._kernel.journal.aseq(agent.id)
            if now - before >= EVERY and agent.detail != "replaying":
                self._kept[agent] = now
                self._kernel.start(self._kernel.signals.send(KERNEL, agent, AgentSignal.SIGUSR1, f"kernel-{now}"))

    def prepare(self, agent: Agent, request: Checkpoint) -> Act:
        """SYS_CHECKPOINT, by the agent itself."""
        require_name(request.name)

        async def do() -> Done:
            facts, puts = await self._facts(agent, request.name, request.state, request.work)
            return Done({"checkpoint": request.name, "at": facts["aseq"]}, puts)

        def begin_again() -> None:
            """Deliveries are counted from here on, as in a run that starts here; this answer is not one of them."""
            agent.delivered = -1

        again = begin_again if request.state is not None else None
        return Act(do, way=Way.STORE, effect=Effect.IDEMPOTENT, answered=again)

    async def take(self, agent: Agent, name: str, state: Any) -> dict[str, Any]:
        """By somebody else: of files and workspace, at this moment."""
        require_name(name)
        facts, puts = await self._facts(agent, name, state, True)
        draft = Draft(agent.id, Kind.CHECKPOINT, agent.incarnation, body=frames.encode_body(facts))
        draft.label = facts["label"]
        await self._kernel.journal.record(draft, sync=True, puts=puts)
        return {"checkpoint": name, "at": facts["aseq"]}

    async def _facts(self, agent: Agent, name: str, state: Any, work: bool) -> tuple[dict[str, Any], list[Put]]:
        kernel = self._kernel
        root = agent.files
        hashes: dict[str, str] = {}
        label = kernel.authority.labels.of(agent.id)
        if work and root.backend(WORK):
            hashes = await self._readable(agent, await self._while_still(agent))
            label = label.join(root.source(Need("file", "read", WORK))) if hashes else label
        taken = kernel.vfs.snapshot(root, name)
        facts = {
            "name": name,
            "aseq": kernel.journal.aseq(agent.id),
            "delivered": agent.delivered,
            "state": state,
            "versions": dict(taken.versions),
            "mask": sorted(agent.mask),
            "work": hashes,
            "label": label.words(),
        }
        puts = [*taken.puts, *self._make_room(agent, name)]
        return facts, [*puts, Put(_BUCKET, f"{agent.id}\0{name}", frames.encode_body(facts))]

    def _make_room(self, agent: Agent, name: str) -> Iterator[Put]:
        """Each keeps versions of files and up to a frame of state: as many as an agent likes would fill the disk. The
        newest with a state stays, since a replay begins there."""
        needed = self.newest_with_state(agent)
        others = [
            one for one in self.of(agent.id) if one["name"] != name and not (needed and one["name"] == needed["name"])
        ]
        others.sort(key=lambda facts: facts["aseq"])
        for old in others[: max(0, len(others) - MOST + 2)]:
            yield from self._kernel.vfs.release(agent.files, old["name"])
            yield Put(_BUCKET, f"{agent.id}\0{old['name']}", None)

    async def _while_still(self, agent: Agent) -> dict[str, str]:
        """Hashes of the workspace, while nothing in it moves."""
        thaw = False
        if agent.running and agent.clock.awake.is_set():
            thaw = await agent.running.freeze()
        try:
            return await self._kernel.vfs.work_hashes(agent.files)
        finally:
            if thaw and agent.running:
                await agent.running.thaw()

    async def _readable(self, agent: Agent, hashes: dict[str, str]) -> dict[str, str]:
        """Those of files that it may read: a hash shows whether a guess is right."""
        root, held, policy = agent.files, agent.holdings, self._kernel.authority.policies.of(agent.id)
        everything = Need("file", "read", f"{WORK}/**")  # only a subtree covers that
        if policy.silent and is_held(root, held, everything):
            return hashes
        allowed: dict[str, str] = {}
        for count, (path, one) in enumerate(hashes.items(), 1):
            need = Need("file", "read", f"{WORK}/{composed(path)}")
            if is_held(root, held, need) and weigh(policy, agent, [need]).effect is Verdict.ALLOW:
                allowed[path] = one
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return allowed

    def listing(self, agent: Agent) -> Mapping[str, str]:
        """The agent's own checkpoints, as its `/state/checkpoints` shows them."""
        return {_file(facts): json.dumps(facts, default=str) + "\n" for facts in self.of(agent.id)}

    def label(self, agent: Agent, path: str) -> Label:
        """Of one of them, or of all: a state is what the agent had taken in by then, perhaps in an earlier life."""
        return joined(of_words(facts.get("label", ())) for facts in self.of(agent.id) if path in ("", _file(facts)))

    def of(self, agent_id: str) -> list[dict[str, Any]]:
        return [decode_any(value) for _, value in self._kernel.store.items(_BUCKET, f"{agent_id}\0")]

    def newest_with_state(self, agent: Agent) -> dict[str, Any] | None:
        """Of this life: what an agent of the same name kept before it ended for good is none of it."""
        with_state = [facts for facts in self.of(agent.id) if facts["state"] is not None]
        newest = max(with_state, key=lambda facts: facts["aseq"], default=None)
        return newest if newest and newest["aseq"] >= agent.first_aseq else None


def _file(facts: Mapping[str, Any]) -> str:
    return f"{facts['name']}.json"


def require_name(name: str) -> None:
    if not 0 < len(name) <= _LONGEST_NAME or "\0" in name or "/" in name:
        raise EINVAL("checkpoint.name", f"a checkpoint's name has 1 to {_LONGEST_NAME} characters and no '/'")
