"""Budgets: what may be spent, by whom, and what is; charged to the agent and to everybody above it.

Accounts stand in a tree: agent → parent → … → operator. A call reserves the most it can cost on its whole chain, all or
nothing, acts, and is settled to what it did cost; what it did not need returns. Amounts are whole numbers: `cost` in
millionths of a dollar, `tokens`, `bytes`, `count`, `calls`. Nothing here waits: nothing comes between look and charge.

What the journal keeps of it, in an entry's `cost`, and nothing else is needed to count again:

    {"on": [account …], "held": amounts}    an intent, or a connection that begins: so much is reserved until its end
    {"held": amounts}                       of kind `budget`: so much more, for the one that `ref` names
    {"spent": amounts}                      that end (by its `ref`); without `spent`, all that was held is spent
    {"on": [account …], "spent": amounts}   an entry that is both
    {"account", "parent", "limits"}         of kind `budget`: an account, and all that it may spend
    {"account", "warned": [resource …]}     of kind `budget`: four fifths are spent, and that was said

`cut` beside `spent` is what a call used beyond all limits, `left` what the tightest limit of each leaves then (for who
reads: it is not counted by), `model` whose model it was. An intent without an outcome
stays reserved, which counts like spent, until somebody resolves it. No connection outlives its kernel: at the next boot
all that it held is spent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import EBUDGET, EINVAL

RESOURCES = ("cost", "tokens", "bytes", "count", "calls", "messages", "model_calls")
OPERATOR = "operator"  # the account above all others
MICRO = 1_000_000  # of a dollar
UNLIMITED = 1 << 62  # the room where there is no limit
_WARN = (4, 5)
Amounts = Mapping[str, int]
Cost = dict[str, Any]  # of a journal entry


class Account(Struct):
    id: str
    parent: str | None
    limits: dict[str, int] = field(default_factory=dict[str, int])  # a resource that is not here has none
    spent: dict[str, int] = field(default_factory=dict[str, int])
    held: dict[str, int] = field(default_factory=dict[str, int])
    warned: set[str] = field(default_factory=set[str])

    def used(self, resource: str) -> int:
        return self.spent.get(resource, 0) + self.held.get(resource, 0)

    def room(self, resource: str) -> int:
        limit = self.limits.get(resource)
        return UNLIMITED if limit is None else max(0, limit - self.used(resource))

    def nears(self, resource: str) -> bool:
        limit, (part, whole) = self.limits.get(resource, 0), _WARN
        return limit > 0 and self.spent.get(resource, 0) * whole >= limit * part


class Held(Struct, eq=False):
    """A reservation. `intent` is the entry that tells of it, once there is one."""

    accounts: tuple[str, ...]
    amounts: dict[str, int]
    intent: int = 0
    over: bool = False
    passes: bool = False  # a connection: it ends with this kernel

    @property
    def cost(self) -> Cost:
        """For the intent."""
        return {"on": list(self.accounts), "held": dict(self.amounts)}


class Alarm(Struct, frozen=True):
    """Four fifths of a limit are spent. Told once, until there is room again."""

    account: str
    resource: str
    spent: int
    limit: int


class Settled(Struct, frozen=True):
    cost: Cost  # for the outcome
    alarms: list[Alarm]


class Ledger:
    """All accounts. Live it is called by the gate; after a crash, entry by entry, by `apply`."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._open: dict[int, Held] = {}  # by intent
        self._chains: dict[str, tuple[str, ...]] = {}  # as they are, until an account changes
        self.seq = 0  # of the newest entry that `apply` saw

    # Accounts.

    def open(self, account: str, parent: str | None = None, limits: Amounts | None = None) -> Cost:
        """An account for an agent, below its parent's or the operator's. What the entry of it keeps; empty, if all that
        is known already."""
        parent = None if account == OPERATOR else parent or OPERATOR
        known = self._accounts.get(account)
        if known and known.parent == parent and (limits is None or dict(limits) == known.limits):
            return {}
        if known is None and parent == OPERATOR and not limits:
            return {}  # so is everybody of whom nothing is known
        self._require_no_circle(account, parent)
        allowed = _checked(limits) if limits is not None else dict(known.limits) if known else {}
        return self._opened(account, parent, allowed)

    def limit(self, account: str, limits: Mapping[str, int | None], *, more: bool = False) -> Cost:
        """Set limits, or with `more` raise them by so much. None takes one away."""
        one = self.account(account)
        now = dict(one.limits)
        for resource, amount in limits.items():
            _checked({resource: amount or 0})
            if amount is None:
                now.pop(resource, None)
            elif more and resource not in now:
                raise EINVAL("budget.unlimited", f"{account} has no limit of {resource} that could be raised")
            else:
                now[resource] = now[resource] + amount if more else amount
        return self._opened(account, one.parent, now)

    def _opened(self, account: str, parent: str | None, limits: dict[str, int]) -> Cost:
        one = self._made(account)
        self._chains.clear()
        one.parent, one.limits = parent, limits
        one.warned = {resource for resource in one.warned if one.nears(resource)}
        return {"account": account, "parent": parent, "limits": dict(limits)}

    def account(self, account: str) -> Account:
        """As it is now; one that nobody opened is the operator's child, without limits."""
        return self._accounts.get(account) or _unopened(account)

    def __iter__(self) -> Iterator[Account]:
        return iter(list(self._accounts.values()))

    def chain(self, account: str) -> tuple[str, ...]:
        """The account and everybody above it."""
        known = self._chains.get(account)
        if known is None:
            found = [account]
            while (above := self.account(found[-1]).parent) is not None:
                found.append(above)
            known = self._chains[account] = tuple(found)
        return known

    def _require_no_circle(self, account: str, parent: str | None) -> None:
        if parent is not None and account in self.chain(parent):
            raise EINVAL("budget.circle", f"{parent} is below {account} and cannot be above it")

    def _made(self, account: str) -> Account:
        one = self._accounts.get(account)
        if one is None:
            one = self._accounts[account] = _unopened(account)
        return one

    # Spending.

    def require_room(self, accounts: Sequence[str], amounts: Amounts) -> None:
        """EBUDGET names the first account that has too little left."""
        for name in accounts:
            one = self._accounts.get(name)
            if one is None or not one.limits:
                continue
            for resource, amount in amounts.items():
                if amount > one.room(resource):
                    raise _exhausted(one, resource, amount)

    def reserve(self, account: str, amounts: Mapping[str, float], *others: str) -> Held:
        """The most that a call can cost, on the whole chain; `others` are charged as well (a capability's accounts).
        All or nothing."""
        asked = _checked(amounts)
        accounts = self.chain(account)
        if others:
            accounts = tuple(dict.fromkeys(name for one in (account, *others) for name in self.chain(one)))
        self.require_room(accounts, asked)
        for name in accounts:
            _add(self._made(name).held, asked)
        return Held(accounts, asked)

    def grow(self, held: Held, more: Amounts, *, always: bool = False) -> None:
        """A call that goes on needs more than was reserved: on the whole chain, or EBUDGET and nowhere. `always`: it
        was done before."""
        asked = _checked(more)
        if not always:
            self.require_room(held.accounts, asked)
        for name in held.accounts:
            _add(self._made(name).held, asked)
        _add(held.amounts, asked)

    def shrink(self, held: Held, less: Amounts) -> None:
        """Back to what it was: something else had no room for it."""
        given_back = {resource: -amount for resource, amount in less.items()}
        for name in held.accounts:
            _add(self._made(name).held, given_back)
        _add(held.amounts, given_back)

    def room(self, account: str, resource: str) -> int:
        """What is left of it at the tightest account of the chain."""
        return min(self.account(name).room(resource) for name in self.chain(account))

    def began(self, held: Held, intent: int, *, passes: bool = False) -> None:
        """The intent is in the journal: from here on the reservation survives us. `passes`: what it is for does not."""
        held.intent, held.passes = intent, passes
        self._open[intent] = held

    def of_intent(self, intent: int) -> Held | None:
        return self._open.get(intent)

    def release(self, held: Held) -> None:
        """Nothing was done, and no intent says that it would be: a refusal, or a call that waits for a person."""
        if held.intent:
            raise ValueError("a reservation that is on the record ends by its outcome")
        self._give_back(held)

    def settle(self, held: Held, actual: Mapping[str, float] | None = None, **about: str) -> Settled:
        """It is over. None: what it cost is unknown, so all of it. What it used beyond its reservation is charged as
        far as every account has room; the rest is cut, and the record says so."""
        self._give_back(held)
        wanted = dict(held.amounts) if actual is None else _checked(actual)
        spent = {resource: min(amount, self._most(held, resource)) for resource, amount in wanted.items()}
        cut = {resource: amount - spent[resource] for resource, amount in wanted.items() if amount > spent[resource]}
        self._charge(held.accounts, spent)
        told = {} if held.intent else {"on": list(held.accounts)}
        more = {**({"cut": cut} if cut else {}), **({"left": left} if (left := self._left(held, spent)) else {})}
        return Settled({**told, "spent": spent, **more, **about}, self._warn(held.accounts))

    def _left(self, held: Held, spent: Amounts) -> dict[str, int]:
        limited = [one for one in map(self._made, held.accounts) if one.limits]
        rooms = {resource: [one.room(resource) for one in limited if resource in one.limits] for resource in spent}
        return {resource: min(several) for resource, several in rooms.items() if several} if limited else {}

    def _most(self, held: Held, resource: str) -> int:
        """What was reserved is paid even if somebody lowered the limit since."""
        room = min(self._made(name).room(resource) for name in held.accounts)
        return max(held.amounts.get(resource, 0), room)

    def _charge(self, accounts: Sequence[str], spent: Amounts) -> None:
        for name in accounts:
            _add(self._made(name).spent, spent)

    def _give_back(self, held: Held) -> None:
        if held.over:
            raise ValueError("a reservation ends once")
        held.over = True
        self._open.pop(held.intent, None)
        for name in held.accounts:
            _add(self._made(name).held, {resource: -amount for resource, amount in held.amounts.items()})

    def _warn(self, accounts: Sequence[str]) -> list[Alarm]:
        found: list[Alarm] = []
        for one in map(self._made, accounts):
            for resource in sorted(set(one.limits) - one.warned):
                if one.nears(resource):
                    one.warned.add(resource)
                    found.append(Alarm(one.id, resource, one.spent[resource], one.limits[resource]))
        return found

    # The record.

    def apply(self, entry: Entry) -> None:
        """Count one entry. All of them, in order, give the ledger as it was."""
        self.seq = entry.seq
        cost = entry.cost
        if entry.kind == Kind.BOOT:
            self.cut_off()
        elif entry.kind == Kind.BUDGET:
            self._told(cost, entry.ref)
        elif entry.kind in (Kind.INTENT, Kind.CONNECT) and "held" in cost:
            held = Held(tuple(cost["on"]), dict(cost["held"]), entry.seq, passes=entry.kind == Kind.CONNECT)
            for name in held.accounts:
                _add(self._made(name).held, held.amounts)
            self._open[entry.seq] = held
        elif entry.ref in self._open and entry.kind in (Kind.OUTCOME, Kind.CONNECT):
            held = self._open[entry.ref]
            self._give_back(held)
            self._charge(held.accounts, cost.get("spent", held.amounts))
        elif "on" in cost and "spent" in cost:
            self._charge(cost["on"], cost["spent"])

    def cut_off(self) -> None:
        """A kernel begins, so the one before has ended, and its connections with it: what they held is spent."""
        for held in [one for one in self._open.values() if one.passes]:
            self._give_back(held)
            self._charge(held.accounts, held.amounts)

    def _told(self, cost: Cost, ref: int) -> None:
        if "held" in cost and ref in self._open:
            self.grow(self._open[ref], cost["held"], always=True)
        elif "limits" in cost:
            self._opened(cost["account"], cost["parent"], dict(cost["limits"]))
        elif "warned" in cost:
            self._made(cost["account"]).warned |= set(cost["warned"])

    def state(self) -> dict[str, Any]:
        """All that counts. Equal states spend alike."""
        found: dict[str, Any] = {}
        for one in self._accounts.values():
            facts = (one.parent, one.limits, _without_zeros(one.spent), _without_zeros(one.held), one.warned)
            if any(facts[1:]) or one.parent not in (None, OPERATOR):
                found[one.id] = facts
        return found

    def packed(self, seq: int | None = None) -> bytes:
        """To go on from instead of the whole journal: `apply` what comes after `seq`, by default the newest entry that
        was applied. What no intent tells of is not held any more when this is read."""
        accounts = [(a.id, a.parent, a.limits, a.spent, sorted(a.warned)) for a in self._accounts.values()]
        held = [(one.intent, one.accounts, one.amounts, one.passes) for one in self._open.values()]
        return msgspec.msgpack.encode((self.seq if seq is None else seq, accounts, held))

    @classmethod
    def unpacked(cls, data: bytes) -> "Ledger":
        ledger = cls()
        ledger.seq, accounts, held = cast("tuple[int, list[Any], list[Any]]", msgspec.msgpack.decode(data))
        for name, parent, limits, spent, warned in accounts:
            ledger._accounts[name] = Account(name, parent, limits, spent, warned=set(warned))
        for intent, on, amounts, passes in held:
            ledger._open[intent] = Held(tuple(on), amounts, intent, passes=passes)
            for name in on:
                _add(ledger._made(name).held, amounts)
        return ledger


