//! What moves a live MobiFS engine: threads, clock, checkpointer, control socket.
