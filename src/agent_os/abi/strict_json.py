"""JSON that everybody reads alike: what one program judged is what the next one acts on."""

import json
from typing import Any, cast


def json_object(data: bytes) -> dict[str, Any]:
    """An object in which no name stands twice and every number is one. ValueError says what is wrong."""
    try:
        value: object = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return cast(dict[str, Any], value)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands twice")
    return made


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")
