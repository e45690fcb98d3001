"""Messages of the edge–cloud conversation as protobuf, and back."""
