"""The edge's front service: owns a request from its prompt to its last token."""
