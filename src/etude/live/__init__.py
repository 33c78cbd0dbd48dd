"""Package for real-time RL from production use: signals, gate, canary and rollback. Empty for now."""
