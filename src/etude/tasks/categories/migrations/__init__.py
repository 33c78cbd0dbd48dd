"""Programs that use an old interface, each with two honest migrations to the new one. One file per pair of
interfaces."""
