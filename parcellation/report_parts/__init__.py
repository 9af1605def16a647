"""What the report is made of: its content, tables, pictures, and the interactive surface."""
