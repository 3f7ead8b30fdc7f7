"""How the run of a model ends, as a person sees it: every reason in words, with the key of the manifest that bounds it.

The model is a script; the kernel, the tools and agentctl are real. One kernel serves all of them.
"""

from collections.abc import Iterator

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
STOPPED = 20
MANIFEST = """
name = "NAME"
role = "worker"
tools = ["file.*", "agent.ask"]
[program]
model = "scripted/NAME"
goal = "Work."
[program.loop]
LOOP
[sandbox]
workspace = "overlay"
[budget]
usd = 1.0
BUDGET
"""
READ = "- tool_calls: [{name: file.read, args: {path: /work/page}}]\n"
OTHER = "- tool_calls: [{name: file.list, args: {path: /work}}]\n"
BROKEN = "- tool_calls: [{name: file.read, args: '{\"path\": '}]\n"
NOBODY = "- tool_calls: [{name: file.wirte, args: {path: /work/page}}]\n"
DEAR = "- {tool_calls: [{name: file.read, args: {path: /work/page}}], usage: {input: 95000, output: 1}}\n"
ASKS = "- tool_calls: [{name: agent.ask, args: {question: 'Which one?'}}]\n- when: the blue one\n  text: Blue it is.\n"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("stops"))
    (desk.project / "page").write_text("a page\n")
    (desk.project / "long").write_text("many words of a long page\n" * 500)
    desk.up()
    yield desk
    desk.down()


def declare(desk: Desk, name: str, script: str, loop: str = "", budget: str = "") -> str:
    (desk.project / f"{name}.yaml").write_text(script)
    text = MANIFEST.replace("NAME", name).replace("LOOP", loop).replace("BUDGET", budget)
    (desk.project / f"{name}.agent.toml").write_text(text)
    return f"{name}.agent.toml"


@pytest.mark.parametrize(
    ("name", "script", "bounds", "words"),
    [
        ("turns", READ + OTHER, {"loop": "turns = 1"}, "its turns are over: 1 (program.loop.turns)"),
        ("calls", READ + OTHER, {"loop": "tool_calls = 1"}, "its 1 tool calls are made (program.loop.tool_calls)"),
        ("late", "- {text: x, delay_ms: 600000}\n", {"loop": "wall_secs = 2"}, "stopped (deadline): "),
        ("circles", READ * 5, {}, "stopped (stuck): file.read gave the same 5 times, and nothing else was new"),
        ("unwilling", "- {text: No., stop: refused}\n", {}, "stopped (refused): the model refuses to answer"),
        ("filtered", "- {stop: filtered}\n", {}, "the provider's filter held the model's answer back"),
        (
            "endless",
            "- {text: and, stop: length}\n" * 3,
            {"loop": "max_output = 64"},
            "3 answers in a row were cut off at 64 tokens (program.loop.max_output)",
        ),
        ("malformed", BROKEN + NOBODY + BROKEN, {}, "3 turns in a row held no call that a tool could take"),
        ("spent", DEAR, {"budget": "tokens = 100_000"}, "stopped (budget): less than a tenth is left of tokens"),
        ("silent", READ, {}, "has no step for turn 2"),
    ],
)
def test_a_run_without_a_result_says_why(
    desk: Desk, name: str, script: str, bounds: dict[str, str], words: str
) -> None:
    ran = desk.ask("run", declare(desk, name, script, **bounds))
    assert (ran.code, ran.out) == (STOPPED, ""), ran
    assert words in ran.err
    assert ran.err.count(words) == 1, "it is said twice"
    assert f"scripted/{name} (scripted)" in ran.err or name in ("late", "silent"), "a script passes for a model"
    assert words in desk.good("history", name, "-o", "json").out


def test_a_call_that_no_tool_could_take_is_told_with_its_reason_as_it_happens(desk: Desk) -> None:
    ran = desk.good("run", declare(desk, "typo", f"{NOBODY}{BROKEN}- text: Enough.\n"))
    assert "turn 1  file.wirte  bad: Not run: there is no tool 'file.wirte' that you may call." in ran.err
    assert "turn 2  file.read  bad: Not run: the arguments of file.read are no JSON object" in ran.err
    assert ran.out == "Enough.\n"


def test_a_history_near_the_models_window_is_shortened_in_the_middle_of_a_run(desk: Desk) -> None:
    """The second step answers whoever asks for a summary: only there a call is quoted."""
    reads = "".join(f"- tool_calls: [{{name: file.read, args: {{path: /work/long, offset: {n}}}}}]\n" for n in range(9))
    summary = "- {when: 'call: file.read', text: The page says many words.}\n"
    ran = desk.good("run", declare(desk, "reader", f"{summary}{reads}- text: All read.\n", "window = 24_000"))
    assert "the history was shortened, " in ran.err
    assert ran.out == "All read.\n"
    assert "10 turns, 9 tool calls" in ran.err


def test_inputs_and_a_goal_reach_the_model(desk: Desk) -> None:
    script = "- {when: '/Say it.*colour.*blue.*size.*7/', text: Said.}\n"
    words = ("run", "--quiet", declare(desk, "said", script), "Say it", "--input", "colour=blue", "--input", "size=7")
    assert desk.good(*words).out == "Said.\n"


def test_a_question_that_nobody_answers_in_time_is_no_refusal(desk: Desk) -> None:
    (desk.project / "asker.py").write_text(
        "from agent_os import agent\n\n\n@agent\nasync def asker(ctx):\n"
        "    answer = await ctx.ask('Anybody?', timeout_s=0.5)\n    return [answer.state, answer.reason]\n"
    )
    ran = desk.good("run", "asker.py:asker")
    assert '"expired"' in ran.out
    assert "Anybody?" in desk.good("approvals", "--all").out


def test_a_question_is_answered_after_its_kernel_was_killed(desk: Desk) -> None:
    desk.good("run", declare(desk, "asks", ASKS), "--detach")
    until(lambda: "Which one?" in desk.ask("approvals").out)
    desk.kill_kernel()
    desk.up()
    rows = desk.good("approvals", "-o", "json").json["approvals"]
    question = next(row for row in rows if row["args"]["question"] == "Which one?")
    desk.good("answer", str(question["id"]), "the blue one")
    desk.good("wait", "asks", "--for", "over")
    assert desk.good("wait", "asks", "-o", "json").json["result"] == "Blue it is."


def test_a_program_that_no_longer_fits_its_record_is_ended_and_both_are_shown(desk: Desk) -> None:
    program = (
        "from agent_os import agent\n\n\n@agent(model='scripted/fickle')\nasync def fickle(ctx):\n"
        "    await ctx.loop('GOAL', turns=3)\n    await ctx.ask('Go on?')\n"
    )
    (desk.project / "fickle.yaml").write_text("- text: Done.\n")
    (desk.project / "fickle.py").write_text(program.replace("GOAL", "One thing"))
    desk.good("run", "--detach", "--name", "fickle", "--model", "scripted/fickle", "fickle.py:fickle")
    until(lambda: "Go on?" in desk.ask("approvals").out)
    (desk.project / "fickle.py").write_text(program.replace("GOAL", "Another"))
    desk.kill_kernel()
    desk.up()
    until(lambda: "nondeterministic" in desk.ask("trace", "fickle").out)
    told = desk.good("trace", "fickle", "-o", "json").out
    assert "the record has SYS_THINK" in told
