"""The way out of a box: a policy of names, and a proxy on the host that reads, checks and logs every request.

Inside nothing is set up for it: programs connect as anywhere, and the network itself leads to the proxy."""

from etude.sandbox.egress.log import read_log
from etude.sandbox.egress.named import egress_of
from etude.sandbox.egress.policy import Policy
from etude.sandbox.egress.upstream import Upstream

__all__ = ["Policy", "Upstream", "egress_of", "read_log"]
