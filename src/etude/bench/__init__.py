"""Package for benchmark suites, including suites made from a user's own sessions. Empty for now."""
