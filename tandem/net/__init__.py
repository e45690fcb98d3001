"""gRPC plumbing of every service: TLS, keys, channels, streams, status codes, lifecycle."""
