"""One request for text: its value, its protobuf form, its result and its client."""
