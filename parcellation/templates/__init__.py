"""One model a file, found by its name."""
