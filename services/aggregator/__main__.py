"""`python -m services.aggregator` in a checkout: the same as `tandem serve aggregator`."""

import sys

from tandem.suite.supervised import run_module

if __name__ == "__main__":
    run_module("tandem.services.aggregator", sys.argv[1:])
