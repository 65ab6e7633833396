"""`python -m agentstate_client.cli`, the same as `agentstate`."""

import sys

from agentstate_client.cli.arguments import main

sys.exit(main())
