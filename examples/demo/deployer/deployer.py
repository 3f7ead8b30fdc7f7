"""Rolls a release out, then wants the old data gone. Rules of its project ask a person about both."""

import json

from agent_os import Context, agent
from agent_os.abi.errors import EAPPROVAL


@agent
async def deployer(ctx: Context) -> None:
    await ctx.write("/work/staging/shop", "release 2\n")  # nobody is asked about this
    outcomes = {"staging": "done"}
    try:
        await ctx.append("/work/production/shop", "release 2\n")  # twice would show
        outcomes["production"] = "done"
    except EAPPROVAL as no:
        outcomes["production"] = no.detail["outcome"]
    try:
        await ctx.remove("/work/data/orders")
        outcomes["data"] = "done"
    except EAPPROVAL as no:
        outcomes["data"] = no.detail["outcome"]
    print(json.dumps(outcomes))
