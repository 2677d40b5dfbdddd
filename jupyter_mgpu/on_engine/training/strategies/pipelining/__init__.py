"""What the strategy "pipeline" is made of; imported when it trains, as all of it needs torch.

links       a forward, taken apart into pieces that follow each other
sizes       how much each of them weighs
cuts        which of them make a stage
holdings    what each rank has of a network and its optimizer
needs       which data each rank loads
stage       the pieces of one rank, and how long they take
flow        torch's schedules, one per shape of the microbatches
stepper     one step
"""
