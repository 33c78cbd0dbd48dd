"""Étude turns an open base model into your own coding agent."""

__version__ = "0.1.0"
