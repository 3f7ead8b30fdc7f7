"""A trading bot on the simulated market. The model decides, the program bounds it: large orders wait for a person, an
order is booked once however often it is sent, the market's loss limit ends it, and `agentctl pause trader` is the red
button: everything stands still until somebody says otherwise.
"""

from typing import Any, Literal

from agent_os import Context, agent, tool
from agent_os.abi.errors import EAPPROVAL

MARKET = "market"
LARGE = 50  # pieces


@agent(model="scripted/trader", caps=[f"ipc:agent/{MARKET}:send"])
async def trader(ctx: Context, goal: str = "Buy low, sell high, and end the day with nothing held.") -> dict[str, Any]:
    orders = 0

    @tool(effect="pure", name="market.quote")
    async def quote() -> dict[str, Any]:
        "What one piece costs now, how many are held, and what everything is worth, in cents."
        return (await ctx.request(MARKET, {"do": "quote"})).payload

    @tool(effect="idempotent", name="market.order")
    async def order(side: Literal["buy", "sell"], size: int) -> dict[str, Any]:
        "Buy or sell so many pieces at the present price. More than 50 at once need a person."
        nonlocal orders
        if size > LARGE:
            answer = await ctx.ask(f"May I {side} {size} pieces?", schema={"type": "boolean"})
            if answer.state != "value" or answer.value is not True:
                raise EAPPROVAL("order.large", f"{side} {size}: {answer.state}", outcome="refused", retryable=False)
        orders += 1
        # The place of an order in this program is its name: the same after a crash, and never that of another.
        sent = {"do": "order", "id": f"{ctx.agent}:{orders}", "side": side, "size": size}
        return (await ctx.request(MARKET, sent, key=sent["id"])).payload

    outcome = await ctx.loop(goal, tools=[quote, order], turns=40)
    last = (await ctx.request(MARKET, {"do": "quote"})).payload
    return {"stop": outcome.stop, "said": outcome.text, "orders": orders, "held": last["held"], "worth": last["worth"]}
