"""Many runs: engines, progress, listings and the commands."""
