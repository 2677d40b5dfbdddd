"""How owner and engines of different hosts learn that the other side is gone. All times are here.

    guard, every BEAT_S:        a beat                  owner: counts its own ticks without one
    zmq in C, every BEAT_S:     ping, pong              guard: sees the connection end

A link that is cut for some seconds is survived by both sides. The owner counts ticks of its loop
and not seconds, so that a kernel that was busy, stopped or asleep finds nobody dead when it wakes.
The guard's pings are answered by zmq's own thread, however long the kernel's is busy.
"""

BEAT_S = 1.0
MISSED_BEATS = 8
"""So many ticks of the owner without a word, and an engine counts as lost."""

PONG_S = 3.0
"""So long without an answer, and the guard's connection counts as cut."""
AWAY_S = 5.0
"""So long without a connection, and the owner counts as gone: the engine is ended."""

URL_VARIABLE = "MGPU_LIFELINE"
"""Where the owner listens for the guard of an engine on another host."""
