"""Makes docs/client.md, the reference of the client's public names, from their docstrings.

    python write_reference.py            writes it
    python write_reference.py --check    only says whether it is as it should be; ends with 1

Read by griffe, which imports nothing: the same text whatever Python makes it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import griffe

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "docs" / "client.md"
HEAD = """\
# agentstate_client: every public name

Made from the docstrings by `client/write_reference.py`. To begin with:
[the tutorial](tutorial.md), then [client/README.md](../client/README.md). The command line:
[command-line.md](command-line.md).
"""
ASYNC = """\
`AsyncClient` and what it hands out (`AsyncRun`, `AsyncLease`, …) have the same names and take the
same arguments; what sends something is awaited, what iterates is an `async for`.
"""
DURABLE_TEXT = """\
`AsyncDurable(AsyncClient(…))` is the same for async functions and steps. How it behaves:
[integrations/durable.md](integrations/durable.md).
"""
# In the order in which one meets them; others of the same kind follow by their names.
FIRST = ("Client", "Run", "Lease", "Budget", "Hold", "Step", "Effect", "Change")
VALUES = ("records", "payloads", "retry")  # the modules of plain values
TESTING = ("running_server", "Server", "Clock", "START", "ServerMissing", "ServerFailure")
LANGGRAPH = (
    "AgentStateSaver", "AsyncAgentStateSaver", "AgentStateStore", "AsyncAgentStateStore",
    "ThreadMoved",
)  # fmt: skip
DURABLE = ("Durable", "DurableFunction", "CallEnded")
RECORDING = ("Recorder", "AsyncRecorder", "ModelCall", "ToolCall", "Usage", "Price", "PriceUnknown")
HOOKS = {
    "openai_agents": "AgentStateHooks",
    "claude_agent": "AgentStateSession",
    "pydantic_ai": "AgentStateCapability",
}
MADE = ("Client", "Durable", "Recorder", "AsyncRecorder")
LONGEST_LINE = 96
STARS = {"variadic positional": "*", "variadic keyword": "**"}
DRAWN = ("├", "│", "└")


def made() -> str:
    """The whole reference."""
    package = griffe.load("agentstate_client", search_paths=[str(HERE / "src")])
    assert isinstance(package, griffe.Module)
    return "\n".join(
        [
            HEAD,
            *prose(package.docstring),
            "",
            *section("Clients and handles", ASYNC, handles(package)),
            *section("What goes in and comes back", "", values(package)),
            *errors(package),
            *section("agentstate_client.testing", "", tested(package)),
            *fixtures(package),
            *section("agentstate_client.durable", DURABLE_TEXT, for_durable(package)),
            *section("agentstate_client.celery", "", for_celery(package)),
            *section("agentstate_client.langgraph", "", for_langgraph(package)),
            *section("agentstate_client.recording", "", recording(package)),
            *section("Hooks for agents' frameworks", "", hooks(package)),
        ]
    ).replace("\n\n\n", "\n\n")


def public(package: griffe.Module) -> Iterator[griffe.Object]:
    """What `from agentstate_client import …` gives, but for the names of async counterparts."""
    for name in package.exports or ():
        member = package[str(name)]
        target = member.final_target if isinstance(member, griffe.Alias) else member
        if not str(name).startswith("Async"):
            yield target


def handles(package: griffe.Module) -> list[griffe.Object]:
    found = [one for one in public(package) if "._sync." in one.path]
    return sorted(found, key=lambda one: (_place(one.name), one.name))


def _place(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def values(package: griffe.Module) -> list[griffe.Object]:
    found = [one for one in public(package) if one.path.split(".")[1] in VALUES]
    return sorted(found, key=lambda one: one.name)


def tested(package: griffe.Module) -> list[griffe.Object]:
    testing = package["testing"]
    return [testing[name].final_target for name in TESTING]


def for_langgraph(package: griffe.Module) -> list[griffe.Object]:
    module = package["langgraph"]
    return [module[name].final_target for name in LANGGRAPH]


def for_durable(package: griffe.Module) -> list[griffe.Object]:
    module = package["durable"]
    return [module[name].final_target for name in DURABLE]


def for_celery(package: griffe.Module) -> list[griffe.Object]:
    return [package["celery"]["DurableTask"]]


def recording(package: griffe.Module) -> list[griffe.Object]:
    module = package["recording"]
    return [module[name].final_target for name in RECORDING]


def hooks(package: griffe.Module) -> list[griffe.Object]:
    return [package[module][name] for module, name in HOOKS.items()]


def section(title: str, text: str, objects: Iterable[griffe.Object]) -> Iterator[str]:
    yield from ("", f"## {title}", "", text)
    for one in objects:
        yield from entry(one)


def entry(one: griffe.Object) -> Iterator[str]:
    """A class with its members, a function, or a constant."""
    yield from ("", f"### `{one.name}`", "")
    if isinstance(one, griffe.Attribute):
        yield from ("```python", f"{one.name} = {one.value}", "```")
        return
    if is_called(one):
        shape = signature(one)
        yield from ("```python", shape, "```", "")
    yield from prose(one.docstring)
    if isinstance(one, griffe.Class):
        for member in members(one):
            yield from ("", "```python", member_shape(member), "```", "")
            yield from prose(member.docstring)


def is_called(one: griffe.Object) -> bool:
    """Whether its caller is who reads this: most handles are handed out and never made."""
    made = (*VALUES, *HOOKS, "langgraph", "usage")
    is_made = one.path.split(".")[1] in made or one.name in MADE
    return one.is_function or is_made


def members(cls: griffe.Class) -> Iterator[griffe.Object]:
    """Public methods and properties that say something of their own."""
    for name, member in cls.all_members.items():
        target = member.final_target if isinstance(member, griffe.Alias) else member
        is_property = "property" in target.labels
        is_hidden = name.startswith("_") and name != "__call__"
        if is_hidden or not (target.is_function or is_property) or not target.docstring:
            continue
        if target.path.startswith("agentstate_client."):
            yield target


def member_shape(member: griffe.Object) -> str:
    if isinstance(member, griffe.Function):
        return signature(member)
    kind = f": {member.annotation}" if isinstance(member, griffe.Attribute) else ""
    return f"{member.name}{kind}  # property"


def signature(one: griffe.Object) -> str:
    """As it is called: without self, one argument a line when it would get too long."""
    if isinstance(one, griffe.Class):
        begin, arguments, answer = one.name, parameters(one.parameters), ""
    elif isinstance(one, griffe.Function):
        begin, arguments = f"def {one.name}", parameters(one.parameters)
        answer = f" -> {one.returns}" if one.returns is not None else ""
    else:
        return ""
    line = f"{begin}({', '.join(arguments)}){answer}"
    if len(line) <= LONGEST_LINE:
        return line
    return f"{begin}(\n" + "".join(f"    {one},\n" for one in arguments) + f"){answer}"


def parameters(found: griffe.Parameters) -> list[str]:
    written: list[str] = []
    keyword_only = False
    for one in found:
        if one.name in ("self", "cls") or one.name.startswith("_"):
            continue
        kind = one.kind
        if kind is griffe.ParameterKind.var_positional:
            keyword_only = True
        elif kind is griffe.ParameterKind.keyword_only and not keyword_only:
            written.append("*")
            keyword_only = True
        stars = STARS.get(kind.value if kind else "", "")
        text = f"{stars}{one.name}" + (f": {one.annotation}" if one.annotation else "")
        if one.default is not None and not stars:
            text += f" = {one.default}"
        written.append(text)
    return written


def errors(package: griffe.Module) -> Iterator[str]:
    """A table: by class, with the code that the store sends."""
    yield from ("", "## Errors", "")
    module = package["errors"]
    assert isinstance(module, griffe.Module)
    yield from prose(module.docstring)
    yield from ("", "| class | code | what it says |", "|---|---|---|")
    for one in sorted(public(package), key=lambda one: one.name):
        if one.path.startswith("agentstate_client.errors.") and isinstance(one, griffe.Class):
            code = one.members.get("code_of_class")
            shown = f"`{_text(code.value)}`" if isinstance(code, griffe.Attribute) else ""
            if shown == "``":
                shown = ""
            yield f"| `{one.name}` | {shown} | {summary(one.docstring)} |"


def fixtures(package: griffe.Module) -> Iterator[str]:
    """What the pytest plugin gives."""
    yield from ("", "### Fixtures", "", "| fixture | is |", "|---|---|")
    for name, member in package["testing.plugin"].members.items():
        if name.startswith("agentstate_"):
            yield f"| `{name}` | {summary(member.docstring)} |"


def prose(docstring: griffe.Docstring | None) -> Iterator[str]:
    """A docstring as Markdown: its examples and its drawings as code."""
    lines = (docstring.value if docstring is not None else "").splitlines()
    fence = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        wanted = "```python" if line.startswith((">>>", "...")) else ""
        if line.startswith(DRAWN) or following.startswith(DRAWN):
            wanted = "```"
        if fence and wanted != fence:
            yield "```"
        if wanted and wanted != fence:
            yield wanted
        fence = wanted
        yield line
    if fence:
        yield "```"


def summary(docstring: griffe.Docstring | None) -> str:
    """The first paragraph in one line."""
    text = docstring.value.split("\n\n")[0] if docstring is not None else ""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _text(value: object) -> str:
    return str(value).strip("'\"")


def main() -> int:
    """0 when it is as it should be or has been written, else 1."""
    wanted = made()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(wanted)
        return 0
    if TARGET.read_text() == wanted:
        return 0
    print("docs/client.md is not what the docstrings say: run client/write_reference.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
