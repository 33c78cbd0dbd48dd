"""One server over any engine, for clients of OpenAI's and Anthropic's protocols."""
