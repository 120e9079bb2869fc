"""What the pages of the admin share: HTML, pages that only look, forms that change a row, refusals of the database."""
