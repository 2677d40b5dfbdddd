"""The owner of a pool: its queue, engines and records. It sees packed calls, no user objects."""
