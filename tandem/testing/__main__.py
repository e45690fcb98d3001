"""`python -P -m tandem.testing`: the command `tandem`, whose `up` starts drafters and verifiers of
this room."""

from tandem.__main__ import main
from tandem.suite import child_process
from tandem.testing.mains import module_of

if __name__ == "__main__":
    child_process.module_of = module_of
    main()
