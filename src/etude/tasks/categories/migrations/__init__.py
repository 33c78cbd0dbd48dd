"""Programs that use an old interface, each with two correct migrations to the new interface. There is one file per pair
of interfaces."""
