"""The owner of a pool: its queue, its engines, its records. Sees packed calls, never user objects."""
