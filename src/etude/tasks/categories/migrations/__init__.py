"""Programs on an old interface, each also on the new one and in another honest hand's version, a file per pair."""
