"""`@tool`: a function as a tool, its schemas taken from its annotations and its first line of documentation.

In: a function, plain or async, every parameter of which has a type; a first parameter called `ctx` is the context, and
no parameter of the tool. Out: a `Function` that can be called as before, has a `spec` for models, and runs with what
comes over the wire. In its own agent's process it has that agent's authority and no more, and is a step of it.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, cast, get_type_hints, overload

import msgspec

from agent_os.abi.errors import EIO, ETYPE, AgentOSError
from agent_os.abi.tools import LONGEST_DESCRIPTION, EffectClass, Place, ToolLabels, ToolSpec
from agent_os.userland.schemas import schema_of

P = ParamSpec("P")
R = TypeVar("R")
_CONTEXT = "ctx"
_NAMELESS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


class Value(dict[str, Any]):
    """A map that a tool gave, whose fields can be read as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            value: Any = self[name]
        except KeyError:
            raise AttributeError(f"the result has no {name!r}; it has {', '.join(self) or 'nothing'}") from None
        return Value(cast("dict[str, Any]", value)) if type(value) is dict else value


class Function(Generic[P, R]):
    """A tool that is a function of this program."""

    def __init__(self, function: Callable[P, R], spec: ToolSpec, hints: Mapping[str, Any], takes_context: bool) -> None:
        self.function, self.spec, self.takes_context = function, spec, takes_context
        self.__doc__, self.__name__, self.__wrapped__ = function.__doc__, function.__name__, function
        self._hints = hints

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def name(self) -> str:
        return self.spec.name

    async def run(self, params: Mapping[str, Any], context: Any = None) -> Any:
        """With parameters as they came; the result as it can travel. ETYPE: they do not fit, and nothing ran. EIO: the
        function raised; errors of the kernel go through as they are."""
        given = {name: self._converted(name, value) for name, value in params.items()}
        first = (context,) if self.takes_context else ()
        try:
            inspect.signature(self.function).bind(*first, **given)
        except TypeError as problem:
            raise ETYPE("tool.type", f"{self.name}: {problem}", pointer="", ran=False) from None
        try:
            value: Any = cast("Callable[..., Any]", self.function)(*first, **given)
            if inspect.isawaitable(value):
                value = await value
        except AgentOSError:
            raise
        except Exception as problem:  # the author's code; the model is told, and may try something else
            reason = f"{self.name} failed: {type(problem).__name__}: {problem}"
            raise EIO("tool.failed", reason[:2000], ran=True) from problem
        return msgspec.to_builtins(value, enc_hook=_described)

    def _converted(self, name: str, value: Any) -> Any:
        hint = self._hints.get(name, Any)
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError as problem:
            reason = f"{self.name}: {name} does not fit: {problem}"
            raise ETYPE("tool.type", reason, pointer=f"/{name}", expected=str(hint), got=type(value).__name__) from None


def _described(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is no value that a tool can give")


@overload
def tool(function: Callable[P, R], /) -> Function[P, R]: ...


@overload
def tool(
    *,
    name: str = "",
    effect: EffectClass = "opaque",
    version: str = "1.0.0",
    description: str = "",
    requires: Iterable[str] = (),
    labels: ToolLabels | None = None,
    timeout_s: float = 30.0,
    concurrency: int = 8,
    sandbox: Place = "program",
    tags: Iterable[str] = (),
    **more: Any,
) -> Callable[[Callable[P, R]], Function[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str = "",
    effect: EffectClass = "opaque",
    version: str = "1.0.0",
    description: str = "",
    requires: Iterable[str] = (),
    labels: ToolLabels | None = None,
    timeout_s: float = 30.0,
    concurrency: int = 8,
    sandbox: Place = "program",
    tags: Iterable[str] = (),
    **more: Any,
) -> Function[P, R] | Callable[[Callable[P, R]], Function[P, R]]:
    """`@tool`, or `@tool(effect="pure")`. Further words are fields of `ToolSpec`. `requires` is for tools that others
    call: in its own program a tool has no authority but its agent's."""

    def declare(function: Callable[P, R]) -> Function[P, R]:
        where = f"@tool {getattr(function, '__name__', function)!r}"
        parameters = _parameters(function, where)
        hints = _hints(function, where)
        takes_context = _CONTEXT in inspect.signature(function).parameters
        spec = ToolSpec(
            name=name or function.__name__,
            version=version,
            description=(description or _first_line(function))[:LONGEST_DESCRIPTION],
            input_schema=_input(parameters, hints, where),
            output_schema=_output(hints, where),
            effect=effect,
            requires=tuple(requires),
            labels=labels or ToolLabels(),
            timeout_s=timeout_s,
            concurrency=concurrency,
            sandbox=sandbox,
            tags=tuple(tags),
            **more,
        )
        return Function(function, spec, hints, takes_context)

    return declare(function) if function is not None else declare


def _parameters(function: Callable[..., Any], where: str) -> dict[str, inspect.Parameter]:
    """Checked when the file is loaded, so that a mistake shows before anything runs."""
    if not callable(function) or inspect.isclass(function):
        raise TypeError(f"{where} must be a function")
    found = inspect.signature(function).parameters
    if _CONTEXT in found and next(iter(found)) != _CONTEXT:
        raise TypeError(f"{where}: the context is the first parameter")
    inputs = {one: each for one, each in found.items() if one != _CONTEXT}
    for one, each in inputs.items():
        if each.kind in _NAMELESS:
            raise TypeError(f"{where}: the parameter {one!r} must have a name that a value can be given by")
        if each.annotation is each.empty:
            raise TypeError(f"{where}: the parameter {one!r} needs a type: {one}: str")
    return inputs


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as problem:
        raise TypeError(f"{where}: a type is not known when the file is loaded: {problem}") from None
    hints.pop(_CONTEXT, None)
    return hints


def _first_line(function: Callable[..., Any]) -> str:
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    return lines[0].strip() if lines and lines[0].strip() else function.__name__.replace("_", " ")


def _input(parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], where: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for name in parameters:
        fields[name] = _schema(hints[name], f"{where}, parameter {name!r}", shared)
    required = [name for name, one in parameters.items() if one.default is one.empty]
    schema: dict[str, Any] = {"type": "object", "properties": fields, "additionalProperties": False}
    return schema | ({"required": required} if required else {}) | ({"$defs": shared} if shared else {})


def _output(hints: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """None: it does not say, or says that it may be anything."""
    if "return" not in hints or hints["return"] is Any:
        return None
    shared: dict[str, Any] = {}
    schema = _schema(hints["return"], f"{where}, its result", shared)
    return schema | ({"$defs": shared} if shared else {})


def _schema(hint: Any, where: str, shared: dict[str, Any]) -> dict[str, Any]:
    """Definitions go to the top of the whole, where references look for them."""
    try:
        schema = schema_of(hint)
    except AgentOSError as problem:
        raise TypeError(f"{where}: {problem.reason}") from None
    for name, one in schema.pop("$defs", {}).items():
        if shared.setdefault(name, one) != one:
            raise TypeError(f"{where}: two different types are called {name}")
    return schema
