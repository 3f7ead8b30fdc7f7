"""Ten buyers want five purchases each, and draw on one purse: what the operator allowed the agent that started them."""

from agent_os import Context, agent
from agent_os.abi.errors import EBUDGET

BUYERS, EACH = 10, 5
PURSE = "mem:/mem/semantic/**:write"  # without a number here: the operator's limit goes with it


@agent
async def buyer(ctx: Context) -> tuple[int, str]:
    """Buys until it has enough, or until the purse is empty: how much it got, and why no more."""
    for bought in range(EACH):
        try:
            await ctx.write(f"/mem/semantic/receipt-{bought}", "stands for a call that costs money")
        except EBUDGET as empty:
            return bought, f"{empty.name}: {empty.reason}"
    return EACH, ""


@agent
async def spender(ctx: Context) -> None:
    """Hands the whole purse to every buyer. That is allowed: what each spends counts for everybody above it, too."""
    while goal := await ctx.goal():
        started = [await ctx.spawn("spender.py:buyer", caps=[PURSE]) for _ in range(BUYERS)]
        ended = [await ctx.wait(one) for one in started]
        each = [one.result[0] for one in ended]
        refused = [one.result[1] for one in ended if one.result[1]]
        told = {"wanted": BUYERS * EACH, "bought": sum(each), "each": each, "then": refused[0] if refused else ""}
        await ctx.finish(goal, told)
