"""The commands in `dynamo --help`: one short line each, in groups."""

from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Serve": {
        "serve": "Serve a graph in this terminal, or with --detach without",
        "run": "Run one engine without a graph file (the same as dynamo-run)",
        "reload": "Change a running graph to new settings",
        "stop": "Stop a graph, or the daemon with all graphs",
    },
    "Look": {
        "status": "Show the daemon, its graphs and its problems",
        "ps": "List components with state, restarts and last error",
        "logs": "Show what components have logged and printed",
        "inspect": "Show what actors do: mailboxes, messages, task stacks",
        "explain": "Show why a request went to its worker",
        "env": "Print versions, platform and engines for a bug report",
    },
    "Change components": {
        "restart": "Restart the processes of a component, one after the other",
        "scale": "Set the number of processes of a component",
        "drain": "Take a component out of service; open requests finish",
    },
    "Models": {
        "pull": "Download a model into the local cache",
        "models": "List the models on this machine",
    },
    "Set up and try": {
        "config": "Check config files, print their JSON schema",
        "features": "List optional capabilities, and whether they are on",
        "sim": "Run the control plane under drawn faults, in virtual time",
    },
}
"""Per heading the commands in their order, each with its line."""
LONGEST = 60
"""Characters of a line."""
OTHERS = "More"
"""The heading of commands that features add, unless a command names another one (`rich_help_panel`)."""


class Overview(TyperGroup):
    """The group of all commands, whose help has headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the lists: those of `GROUPS`, then the commands that are not in it."""
        shown = {name: command for name in self.list_commands(ctx) if not (command := self.commands[name]).hidden}
        groups: dict[str, dict[str, str]] = {title: {**lines} for title, lines in {**GROUPS, OTHERS: {}}.items()}
        for name, command in shown.items():
            if not any(name in lines for lines in GROUPS.values()):
                title = getattr(command, "rich_help_panel", None)
                line = command.get_short_help_str(LONGEST).rstrip(".")
                groups[title if title in GROUPS else OTHERS][name] = line
        for title, lines in groups.items():
            rows = [(name.ljust(_WIDTH), line) for name, line in lines.items() if name in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


_WIDTH = max(len(name) for lines in GROUPS.values() for name in lines)
