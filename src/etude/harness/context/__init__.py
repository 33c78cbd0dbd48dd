"""Texts for the model besides the conversation: profiles, facts about the environment, nudges and limits on tool
output."""
