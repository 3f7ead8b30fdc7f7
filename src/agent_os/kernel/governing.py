"""The policy in force over time: loaded at boot, renewed while agents run, and what each agent's project adds to it.

In: the policy files of this home and of projects, and the wish to change them. Out: a policy for every agent, and the
paths that its sandbox must cover. A change is read and compiled beside the old one, recorded, and in force from the
moment that its entry is committed; then whoever waits looks again, and what is open but forbidden now is closed. Files
that cannot be understood change nothing but the alarm. Decides about no call: that is the gate's.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, ECONFLICT, EINVAL, ENOENT, EPOLICY, ESRCH, AgentOSError
from agent_os.abi.states import ExitClass
from agent_os.drivers.store import Put
from agent_os.kernel import hiding
from agent_os.kernel.aliases import OtherNames
from agent_os.kernel.authority.patterns import Pattern
from agent_os.kernel.authority.policy import loading, placing
from agent_os.kernel.authority.policy.layers import Current, Policy, strictest
from agent_os.kernel.authority.policy.loading import OPERATOR, ORGANISATION, Text
from agent_os.kernel.authority.policy.rules import Effect, Layer, Mode, PolicyFile
from agent_os.kernel.authority.ruling import KEPT, Policies, Tried, below, forbidden, rules_within, weigh
from agent_os.kernel.calls import Need
from agent_os.kernel.hiding import Covered, Place, uncovered
from agent_os.kernel.journal import Draft
from agent_os.kernel.table import Agent, Ended, Party, as_file, from_file, qualified
from agent_os.kernel.workspace import Workspaces
from agent_os.kernel.workspace.changes import Change

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.plan import Order
    from agent_os.manifest.model import AgentManifest


# What a manifest takes away, as rules of a policy: tools that are denied, and tools that wait for a person. In: an
# agent whose order has its manifest. Out: the text of a policy file, in the layer of manifests, or nothing. A
# capability can only give; what must hold whatever is given, also for all that descend from the agent, is a rule
# about its name. Decides nothing.

_HEAD = 'version = 1\ndefault = "capability"\n'


def name_of(agent: Agent) -> str:
    """How records and refusals call it."""
    return f"manifest of {agent.name}"


def texts(agent: Agent) -> list[Text]:
    """At most one."""
    if "manifest" not in agent.order:
        return []
    from agent_os.kernel.supervisor.admission import manifest_of  # which is about spawning, and needs the gate's parts

    manifest = manifest_of(agent)
    rules = "".join(_rules(manifest, agent.name)) if manifest else ""
    return [Text(name_of(agent), f"{_HEAD}{rules}".encode())] if rules else []


def _rules(manifest: "AgentManifest", name: str) -> Iterator[str]:
    from agent_os.manifest import granting

    can = manifest.capabilities
    if manifest.tools_deny:
        more = 'violation = "refuse"\nreason = "it is among tools_deny"\n'
        yield _rule(f"{name} tools_deny", "forbid", granting.calls(manifest.tools_deny), name, more)
    if can.approval:
        yield _rule(f"{name} approval", "ask", granting.calls(can.approval), name, 'reason = "it is among approval"\n')


def _rule(rule_id: str, effect: str, what: Sequence[str], name: str, more: str) -> str:
    lists = f"what = {json.dumps(list(what))}\nagents = {json.dumps([name])}\n"
    return f'[[rule]]\nid = {json.dumps(rule_id)}\neffect = "{effect}"\n{lists}{more}'


_LOOK_S, _SETTLED_S = 1.0, 0.1  # between two looks at the files; how long one must not change to be read
_LOOK_COVERS_S = 0.25
_TO_CUT_OFF = 5.0  # seconds for calls that cannot be stopped
_WAYS: dict[str, hiding.How] = {"read": "hide", "write": "freeze", "delete": "keep"}
_ACTIONS = {how: action for action, how in _WAYS.items()}
_MOST_TOLD = 32
_BY_FILE = "a change of the file"
_texts = msgspec.msgpack.Decoder(list[Text]).decode
_encode = msgspec.msgpack.Encoder().encode
log = logging.getLogger("agent_os.policy")


def current(home: Path | None, organisation: Path = ORGANISATION) -> Current:
    """EINVAL with file and line: then no kernel may run."""
    return Current(lambda: loading.load(loading.common(home, organisation)))


def about(policy: Policy) -> dict[str, Any]:
    """A policy, as records and doors tell of it."""
    files = [
        {
            "file": file.file,
            "layer": file.layer.name.lower(),
            "default": file.default,
            "mode": str(file.mode),
            "rules": len(file.rules),
        }
        for file in policy.files[1:]
    ]
    return {"digest": policy.digest.hex(), "mode": str(policy.mode), "files": files}


class Governing:
    def __init__(self, kernel: "Kernel", organisation: Path = ORGANISATION) -> None:
        self._kernel, self._organisation = kernel, organisation
        self._one_at_a_time = asyncio.Lock()
        self._seen = self._look()

    @property
    def policies(self) -> Policies:
        return self._kernel.authority.policies

    @property
    def alarm(self) -> EINVAL | None:
        """Why the newest files are not in force."""
        return self.policies.current.alarm

    @property
    def target(self) -> Path:
        """The operator's own file."""
        if self._kernel.home is None:
            raise EINVAL("home.none", "a kernel without a home has no policy file", hint="KernelSpace(home=…)")
        return self._kernel.home / OPERATOR

    # The policy for everybody.

    def loaded(self, policy: Policy, by: str) -> Draft:
        """The entry that says which policy is in force."""
        draft = Draft("kernel", Kind.POLICY_LOAD, policy_digest=policy.digest, mode=str(policy.mode))
        draft.body = frames.encode_body({**about(policy), "by": by})
        return draft

    def at_boot(self) -> Draft:
        """The first entry of that kind. From here on every signed head names the policy as well."""
        policy = self.policies.current.policy
        self._kernel.journal.policy_digest = policy.digest
        return self.loaded(policy, "boot")

    async def watch(self) -> None:
        """For ever: a changed file is in force a moment later. One that is being written is waited for."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if (now := self._look()) == self._seen:
                continue
            while True:
                await asyncio.sleep(_SETTLED_S)
                before, now = now, self._look()
                if now == before:
                    break
            try:
                await self.reload(_BY_FILE)
            except AgentOSError as error:
                log.error("the policy in force stays: %s", error)
            except Exception:  # whatever it was, the next change must still be noticed
                log.exception("a changed policy could not be put in force")

    def _look(self) -> tuple[Any, ...]:
        home = self._kernel.home
        return tuple(map(_print, [self._organisation, *([home / OPERATOR] if home else [])]))

    @asynccontextmanager
    async def _changing(self, replaces: str | None) -> AsyncGenerator[None]:
        """One at a time. ECONFLICT: the rules in force, with what somebody has just written into the files, are not
        those with the digest `replaces`, which the caller has looked at."""
        async with self._one_at_a_time:
            if replaces is not None and self._look() != self._seen:
                with suppress(EINVAL):  # the old ones stay in force, with an alarm
                    await self._renew(_BY_FILE)
            now = self.policies.current.policy.digest.hex()
            if replaces not in (None, now):
                reason = "the rules in force are no longer those that these were to replace"
                raise ECONFLICT("policy.changed", reason, hint="look at them, and decide again", digest=now)
            yield

    async def reload(self, by: str, replaces: str | None = None) -> Policy:
        """The files as they are now. EINVAL: they cannot be understood, and the old ones stay in force."""
        async with self._changing(replaces):
            return await self._renew(by)

    async def _renew(self, by: str) -> Policy:
        now = self._look()  # before they are read: what changes meanwhile is looked at again
        policies = self.policies
        try:
            policy = await asyncio.to_thread(policies.current.compile)
        except EINVAL as error:
            self._seen = now
            policies.current.alarm = error
            await self._kernel.journal.record(broken("kernel", error, by), sync=True)
            raise
        self._seen = now
        before = policies.current.policy
        if policy.digest == before.digest:
            policies.current.alarm = None
            return before
        together = await asyncio.to_thread(policies.compiled, policy)
        earlier = {agent.id: policies.of(agent.id) for agent in self._kernel.table.alive()}

        def swap() -> None:
            policies.take(policy, together)
            self._kernel.journal.policy_digest = policy.digest

        await self._kernel.record_then(self.loaded(policy, by), swap)
        self._kernel.approvals.look_again()
        await self._close_forbidden(earlier)
        return policy

    async def apply(self, data: bytes, by: str, replaces: str | None = None) -> Policy:
        """Put new rules in the place of the operator's own, if they can be understood; then they are in force."""
        async with self._changing(replaces):
            await asyncio.to_thread(self._try, data)
            await asyncio.to_thread(placing.put, self.target, data, self._in_force())
            return await self._renew(by)

    async def roll_back(self, by: str, replaces: str | None = None) -> Policy:
        """The operator's rules before the newest ones; twice is as if nothing had been. After a change that could not
        be understood, those are the ones in force."""
        async with self._changing(replaces):
            good = self._in_force()
            if self.alarm:
                await asyncio.to_thread(placing.put, self.target, good, good)
            else:
                await asyncio.to_thread(lambda: self._try(placing.before(self.target)))
                await asyncio.to_thread(placing.put_back, self.target)
            return await self._renew(by)

    def _in_force(self) -> bytes:
        """What the operator's file said when it was last understood; empty where there was none."""
        files = self.policies.current.policy.files
        return next((file.text for file in files if file.layer is Layer.OPERATOR), b"")

    def _try(self, data: bytes) -> Policy:
        above = loading.load(loading.common(None, self._organisation))
        return Policy(loading.operators(data, self.target), above)

    # What is open.

    async def _close_forbidden(self, earlier: Mapping[str, Policy]) -> None:
        """What was allowed when it was opened and is forbidden now: connections, calls, files and watches, mounts. No
        agent's waits for another's, nor for a call that cannot be stopped: that is told of when its time is over."""
        agents = [agent for agent in self._kernel.table.alive() if agent.id in earlier]
        calls = self._kernel.start(self._kernel.gate.cut_off_forbidden())
        await _all(self._close_opened(agent, self.policies.of(agent.id)) for agent in agents)
        await _all(self._close_rest(agent, self.policies.of(agent.id)) for agent in agents)
        done, _ = await asyncio.wait([calls], timeout=_TO_CUT_OFF)
        if done:
            calls.result()
        else:
            log.warning("calls that are forbidden now and cannot be stopped still go on; the record says how they end")

    async def _close_rest(self, agent: Agent, now: Policy) -> None:
        await self._label(agent, now)
        await self._shut(agent, now)
        await self._end_mounted(agent, await asyncio.to_thread(_found, self._uncovered, agent, now))

    async def look_again(self, agent: Agent, order: "Order") -> None:
        """The policy changed while its process was being made, with what was covered before."""
        await self._label(agent, self.policies.of(agent.id))
        shown = await asyncio.to_thread(_found, lambda: uncovered(self.covers(agent.id, order), order.covers))
        await self._end_mounted(agent, shown)

    async def watch_covers(self) -> None:
        """For ever: what covers a file stays with that file, and so does not cover one that somebody outside puts in
        its place (editors and credential helpers save that way). A live mount cannot be mended, so that ends it."""
        took = 0.0  # seconds: among thousands, looking takes a small part of the time at most
        while True:
            await asyncio.sleep(max(_LOOK_COVERS_S, 200 * took))
            began = time.perf_counter()
            watched = [(agent, found) for agent in self._kernel.table.alive() if (found := _watched(agent))]
            took = time.perf_counter() - began
            for agent, fallen in await asyncio.to_thread(_fallen, watched) if watched else ():
                await self._end_mounted(agent, fallen, "what a rule forbids was replaced, and is not covered any more")

    async def _end_mounted(
        self, agent: Agent, shown: Sequence[str], why: str = "a rule forbids now what it has mounted"
    ) -> None:
        """A live mount cannot be taken back. It is struck down from outside: its restart policy applies."""
        if shown:
            reason = f"{why}: {', '.join(shown[:3])}"
            with suppress(ESRCH):
                await self._kernel.end(agent, Ended(ExitClass.LOST, -1, reason))

    async def _shut(self, agent: Agent, policy: Policy) -> None:
        """Files and watches that it opened in its tree, what it lent of that, and its subscriptions."""
        files = self._kernel.vfs.shut(agent.id, lambda need, facts: not _refused(policy, agent, need, facts))
        if puts := [*files, *self._kernel.bus.shut(agent.id, lambda need: not _refused(policy, agent, need))]:
            told = frames.encode_body({"closed": [put.key for put in puts], "why": "a rule forbids it now"})
            draft = Draft(agent.id, Kind.CHANGE, agent.incarnation, policy_digest=policy.digest, body=told)
            await self._kernel.journal.record(draft, sync=True, puts=puts)

    async def _label(self, agent: Agent, policy: Policy) -> None:
        """Of what it has mounted, by the names that the rules have for that now."""
        from agent_os.kernel import endowment  # what runs processes needs Linux, and rules do not

        order = _order(agent)
        if order and (puts := endowment.surround(self._kernel.authority, agent, order)):
            told = frames.encode_body({"labelled": [put.key for put in puts], "why": "a rule says what it has mounted"})
            draft = Draft(agent.id, Kind.LABEL, agent.incarnation, policy_digest=policy.digest, body=told)
            draft.label = self._kernel.authority.labels.of(agent.id).words()
            await self._kernel.journal.record(draft, sync=True, puts=puts)

    async def _close_opened(self, agent: Agent, policy: Policy) -> None:
        """Connections, runs, subscriptions: whatever says what it needs."""
        closing: list[Awaitable[None]] = []
        for one in {one for handle in agent.holdings for one in handle.opened}:
            needs: Sequence[Need] = getattr(one, "needs", ())
            facts: Mapping[str, Any] = getattr(one, "facts", {})
            leads: Sequence[Need] = getattr(one, "leads", ())  # where a name led
            hides: str = getattr(one, "hides", "")
            hidden = {hides, *(need.target.partition("/")[0] for need in leads)} if hides else set[str]()
            if (
                any(_refused(policy, agent, need, facts) for need in needs)
                or any(_forbidden(policy, agent, need, facts) for need in leads)
                or any(_hides(policy, agent, host) for host in hidden)
            ):
                closing.append(one.close())
        await _all(closing)

    def _uncovered(self, agent: Agent, now: Policy) -> list[str]:
        order = _order(agent)
        return uncovered(_covers(now, agent.parties, _places(order), order), order.covers) if order else []

    # What an agent's project says.

    async def begin(self, agent: Agent, project: Path | None, *, again: bool) -> None:
        """An agent is about to start: what its project says holds from its first moment, and over all its lives, since
        an agent may be able to write there. A child is bound by what binds its parent. EINVAL with file and line: it
        does not start. So does what its manifest takes away, as that is today."""
        policies, kept = self.policies, self._kernel.store.get(KEPT, agent.id)
        project = project or self._declared_in(agent)
        try:
            above, own = await asyncio.to_thread(self._said, agent, project, again)
            files = await asyncio.to_thread(
                loading.of_project, own, str(project), self._kernel.tools.classes() if own else {}
            )
            if agent.parent and not again:
                files = (*policies.own(agent.parent), *files)
            if again or (agent.parent and not self._has_own_project(agent)):  # found good before
                policies.keep(agent.id, files)
            else:
                policies.add(agent.id, files)
        except EINVAL as error:
            await self._kernel.journal.record(broken(agent.id, error, "project"), sync=True)
            raise
        texts = [*above, *own]
        now = _encode(texts) if texts else None
        if files or now != kept:
            draft = self.loaded(policies.of(agent.id), "project")
            draft.agent, draft.inc = agent.id, agent.incarnation
            await self._kernel.journal.record(draft, puts=[Put(KEPT, agent.id, now)] if now != kept else [])

    def _said(self, agent: Agent, project: Path | None, again: bool) -> tuple[list[Text], list[Text]]:
        """What binds it beside the common policy: what its parent is bound by, and what is its own: of its project, and
        of its manifest. Whoever is spawned works in its parent's project; whoever is declared has one, and obeys it."""
        mine, manifest = name_of(agent), texts(agent)
        if again:
            return [], [*(one for one in self._texts_of(agent.id) if one.name != mine), *manifest]
        above = [one for one in self._texts_of(agent.parent) if one.name != mine] if agent.parent else []
        read = loading.texts_of(project) if project and self._has_own_project(agent) else []
        if agent.order.get("shadow"):  # an operator's word about one run: of the project, and of nobody above it
            read = [one._replace(tried=True) for one in read]
        return above, [*(one for one in read if one not in above), *manifest]

    def _has_own_project(self, agent: Agent) -> bool:
        spec = self._kernel.fleet.spec(agent.id)
        return agent.parent is None or (spec is not None and not spec.spawned)

    def _declared_in(self, agent: Agent) -> Path | None:
        """Of one that has no project to work in: its manifest has one all the same, and chooses no way round it."""
        spec = self._kernel.fleet.spec(agent.id)
        return Path(spec.base) if spec and not spec.spawned else None

    def _texts_of(self, agent_id: str) -> list[Text]:
        kept = self._kernel.store.get(KEPT, agent_id)
        return _texts(kept) if kept else []

    def _read(self, project: Path) -> tuple[list[Text], tuple[PolicyFile, ...]]:
        texts = loading.texts_of(project)
        return texts, loading.of_project(texts, str(project), self._kernel.tools.classes() if texts else {})

    async def remember(self, agent: str) -> None:
        """What its project said, before it starts again: something that it began may be done for it. EINVAL: that
        cannot be understood any more."""
        if not self.policies.own(agent):
            self.policies.keep(agent, await asyncio.to_thread(self._kept, agent, Path(".")))

    def _kept(self, agent: str, project: Path | None) -> tuple[PolicyFile, ...]:
        kept = self._kernel.store.get(KEPT, agent)
        return loading.of_project(_texts(kept), str(project), self._kernel.tools.classes()) if kept else ()

    def covers(self, agent_id: str, order: "Order") -> tuple[Covered, ...]:
        """What its sandbox must cover. Reads its mounts: in a thread."""
        policy = self.policies.of(agent_id)
        if order.project and not self.policies.own(agent_id):
            policy = below(self._read(order.project)[1], policy)
        places = self._places(as_file(agent_id), order)
        return _covers(policy, self._kernel.table.parties(agent_id), places, order)

    def would_cover(self, agent: Agent, order: "Order") -> list[Tried]:
        """What lies open to its program because the rules that forbid it are tried: nobody will see whether it looks,
        so whoever tries them is told of each. Reads its mounts: in a thread."""
        own = self.policies.own(agent.id)
        if not any(file.tried for file in own):
            return []
        enforced = Policy(
            [msgspec.structs.replace(file, mode=Mode.STRICT, tried=False) for file in own], self.policies.current.policy
        )
        covered, found = set(self.covers(agent.id, order)), list[Tried]()
        for one in _covers(enforced, agent.parties, self._places(as_file(agent.id), order), order):
            action, path = _ACTIONS[one.how], _in_work(one.path, order)
            each = (forbidden(enforced, agent.parties, Need("file", action, name)) for name in (path, one.path))
            decision = next(filter(None, each), None)
            rule, where = (decision.rule.id, str(decision.where)) if decision and decision.rule else ("", "")
            if one not in covered:
                found.append(Tried("cover", f"file:{path}:{action}", rule, where))
        return found

    def _places(self, name: str, order: "Order") -> list[Place]:
        """Where its files come from: mounts, project, and the layers of an earlier run that lie over that."""
        layers = [order.origin] if order.origin else []
        if order.again and self._kernel.home:
            with suppress(ENOENT):
                layers.append(Workspaces(self._kernel.home).open(name))
        over = [place._replace(source=layer.upper) for layer in layers for place in _places(order)[-1:]]
        return [*_places(order), *over]

    # What leaves a workspace.

    def judge(self, name: str, project: Path) -> Callable[[Change], Change]:
        """What the rules say of a change that is to be written to a project: refused, or only if a person says so. By
        the policy of today, which a project's own files are part of."""
        policy = below(self._read(project)[1], self.policies.current.policy)
        parties = self._kernel.table.parties(qualified(from_file(name), strict=False))
        others = OtherNames(project, _restricted(policy))
        return partial(_protected, others) if policy.silent else partial(_judged, policy, parties, others)


