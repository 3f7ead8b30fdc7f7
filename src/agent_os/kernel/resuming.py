"""What of an agent's record its next life is taken through: everything up to where it can go on.

In: its entries in order, over all lives of one run. Out: the same without the ways in which lives ended. An end is not
a deed to repeat: the call of it is left out, and with it what the agent did once it had been asked to end, or else the
call whose failure it did not survive, which is asked again. What may have had an effect that nobody can verify is not.
Nor is what an agent had asked for before it knew that it is to end, however late that was answered: its next life comes
to the same call. Reads nothing but what it is given.
"""

from collections.abc import Iterable, Iterator

from agent_os.abi.entries import Entry, Kind
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import BY_NAME, Effect
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.replay import is_delivery

_EXIT = BY_NAME["SYS_EXIT"].number
_ANSWERS = (Kind.RESULT, Kind.OUTCOME, Kind.DECISION)
Found = tuple[Entry, bytes | None]


def resumable(found: Iterable[Found], *, unasked: bool = False) -> Iterator[Found]:
    """`unasked`: whoever was asked to end in an earlier life is not to end now, however that life ended."""
    given = 0  # so many deliveries its next life has come to
    held: list[Found] = []  # what counts only if the life that it is of did not end there by itself
    asked: int | None = None  # what is held begins with the word that it is to end, when so much was given
    over, knew = 0, None  # the life that said last that it ends; when it was asked to

    def told(some: Iterable[Found]) -> Iterator[Found]:
        nonlocal given
        for one in some:
            given += is_delivery(*one)
            yield one

    for one in found:
        entry = one[0]
        if held and entry.inc > held[0][0].inc:  # that life was struck down
            yield from told(held if asked is None or not unasked else _begun_before(held, asked))
            held, asked = [], None
        if entry.op == _EXIT:
            yield from told(held[1:] if asked is None else _begun_before(held, asked))
            held, asked, over, knew = [], None, entry.inc, asked
        elif entry.inc == over and entry.kind in _ANSWERS and not _stays(entry, knew):
            continue  # given up as it left, and on the record a moment later
        elif asked is not None:
            held.append(one)
        elif entry.kind in _ANSWERS or _asks_to_end(one):
            yield from told(held)
            asked = given if _asks_to_end(one) else None
            held = [one] if asked is not None or _may_be_asked_again(entry) else []
            yield from told(() if held else (one,))
        elif held:
            held.append(one)
        else:
            yield from told((one,))
    yield from told(held if asked is None or not unasked else _begun_before(held, asked))


def _begun_before(held: Iterable[Found], asked: int) -> Iterator[Found]:
    """Of what came after an agent was asked to end: the answers to what it had asked for by then."""
    return (one for one in held if one[0].kind in _ANSWERS and _stays(one[0], asked))


def _stays(entry: Entry, asked: int | None) -> bool:
    return not _may_be_asked_again(entry) and (asked is None or entry.seen <= asked)


def _asks_to_end(found: Found) -> bool:
    entry, body = found
    if entry.kind != Kind.SIGNAL or body is None:
        return False
    return decode_any(body).get("signal") == AgentSignal.SIGTERM


def _may_be_asked_again(entry: Entry) -> bool:
    """It failed. A refusal did nothing; of a deed that failed half-way, only some classes may be done once more."""
    return entry.code != 0 and (entry.kind != Kind.OUTCOME or entry.effect != Effect.OPAQUE)
