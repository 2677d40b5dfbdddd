"""How the ranks of a training share its network: one module per strategy.

strategy    what each of them does; itself: the whole network on one device
ddp         the whole network on every rank, gradients exchanged
choosing    which one it is
"""