def rebuilt(entries: Iterable[Entry], ledger: Ledger | None = None) -> Ledger:
    ledger = ledger or Ledger()
    for entry in entries:
        ledger.apply(entry)
    return ledger


def warned(alarm: Alarm) -> Cost:
    """For the `budget` entry that says so."""
    return {"account": alarm.account, "warned": [alarm.resource]}


def needs_intent(amounts: Mapping[str, float]) -> bool:
    """Whether a reservation must be on disk before the deed: what only counts calls is told with its result."""
    return any(amounts.get(resource) for resource in ("cost", "tokens", "bytes"))


def shown(resource: str, amount: int) -> str:
    if resource != "cost":
        return f"{amount:,} {resource}"
    dollars = f"{amount / MICRO:,.6f}".rstrip("0")
    whole, _, part = dollars.partition(".")
    return f"${whole}.{part:0<2}"


_FORMS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H", "minute": "%Y-%m-%dT%H:%M"}


class Spending:
    """What was spent, added up by agent, model and time as the record tells."""

    def __init__(self, by: Sequence[str], since_ns: int = 0) -> None:
        self._by, self._since = tuple(by) or ("agent",), since_ns
        self._held: dict[int, tuple[Entry, dict[str, int]]] = {}
        self.rows: dict[tuple[str, ...], dict[str, int]] = {}

    def add(self, entry: Entry) -> None:
        kind, cost = entry.kind, entry.cost
        if kind == Kind.BOOT:
            for begun, held in [one for one in self._held.values() if one[0].kind == Kind.CONNECT]:
                del self._held[begun.seq]
                self._spent(begun, held)
        elif kind in (Kind.INTENT, Kind.CONNECT) and "held" in cost:
            self._held[entry.seq] = entry, dict(cost["held"])
        elif kind == Kind.BUDGET and entry.ref in self._held:
            _add(self._held[entry.ref][1], cost.get("held", {}))
        else:
            known = self._held.pop(entry.ref, None) if kind in (Kind.OUTCOME, Kind.CONNECT) else None
            self._spent(entry, cost.get("spent", known[1] if known else None))

    def _spent(self, entry: Entry, spent: Amounts | None) -> None:
        if spent and entry.wall_ns >= self._since:
            _add(self.rows.setdefault(tuple(self._key(entry, one) for one in self._by), {}), spent)

    @staticmethod
    def _key(entry: Entry, by: str) -> str:
        if form := _FORMS.get(by):
            return datetime.fromtimestamp(entry.wall_ns / 1e9, UTC).strftime(form)
        return entry.agent if by == "agent" else str(entry.cost.get("model", ""))


