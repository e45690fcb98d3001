"""The command `tandem`, also as `python -m tandem`. Invariants: Ctrl-C is one line and exit code
130, also while the command line is being imported; no text is too wide for the terminal."""

import io
import os
import sys


def main() -> None:
    """Run the command line, and end the process."""
    # For processes that a library starts: `python -c` and `-m` import from the working directory.
    os.environ["PYTHONSAFEPATH"] = "1"
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Models and documents write what a Latin terminal, say, has no letters for.
        sys.stdout.reconfigure(errors="replace")
    try:
        from tandem.cli import main as command_line
        from tandem.suite.process_end import leave
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    try:
        command_line()
    except SystemExit as ended:
        leave(ended)


if __name__ == "__main__":
    main()
