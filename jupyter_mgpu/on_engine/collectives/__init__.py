"""What the engine knows about torch.distributed: sockets, places, groups and patches."""
