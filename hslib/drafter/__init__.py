"""speculators' own EAGLE-3 drafter on a CPU, trained on right and on misfiled states."""
