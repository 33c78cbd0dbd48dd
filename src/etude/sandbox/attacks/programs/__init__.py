"""Programs that attacks run inside boxes. They are sent as source, use the standard library alone, and print BREACH for
each thing they achieved that the sandbox must prevent, and DONE at their end."""
