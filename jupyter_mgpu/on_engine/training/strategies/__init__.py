"""How the ranks of a training share its network: one module per strategy.

strategy    what each of them does; itself: the whole network on one device
ddp         the whole network on every rank, gradients exchanged
fsdp        a part of every parameter on each rank, see sharding
pipeline    some of the layers on each rank, see pipelining
choosing    which one it is
"""
