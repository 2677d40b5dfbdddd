"""Callbacks that let other projects' trainers report to the notebook and end when it asks.

    lightning       for lightning.pytorch.Trainer
    transformers    for transformers.Trainer

Each imports its project, so import the one that you need.
"""
