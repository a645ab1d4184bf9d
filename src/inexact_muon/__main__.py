"""`python -m inexact_muon` is the command `inexact-muon`, which lives in the lab."""

from inexact_muon_lab.__main__ import main

if __name__ == "__main__":
    main()
