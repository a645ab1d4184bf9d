"""What runs leave behind: outcomes, curves, the index, and packed evidence."""
