"""The command line `agentstate`: what runs do, who holds what, what was spent.

    agentstate runs --status running
    agentstate tail 42

The address comes from --url or AGENTSTATE_URL, the key from AGENTSTATE_API_KEY or a file; never
from an argument, which every process of the machine could read. `agentstate --help` has the exit
codes; docs/command-line.md in the project's repository has it all with examples.
"""

from agentstate_client.cli.arguments import main

__all__ = ["main"]
