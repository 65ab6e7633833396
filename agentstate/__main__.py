"""`python -m agentstate …`, which is what ./run calls."""

import sys

from agentstate.cli.arguments import main

sys.exit(main(sys.argv[1:]))
