"""What the model reads besides the conversation: the profile's texts, facts about its environment, bounded outputs."""
