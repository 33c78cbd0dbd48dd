"""A fuzzer for everything that parses bytes of a box, an image or an agent.

A target is one parser with its oracle (targets/). A campaign runs a target in a child process on inputs that Hypothesis
draws from a description of the format, and on mutations of those that reached new lines. Each input is bounded in time
and memory. Whatever breaks a target is kept in seeds/TARGET/ and is run first from then on.

`make fuzz` runs campaigns by hand, test_targets.py a short one of each target.
"""
