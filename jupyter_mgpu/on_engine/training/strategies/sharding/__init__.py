"""What the strategy "fsdp" is made of.

units      which layers are gathered at a time
mesh       the ranks among which parameters are divided, and what they need
traffic    how numbers travel between CPU engines, and how long it takes
states     whole states, and a rank's part of them
"""
