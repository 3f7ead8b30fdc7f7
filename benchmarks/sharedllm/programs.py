"""The programs of a run: what they ask, of whom they are, and when they come. All from one seeded generator.

Per program its type, sizes and tenant are drawn; then all gaps. What a program is does not depend on how it is served.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

RATE, DEPTH, SLOTS = 8_000.0, 80_000.0, 32  # of the end point: tokens a second, tokens, calls in flight
MAX_OUTPUT = 4_096
FIRST_BYTE, PREFILL, DECODE = 0.25, 20_000.0, 60.0  # seconds; tokens a second
QUIET = ("t0", "t1", "t2", "t3", "t4")
NOISY = "noisy"
DEADLINE = 30.0


class Ask(NamedTuple):
    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        return self.prompt + self.output

    @property
    def seconds(self) -> float:
        return start_after(self.prompt) + self.output / DECODE


def start_after(prompt: float) -> float:
    return FIRST_BYTE + prompt / PREFILL


class Stage(NamedTuple):
    """Calls made at once; the next stage begins when all are answered and the pause is over."""

    asks: tuple[Ask, ...]
    pause: float


@dataclass(eq=False)
class Program:
    id: str
    type: str
    tenant: str
    stages: list[Stage]
    arrival: float = 0.0
    priority: str = "normal"
    deadline: float | None = None
    dies_at: int | None = None  # tokens served after which it is killed
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = sum(ask.tokens for stage in self.stages for ask in stage.asks)

    @property
    def isolated(self) -> float:
        """Seconds it takes on a machine of its own."""
        service = sum(max(ask.seconds for ask in stage.asks) for stage in self.stages)
        return service + sum(stage.pause for stage in self.stages[:-1])


def draw(seed: int, count: int) -> tuple[list[Program], random.Random]:
    """Programs without arrivals, and the generator as it is then."""
    rng = random.Random(seed)
    return [_program(rng, number) for number in range(count)], rng


def _program(rng: random.Random, number: int) -> Program:
    share = rng.random()
    type_ = "chat" if share < 0.70 else "coder" if share < 0.85 else "mapred" if share < 0.95 else "report"
    stages = _STAGES[type_](rng)
    loud = type_ in ("coder", "report") and rng.random() < 0.7
    return Program(f"p{number}", type_, NOISY if loud else rng.choice(QUIET), stages)


def _output(rng: random.Random, most: int, mean: float, least: int) -> int:
    return int(min(most, rng.expovariate(1 / mean) + least))


def _chat(rng: random.Random) -> list[Stage]:
    stages: list[Stage] = []
    calls, prompt = rng.randint(2, 5), rng.randint(500, 2500)
    for _ in range(calls):
        output = _output(rng, 800, 150, 20)
        stages.append(Stage((Ask(prompt, output),), rng.expovariate(1 / 0.5)))
        prompt += output + 200
    return stages


def _coder(rng: random.Random) -> list[Stage]:
    stages: list[Stage] = []
    calls, prompt = rng.randint(15, 40), rng.randint(4000, 8000)
    for _ in range(calls):
        output = _output(rng, 1500, 250, 30)
        stages.append(Stage((Ask(prompt, output),), rng.expovariate(1 / 2.0)))
        prompt = min(40_000, prompt + output + rng.randint(100, 900))
    return stages


def _mapred(rng: random.Random) -> list[Stage]:
    width = rng.randint(8, 24)
    mapped = tuple(Ask(rng.randint(3000, 6000), _output(rng, 600, 200, 50)) for _ in range(width))
    return [Stage(mapped, 0.0), Stage((Ask(250 * width, 600),), 0.0)]


def _report(rng: random.Random) -> list[Stage]:
    calls, prompt = rng.randint(4, 8), rng.randint(10_000, 20_000)
    return [Stage((Ask(prompt + 1500 * number, rng.randint(600, 1500)),), 1.0) for number in range(calls)]


_STAGES = {"chat": _chat, "coder": _coder, "mapred": _mapred, "report": _report}


def arriving(programs: list[Program], rng: random.Random, load: float) -> list[Program]:
    """Exponential gaps, scaled so that all tokens over the span are that load."""
    gaps = [rng.expovariate(1.0) for _ in programs]
    scale = sum(one.tokens for one in programs) / (load * RATE) / sum(gaps)
    moment = 0.0
    for one, gap in zip(programs, gaps, strict=True):
        moment += gap * scale
        one.arrival = moment
    return programs


def under_load(seed: int, load: float, count: int = 200) -> list[Program]:
    programs, rng = draw(seed, count)
    return arriving(programs, rng, load)


def beside_noise(seed: int) -> list[Program]:
    """Quiet tenants at a third of the rate, and from 60 s on forty coders of one tenant within four seconds."""
    quiet = [one for one in under_load(seed, 0.35) if one.tenant != NOISY]
    coders = [one for one in draw(seed + 50, 600)[0] if one.type == "coder"][:40]
    for number, one in enumerate(coders):
        one.id, one.tenant, one.arrival = f"n{number}", NOISY, 60.0 + 0.1 * number
    return quiet + coders


def herd(seed: int, count: int = 200) -> list[Program]:
    programs, rng = draw(seed, count)
    for one in programs:
        one.arrival = rng.uniform(0.0, 5.0)
    return programs


def mortal(seed: int) -> list[Program]:
    """Load 1.1; a fifth is killed when half of its tokens were served."""
    programs = under_load(seed, 1.1)
    for one in random.Random(seed + 1000).sample(programs, len(programs) // 5):
        one.dies_at = one.tokens // 2
    return programs


def hurried(seed: int, *, marked: bool = True) -> list[Program]:
    """Load 1.1; a fifth of the chats is High, to be done in 30 s. Unmarked, they are the same programs with neither."""
    programs = under_load(seed, 1.1)
    chats = [one for one in programs if one.type == "chat"]
    for one in random.Random(seed + 2000).sample(chats, len(chats) // 5):
        one.id += "!"
        if marked:
            one.priority, one.deadline = "high", one.arrival + DEADLINE
    return programs
