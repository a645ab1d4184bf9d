"""The command `inexact-muon`."""

from inexact_muon.cli.app import COMMANDS as COMMANDS
from inexact_muon.cli.app import main as main
