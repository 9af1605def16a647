"""One verb of the command line a file: each is one step of a study, can run alone, and skips what is finished."""
