"""Images that go with a prompt."""
