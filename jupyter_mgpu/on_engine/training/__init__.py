"""Trains one network on one device or on many ranks: the same batches, the same updates.

options     what was asked for           ranks      who trains, and how much each
batches     which samples, in order      sources    where samples come from
step        one update                   loop       all of them
evaluation  validation, predictions      history    what was measured
"""
