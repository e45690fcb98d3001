"""`python -m services.retriever` in a checkout: the same as `tandem serve retriever`."""

import sys

from tandem.suite.supervised import run_module

if __name__ == "__main__":
    run_module("tandem.services.retriever", sys.argv[1:])
