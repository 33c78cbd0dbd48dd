"""Texts for the model besides the conversation: profiles, facts, nudges, and limits on tool output."""
