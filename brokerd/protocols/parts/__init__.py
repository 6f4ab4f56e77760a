"""Parts that protocols are built of."""
