"""`python -m services.verifier` in a checkout: the same as `tandem serve verifier`."""

import sys

from tandem.suite.supervised import run_module

if __name__ == "__main__":
    run_module("tandem.services.verifier", sys.argv[1:])
