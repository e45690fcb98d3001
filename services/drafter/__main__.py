"""`python -m services.drafter` in a checkout: the same as `tandem serve drafter`."""

import sys

from tandem.suite.supervised import run_module

if __name__ == "__main__":
    run_module("tandem.services.drafter", sys.argv[1:])
