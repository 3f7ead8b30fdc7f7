"""What a name in a manifest means."""

from agent_os.manifest.names import resolved


def test_a_bare_name_means_the_own_namespace_and_then_the_system() -> None:
    known = {"team/a", "system/a", "system/b", "default/c"}
    assert resolved("a", "team", known) == "team/a"
    assert resolved("a", "default", known) == "system/a"
    assert resolved("b", "team", known) == "system/b"
    assert resolved("c", "team", known) is None
    assert resolved("default/c", "team", known) == "default/c"


def test_parts_of_the_kernel_are_known_to_everybody() -> None:
    assert resolved("message-bus", "team", ()) == "system/message-bus"
    assert resolved("team/message-bus", "team", ()) is None