async def _all(deeds: Iterable[Awaitable[None]]) -> None:
    """Each of them to its end; then the first that failed is told."""
    for problem in await asyncio.gather(*deeds, return_exceptions=True):
        if problem is not None:
            raise problem


def _found(look: Callable[..., Sequence[str]], *what: Any) -> Sequence[str]:
    """What lies open; if it is more than could be covered, or nobody can tell, that it is."""
    try:
        return look(*what)
    except (EBUSY, EINVAL) as error:
        return [error.reason]


def broken(agent: str, error: EINVAL, by: str) -> Draft:
    """The entry of a policy that cannot be understood."""
    found = loading.problems_of(error)[:_MOST_TOLD]
    problems = [{"file": one.where.file, "line": one.where.line, "what": one.what} for one in found]
    draft = Draft(agent, Kind.POLICY_ERROR, code=error.number)
    draft.body = frames.encode_body({"reason": error.reason, "problems": problems, "by": by})
    return draft


def _print(path: Path) -> tuple[int, ...] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _order(agent: Agent) -> "Order | None":
    """What its process was made by, if it has one."""
    return getattr(getattr(agent.running, "guest", None), "order", None)


def _places(order: "Order") -> list[Place]:
    """Where a run's files come from, and everything that rules may call them."""
    places = [Place(mount.source, mount.at, (mount.at,)) for mount in (*order.own, *order.mounts)]
    if order.project:
        places.append(Place(order.project, str(order.project), ("/work", str(order.project))))
    return places


