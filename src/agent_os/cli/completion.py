"""`agentctl completion`: the script by which a shell completes agentctl. It asks agentctl itself, so it never ages."""

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_AGENTCTL_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete verbs, flags and the names of agents.

    \b
      agentctl completion bash > ~/.local/share/bash-completion/completions/agentctl
      agentctl completion zsh > ~/.zfunc/_agentctl        # with ~/.zfunc in fpath
      agentctl completion fish > ~/.config/fish/completions/agentctl.fish
    """
    from agent_os.cli.main import app

    script = get_completion_class(shell)
    assert script is not None  # click knows all three
    made = script(app, {}, "agentctl", _VARIABLE)
    click.echo(made.source_template % made.source_vars())  # `source` would first run bash to ask for its version
