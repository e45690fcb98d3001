"""All services together: in one process, or as processes of this machine."""
