"""The report: one page from the stores of a folder. Reads files only; never imports torch."""
