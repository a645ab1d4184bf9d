"""`python -m inexact_muon_lab.cli`, for launchers such as torchrun."""

from inexact_muon_lab.cli.app import main

if __name__ == "__main__":
    main()
