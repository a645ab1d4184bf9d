"""`python -m inexact_muon.cli`, for launchers such as torchrun."""

from inexact_muon.cli.app import main

if __name__ == "__main__":
    main()
