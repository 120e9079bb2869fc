"""What the commands print: a report for each of them."""
