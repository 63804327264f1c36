"""What people read: numbers in words, and the frame and common style of a page."""
