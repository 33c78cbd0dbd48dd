"""Egress from a box: a policy of host names, and a proxy on the host that reads, checks and logs every request.

Nothing is configured inside the box: programs connect as usual, and the network itself leads to the proxy."""

from etude.sandbox.egress.log import read_log
from etude.sandbox.egress.named import egress_of
from etude.sandbox.egress.policy import Policy
from etude.sandbox.egress.upstream import Upstream

__all__ = ["Policy", "Upstream", "egress_of", "read_log"]
