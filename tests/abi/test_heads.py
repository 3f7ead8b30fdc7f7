"""abi/heads.py: the text of signed heads, there and back, and nothing but exactly that text."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agent_os.abi.entries import Head
from agent_os.abi.heads import (
    head_text,
    key_hash,
    key_id,
    parse_note,
    parse_verifier_key,
    signed_note,
    split_notes,
    verifier_key,
)

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC = KEY.public_key().public_bytes_raw()
HEAD = Head(b"L" * 16, 3, 1042, b"R" * 32, 1_763_251_200_000_000_000, b"P" * 32, key_id(PUBLIC))


def note(head: Head = HEAD) -> bytes:
    return signed_note(head, PUBLIC, KEY.sign(head_text(head)))


def test_a_note_comes_back_as_its_head_and_its_signature_holds() -> None:
    parsed = parse_note(note())
    assert parsed.head == HEAD
    assert parsed.text == head_text(HEAD)
    Ed25519PublicKey.from_public_bytes(PUBLIC).verify(parsed.signatures[0].signature, parsed.text)


def test_a_note_has_the_form_of_c2sp() -> None:
    text = note().decode()
    assert text.startswith("agent-os/" + "4c" * 16 + "\n1042\nUlJS")
    assert text.splitlines()[-2] == ""
    assert text.splitlines()[-1].startswith("— agent-os/" + "4c" * 16 + " ")
    assert parse_note(note()).signatures[0].key_hash == key_hash("agent-os/" + "4c" * 16, PUBLIC)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"1042", b"01042"),
        (b"boot 3", b"boot  3"),
        (b"boot 3", b"boot three"),
        (b"\n\n", b"\n"),
        ("— ".encode(), b"- "),
        (b"policy 50", b"policy zz"),
        (b"wall 1", b"walk 1"),
    ],
)
def test_other_words_are_no_head(old: bytes, new: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        parse_note(note().replace(old, new))


def test_notes_are_told_apart_and_a_cut_off_one_is_left_out() -> None:
    two = note() + note(Head(b"L" * 16, 3, 7, b"S" * 32, 1, b"", key_id(PUBLIC)))
    assert [parse_note(each).head.size for each in split_notes(two)] == [1042, 7]
    assert len(split_notes(two[:-20])) == 1


def test_a_verifier_key_comes_back_and_a_changed_one_does_not() -> None:
    line = verifier_key(HEAD.log_id, PUBLIC)
    assert parse_verifier_key(line + "\n") == (HEAD.log_id, PUBLIC)
    for wrong in ("", "a+b+c", line.replace("agent-os", "agent-so"), line[:-4] + "AAAA"):
        with pytest.raises(ValueError, match=r".+"):
            parse_verifier_key(wrong)
