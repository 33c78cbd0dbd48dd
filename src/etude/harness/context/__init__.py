"""Texts for the model besides the conversation: the profile, facts about the environment, nudges, output limits."""
