"""schemathesis as a child of the supervisor, which takes any code but 0 for a death."""

from schemathesis.cli import schemathesis

FOUND_SOMETHING = 1  # its report says what

if __name__ == "__main__":
    try:
        schemathesis()
    except SystemExit as ended:
        if ended.code not in (0, FOUND_SOMETHING):
            raise
