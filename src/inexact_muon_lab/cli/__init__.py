"""The command `inexact-muon`."""

from inexact_muon_lab.cli.app import COMMANDS as COMMANDS
from inexact_muon_lab.cli.app import main as main
