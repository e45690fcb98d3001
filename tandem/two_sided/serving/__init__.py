"""The gRPC half: frames as protobuf, the decoder's service, links and sessions of both sides."""
