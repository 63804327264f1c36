"""What must be known of the input before it is encoded: counts, moments, distinct values."""
