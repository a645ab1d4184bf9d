"""`python -m inexact_muon` is the command `inexact-muon`."""

from inexact_muon.cli import main

if __name__ == "__main__":
    main()