def _covers(policy: Policy, parties: Sequence[Party], places: Sequence[Place], order: "Order") -> tuple[Covered, ...]:
    """What is not to be read, wherever that is; and what is not to be written or removed, where nobody is asked before
    the host has it: changes in an overlay are judged when they are committed."""
    found: list[Covered] = []
    for action, how in _WAYS.items():
        if patterns := policy.forbids(action) if how == "hide" or order.writable else ():
            some = hiding.covered(places, _forbids(policy, parties, action), patterns, how)
            found += [one for one in some if how == "hide" or _within(one.path, order.writable)]
    return hiding.together(found)


def _in_work(path: str, order: "Order") -> str:
    """As rules and records call it."""
    project = str(order.project or "")
    return f"/work{path.removeprefix(project)}" if project and _within(path, [project]) else path


def _within(path: str, folders: Sequence[str]) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in folders)


def _watched(agent: Agent) -> Sequence[Covered]:
    return getattr(getattr(agent.running, "guest", None), "watched", ()) if not agent.exit else ()


def _fallen(watched: Sequence[tuple[Agent, Sequence[Covered]]]) -> list[tuple[Agent, list[str]]]:
    found = ((agent, [one.path for one in covers if one.fell_off]) for agent, covers in watched)
    return [(agent, paths) for agent, paths in found if paths]


