"""Files that versions of before wrote, and the tests that today's code reads them."""