def _checked(amounts: Mapping[str, float]) -> dict[str, int]:
    """Whole amounts of resources that there are, without those of which nothing is asked."""
    found: dict[str, int] = {}
    for resource, amount in amounts.items():
        if resource not in RESOURCES:
            hint = f"there is {', '.join(RESOURCES)}"
            raise EINVAL("budget.resource", f"no budget counts {resource!r}", hint=hint)
        if amount != int(amount) or not 0 <= amount <= UNLIMITED:
            raise EINVAL("budget.amount", f"{amount!r} is no amount of {resource}: a whole number from 0 on")
        found[resource] = int(amount)
    return found


def _add(to: dict[str, int], amounts: Amounts) -> None:
    for resource, amount in amounts.items():
        to[resource] = to.get(resource, 0) + amount


def _without_zeros(amounts: Amounts) -> dict[str, int]:
    return {resource: amount for resource, amount in amounts.items() if amount}


def _unopened(account: str) -> Account:
    return Account(account, None if account == OPERATOR else OPERATOR)


def _exhausted(account: Account, resource: str, asked: int) -> EBUDGET:
    limit, used = account.limits[resource], account.used(resource)
    left = max(0, limit - used)
    name = "the operator" if account.id == OPERATOR else account.id.rpartition("/")[2]
    rest = f"{shown(resource, left)} left of {shown(resource, limit)}"
    reason = f"this can need {shown(resource, asked)}, and {name} has {rest}"
    whose = name if name != "the operator" else OPERATOR
    hint = f"an operator can give more: agentctl budget raise {whose} {resource}=AMOUNT"
    return EBUDGET(
        "budget.exhausted",
        reason,
        hint=hint,
        account=account.id,
        resource=resource,
        used=used,
        limit=limit,
        asked=asked,
    )
