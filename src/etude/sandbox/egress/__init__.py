"""Network access of a box: a policy of allowed host names, and a proxy on the host that reads, checks and logs every
request.

Nothing is configured inside the box. Programs connect as usual, and the box's network leads every connection to the
proxy.
"""

from etude.sandbox.egress.log import read_log
from etude.sandbox.egress.policy import Policy
from etude.sandbox.egress.policy_text import parse_egress
from etude.sandbox.egress.upstream import Upstream

__all__ = ["Policy", "Upstream", "parse_egress", "read_log"]
