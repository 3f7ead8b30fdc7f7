"""The safe keeps values: nobody reads them from disk, a change of the file is found, a rotation serves at once."""

import json
import os
from pathlib import Path

import pytest

from agent_os.abi.errors import EACCES, EEXIST, EINVAL, EIO, ENOENT, EPERM
from agent_os.kernel.authority import keys
from agent_os.kernel.authority.bindings import bind
from agent_os.kernel.authority.secrets import PLACE, REDACTED_S, Safe

OLD, NEW = b"old-value-0123456789", b"new-value-9876543210"


class Clock:
    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


def opened(home: Path, **env: str) -> Safe:
    return Safe.of_home(home, env)


@pytest.fixture
def safe(tmp_path: Path) -> Safe:
    safe = opened(tmp_path)
    safe.add("key", OLD)
    safe.bind(bind("key", ["api.test"]))
    return safe


def value_of(safe: Safe, name: str = "key") -> bytes:
    return safe.use(name, "a1", "api.test", 443, "POST").value


def test_a_value_survives_a_restart_and_is_nowhere_on_disk(safe: Safe, tmp_path: Path) -> None:
    again = opened(tmp_path)
    assert value_of(again) == OLD
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert not again.needles().within(path.read_bytes()), path
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_home_without_secrets_has_none(tmp_path: Path) -> None:
    safe = opened(tmp_path)
    safe.open()
    assert safe.listed() == []
    assert not safe.needles()
    with pytest.raises(ENOENT):
        safe.rotate("key", NEW)
    assert list(tmp_path.iterdir()) == []


def test_a_list_tells_no_value(safe: Safe) -> None:
    shown = safe.listed()
    assert [(one.name, one.version) for one in shown] == [("key", 1)]
    assert OLD.decode() not in repr(shown)
    assert OLD.decode() not in repr(safe.use("key", "a1", "api.test", 443, "GET"))


def test_no_binding_no_use(safe: Safe) -> None:
    safe.add("loose", NEW)
    for name, host, port, method, code in [
        ("loose", "api.test", 443, "GET", "secret.unbound"),
        ("key", "evil.test", 443, "GET", "secret.host"),
        ("key", "api.test", 80, "GET", "secret.host"),
        ("key", "api.test", 443, "DELETE", "secret.method"),
    ]:
        with pytest.raises(EPERM) as refused:
            safe.use(name, "a1", host, port, method)
        assert refused.value.code == code
        assert refused.value.hint
    safe.bind(bind("key", ["api.test"], agents=["other"]))
    with pytest.raises(EPERM) as refused:
        safe.use("key", "a1", "api.test", 443, "GET")
    assert refused.value.code == "secret.agent"


@pytest.mark.parametrize("value", [b"", b"1234567", b"x" * 20, b"v" * 8 + b"w" * (16 << 10)])
def test_a_value_that_cannot_be_redacted_is_refused(tmp_path: Path, value: bytes) -> None:
    with pytest.raises(EINVAL) as refused:
        opened(tmp_path).add("key", value)
    assert not value or value.decode() not in str(refused.value)
    assert not (tmp_path / PLACE).exists()


def test_rotation_serves_at_once_and_the_old_value_stays_masked_for_a_day(tmp_path: Path) -> None:
    clock = Clock()
    safe = Safe(tmp_path, keys.source(tmp_path, {}), clock)
    safe.add("key", OLD)
    safe.bind(bind("key", ["api.test"]))
    assert safe.rotate("key", NEW).version == 2
    assert value_of(safe) == NEW
    assert safe.needles().mask(OLD + b" " + NEW) == b"*" * len(OLD) + b" " + b"*" * len(NEW)
    clock.time += REDACTED_S - 1
    assert safe.needles().within(OLD)
    assert Safe(tmp_path, keys.source(tmp_path, {}), clock).needles().within(OLD)
    clock.time += 1
    assert not safe.needles().within(OLD)
    assert safe.needles().within(NEW)
    safe.rotate("key", b"third-value-42424242")  # what is long out of use is not kept either
    kept = json.loads((tmp_path / PLACE).read_bytes())
    assert [one["number"] for one in kept["secrets"]["key"]] == [2, 3]


