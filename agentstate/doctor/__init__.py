"""What is wrong with a set-up, and how to mend it: `./run doctor`.

Each module looks at one thing and says what it found; nothing here changes anything.
"""

from agentstate.doctor.findings import Finding, Level

__all__ = ["Finding", "Level"]
