"""Services as remote objects: start, call, stream, put and get, health, kill.

Three backends implement the same contract: "processes" (a process per service, on one machine), "ray" (a process per
service, on one or more nodes) and "inline" (everything in this process).
"""

from etude.cluster.contract import (
    Cluster,
    ClusterError,
    DeadlineExceeded,
    Health,
    Remote,
    ServiceDied,
    ServiceFailed,
)
from etude.cluster.open_cluster import open_cluster
from etude.cluster.supervise import Supervised, start_supervised

__all__ = [
    "Cluster",
    "ClusterError",
    "DeadlineExceeded",
    "Health",
    "Remote",
    "ServiceDied",
    "ServiceFailed",
    "Supervised",
    "open_cluster",
    "start_supervised",
]