def test_set_and_rotate_are_not_confused(safe: Safe) -> None:
    with pytest.raises(EEXIST) as refused:
        safe.add("key", NEW)
    assert "rotate" in refused.value.hint
    with pytest.raises(EEXIST):
        safe.rotate("key", OLD)
    with pytest.raises(ENOENT):
        safe.rotate("other", NEW)
    assert value_of(safe) == OLD


def test_a_value_that_its_header_cannot_carry_is_refused_when_it_comes(safe: Safe) -> None:
    with pytest.raises(EINVAL):
        safe.rotate("key", b"value\r\nX-Evil: yes")
    safe.add("lines", b"line one\nline two")
    with pytest.raises(EINVAL):
        safe.bind(bind("lines", ["api.test"]))
    safe.bind(bind("lines", ["api.test"], field="pem"))


def test_removed_is_gone(safe: Safe, tmp_path: Path) -> None:
    safe.remove("key")
    for one in (safe, opened(tmp_path)):
        assert one.listed() == []
        with pytest.raises(ENOENT):
            value_of(one)
    safe.add("key", NEW)
    with pytest.raises(EPERM):  # the bindings went with it
        value_of(safe)


def test_what_was_removed_stays_masked_for_a_day_and_is_not_on_disk(tmp_path: Path) -> None:
    clock = Clock()
    safe = Safe(tmp_path, keys.source(tmp_path, {}), clock)
    safe.add("key", b"before-it-was-rotated")
    safe.rotate("key", OLD)
    safe.remove("key")
    assert json.loads((tmp_path / PLACE).read_bytes())["secrets"] == {}
    safe.add("key", NEW)
    clock.time += REDACTED_S - 1
    assert all(map(safe.needles().within, (b"before-it-was-rotated", OLD, NEW)))
    clock.time += 1
    assert not safe.needles().within(OLD)
    assert safe.needles().within(NEW)


def test_one_host_has_one_place(safe: Safe) -> None:
    safe.bind(bind("key", ["api.test"], header="x-api-key"))
    assert safe.use("key", "a1", "api.test", 443, "GET").filled == OLD
    with pytest.raises(EEXIST):
        safe.bind(bind("key", ["api.test", "other.test"]))


# What the file may have become.


