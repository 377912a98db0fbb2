"""A store as trainers read it: speculators, SpecForge, or a torch dataset of one's own."""
