"""What operators ask about models: which there are, who provides them, what they cost, and whether they answer.

In: a recognised operator and OP_MODELS. Out: an `Act` for the gate. Every change is on the record before it is in
force. A key is named and never seen: `agentctl secrets` keeps it.
"""

import time
from typing import TYPE_CHECKING, Any

import msgspec

from agent_os.abi import frames
from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EHOSTUNREACH, EINVAL, AgentOSError
from agent_os.abi.models import Message, ModelRequest, TextBlock
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.drivers.models import ModelFault
from agent_os.drivers.store import Put
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.journal import Draft
from agent_os.kernel.models.buckets import KINDS, LARGEST, WINDOW_SECS
from agent_os.kernel.models.catalogue import Provider
from agent_os.kernel.models.keys import adding
from agent_os.kernel.models.prices import own_rates
from agent_os.kernel.models.provider import Collector, LimitsSeen
from agent_os.kernel.table import Actor

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

_TEST_TOKENS = 16


def _models(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request: abi.Models = asked.request

    async def do() -> Done:
        return Done(await _do(kernel, caller, request))

    return Act(do)


async def _do(kernel: "Kernel", caller: Actor, request: abi.Models) -> Any:
    catalogue = kernel.models.catalogue
    match request.do:
        case "list":
            return await _listed(kernel)
        case "add":
            provider = catalogue.added(_written(kernel, request))
            await _require_bound(kernel, provider)
            await _recorded(kernel, caller, request, catalogue.keep(provider))
        case "remove":
            catalogue.removed(request.name)
            await _recorded(kernel, caller, request, catalogue.forget(request.name))
        case "alias":
            await _recorded(kernel, caller, request, catalogue.alias(request.name, request.model))
            return {"alias": request.name, "model": catalogue.aliases.get(request.name)}
        case "price":
            provider = _priced(kernel, request)
            await _recorded(kernel, caller, request, catalogue.keep(provider))
            return await _row(kernel, provider)
        case "limit":
            provider = _limited(kernel, request)
            await _recorded(kernel, caller, request, catalogue.keep(provider))
            kernel.models.limited(provider)
            return await _row(kernel, provider)
        case "share":
            await _recorded(kernel, caller, request, catalogue.weigh(request.name, request.weight))
            return {"namespace": request.name, "share": catalogue.weights.get(request.name, 1.0)}
        case "test":
            return await _tested(kernel, caller, request)
    kernel.models.changed(request.name)
    known = [one for one in catalogue if one.name == request.name]
    return await _row(kernel, known[0]) if known else {"name": request.name}


def _written(kernel: "Kernel", request: abi.Models) -> Provider:
    """Said anew, or changed where it is known: what is not said stays."""
    known = next((one for one in kernel.models.catalogue if one.name == request.name), None)
    if known is None and not request.dialect:
        hint = f"agentctl model add {request.name or 'NAME'} --dialect openai --base https://HOST/v1 --key SECRET"
        raise EINVAL("model.dialect", "which dialect does it speak: anthropic, openai or ollama?", hint=hint)
    return Provider(
        name=request.name,
        dialect=request.dialect or (known.dialect if known else "openai"),
        base=request.base or (known.base if known else ""),
        keys=tuple(request.keys) or (known.keys if known else ()),
        api=request.api if request.api != "auto" or known is None else known.api,
        local=request.local if request.local is not None or known is None else known.local,
        slots=request.slots if request.slots is not None or known is None else known.slots,
        limits=known.limits if known else {},
        prices=known.prices if known else {},
    )


async def _require_bound(kernel: "Kernel", provider: Provider) -> None:
    """A key that is bound to another host stays there."""
    if not provider.keys or kernel.home is None or not kernel.safe.exists:
        return
    await kernel.models.open_safe()
    for one in kernel.safe.listed():
        bound = [target for binding in one.bindings for target in binding.hosts]
        if one.name in provider.keys and bound and not any(each.covers(provider.host, provider.port) for each in bound):
            where = ", ".join(map(str, bound))
            reason = f"the key {one.name} is bound to {where}, and {provider.name} would be at {provider.target}"
            raise EINVAL("model.host", reason, hint=f"agentctl secrets bind {one.name} --host {provider.target}")


def _priced(kernel: "Kernel", request: abi.Models) -> Provider:
    named = kernel.models.catalogue.named(request.name)
    prices = dict(named.provider.prices)
    if request.prices:
        own_rates(named.full, request.prices)
        prices[named.model] = dict(request.prices)
    elif prices.pop(named.model, None) is None:
        raise EINVAL("model.price", f"you have set no price of {named.full}")
    return msgspec.structs.replace(named.provider, prices=prices)


def _limited(kernel: "Kernel", request: abi.Models) -> Provider:
    provider = kernel.models.catalogue.provider(request.name)
    for kind, amount in request.limits.items():
        if kind not in KINDS or not 1 <= amount <= LARGEST:
            reason = f"{kind} = {amount:g} is no limit: there is {', '.join(KINDS)}, each at least 1 in a minute"
            raise EINVAL("model.limit", reason, hint=f"agentctl model limit {provider.name} --tokens 400000")
    limits = {kind: (amount, amount / WINDOW_SECS) for kind, amount in request.limits.items()}
    return msgspec.structs.replace(provider, limits=limits)


async def _recorded(kernel: "Kernel", caller: Actor, request: abi.Models, puts: list[Put]) -> None:
    said = {key: value for key in request.__struct_fields__ if (value := getattr(request, key))}
    draft = Draft(caller.id, Kind.CHANGE, body=frames.encode_body({"event": f"model {request.do}", **said}))
    await kernel.journal.record(draft, sync=True, puts=puts)


# Looking.


async def _listed(kernel: "Kernel") -> dict[str, Any]:
    await kernel.models.open_safe()
    waiting = [{"key": key, "model": model, **place._asdict()} for key, model, place in kernel.models.places()]
    rows = [await _row(kernel, one) for one in kernel.models.catalogue]
    catalogue = kernel.models.catalogue
    known = {"aliases": dict(catalogue.aliases), "shares": dict(catalogue.weights)}
    return {"providers": rows, **known, "waiting": waiting, "lanes": kernel.models.lanes()}


async def _row(kernel: "Kernel", provider: Provider) -> dict[str, Any]:
    missing = [] if kernel.home is None else [name for name in provider.keys if not _there(kernel, provider, name)]
    return {
        "name": provider.name,
        "dialect": provider.dialect,
        "base": provider.base,
        "keys": list(provider.keys),
        "missing": missing,
        "add_key": adding(provider, missing[0]) if missing else "",
        "own": provider.own,
        "prices": provider.prices,
        "slots": provider.slots,
        "limits": {kind: capacity for kind, (capacity, _) in provider.limits.items()},
    }


def _there(kernel: "Kernel", provider: Provider, name: str) -> bool:
    """Whether the safe has it, bound to the provider's host."""
    if not kernel.safe.exists:
        return False
    found = [one for one in kernel.safe.listed() if one.name == name]
    return any(binding.covers_host(provider.host, provider.port) for one in found for binding in one.bindings)


async def _tested(kernel: "Kernel", caller: Actor, request: abi.Models) -> dict[str, Any]:
    """One small call, or, for a provider alone, the names that it knows. It is the operator's, and no agent's money."""
    gateway = kernel.models
    provider_name, slash, _ = request.name.partition("/")
    alone = not slash and request.name not in gateway.catalogue.aliases
    provider = gateway.catalogue.provider(provider_name) if alone else gateway.catalogue.named(request.name).provider
    driver = gateway.driver(provider)
    key = await gateway.keys.of_operator(provider)
    began = time.monotonic()
    try:
        if alone:
            return {"provider": provider.name, "models": await driver.models(key.value)}
        named = gateway.catalogue.named(request.name)
        hello = Message(role="user", blocks=[TextBlock(text="Say hello.")])
        collector = Collector()
        asked = ModelRequest(model=named.model, messages=[hello], max_output=_TEST_TOKENS)
        async for event in driver.stream(asked, key.value):
            if not isinstance(event, LimitsSeen):
                collector.take(event)
    except ModelFault as fault:
        if isinstance(fault.error, EHOSTUNREACH):  # agents are never told where a provider is
            fault.error.reason += f" at {provider.base}"
        raise gateway.clean(fault.error) from fault
    except AgentOSError as error:
        raise gateway.clean(error) from error
    reply = collector.reply()
    rates = gateway.rates(named)
    cost = rates.cost(reply.usage) if rates else None
    facts = {"event": "model test", "model": named.full, "cost_microusd": cost}
    await kernel.journal.record(Draft(caller.id, Kind.CHANGE, body=frames.encode_body(facts)))
    said = {"model": named.full, "answered": reply.model, "text": gateway.needles().mask_text(reply.text)}
    ms = round((time.monotonic() - began) * 1000)
    return {**said, "ms": ms, "input": reply.usage.input, "output": reply.usage.output, "cost_microusd": cost}


PREPARE = {BY_REQUEST[abi.Models].number: _models}
