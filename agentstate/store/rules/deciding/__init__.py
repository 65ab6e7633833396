"""One function per command: what it reads of the draft, which rules it asks, what it writes.

The order of checks is api.md's: exists, own replay, fence, terminal, preconditions, budget, write.
A function either returns the command's result, with its writes in the draft, or raises a Refusal;
then the draft is thrown away.
"""
