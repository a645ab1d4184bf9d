"""Which parameters get the LMO, how they are cut into matrices, and which get AdamW: by their role in the model."""
