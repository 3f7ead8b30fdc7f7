"""`POST /agents/{agent}/invoke`: ask an agent whose manifest says `interface.protocol = "rest"`, and get its answer.

The kernel holds both to the schemas of the manifest, and says which field does not fit; this only carries them.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Body

from agent_os.abi import frames
from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import Post
from agent_os.gateway.asking import Asker, Caller
from agent_os.gateway.models import Row, answers
from agent_os.gateway.problems import Json
from agent_os.gateway.routes_agents import AgentName, meant
from agent_os.gateway.routes_operations import OperationRow, TheOperations, finished

router = APIRouter(tags=["agents"])
LONGEST_S = 3600.0
SOON_S = 25.0  # what takes longer is an operation


class Answered(Row):
    """`answer` is what the agent gave; `error`, in its place, a sentence in which it says why it could not."""

    id: str
    answer: Any = None
    error: str | None = None


LONG = {**answers(Answered), **answers(OperationRow, 202, "It is still at it: look at /operations/{id}")}
Asked = Annotated[Any, Body(description="As the agent's request_schema says.")]


@router.post("/agents/{agent}/invoke", responses=LONG, summary="Ask an agent, and wait for its answer.")
async def invoke(agent: AgentName, request: Asked, caller: Caller, operations: TheOperations) -> Json:
    """The whole body is the request. It may take as long as the manifest's `interface.timeout_secs` says."""
    try:
        payload = frames.body(request)
    except OverflowError:
        raise EINVAL("number.range", "a number has more than 64 bits", hint="send it as text") from None
    except UnicodeEncodeError:
        hint = "send whole characters: a \\ud800 needs its second half"
        raise EINVAL("text.surrogate", "a text has half a character in it", hint=hint) from None
    post = Post(to=meant(agent), payload=payload, wait=True, protocol="rest", deadline_ms=int(LONGEST_S * 1000))
    return await finished(operations, caller, f"invoke {meant(agent)}", _asked(caller, post), SOON_S)


async def _asked(caller: Asker, post: Post) -> dict[str, Any]:
    answer = await caller.ask(post, deadline=LONGEST_S)
    return {"id": answer["id"], "answer": answer["payload"], "error": answer.get("error")}
