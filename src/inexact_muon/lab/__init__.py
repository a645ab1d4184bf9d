"""The lab is the package `inexact_muon_lab`; here stands what studies of users import."""
