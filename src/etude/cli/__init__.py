"""The command line: one file or package per verb.

A verb imports the packages it needs only when it is called, so that --help stays fast."""
