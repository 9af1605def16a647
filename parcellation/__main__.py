"""`python -m parcellation` is the console command."""

from parcellation.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
