"""The nodes of a cluster that only simulates them on one machine: names under which services can be lost together."""

from __future__ import annotations

from etude.cluster.contract import ClusterError


class NodeNames:
    """The names of the nodes that are not lost, the driver's own first."""

    def __init__(self, count: int) -> None:
        self.living = [f"node-{number}" for number in range(count)]

    def chosen(self, wanted: str) -> str:
        """Return the node to start a service on: the wanted one, or the driver's own if none is named. Raise
        ClusterError if there is no such node."""
        node = wanted or self.living[0]
        if node not in self.living:
            raise ClusterError(f"no node {node!r}; there are {', '.join(self.living)}")
        return node

    def lose(self, node: str) -> None:
        """Remove a node. Raise ClusterError for the driver's own, and for one that does not exist."""
        if node not in self.living[1:]:
            others = ", ".join(self.living[1:]) or "none"
            raise ClusterError(f"no node {node!r} that may be lost; there are {others}")
        self.living.remove(node)
