"""Benchmarks: suites, also from your own sessions.

Empty for now: suites and comparisons will live here."""
