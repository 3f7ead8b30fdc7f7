"""The table is complete: whatever it promises, the kernel understands, and the reference page tells."""

import importlib.machinery
import importlib.util
from importlib import import_module
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from agent_os.abi.syscalls import BY_NUMBER, FIRST_OPERATOR, LATER, TABLE, Body, Syscall
from agent_os.kernel import operations, syscalls

ROOT = Path(__file__).resolve().parents[2]


def test_numbers_names_and_requests_are_unique() -> None:
    for values in zip(*((one.number, one.name, one.request) for one in TABLE), strict=True):
        assert len(set(values)) == len(TABLE)


def test_names_tell_whose_a_call_is() -> None:
    for one in TABLE:
        assert one.name.startswith("OP_" if one.number >= FIRST_OPERATOR else "SYS_"), one
        assert one.operator is (one.number >= FIRST_OPERATOR)


def test_every_number_is_understood_by_exactly_one_function() -> None:
    files = {f"agent_os.kernel.{file}" for file in operations.FILES}
    operators = [number for file in files for number in import_module(file).PREPARE]
    rare = [number for numbers in syscalls.FILES.values() for number in numbers]
    assert all(syscalls.PREPARE[number] for number in rare)  # by this they are there
    assert sorted([*syscalls.PREPARE, *operators]) == sorted(BY_NUMBER)
    assert all(number < FIRST_OPERATOR for number in syscalls.PREPARE)
    assert all(number >= FIRST_OPERATOR for number in operators)


def test_an_operation_is_found_in_the_file_that_the_table_names() -> None:
    for file, kinds in operations.FILES.items():
        numbers = {one.number for one in TABLE if one.request in kinds}
        assert numbers == set(import_module(f"agent_os.kernel.{file}").PREPARE)


def test_what_comes_later_is_not_there_yet() -> None:
    assert not set(LATER) & set(BY_NUMBER)


@pytest.mark.parametrize("one", TABLE, ids=lambda one: one.name)
def test_a_field_that_the_table_does_not_have_is_an_error(one: Syscall) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"surely not a field": 1}), type=one.request)


@pytest.mark.parametrize("one", TABLE, ids=lambda one: one.name)
def test_a_request_survives_the_wire(one: Syscall) -> None:
    request = _any(one.request)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=one.request) == request


def _any(kind: type[Body]) -> Body:
    """A request with every required field given."""
    values = {str: "x", int: 1, float: 1.0, bool: True, dict: {}, list: []}
    given = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            origin = getattr(field.type, "__origin__", field.type)
            given[field.name] = values.get(origin, getattr(field.type, "__args__", ["x"])[0])
    return kind(**given)


def reference() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("reference", str(ROOT / "scripts" / "reference"))
    spec = importlib.util.spec_from_loader("reference", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_reference_page_is_current() -> None:
    page = (ROOT / "docs" / "syscalls.md").read_text(encoding="utf-8")
    assert page == reference().page(), "run scripts/reference"


def test_the_page_of_routes_is_current() -> None:
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    assert page == reference().http_page(), "run scripts/reference"


def test_the_reference_page_tells_every_call_and_every_field() -> None:
    page = reference().page()
    for one in TABLE:
        section = page.partition(f"### {one.name}\n")[2].partition("\n### ")[0]
        assert f"Number {one.number}. {one.summary}" in section
        assert all(f"| `{field.name}` |" in section for field in msgspec.structs.fields(one.request))