def _forbids(policy: Policy, parties: Sequence[Party], action: str) -> hiding.Forbids:
    def forbids(path: str, folds: bool) -> bool:
        need = Need("file", action, path)
        if folds and not policy.sees_case(need):
            return False
        found = forbidden(policy, parties, need, folds=folds)
        return found is not None and found.effect is Effect.FORBID

    return forbids


def _hides(policy: Policy, agent: Agent, host: str) -> bool:
    """Whether a tunnel to it could do unseen what a rule forbids."""
    try:
        if host:
            rules_within(policy, agent, host)
    except EPOLICY:
        return True
    return False


def _forbidden(policy: Policy, agent: Agent, need: Need, facts: Mapping[str, Any]) -> bool:
    """Whether a rule forbids it in so many words."""
    found = forbidden(policy, agent.parties, need, facts)
    return found is not None and found.effect is Effect.FORBID


def _refused(policy: Policy, agent: Agent, need: Need, facts: Mapping[str, Any] | None = None) -> bool:
    """Whether it could not be opened now: a rule forbids it, or none allows it where one must."""
    return weigh(policy, agent, [need], facts or {}).effect is Effect.FORBID


def _restricted(policy: Policy) -> list[Pattern]:
    rules = (rule for _, rule in policy.rules() if rule.effect is not Effect.ALLOW)
    return [what.target for rule in rules for what in rule.what if what.kind == "file"]


def _protected(others: OtherNames, change: Change) -> Change:
    """By what a link calls it, as well."""
    return (
        msgspec.structs.replace(change, protected=True)
        if not change.protected and others.is_protected(change.path)
        else change
    )


def _judged(policy: Policy, parties: Sequence[Party], others: OtherNames, change: Change) -> Change:
    if change.refused:
        return change
    action = "delete" if change.kind == "delete" else "write"
    target, *more = others.of(change.path)
    found = [policy.decide(name, role, Need("file", action, target)) for name, role in parties]
    for path in (target, *more):
        need = Need("file", action, path)
        found += filter(None, (policy.restricted(name, role, need) for name, role in parties))
        found += filter(None, [forbidden(policy, parties, Need("file", "read", path))])
    decision = strictest(found)
    if decision.effect is Effect.FORBID:
        where = f" ({decision.where})" if decision.where else ""
        rule = f"the rule {decision.rule.id!r}{where}: " if decision.rule else ""
        return msgspec.structs.replace(change, refused=f"{rule}{decision.reason}")
    asks = decision.effect is Effect.ASK
    turns = change.type == "symlink" and change.kind != "delete" and others.would_gain(change.path)
    return _protected(others, msgspec.structs.replace(change, protected=change.protected or asks or turns))
