"""Who comes with a word: tokens, one-time codes, sessions and tickets.

In: what a HELLO held, and what operators ask about it. Out: an `Actor` with a role, or EPERM. Of a word only its
SHA-256 is kept: of a token in the store, with the entry that tells of it; of the rest in memory, so that it ends with
this kernel. No text of one is in any record, log or error. Where a connection comes from is looked at first
(`peers.py`): a word never lets in whom that refuses.

A code is typed or shown, so it is short, and lives short for that: ten minutes, one HELLO, and five wrong ones end
every code there is. The rest has 256 bits, and nobody guesses it; a wrong one costs a hash and is answered alike.
"""

import asyncio
import hmac
import re
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.msgpack import decode, encode

from agent_os import __version__
from agent_os.abi import doors, frames
from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EBUSY, EEXIST, EINVAL, ENOENT, EPERM, AgentOSError
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.drivers.store import Put
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.journal import Draft
from agent_os.kernel.table import Actor

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

BUCKET = "tokens"
CODE_S, TICKET_S = 600.0, 30.0
WRONG_CODES = 5
MOST_TOKENS, MOST_SESSIONS, MOST_CODES, MOST_TICKETS = 256, 64, 16, 64  # the last three of one owner in one role
MOST_CONNECTIONS = 256  # of one owner in one role that came with a word
IDLE_S = 12 * 3600.0  # for a session that nobody comes with
LONGEST_TTL_S = 10 * 366 * 24 * 3600.0
_LETTERS = "ABCDEFGHJKMNPQRSTVWXYZ23456789"  # none that is taken for another
_TELL_S = 10.0  # between two entries about wrong words
_LONGEST = 200  # characters of a word
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
RANKS = {"viewer": 0, "auditor": 1, "operator": 2}


class Kept(Struct, array_like=True):
    """A token as the store has it."""

    digest: bytes
    role: str
    created_ns: int
    expires_ns: int | None = None
    client: str = ""  # the outside client that it lets in as an agent, and as nothing else
    last_ns: int = 0


class Client(Struct, frozen=True):
    """A token that is bound to an outside client: whoever shows it is that agent, no operator."""

    name: str  # of the client
    token: str


class _Owner(Struct, frozen=True):
    """On whose behalf words are given out. With its token all of them end."""

    id: str
    name: str
    token: str


class _Session(Struct, eq=False):
    owner: _Owner
    role: str
    last: float  # monotonic


class _Code(Struct, eq=False):
    digest: bytes
    owner: _Owner
    role: str
    until: float
    wrong: int = 0


class _Ticket(Struct, eq=False):
    owner: _Owner
    role: str
    session: bytes  # empty: of a token
    until: float


