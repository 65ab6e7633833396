"""An MCP server: an assistant looks at runs, leases and contention, and proposes reclaims.

    agentstate mcp

It speaks over stdin and stdout with the assistant's program, and over the API with agentstate, by
the key that it was given. It reads; the one thing that it writes is a proposal, which a person
confirms or declines in the console. docs/integrations/mcp.md in the project's repository has it
with examples. Needs the extra: pip install 'agentstate-client[mcp]'.
"""
