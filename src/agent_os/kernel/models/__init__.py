"""Models: providers behind one interface, the queue of each key, prices and estimates. Decisions apart from doing."""
