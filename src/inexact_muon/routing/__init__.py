"""Which parameters get the LMO, cut how, and which get AdamW: by their role in the model."""
