"""Package for real-time RL from production use. It is empty for now, and is meant for the signals that users give, and
for the gate, canary and rollback of new weights."""
