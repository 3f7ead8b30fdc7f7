"""What one decision costs in the product's queue, with so many calls waiting: CPU of this thread."""

import random
import time

from benchmarks.sharedllm.programs import DEPTH, MAX_OUTPUT, RATE, draw

from agent_os.drivers.models import LimitSample
from agent_os.kernel.models import queue as product
from agent_os.kernel.models.buckets import Buckets
from agent_os.kernel.models.call import Call
from agent_os.kernel.models.sizes import Sizes

_BATCHES, _ROUNDS = 8, 100
_STEP = 0.6  # virtual seconds between two looks: about what a mean call takes of the end point's rate


def decision_us(waiting: int, seed: int = 1, tenants: int = 6) -> float:
    """The best of some batches, since a busy machine only ever adds. A look is as the kernel does it: `next` until
    nobody may leave, then `wake`; every `next` is a decision."""
    rng = random.Random(seed)
    programs, _ = draw(seed, 400)
    queue = product.Queue(Sizes(), Buckets.configured(0.0, tokens=(DEPTH, RATE)))
    now, count = 0.0, 0

    def arrive() -> None:
        nonlocal count
        program = rng.choice(programs)
        ask = rng.choice(rng.choice(program.stages).asks)
        tenant = f"t{rng.randrange(tenants)}"
        name = f"{program.id}.{count % (2 * waiting + 1)}"
        queue.join(Call(f"c{count}", name, name, program.type, tenant, ask.prompt, MAX_OUTPUT), now)
        count += 1

    for _ in range(waiting):
        now += 5.0 / waiting
        arrive()
    batches: list[float] = []
    for _ in range(_BATCHES):
        spent, decided = 0.0, 0
        for _ in range(_ROUNDS):
            now += _STEP
            began = time.thread_time()
            left: list[Call] = []
            while (call := queue.next(now)) is not None:
                left.append(call)
            queue.wake(now)
            spent += time.thread_time() - began
            decided += len(left) + 1
            for call in left:
                queue.began(call.id, now, LimitSample("tokens", int(DEPTH), 6_000))
                queue.finished(call.id, call.prompt, 200, now)
                queue.program_done(call.program, call.type, now)
                arrive()
        batches.append(spent / decided * 1e6)
    return min(batches)
