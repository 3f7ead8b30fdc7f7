"""A policy for a kernel that runs in the test."""

from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Layer
from agent_os.kernel.kernel import Kernel

HEAD = 'version = 1\ndefault = "capability"\nmode = "{mode}"\n'


def rule(effect: str, what: str, *, id: str = "r", **more: str) -> str:
    keys = "".join(f"{name} = {value}\n" for name, value in more.items())
    return f'[[rule]]\nid = "{id}"\neffect = "{effect}"\nwhat = ["{what}"]\n{keys}'


def ruled(kernel: Kernel, *rules: str, mode: str = "strict", default: str = "capability") -> None:
    """The operator's policy from now on, as after a reload."""
    text = HEAD.format(mode=mode).replace("capability", default) + "\n".join(rules)
    current = kernel.authority.policies.current
    file = read(text.encode(), "policy.toml", Layer.OPERATOR)
    current._load = lambda: Policy([file])  # pyright: ignore[reportPrivateUsage]
    current.reload()
    kernel.approvals.look_again()
