"""Names of types: bound to one schema while somebody lives who said so, and not without end."""

from collections.abc import Iterator

import pytest

from agent_os.abi.errors import EDQUOT, EINVAL, EMSGSIZE, ETYPE
from agent_os.kernel.pipes.types import MOST, MOST_OWN, TYPES, Types

NULL, TEXT = {"type": "null"}, {"type": "string"}


class World:
    """The rows of a store, and who is alive."""

    def __init__(self) -> None:
        self.over: set[str] = set()
        self.rows: dict[str, bytes] = {}
        self.types = self.again()

    def again(self) -> Types:
        """As the next kernel finds it."""
        return Types(self, lambda agent: agent in self.over)

    def get(self, bucket: str, key: str) -> bytes | None:
        return self.rows.get(key)

    def items(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        return iter(sorted(self.rows.items()))

    def declare(self, by: str, **schemas: object) -> None:
        for put in self.types.register("n", self.types.check("n", schemas, by), by):  # type: ignore[arg-type]
            assert put.bucket == TYPES
            if put.value is None:
                del self.rows[put.key]
            else:
                self.rows[put.key] = put.value


def test_a_name_is_bound_while_somebody_lives_who_said_so() -> None:
    world = World()
    world.declare("a", T=NULL)
    world.declare("b", T={"type": "null"})
    world.over.add("a")
    with pytest.raises(ETYPE, match="as b declared it"):
        world.declare("c", T=TEXT)
    world.types = world.again()
    with pytest.raises(ETYPE):
        world.declare("c", T=TEXT)
    assert world.types.find("n", "T").schema == NULL
    world.over.add("b")
    world.declare("c", T=TEXT)
    assert world.types.find("n", "T").schema == world.again().find("n", "T").schema == TEXT
    assert not world.types.knows("m", "T"), "a namespace has names of its own"


def test_whoever_is_alone_with_a_name_may_change_it() -> None:
    world = World()
    world.declare("a", T=NULL)
    world.declare("a", T=TEXT)
    assert world.types.find("n", "T").schema == TEXT


def test_there_is_an_end_and_the_dead_make_room() -> None:
    world = World()
    with pytest.raises(EDQUOT):
        world.declare("a", **{f"T{number}": NULL for number in range(MOST_OWN + 1)})
    assert not world.rows, "then none is there"
    for agent in range(4):
        world.declare(f"a{agent}", **{f"T{agent}-{number}": NULL for number in range(MOST // 4)})
    with pytest.raises(EDQUOT):
        world.declare("b", More=NULL)
    world.over.add("a2")
    world.declare("b", More=NULL)
    assert len(world.rows) == MOST * 3 // 4 + 1
    assert world.again().knows("n", "More")


def test_bad_names_and_large_schemas_are_refused() -> None:
    world = World()
    for name in ("", "a/b", "x" * 101, "a\nb"):
        with pytest.raises(EINVAL):
            world.declare("a", **{name: NULL})
    with pytest.raises(EMSGSIZE):
        world.declare("a", T={"title": "x" * 70_000})
