"""Trains one network on one device or on many ranks: the same batches, the same updates.

options     what was asked for          ranks       who trains, and how much each
batches     which samples, in order     sources     where samples come from
step        one update                  loop        all of them
strategies  how ranks share the network
forward     a network on a batch        metrics     what is measured beside the loss
evaluation  on data not trained on      validation  when, and the best network
ledger      what the ranks found        history     what was measured
averaging   of the weights              resuming    checkpoints: what is in them
prediction  outputs in order            telling     to the notebook
"""
