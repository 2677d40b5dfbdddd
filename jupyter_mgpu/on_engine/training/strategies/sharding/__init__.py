"""What the strategy "fsdp" is made of.

dividing   a network over the ranks
units      which layers are gathered at a time
mesh       the ranks, as torch sees them
traffic    how numbers travel between CPU engines, and how long it takes
trial      which parameters get gradients
states     whole states, and a rank's part of them
"""
