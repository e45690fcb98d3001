"""What rejection sampling, trees, early exits, PreVerify and split layers add to the machines of a
session: what they send besides ids, and the frames that nobody else sends. `edge.EdgeRounds` and
`cloud.CloudRounds` are all that the machines know of it."""
