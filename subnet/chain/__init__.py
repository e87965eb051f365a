"""The subnet's chain behind one seam, live or in memory."""
