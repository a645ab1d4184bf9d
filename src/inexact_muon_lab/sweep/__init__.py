"""Many runs: engines, progress, listings and commands."""
