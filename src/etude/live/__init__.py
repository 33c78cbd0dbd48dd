"""Real-time RL from production.

Empty for now: signals, gate, canary and rollback will live here."""