class Words:
    """Everything that lets somebody in, but where they come from."""

    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self.boot = secrets.token_hex(8)  # sessions are of this start of the kernel
        self._tokens = {name: decode(data, type=Kept) for name, data in kernel.store.items(BUCKET)}
        self._busy: dict[str, str] = {}  # names that are being written, and the outside client each is for
        self._void: set[str] = set()  # of those, the ones whose client has ended meanwhile
        self._sessions: dict[bytes, _Session] = {}
        self._codes: list[_Code] = []
        self._tickets: dict[bytes, _Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wrong, self._told = 0, float("-inf")

    # Coming in.

    def admit(self, word: str, pid: int) -> Actor | Client:
        """Whoever showed this word. EPERM: nobody, and that is told to the record now and then."""
        try:
            found = self._find(word, pid)
            if isinstance(found, Actor):
                self._require_room(found)
        except EPERM:
            self._tell_wrong()
            raise
        return found

    def _find(self, word: str, pid: int) -> Actor | Client:
        if len(word) > _LONGEST or not word.isascii():
            raise EPERM("token.malformed", f"a token has at most {_LONGEST} plain characters")
        if word.startswith(doors.CODE):
            return self._by_code(word.removeprefix(doors.CODE), pid)
        if word.startswith(doors.TICKET):
            return self._by_ticket(word, pid)
        if word.startswith(doors.SESSION):
            return self._by_session(word, pid)
        return self._by_token(word, pid)

    def _by_token(self, word: str, pid: int) -> Actor | Client:
        shown, name = _digest(word), ""
        for one, kept in self._tokens.items():  # all of them, whichever it is
            if hmac.compare_digest(kept.digest, shown):
                name = one
        if not name:
            hint = "agentctl token ls shows which there are; agentctl token add NAME makes one"
            raise EPERM("token.unknown", "no token of this kernel is like the one shown", hint=hint)
        kept = self._tokens[name]
        if _over(kept):
            raise EPERM("token.expired", f"the token {name} has expired", hint=f"agentctl token add {name}")
        kept.last_ns = time.time_ns()
        if kept.client:
            return Client(kept.client, name)
        return Actor(f"token:{name}", pid, name=name, role=kept.role, via="token", token=name)

    def _by_session(self, word: str, pid: int) -> Actor:
        found = self._sessions.get(digest := _digest(word))
        if found is None or (time.monotonic() - found.last > IDLE_S and not self._connections(session=digest)):
            raise EPERM("session.over", "this session is over, as all are when the kernel ends", hint="agentctl ui")
        found.last = time.monotonic()
        return _actor(found.owner, found.role, "session", pid, digest)

    def _by_ticket(self, word: str, pid: int) -> Actor:
        found = self._tickets.pop(_digest(word), None)
        if found is None or found.until < time.monotonic():
            raise EPERM("ticket.over", "this ticket was used, or is older than 30 s", hint="ask for another one")
        return _actor(found.owner, found.role, "ticket", pid, found.session)

    def _by_code(self, text: str, pid: int) -> Actor:
        now, shown = time.monotonic(), _digest(doors.CODE + text.strip().upper())
        self._codes = [one for one in self._codes if one.until > now]
        found = None
        for one in self._codes:
            if hmac.compare_digest(one.digest, shown):
                found = one
        if found is None:
            for one in self._codes:
                one.wrong += 1
            self._codes = [one for one in self._codes if one.wrong < WRONG_CODES]
            reason = "this code was used, is older than 10 minutes, or is wrong"
            raise EPERM("code.wrong", reason, hint="agentctl ui gives a new one")
        self._codes.remove(found)
        return _actor(found.owner, found.role, "code", pid, b"")

    def _require_room(self, actor: Actor) -> None:
        same = (actor.id, actor.role)
        mine = sum(one.via != "local" and (one.id, one.role) == same for one in self._callers())
        if mine >= MOST_CONNECTIONS:
            raise EBUSY("token.connections", f"{actor.name} has {MOST_CONNECTIONS} connections, the most there may be")

    def _tell_wrong(self) -> None:
        """That somebody tries is on the record, however often they do: not more than a line in ten seconds."""
        self._wrong += 1
        now = time.monotonic()
        if now - self._told < _TELL_S or self._kernel.journal.failed:
            return
        body = frames.encode_body({"event": "token refused", "times": self._wrong})
        self._told, self._wrong = now, 0
        draft = Draft("kernel", Kind.DECISION, body=body, verdict=Verdict.REFUSE, rule="token", code=EPERM.number)
        self._kernel.journal.put(draft, sync=False)

    # Tokens.

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "role": kept.role,
                "created_ns": kept.created_ns,
                "expires_ns": kept.expires_ns,
                "last_ns": kept.last_ns or None,
                "client": kept.client,
                "connections": sum(one.token == name for one in self._callers()),
            }
            for name, kept in sorted(self._tokens.items())
        ]

    async def add(
        self,
        by: str,
        name: str,
        role: str,
        ttl_s: float | None = None,
        *,
        client: str = "",
        text: str = "",
        beside: Sequence[Put] = (),
    ) -> str:
        """The text of a new token, which nobody can ask for again. It is good from the moment that it is on disk."""
        _require_name(name)
        if ttl_s is not None and not 0 < ttl_s <= LONGEST_TTL_S:
            raise EINVAL("token.ttl", f"a token is good for more than 0 and at most {LONGEST_TTL_S:.0f} seconds")
        there = self._tokens.get(name)
        if name in self._busy or (there and not _over(there)):
            raise EEXIST("token.exists", f"there is a token {name}", hint=f"agentctl token rm {name}, or another name")
        if len(self._tokens) + len(self._busy) >= MOST_TOKENS and not there:
            raise EBUSY(
                "token.many", f"there are {MOST_TOKENS} tokens, the most there may be", hint="agentctl token ls"
            )
        text = text or doors.TOKEN + secrets.token_urlsafe(32)
        now = time.time_ns()
        kept = Kept(_digest(text), role, now, None if ttl_s is None else now + int(ttl_s * 1e9), client)
        said = {"event": "token add", "token": name, "role": role, "expires_ns": kept.expires_ns, "client": client}
        draft = Draft(by, Kind.CHANGE, body=frames.encode_body(said))
        self._busy[name] = client
        try:
            puts = [Put(BUCKET, name, encode(kept)), *beside]
            await self._kernel.record_then(draft, lambda: self._hold(name, kept), puts)
            if name in self._void:
                raise ENOENT("client.unknown", f"{client} has just ended", hint=f"agentctl mcp register {client}")
        finally:
            del self._busy[name]
            self._void.discard(name)
        return text

    def _hold(self, name: str, kept: Kept) -> None:
        if name in self._void:
            return
        self._tokens[name] = kept
        self._look_at_clock()

    async def remove(self, by: str, name: str) -> None:
        """Nobody is in by it any more when this returns."""
        if name not in self._tokens or name in self._busy:
            there = ", ".join(sorted(self._tokens)) or "none"
            raise ENOENT("token.none", f"there is no token {name!r}", hint=f"there is: {there}")
        draft = Draft(by, Kind.CHANGE, body=frames.encode_body({"event": "token remove", "token": name}))
        self._busy[name] = ""
        try:
            await self._kernel.record_then(draft, lambda: self._drop(name), [Put(BUCKET, name, None)])
        finally:
            del self._busy[name]

    def _drop(self, name: str) -> None:
        self._tokens.pop(name, None)
        self._end(name, EPERM("token.removed", f"the token {name} was removed"))

    def _end(self, token: str, why: AgentOSError) -> None:
        """Everything that rests on a token ends with it."""
        self._sessions = {key: one for key, one in self._sessions.items() if one.owner.token != token}
        self._tickets = {key: one for key, one in self._tickets.items() if one.owner.token != token}
        self._codes = [one for one in self._codes if one.owner.token != token]
        self._close({actor for actor in self._callers() if actor.token == token}, why)
        self._kernel.outside.token_over(token, why)

    def buried(self, client: str) -> list[Put]:
        """An outside client has ended, and with it what let it in, also what is being written: another one of its name
        has nothing of it."""
        gone = [name for name, kept in self._tokens.items() if kept.client == client]
        for name in gone:
            del self._tokens[name]
        late = [name for name, whose in self._busy.items() if whose == client]
        self._void.update(late)
        return [Put(BUCKET, name, None) for name in (*gone, *late)]

    def _look_at_clock(self) -> None:
        """What has expired is over, and its connections are closed. The wall clock may jump: it is looked at often."""
        if self._timer:
            self._timer.cancel()
        self._timer = None
        ends = list[int]()
        for name, kept in self._tokens.items():
            if _over(kept):
                self._end(name, EPERM("token.expired", f"the token {name} has expired"))
            elif kept.expires_ns is not None:
                ends.append(kept.expires_ns)
        if ends:
            left = (min(ends) - time.time_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(min(max(left, 0.001), 60.0), self._look_at_clock)

    # Sessions.

    def code(self, caller: Actor, role: str) -> str:
        wanted = role or caller.role
        if RANKS[wanted] > RANKS[caller.role]:
            raise EPERM("role.low", f"a {caller.role} gives out no code for the role {wanted}")
        now, owner = time.monotonic(), _owner(caller)
        self._codes = [one for one in self._codes if one.until > now]
        if len(mine := [one for one in self._codes if (one.owner, one.role) == (owner, wanted)]) >= MOST_CODES:
            self._codes.remove(mine[0])
        letters = "".join(secrets.choice(_LETTERS) for _ in range(8))
        text = f"{letters[:4]}-{letters[4:]}"
        self._codes.append(_Code(_digest(doors.CODE + text), owner, wanted, now + CODE_S))
        return text

    def enter(self, caller: Actor) -> str:
        if caller.via in ("session", "ticket"):
            raise EINVAL("session.there", "this connection is of a session already")
        if caller.entered:
            raise EPERM("code.wrong", "this code was used", hint="agentctl ui gives a new one")
        caller.entered = caller.via == "code"
        owner = _owner(caller)
        mine = [key for key, one in self._sessions.items() if (one.owner, one.role) == (owner, caller.role)]
        if len(mine) >= MOST_SESSIONS:
            self.leave(min(mine, key=lambda key: self._sessions[key].last))
        text = doors.SESSION + secrets.token_urlsafe(32)
        self._sessions[_digest(text)] = _Session(owner, caller.role, time.monotonic())
        return text

    def ticket(self, caller: Actor) -> str:
        now, owner = time.monotonic(), _owner(caller)
        self._tickets = {key: one for key, one in self._tickets.items() if one.until > now}
        same = (owner, caller.role)  # whom one gave a look at things does not use up one's own
        if len(mine := [key for key, one in self._tickets.items() if (one.owner, one.role) == same]) >= MOST_TICKETS:
            del self._tickets[mine[0]]
        text = doors.TICKET + secrets.token_urlsafe(32)
        self._tickets[_digest(text)] = _Ticket(owner, caller.role, caller.session, now + TICKET_S)
        return text.removeprefix(doors.TICKET)

    def leave(self, session: bytes) -> None:
        self._sessions.pop(session, None)
        self._tickets = {key: one for key, one in self._tickets.items() if one.session != session}
        over = EPERM("session.over", "this session has ended")
        self._close({actor for actor in self._callers() if actor.session == session}, over)

    # Connections.

    def _callers(self) -> Iterator[Actor]:
        return (one.caller for one in self._kernel.connections if isinstance(one.caller, Actor))

    def left(self, actor: Actor) -> None:
        if found := self._sessions.get(actor.session):
            found.last = time.monotonic()

    def _connections(self, session: bytes) -> bool:
        return any(one.session == session for one in self._callers())

    def _close(self, whose: Collection[Actor], why: AgentOSError) -> None:
        for connection in list(self._kernel.connections):
            if connection.caller in whose:
                connection.bye(why)

    def open(self) -> None:
        self._look_at_clock()

    def close(self) -> list[Put]:
        """What the store should hold of this life: when each token was last used."""
        if self._timer:
            self._timer.cancel()
        return [Put(BUCKET, name, encode(kept)) for name, kept in self._tokens.items() if kept.last_ns]


def _digest(word: str) -> bytes:
    return sha256(word.encode()).digest()


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        hint = "lower-case letters, digits, '.', '_' and '-', at most 63, beginning with a letter or digit"
        raise EINVAL("token.name", f"{name[:80]!r} is no name for a token", hint=hint)


def _over(kept: Kept) -> bool:
    return kept.expires_ns is not None and kept.expires_ns <= time.time_ns()


def _owner(actor: Actor) -> _Owner:
    return _Owner(actor.id, actor.name, actor.token)


def _actor(owner: _Owner, role: str, via: str, pid: int, session: bytes) -> Actor:
    return Actor(owner.id, pid, name=owner.name, role=role, via=via, token=owner.token, session=session)


# What operators ask.


def _tokens(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("doors.Tokens", asked.request)

    async def do() -> Done:
        text = ""
        if request.do == "add":
            text = await kernel.tokens.add(caller.id, request.name, request.role, request.ttl_s)
        elif request.do == "remove":
            await kernel.tokens.remove(caller.id, request.name)
        told = {"tokens": kernel.tokens.rows()}
        return Done({**told, "token": text} if text else told, kept=told)

    return Act(do)


def _session(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request, words = cast("doors.Session", asked.request), kernel.tokens
    gone: bytes = b""

    def do() -> Done:
        nonlocal gone
        about = {"name": caller.name, "role": caller.role, "boot": words.boot}
        kept = {**about, "do": request.do}
        if request.do == "code":
            return Done({"code": words.code(caller, request.role), "seconds": CODE_S}, kept=kept)
        if request.do == "enter":
            return Done({"session": words.enter(caller), **about}, kept=kept)
        if request.do == "ticket":
            return Done({"ticket": words.ticket(caller), "seconds": TICKET_S}, kept=kept)
        if not caller.session:
            raise EINVAL("session.none", "this connection is of no session")
        gone = caller.session
        return Done(about)

    def answered() -> None:
        if gone:
            asyncio.get_running_loop().call_soon(words.leave, gone)  # after the answer

    return Act(do, answered=answered)


def _whoami(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    about = {"name": caller.name, "role": caller.role, "via": caller.via}
    return Act(lambda: Done({**about, "boot": kernel.tokens.boot, "version": __version__}))


PREPARE = {
    BY_REQUEST[doors.Tokens].number: _tokens,
    BY_REQUEST[doors.Session].number: _session,
    BY_REQUEST[doors.Whoami].number: _whoami,
}
