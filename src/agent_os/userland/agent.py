"""`@agent`: marks a function as an agent's program, and says what it needs.

Owns the declaration only: it imports nothing heavy, connects to nothing and runs nothing, so a file with agents can be
looked at anywhere. A decorated function can still be called as it is, with a context of one's own.
"""

import inspect
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints, overload
from weakref import WeakSet

import msgspec

from agent_os.abi.errors import EINVAL
from agent_os.abi.models import MODEL_VARIABLE

P = ParamSpec("P")
R = TypeVar("R")
Program = Callable[P, Coroutine[Any, Any, R]]
DECLARED: "WeakSet[Agent[..., Any]]" = WeakSet()  # in this process, for the types that they return
_MODES = {"ro": "read", "rw": "read,write"}


class Agent(Generic[P, R]):
    """A program: an `async def` whose first parameter is the context, and what it was declared to need."""

    def __init__(
        self, function: Program[P, R], name: str, caps: list[str], extra: dict[str, Any], says_ready: bool = False
    ) -> None:
        self.function, self.name, self.caps, self.extra = function, name, caps, extra
        self.says_ready = says_ready
        self.tools: tuple[Any, ...] = ()  # names, and functions of this program
        self.hook: Callable[[Any], Any] | None = None
        self.check: Callable[[Any], Any] | None = None
        self.__doc__, self.__name__, self.__wrapped__ = function.__doc__, function.__name__, function
        self.parameters = _parameters(function)
        DECLARED.add(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    def __or__(self, other: Any) -> Any:
        """A pipeline: `researcher | PolicyCheckPipe([…]) | writer`."""
        from agent_os.userland.pipes import joined  # which needs this module

        return joined(self, other)

    @property
    def returns(self) -> Any:
        """What its function is annotated to return; None: it does not say."""
        return _hints(self.function).get("return")

    def on_checkpoint(self, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Decorates the function that gives the state to resume from: `def save(ctx): return …`, plain or async."""
        self.hook = hook
        return hook

    def on_ping(self, check: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Decorates the function that says whether the agent is well, plain or async: `False`, a sentence about what
        is wrong or an exception mean that it is not. The kernel asks at the interval of the manifest's `[health]`."""
        self.check = check
        return check

    @property
    def entry(self) -> str:
        """`FILE.py:NAME`, by which it can be run."""
        return f"{self.function.__code__.co_filename}:{self.function.__name__}"

    def manifest(self) -> dict[str, Any]:
        words = {key: value for key, value in self.extra.items() if key != "model"}
        program = {"runtime": "python", "entry": self.entry}
        if named := self.model:
            program["model"] = named
        return {"name": self.name, "program": program, "caps": self.caps, **words}

    @property
    def model(self) -> str:
        """What the manifest or the operator names, in place of what `@agent(model=…)` says; empty: it has none."""
        usual = str(self.extra.get("model") or "")
        return (os.environ.get(MODEL_VARIABLE) or usual) if usual else ""

    def bind(self, given: Any, words: Iterable[str] = ()) -> dict[str, Any]:
        """The arguments for one run: a map by name, or the only one; then words of a command line, `name=value` or in
        order. Values are brought to the annotated types, or refused with EINVAL naming the parameter."""
        values: dict[str, Any] = _by_name(self, given)
        names = iter([name for name in self.parameters if name not in values])
        for word in words:
            name, is_named, value = word.partition("=")
            if is_named and name in self.parameters:
                values[name] = value
            else:
                values[next(names, "")] = word
        if unknown := sorted(values.keys() - self.parameters.keys()):
            takes = ", ".join(self.parameters) or "no input"
            raise EINVAL("input", f"{self.name} has no parameter for {unknown[0] or 'that many'!r}: it takes {takes}")
        hints = _hints(self.function)
        missing = [n for n, one in self.parameters.items() if one.default is one.empty and n not in values]
        if missing:
            raise EINVAL("input", f"{self.name} needs {missing[0]!r}", hint=f"{missing[0]}=VALUE")
        return {name: _converted(name, value, hints.get(name, Any)) for name, value in values.items()}


@overload
def agent(function: Program[P, R], /) -> Agent[P, R]: ...


@overload
def agent(
    *,
    name: str = "",
    caps: Iterable[str] = (),
    http: Iterable[str] = (),
    files: Iterable[str] = (),
    tools: Iterable[Any] = (),
    says_ready: bool = False,
    **extra: Any,
) -> Callable[[Program[P, R]], Agent[P, R]]: ...


def agent(
    function: Program[P, R] | None = None,
    /,
    *,
    name: str = "",
    caps: Iterable[str] = (),
    http: Iterable[str] = (),
    files: Iterable[str] = (),
    tools: Iterable[Any] = (),
    says_ready: bool = False,
    **extra: Any,
) -> Agent[P, R] | Callable[[Program[P, R]], Agent[P, R]]:
    """`@agent`, or `@agent(name=…, caps=[…])`. `http=["api.example.com"]`, `files=["ro:/data"]` and `tools=["clock"]`
    are short for the capabilities they need, as `model="provider/name"`; further words are kept for the manifest.
    `says_ready`: it is ready when it calls `ctx.ready()`, and not by its first call."""
    needs = [*caps, *(f"net:{host}:connect" for host in http), *map(_file, files)]
    named = tuple(tools)
    needs += [f"tool:{tool}:call" for tool in named if isinstance(tool, str)]

    def declare(function: Program[P, R]) -> Agent[P, R]:
        called = name or function.__name__.replace("_", "-").lower()
        declared = Agent(function, called, needs, dict(extra), says_ready)
        declared.caps = [*needs, f"llm:{declared.model}:call"] if declared.model else needs
        declared.tools = named
        return declared

    return declare(function) if function is not None else declare


def _file(text: str) -> str:
    mode, colon, path = text.partition(":")
    if not colon or mode not in _MODES:
        mode, path = "ro", text
    if not path.startswith("/"):
        path = f"/work/{path}"
    return f"file:{path.rstrip('/')}/**:{_MODES[mode]}"


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What comes after the context. Checked when the file is loaded, so that a mistake shows before anything runs."""
    where = f"@agent {getattr(function, '__name__', function)!r}"
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{where} must be an `async def`: an agent waits for its kernel")
    all_of_them = list(inspect.signature(function).parameters.values())
    if not all_of_them:
        raise TypeError(f"{where} needs a first parameter, the context: async def {function.__name__}(ctx, …)")
    inputs = {one.name: one for one in all_of_them[1:]}
    for one in inputs.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise TypeError(f"{where}: the parameter {one.name!r} must have a name that input can be given by")
        if one.annotation is one.empty:
            raise TypeError(f"{where}: the parameter {one.name!r} needs a type: {one.name}: str")
    return inputs


def _by_name(program: Agent[..., Any], given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        found: dict[str, Any] = {str(name): value for name, value in given.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if len(program.parameters) != 1 or found.keys() <= program.parameters.keys():
            return found
    if len(program.parameters) != 1:
        raise EINVAL("input", f"{program.name} takes {len(program.parameters)} inputs: give a map with their names")
    return {next(iter(program.parameters)): given}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except Exception:  # a name that exists for type checkers only; the value then goes through as it is
        return {}


def _converted(name: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as problem:
        raise EINVAL("input", f"the input {name!r} does not fit: {problem}") from problem
    except TypeError:  # a type of the author's own that only its own code can check
        return value