def test_every_change_of_the_file_is_found(safe: Safe, tmp_path: Path) -> None:
    safe.add("second", NEW)
    path = tmp_path / PLACE
    good = path.read_bytes()
    kept = json.loads(good)
    secrets = kept["secrets"]

    def swapped() -> dict[str, object]:
        return {**kept, "secrets": {"key": secrets["second"], "second": secrets["key"]}}

    def other_bindings() -> dict[str, object]:
        return {**kept, "bindings": kept["bindings"][:-8] + "AAAAAAA="}

    def renumbered() -> dict[str, object]:
        return {**kept, "secrets": {**secrets, "key": [{**secrets["key"][0], "number": 2}]}}

    def emptied() -> dict[str, object]:
        return {**kept, "secrets": {**secrets, "key": []}}

    broken = [json.dumps(make()).encode() for make in (swapped, other_bindings, renumbered, emptied)]
    for data in [*broken, b"", b"{}", good[: len(good) // 2], good.replace(b'"nonce":"', b'"nonce":"AA', 1)]:
        path.write_bytes(data)
        with pytest.raises((EIO, EACCES)) as refused:
            opened(tmp_path).open()
        assert str(path) in refused.value.reason
        assert refused.value.code in ("secrets.damaged", "secrets.key")
    path.write_bytes(good)
    assert value_of(opened(tmp_path)) == OLD


def test_a_later_format_is_not_guessed_at(safe: Safe, tmp_path: Path) -> None:
    path = tmp_path / PLACE
    path.write_bytes(json.dumps({**json.loads(path.read_bytes()), "format": 2}).encode())
    with pytest.raises(EIO) as refused:
        opened(tmp_path).open()
    assert refused.value.code == "secrets.format"


def test_a_write_that_fails_changes_nothing(safe: Safe, tmp_path: Path) -> None:
    before = (tmp_path / PLACE).read_bytes()
    (tmp_path / "secrets" / ".safe.json.new").mkdir()  # so that the new file cannot be made, whoever we are
    with pytest.raises(EIO) as refused:
        safe.rotate("key", NEW)
    assert refused.value.code == "secrets.unwritable"
    assert (tmp_path / PLACE).read_bytes() == before
    assert value_of(safe) == OLD


# Keys.


def private(path: Path, data: bytes, mode: int = 0o600) -> str:
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def sources(tmp_path: Path) -> dict[str, dict[str, str]]:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    private(credentials / keys.CREDENTIAL, os.urandom(31) + b"\n", 0o400)  # it ends as a line would
    return {
        "credential": {"CREDENTIALS_DIRECTORY": str(credentials)},
        "key file": {"AGENT_OS_SECRETS_KEY": private(tmp_path / "key", os.urandom(48))},
        "passphrase": {"AGENT_OS_SECRETS_PASSPHRASE": private(tmp_path / "words", b"correct horse battery\n")},
    }


@pytest.mark.parametrize("how", ["credential", "key file", "passphrase"])
def test_each_source_opens_what_it_closed_and_nothing_else(tmp_path: Path, how: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    every = sources(tmp_path)
    safe = opened(home, **every[how])
    safe.add("key", OLD)
    safe.bind(bind("key", ["api.test"]))
    assert not (home / keys.KEY_FILE).exists()
    assert value_of(opened(home, **every[how])) == OLD
    for other, env in [*every.items(), ("none", {})]:
        if other != how:
            with pytest.raises(EACCES) as refused:
                opened(home, **env).open()
            assert refused.value.code == "secrets.key"
            assert refused.value.hint


def test_scrypt_is_as_hard_as_promised(tmp_path: Path) -> None:
    source = keys.Source("passphrase", Path(private(tmp_path / "words", b"correct horse battery")))
    wrapped = source.wrap(os.urandom(32))
    assert wrapped.n == 2**15
    wrapped.n = 2
    with pytest.raises(EIO):
        source.unwrap(wrapped, tmp_path)


def test_a_wrong_passphrase_is_told_from_a_damaged_file(tmp_path: Path) -> None:
    words = tmp_path / "words"
    env = {"AGENT_OS_SECRETS_PASSPHRASE": private(words, b"correct horse battery\n")}
    opened(tmp_path, **env).add("key", OLD)
    private(words, b"wrong horse battery\n")
    with pytest.raises(EACCES) as refused:
        opened(tmp_path, **env).open()
    assert (refused.value.code, "passphrase" in refused.value.reason) == ("secrets.key", True)
    assert "wrong horse" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o660])
def test_a_key_file_that_others_can_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    env = {"AGENT_OS_SECRETS_KEY": private(path, os.urandom(32), mode)}
    with pytest.raises(EACCES) as refused:
        opened(tmp_path, **env).add("key", OLD)
    assert refused.value.code == "secrets.key_mode"
    assert f"chmod 600 {path}" in refused.value.hint
    assert not (tmp_path / PLACE).exists()


@pytest.mark.parametrize(
    ("name", "data"), [("AGENT_OS_SECRETS_KEY", b"short"), ("AGENT_OS_SECRETS_PASSPHRASE", b"pw\n")]
)
def test_a_weak_key_is_refused(tmp_path: Path, name: str, data: bytes) -> None:
    with pytest.raises(EACCES) as refused:
        opened(tmp_path, **{name: private(tmp_path / "key", data)}).add("key", OLD)
    assert "at least" in refused.value.reason


def test_a_key_file_that_is_missing_is_not_made_anew(safe: Safe, tmp_path: Path) -> None:
    (tmp_path / keys.KEY_FILE).unlink()
    with pytest.raises(EACCES) as refused:
        opened(tmp_path).open()
    assert refused.value.code == "secrets.key"
    assert not (tmp_path / keys.KEY_FILE).exists()
