"""What runs in vLLM's interpreter: the only place that imports vLLM. Nothing outside imports it."""
