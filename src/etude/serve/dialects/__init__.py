"""The protocols that clients speak: each reads requests and writes answers in its own words."""
