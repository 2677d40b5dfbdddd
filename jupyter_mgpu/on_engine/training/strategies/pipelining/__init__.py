"""What the strategy "pipeline" is made of; imported when it trains, as all of it needs torch.

tracing     what a forward does, found out without data
links       a forward, taken apart into pieces that follow each other
sizes       how much each of them weighs
cuts        which of them make a stage
plan        the stages of a network, and what is refused
holdings    what each rank has of a network and its optimizer
needs       which data each rank loads
stage       the pieces of one rank, and how long they take
flow        torch's schedules, one per shape of the microbatches
assembly    one rank's end of a pipeline
stepper     one step
prediction  outputs only
"""
