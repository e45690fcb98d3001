"""The edge's service: drafts, and holds the long stream to the verifier for each request."""
