"""Goals: what people want done, which agent is to do it, and whose turn it is. `scheduler` is the way in."""
