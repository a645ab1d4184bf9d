"""One run: model, optimizer, clock, observers, checkpoint."""
