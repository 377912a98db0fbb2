"""Which layers the stored states really are, and which side of the norm: against a reference."""
