"""Texts for the model besides the conversation: profiles (the harness's own texts), facts about the environment, and
nudges (reminders to a model that is stuck). Also cuts tool output to a limit."""
