"""The services, one package each; `python -m tandem.services.NAME` runs one."""

import os

# Read by gRPC's C core when it is first imported, hence here: its own words on standard error would
# stand between our log lines, which are JSON.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
