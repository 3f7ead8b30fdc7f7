"""YAML whose every value knows its line.

Goes in: bytes of a file, YAML from end to end or Markdown with YAML as its front matter. Comes out: a tree of texts,
truth values, lists and tables, or the one problem that it has. Only what a policy needs: no aliases (they make a small
file large, or endless), no tags, no key twice. Knows nothing of policies.
"""

# The types of yaml leave out those of the events.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from typing import NamedTuple

import yaml

from agent_os.kernel.authority.policy.problems import Problems

# The file is a stranger's, and the reader slow: it looks back a thousand characters at every bracket.
MOST_BYTES = 64 << 10
MOST_BRACKETS = 500


class Part(NamedTuple):
    """A value and its line. Numbers and dates stay text, as written."""

    line: int
    value: "str | bool | list[Part] | dict[str, Part] | None"


class _Plain(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not read", problem_mark=mark)
        return super().compose_node(parent, index)


def read_marked(data: bytes, problems: Problems) -> Part | None:
    """None: `problems` says why."""
    if len(data) > MOST_BYTES:
        problems.add(0, f"such a file has at most {MOST_BYTES >> 10} kB")
        return None
    try:
        text = _front_matter(data.decode("utf-8-sig"))
        if text.count("[") + text.count("{") > MOST_BRACKETS:
            problems.add(0, f"there are more than {MOST_BRACKETS} brackets in it")
            return None
        root = _Plain(text).get_single_node()
        if root is not None:
            return _part(root, root.start_mark.line + 1, problems)
        problems.add(1, "there is nothing in it: YAML keys, or a front matter between two lines of ---")
    except UnicodeDecodeError as error:
        problems.add(data[: error.start].count(b"\n") + 1, "this is no UTF-8")
    except yaml.MarkedYAMLError as error:
        problems.add(error.problem_mark.line + 1 if error.problem_mark else 0, f"not YAML: {error.problem}")
    except yaml.YAMLError as error:
        problems.add(0, f"not YAML: {' '.join(str(error).split())}")
    except RecursionError:
        problems.add(0, "this is nested too deeply")
    return None


def _front_matter(text: str) -> str:
    """The YAML part, with an empty line for every line before it, so that marks fit the file."""
    lines = text.splitlines(keepends=True)
    if lines and lines[0].rstrip() == "---":
        for number, line in enumerate(lines[1:], 1):
            if line.rstrip() == "---":
                return "\n" + "".join(lines[1:number])
    return text


def _part(node: yaml.Node, line: int, problems: Problems) -> Part:
    if isinstance(node, yaml.SequenceNode):
        return Part(line, [_part(one, one.start_mark.line + 1, problems) for one in node.value])
    if not isinstance(node, yaml.MappingNode):
        truth = {"tag:yaml.org,2002:bool": str(node.value).lower() in ("true", "yes", "on")}
        return Part(line, None if node.tag == "tag:yaml.org,2002:null" else truth.get(node.tag, str(node.value)))
    found: dict[str, Part] = {}
    for key, value in node.value:
        at = key.start_mark.line + 1
        name = str(key.value)
        if name in found:
            problems.add(at, f"{name!r} stands here twice")
        found[name] = _part(value, at, problems)
    return Part(line, found)
