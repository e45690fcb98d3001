"""The command `tandem`, also as `python -m tandem`. Invariant: Ctrl-C is one line and exit code
130, also while the command line is being imported."""

import sys


def main() -> None:
    """Run the command line; exits."""
    try:
        from tandem.cli import main as command_line
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
